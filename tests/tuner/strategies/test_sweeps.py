"""Recorded sweeps, as they are read, and what is learned from them."""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path

import pytest
from script_helpers import load_script
from search_spaces import CPU

from dispatch_profiler.configurations import CpuTiles, Default, rejection_reason, spaces
from dispatch_profiler.errors import UsageError
from dispatch_profiler.operations import Conv2d, Matmul, Operation
from dispatch_profiler.tuner.strategies.prior import read_sweep

OPERATION = Matmul(96, 128, 64)
CONVOLUTION = Conv2d(1, 14, 14, 64, 64, 3, 3, padding=(1, 1), layout="nhwc_fhwc_nhwc")
CHOICES = {"distribution_m": [16, 32], "distribution_n": [64], "cached": [False], "cache_m": [1], "cache_n": [1],
           "cache_k": [1], "vector_m": [4, 8], "vector_n": [32], "vector_k": [4], "split_k": [1]}  # fmt: skip
HEAD = {
    "operation": OPERATION.to_dict(), "name": OPERATION.name, "target": "llvm-cpu", "cores": 16,
    "spaces": [{"of": "cpu_tiles", "axes": CHOICES}],
}  # fmt: skip


def outcome(configuration, ms: float | None) -> dict[str, object]:
    return {"configuration": configuration.to_dict(), "verdict": "SUCCESS", "ms": ms, "interval": None}


OUTCOMES = [
    outcome(Default(), 2.0),
    outcome(CpuTiles((16, 64), (8, 32, 4)), 1.0),
    outcome(CpuTiles((32, 64), (4, 32, 4)), None),
]


def write(path: Path, *lines: object) -> Path:
    text = "".join(json.dumps(line) + "\n" for line in lines)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
def test_a_sweep_has_the_times_of_a_reduced_space(tmp_path: Path, name: str):
    sweep = read_sweep(write(tmp_path / name, HEAD, *OUTCOMES))
    assert sweep.operation == OPERATION
    assert sweep.cores == 16
    assert sweep.best == 1.0
    assert list(sweep.times.values()) == [2.0, 1.0, None]
    assert [space.size for space in sweep.spaces] == [4]


def test_only_what_was_recorded_is_valid_in_its_search_space(tmp_path: Path):
    space = read_sweep(write(tmp_path / "a.jsonl", HEAD, *OUTCOMES)).search_space()
    assert space.is_valid(Default())
    assert set(space.enumerate_valid(0)) == {CpuTiles((16, 64), (8, 32, 4)), CpuTiles((32, 64), (4, 32, 4))}


def test_spaces_are_found_by_name_whatever_their_order(tmp_path: Path):
    """A kind that is added later must not shift them; one that is removed is left out."""
    flow = {"of": "flow", "axes": {"flow": ["ukernels"]}}
    gone = {"of": "im3col", "axes": {"x": [1]}}
    head = {**HEAD, "spaces": [flow, gone, *HEAD["spaces"]]}
    found = read_sweep(write(tmp_path / "a.jsonl", head, *OUTCOMES)).spaces
    assert [space.kind.kind for space in found] == ["flow", "cpu_tiles"]
    assert found[1].axes[0].choices == (16, 32)
    assert len(spaces(OPERATION, CPU)) > 2


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["not an object"], "line 1"),
        ([HEAD], "no configuration has a time"),
        ([HEAD, OUTCOMES[2]], "no configuration has a time"),
        ([HEAD, OUTCOMES[0], {**OUTCOMES[1], "ms": -1}], "line 3: ms: expected a positive number"),
        ([HEAD, {**OUTCOMES[0], "configuration": {"kind": "nothing"}}], "line 2: unknown configuration kind"),
        ([{**HEAD, "target": "abacus"}, *OUTCOMES], "unknown target 'abacus'"),
    ],
)
def test_a_damaged_sweep_is_rejected_with_its_line(tmp_path: Path, lines, message: str):
    with pytest.raises(UsageError, match=message):
        read_sweep(write(tmp_path / "a.jsonl", *lines))


def test_a_file_that_is_cut_is_rejected(tmp_path: Path):
    path = write(tmp_path / "a.jsonl.gz", HEAD, *OUTCOMES)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(UsageError, match=r"a\.jsonl\.gz"):
        read_sweep(path)


# -- recording -------------------------------------------------------------------------------------

recording = load_script("scripts/record_sweep.py")


@pytest.mark.parametrize("operation", [Matmul(1, 1000, 2048), CONVOLUTION], ids=["matmul", "conv2d"])
def test_what_is_swept_are_small_parts_of_every_space(operation: Operation):
    full = spaces(operation, CPU)
    for space, whole in zip(map(recording.reduced, full), full, strict=True):
        assert space.size <= 1000
        for axis, all_of in zip(space.axes, whole.axes, strict=True):
            assert set(axis.choices) <= set(all_of.choices)
        if space.size > 100:
            configurations = {space.to_configuration(point) for point in space.points()}
            assert any(rejection_reason(each, operation, CPU) is None for each in configurations)


@pytest.mark.slow
def test_a_recorded_sweep_is_read_back(tmp_path: Path, monkeypatch):
    workload = tmp_path / "small.yaml"
    workload.write_text(
        "format: dispatch_profiler workload\nversion: 1\noperations:\n"
        "  - {operation: {kind: matmul, m: 4, n: 64, k: 32}}\n  - {operation: {kind: matmul, m: 8, n: 64, k: 32}}\n"
    )
    options = [
        str(workload),
        "--output",
        str(tmp_path / "out"),
        "--seconds=600",
        "--evaluations=4",
        "--part=1/2",
    ]
    monkeypatch.setattr(sys, "argv", ["record_sweep.py", *options])

    assert recording.main() == 0

    (path,) = (tmp_path / "out").iterdir()
    sweep = read_sweep(path)
    assert sweep.operation == Matmul(8, 64, 32)
    assert len(sweep.times) == 4
    assert all(map(sweep.search_space().is_valid, sweep.times))
    assert sweep.times[Default()] is not None
