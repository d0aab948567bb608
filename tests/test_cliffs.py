"""Benchmark of unaligned shapes: what it draws, what it compares with, and what it makes of times."""

from __future__ import annotations

import argparse
from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest
from script_helpers import load_script

cliffs = load_script("benchmarks/cliffs.py")
KINDS = tuple(cliffs.KINDS)


def test_a_number_is_always_the_same_case():
    assert [cliffs.case_of(number, "f32") for number in range(30)] == [
        cliffs.case_of(number, "f32") for number in range(30)
    ]


def test_three_hundred_cases_cover_what_the_benchmark_promises():
    cases = [cliffs.case_of(number, "f32") for number in range(300)]
    signatures = [case.signature for case in cases]

    assert {case.kind for case in cases} == set(KINDS)
    assert {str(each.mode) for each in signatures} == {"forward", "input_backward", "weight_backward"}
    products = [each for each in signatures if isinstance(each, cliffs.GEMMSignature)]
    extents = [extent for each in products for extent in (*each.a_shape, each.b_shape[1])]
    assert 1 <= min(extents) < 5
    assert 900 < max(extents) <= 1100
    assert sum(extent % 4 != 0 for extent in extents) > len(extents) / 2
    strides = [each.stride[0] for each in signatures if getattr(each, "transposed", False)]
    assert max(strides) > 24
    assert all(each.operation.flops <= cliffs.MOST_FLOPS for each in signatures)
    assert len({case.name.partition(": ")[2] for case in cases}) > 290


@cache
def _smallest() -> list[int]:
    """Numbers of cases whose reference takes little time."""
    return sorted(range(180), key=lambda number: cliffs.case_of(number, "f32").signature.operation.flops)


@pytest.mark.parametrize("place", range(45))
def test_torch_computes_what_a_launch_does(place: int):
    """The reference in numpy is the truth."""
    pytest.importorskip("torch")
    signature = cliffs.case_of(_smallest()[place], "f32").signature
    arguments = signature.get_sample_args(seed=place)

    found = cliffs.torch_call(signature)(*arguments)

    (spec,) = signature.launch.results
    assert tuple(found.shape) == tuple(spec.shape)
    placed = sorted(
        zip(signature.launch.arguments, arguments, strict=True), key=lambda each: each[0].position
    )
    operands = [argument.numpy().reshape(given.kernel_shape) for given, argument in placed]
    (expected,) = signature.operation.reference(operands)
    values = np.asarray(expected.expected, np.float64)
    difference = np.abs(found.numpy().reshape(spec.kernel_shape) - values).max()
    assert difference <= 1e-4 * max(1.0, np.abs(values).max())


def _times(launch: float, compiled: float, seconds: float = 1.0) -> object:
    sides = {
        "torch": [1.0] * 5,
        "torch, compiled": [1.0] * 5,
        "launch": [1.0 / launch] * 5,
        "compiled": [1.0 / compiled] * 5,
    }
    return cliffs.Times(sides, seconds, 2.0)


def test_goals_are_for_the_mean_and_the_slowest_and_a_failed_case_misses_one():
    cases = [cliffs.case_of(number, "f32") for number in range(3)]
    good = list(zip(cases, [_times(0.5, 1.0), _times(2.0, 0.95), _times(1.0, 1.1)], strict=True))
    bad = list(zip(cases, [_times(0.3, 0.8, 31.0), _times(0.5, 1.0), None], strict=True))

    assert all(row.holds for row in cliffs.rows_of(good))
    missed = [row.name for row in cliffs.rows_of(bad) if not row.holds]
    assert missed[0] == f"{cases[2].name}: failed"
    assert missed[1:] == [
        "launches against torch, 2 cases",
        "the slowest launch",
        "the longest first call of a launch",
        "the slowest compiled function",
    ]


def test_a_case_that_fails_is_printed_and_the_next_one_is_measured(capsys, monkeypatch):
    def measure(number: int, *_: object) -> object:
        if number == 5:
            raise RuntimeError("no kernel")
        return _times(1.0, 1.0)

    monkeypatch.setattr(cliffs, "in_new_process", lambda function, *arguments: function(*arguments))
    options = SimpleNamespace(first=5, type="f32", kinds=KINDS)

    found = list(cliffs.measured(options, 2, measure))

    assert [times is None for _, times in found] == [True, False]
    said = capsys.readouterr().out.splitlines()
    assert said[0].endswith("failed: RuntimeError: no kernel")
    assert said[1].startswith("  1.00 launch   1.00 compiled")


def test_a_number_names_the_same_case_whatever_kinds_are_asked_for():
    assert cliffs.numbers_of(KINDS, 5, 3) == [5, 6, 7]
    assert [cliffs.case_of(each, "f32").kind for each in cliffs.numbers_of(["transposed"], 4, 3)] == [
        "transposed"
    ] * 3


def test_no_cases_are_an_error():
    with pytest.raises(argparse.ArgumentTypeError, match="from 1 upwards, but got '0'"):
        cliffs.positive("0")


def test_an_unknown_kind_is_an_error_that_names_those_there_are():
    with pytest.raises(
        argparse.ArgumentTypeError, match="unknown kind 'matrix'; available: product, convolution"
    ):
        cliffs.kinds_of("product,matrix")


def test_ctrl_c_shows_what_was_measured(capsys, monkeypatch):
    def measured(*_: object) -> object:
        yield cliffs.case_of(0, "f32"), _times(1.0, 1.0)
        raise KeyboardInterrupt

    monkeypatch.setattr(cliffs, "measured", measured)
    monkeypatch.setattr("sys.argv", ["cliffs.py", "--count=9"])

    assert cliffs.main() == 130
    said = capsys.readouterr().out
    assert "interrupted after 1 of 9 cases" in said
    assert "launches against torch, 1 cases" in said
