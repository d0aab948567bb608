"""`tune --range`: what it accepts, and the library that it writes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from dispatch_profiler.__main__ import main
from dispatch_profiler.command import FAILED, SUCCESS, USAGE
from dispatch_profiler.configurations import RowsMicrokernel
from dispatch_profiler.dispatches import Dispatch
from dispatch_profiler.library import Entry, Estimate, Library
from dispatch_profiler.library.entry import SizeTime
from dispatch_profiler.operations import Matmul, Operation, Softmax
from dispatch_profiler.operations.size_range import SizeRange
from dispatch_profiler.targets import LARGEST_BATCH, parse_target, rows_microkernel
from dispatch_profiler.tuner.commands import tune_range
from dispatch_profiler.tuner.ranges.range_search import JudgedBucket, RangeResult
from dispatch_profiler.workloads import Workload, WorkloadEntry, write_workload
from tests.library.library_samples import HERE

LINEAR = Matmul(5, 70, 40, rhs_layout="n")
SPEEDUP = Estimate(1.5, 1.4, 1.6)


def tune(tmp_path: Path, operations: list[Operation], *options: str) -> int:
    file = tmp_path / "workload.yaml"
    write_workload(Workload(tuple(map(WorkloadEntry, operations))), file)
    return main(["tune", str(file), "-o", str(tmp_path / "tuned"), *options])


WRONG = {
    "one size": (["--range=m=5"], "expected DIMENSION=LEAST:MOST, such as m=1:4096"),
    "terms": (["--range=k=1:10"], "no kernel is for several k; dimensions that may vary: m (product) and n"),
    "order": (["--range=m=10:1"], "the range is empty; did you mean m=1:10?"),
    "columns": (["--range=n=1:10"], "one kernel is for several m, not for several n"),
    "twice": (["--range=m=1:4", "--range=m=5:9"], "m has two ranges"),
    "strategy": (["--range=m=1:4", "--strategy=random"], "--strategy cannot be combined with --range"),
    "share": (["--range=m=1:4", "--min-share=3"], "--min-share cannot be combined with --range"),
}


@pytest.mark.parametrize(("options", "message"), WRONG.values(), ids=WRONG)
def test_wrong_options_are_errors(
    options: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert tune(tmp_path, [LINEAR], *options) == USAGE
    assert message in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "tuned").exists()


def test_an_operation_without_such_a_dimension_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert tune(tmp_path, [Softmax(4, 8)], "--range=m=1:4") == USAGE
    assert "no kernel of such an operation is for several sizes" in " ".join(capsys.readouterr().err.split())


def test_a_model_and_a_library_have_no_range(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["tune", "model.py:make_model", "--range=m=1:4"]) == USAGE
    assert "a model is tuned for the sizes of its inputs" in " ".join(capsys.readouterr().err.split())
    assert main(["tune", "--recheck", "xeon-avx512", "--range=m=1:4"]) == USAGE
    assert "--range cannot be combined with --recheck" in capsys.readouterr().err


def found(operation: Operation, *ranges: SizeRange) -> RangeResult:
    """A result with an entry for each range."""
    buckets = []
    for sizes in ranges:
        kernel = RowsMicrokernel((2, 32), ((sizes.most, 1, 32),))
        entry = Entry(
            Dispatch(sizes.largest_of(operation), kernel),
            *(SPEEDUP, SPEEDUP, HERE, sizes),
            (SizeTime(sizes.least, 1.0, 1.5),),
        )
        buckets.append(JudgedBucket(sizes, kernel.name, SPEEDUP, entry))
    return RangeResult(operation, SizeRange("m", ranges[0].least, ranges[-1].most), tuple(buckets), 7)


@pytest.fixture
def search(monkeypatch: pytest.MonkeyPatch) -> Callable[[RangeResult], list[Operation]]:
    """Lets searches find a result; returns the operations that are searched."""

    def use(result: RangeResult) -> list[Operation]:
        searched: list[Operation] = []

        def invented(operation: Operation, *arguments: object) -> RangeResult:
            searched.append(operation)
            return result

        monkeypatch.setattr(tune_range, "search_range", invented)
        return searched

    return use


LOW, HIGH, WHOLE = SizeRange("m", 1, 16), SizeRange("m", 17, 256), SizeRange("m", 1, 256)


def test_operations_that_differ_in_their_size_are_tuned_once(
    tmp_path: Path, search: Callable[[RangeResult], list[Operation]], capsys: pytest.CaptureFixture[str]
):
    searched = search(found(LINEAR, LOW, HIGH))
    assert tune(tmp_path, [LINEAR, replace(LINEAR, m=9)], "--range=m=1:256") == SUCCESS
    assert searched == [LINEAR]
    library = Library.load(tmp_path / "tuned" / "final")
    assert [each.sizes for each in library.entries] == [LOW, HIGH]
    said = capsys.readouterr().err
    assert (
        "m=17:256: tile_config_rows_microkernel_2x32_u4_256x1x32: 1.50 (1.40 to 1.60) times as fast"
        in " ".join(said.split())
    )


def test_entries_within_the_range_are_replaced_and_others_stay(
    tmp_path: Path, search: Callable[[RangeResult], list[Operation]]
):
    search(found(LINEAR, LOW, HIGH, SizeRange("m", 257, 4096)))
    tune(tmp_path, [LINEAR], "--range=m=1:4096")
    search(found(LINEAR, WHOLE))
    tune(tmp_path, [LINEAR], "--range=m=1:256")
    other = replace(LINEAR, k=41)
    search(found(other, LOW))
    tune(tmp_path, [other], "--range=m=1:16")
    library = Library.load(tmp_path / "tuned" / "final")
    known = [(each.operation.k, each.sizes and each.sizes.text) for each in library.entries]  # type: ignore[attr-defined]
    assert sorted(known) == [(40, "m=1:256"), (40, "m=257:4096"), (41, "m=1:16")]


def test_operations_that_a_range_does_not_suit_are_skipped(
    tmp_path: Path, search: Callable[[RangeResult], list[Operation]], capsys: pytest.CaptureFixture[str]
):
    searched = search(found(LINEAR, LOW))
    assert tune(tmp_path, [Softmax(4, 8), LINEAR], "--range=m=1:16") == FAILED
    assert searched == [LINEAR]
    assert "skipped: softmax_4x8" in capsys.readouterr().err


def test_what_is_left_when_the_time_is_over_is_not_tuned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(tune_range, "time_left", lambda ends, at: lambda: 0.0)
    assert tune(tmp_path, [LINEAR], "--range=m=1:16", "--time=1s") == FAILED
    assert "not tuned, for lack of time" in capsys.readouterr().err


def test_ctrl_c_keeps_the_entries_of_earlier_operations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def interrupted(operation: Operation, *arguments: object) -> RangeResult:
        if operation != LINEAR:
            raise KeyboardInterrupt
        return found(LINEAR, LOW)

    monkeypatch.setattr(tune_range, "search_range", interrupted)
    tune(tmp_path, [LINEAR, replace(LINEAR, k=41)], "--range=m=1:16")
    assert "has the entries of 1 of 2 operations" in " ".join(capsys.readouterr().err.split())
    assert len(Library.load(tmp_path / "tuned" / "final")) == 1


@pytest.mark.slow
def test_a_product_is_tuned(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """What is faster depends on the machine: either entry or none, but all that is timed is right."""
    target = parse_target("llvm-cpu")
    if rows_microkernel(replace(LINEAR, m=LARGEST_BATCH), target) is None:
        pytest.skip("no kernel for this CPU is for any number of rows")
    assert tune(tmp_path, [LINEAR], "--range=m=1:20", "--evaluations=3") == SUCCESS
    said = capsys.readouterr().err
    assert "3 kernels timed" in said
    assert "left out" not in said
    for each in Library.load(tmp_path / "tuned" / "final").entries:
        assert each.speedup.low > 1.0
        assert each.sizes is not None
        assert all(time.size in each.sizes for time in each.measured)
