"""Tuning files: what is written is read back, and everything else is rejected with its key."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from every_kind import EVERY_MODE, IDS
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dispatch_profiler.errors import DispatchProfilerError, UsageError
from dispatch_profiler.operations import Matmul, Operation
from dispatch_profiler.targets import parse_target
from dispatch_profiler.tuner.strategies import DEFAULT_STRATEGY
from dispatch_profiler.tuner.tunings.tuning_file import (
    DEFAULT_EVALUATIONS,
    Tuning,
    read_tuning,
    read_tunings,
    tuning_text,
)

CPU = parse_target("llvm-cpu")
OPERATION = Matmul(128, 768, 768, rhs_layout="n")
TUNING = Tuning(
    "SSS_TN_0", OPERATION, CPU, "local-task", 48, 31.25, 'a "log".yaml:1', ("cpu_tiles", "flow"), "exhaustive", 7, 2.5, 9
)  # fmt: skip
SHORT = """\
format: dispatch_profiler tuning
operation: {kind: matmul, m: 128, n: 768, k: 768, rhs_layout: n}
target: llvm-cpu
"""


def save(text: str, name: str = "x.yaml") -> Path:
    Path(name).parent.mkdir(exist_ok=True)
    Path(name).write_text(text)
    return Path(name)


def test_a_tuning_is_read_back():
    assert read_tuning(save(tuning_text(TUNING))) == TUNING


@pytest.mark.parametrize("operation", EVERY_MODE, ids=IDS)
@pytest.mark.parametrize("target", ["llvm-cpu:znver4", "rocm:gfx950"])
def test_every_operation_is_read_back(operation: Operation, target: str):
    tuning = Tuning("X_0", operation, parse_target(target), "hip://1")
    assert read_tuning(save(tuning_text(tuning))) == tuning


def test_only_the_operation_and_the_target_are_required():
    assert read_tuning(save(SHORT, "mine.yaml")) == Tuning(
        "mine", OPERATION, CPU, "local-task", 1, None, "", (), DEFAULT_STRATEGY, DEFAULT_EVALUATIONS
    )


def test_a_budget_in_seconds_replaces_the_default_number_of_evaluations():
    assert (read_tuning(save(SHORT + "seconds: 60\n")).evaluations, DEFAULT_EVALUATIONS) == (None, 64)
    both = read_tuning(save(SHORT + "seconds: 60\nevaluations: 9\n"))
    assert (both.evaluations, both.seconds) == (9, 60.0)


def test_its_space_has_the_kinds_that_it_names():
    every = {space.kind.kind for space in replace(TUNING, kinds=()).space().spaces}
    assert every > {"cpu_tiles", "flow"}
    assert {space.kind.kind for space in TUNING.space().spaces} == {"cpu_tiles", "flow"}


def test_its_space_packs_weights_only_if_they_are_constants():
    """It is read back, and its file says nothing otherwise."""
    packed = replace(TUNING, kinds=(), packed_weights=True)
    spaces = {True: packed.space().spaces, False: replace(packed, packed_weights=False).space().spaces}

    def packing(constant: bool) -> list[bool]:
        points = [(each, tuple(axis.choices[0] for axis in each.axes)) for each in spaces[constant]]
        return [each.to_configuration(point).packs_weight for each, point in points]

    assert any(packing(True)) and not any(packing(False))
    assert spaces[True][: len(spaces[False])] == spaces[False]
    assert read_tuning(save(tuning_text(packed))) == packed
    assert "packed_weights" not in tuning_text(TUNING)


@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [
        ("format: dispatch_profiler tuning", "format: other", "is not a tuning file"),
        ("format: dispatch_profiler tuning", "- 3", "x.yaml"),
        ("target: llvm-cpu", "", "target: missing"),
        ("target: llvm-cpu", "target: [1]", "target: expected a string"),
        ("target: llvm-cpu", "target: cpu", "unknown target 'cpu'"),
        ("kind: matmul", "kind: matmull", "unknown operation kind 'matmull'"),
        ("m: 128", "m: 0", "m"),
        ("m: 128, ", "", "m"),
        ("operation: {", "operations: {", "unknown key 'operations'"),
        ("target: llvm-cpu", "target: llvm-cpu\nstrategy: gentic", "strategy: unknown name 'gentic'"),
        ("target: llvm-cpu", "target: llvm-cpu\nkinds: [cpu_tile]", "kinds: unknown name 'cpu_tile'"),
        ("target: llvm-cpu", "target: llvm-cpu\nkinds: cpu_tiles", "kinds: expected a list"),
        ("target: llvm-cpu", "target: llvm-cpu\nevaluations: 0", "evaluations: expected a whole number"),
        ("target: llvm-cpu", "target: llvm-cpu\nevaluations: 1.5", "evaluations: expected a whole number"),
        ("target: llvm-cpu", "target: llvm-cpu\npacked_weights: 2", "packed_weights: expected"),
        ("target: llvm-cpu", "target: llvm-cpu\nseconds: 0", "seconds: expected a number above 0"),
        ("target: llvm-cpu", "target: llvm-cpu\nseconds: .nan", "seconds: expected a number"),
        ("target: llvm-cpu", "target: llvm-cpu\ncount: 0", "count: expected a whole number"),
        ("target: llvm-cpu", "target: llvm-cpu\nshare: -1", "share: expected a number of at least 0"),
        ("target: llvm-cpu", "target: llvm-cpu\nseed: -1", "seed: expected a whole number"),
        ("target: llvm-cpu", "target: llvm-cpu\nversion: 2", "version: this program reads version 1"),
        ("target: llvm-cpu", "target: llvm-cpu\nname: ../x", "name: expected letters"),
        ("target: llvm-cpu", "target: llvm-cpu\nname: a b", "name: expected letters"),
        ("target: llvm-cpu", "target: *x", "x.yaml"),
        ("target: llvm-cpu", "target: {{", "x.yaml"),
    ],
)  # fmt: skip
def test_a_damaged_file_is_rejected_with_its_name_and_key(before: str, after: str, reason: str):
    assert before in SHORT
    with pytest.raises(UsageError) as caught:
        read_tuning(save(SHORT.replace(before, after)))
    assert str(caught.value).startswith("x.yaml")
    assert reason in str(caught.value)


def test_a_wrong_key_has_a_suggestion():
    with pytest.raises(UsageError) as caught:
        read_tuning(save(SHORT + "evalutions: 5\n"))
    assert caught.value.hint.startswith("did you mean 'evaluations'?")


@settings(max_examples=200, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 10_000), st.binary(max_size=6))
def test_a_file_damaged_at_random_is_read_or_rejected(tmp_path: Path, at: int, noise: bytes):
    """Never anything else."""
    data = tuning_text(TUNING).encode()
    path = tmp_path / "noise.yaml"
    at %= len(data)
    path.write_bytes(data[:at] + noise + data[at + len(noise) :])
    try:
        read_tuning(path)
    except DispatchProfilerError as error:
        assert "noise.yaml" in str(error)


# -- folders ---------------------------------------------------------------------------------------


def test_the_files_of_a_folder_come_in_the_order_of_their_numbers():
    for number in (10, 2, 0):
        tuning = replace(TUNING, name=f"SSS_TN_{number}", operation=Matmul(number + 1, 4, 4))
        save(tuning_text(tuning), f"t/SSS_TN_{number}.yaml")
    save("configurations: []", "t/other.yaml")
    tunings, errors = read_tunings(Path("t"))
    assert ([each.name for each in tunings], errors) == (["SSS_TN_0", "SSS_TN_2", "SSS_TN_10"], ())
    assert read_tunings(Path("t/SSS_TN_2.yaml"))[0] == tunings[1:2]


def test_a_damaged_file_of_a_folder_affects_no_other():
    save(tuning_text(TUNING), "t/a.yaml")
    save(SHORT + "evaluations: none\n", "t/b.yaml")
    save("{", "t/c.yaml")
    tunings, errors = read_tunings(Path("t"))
    assert tunings == (TUNING,)
    assert [str(each).partition(":")[0].split()[0] for each in errors] == ["t/b.yaml", "t/c.yaml"]


def test_a_folder_without_tuning_files_is_an_error():
    save("configurations: []", "t/other.yaml")
    with pytest.raises(UsageError, match=r"^t has no tuning files$") as caught:
        read_tunings(Path("t"))
    assert "gen_configs" in caught.value.hint


@pytest.mark.parametrize(
    ("second", "same"),
    [(replace(TUNING, operation=Matmul(1, 2, 3)), "the name SSS_TN_0"), (replace(TUNING, name="B"), OPERATION.name)],
)  # fmt: skip
def test_two_files_for_the_same_problem_are_an_error(second: Tuning, same: str):
    save(tuning_text(TUNING), "t/a.yaml")
    save(tuning_text(second), "t/b.yaml")
    with pytest.raises(UsageError, match=f"t/a.yaml and t/b.yaml are both for {same}"):
        read_tunings(Path("t"))
