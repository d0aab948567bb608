"""What a library keeps: verified, faster than the default by its interval, and the fastest of those."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from library_samples import FIRST, HERE, OTHER, SECOND, TILES, default, record

from dispatch_profiler.configurations import CpuTiles, Default
from dispatch_profiler.dispatches import Dispatch
from dispatch_profiler.errors import UsageError
from dispatch_profiler.library import Estimate, KeepRule, Library, choose
from dispatch_profiler.operations import ElementTypes, Matmul
from dispatch_profiler.profiler.measurement.measure import Measurement
from dispatch_profiler.profiler.providers.library_calls import LibraryCall
from dispatch_profiler.profiler.records.record import Confirmation, Verdict
from dispatch_profiler.profiler.records.record_file import stored

# -- the rule --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("intervals", "threshold", "best"),
    [
        ([], 0.0, None),
        ([(1.0, 1.0, 1.0)], 0.0, None),
        ([(1.2, 1.0, 1.4)], 0.0, None),
        ([(1.2, 1.001, 1.4)], 0.0, 0),
        ([(1.2, 1.02, 1.4)], 0.03, None),
        ([(1.5, 0.9, 3.0), (1.2, 1.1, 1.3)], 0.0, 1),
        ([(1.2, 1.1, 1.3), (1.4, 1.05, 1.8), (1.3, 1.2, 1.4)], 0.0, 1),
        ([(0.5, 0.4, 0.6), (2.0, 1.5, math.inf)], 0.0, 1),
    ],
)
def test_the_fastest_whose_whole_interval_lies_above_the_threshold(intervals, threshold, best):
    assert KeepRule(threshold).best([Estimate(*each) for each in intervals]) == best


def test_the_first_of_equals_is_kept():
    assert KeepRule().best([Estimate(1.5, 1.4, 1.6)] * 3) == 0


@pytest.mark.parametrize("ends", [(1.0, 1.1, 1.2), (1.0, 0.9, 0.95), (-1.0, -2.0, 0.0), (math.nan, 0.0, 1.0)])
def test_an_interval_without_its_value_is_an_error(ends):
    with pytest.raises(ValueError, match="low <= value <= high"):
        Estimate(*ends)


# -- records ---------------------------------------------------------------------------------------


def test_the_entry_has_the_speed_that_the_record_states():
    """2 m n k FLOP in 1 ms, where the default takes 2 ms."""
    (entry,) = Library.from_records([default(2.0), record(TILES, 1.0)]).entries
    assert entry.dispatch == Dispatch(FIRST, TILES)
    assert entry.gflops.value == pytest.approx(2 * 64 * 64 * 32 / 1e-3 / 1e9)
    assert entry.speedup.value == pytest.approx(2.0)
    assert 1.98 < entry.speedup.low <= 2.0 <= entry.speedup.high < 2.02
    assert entry.provenance == HERE


def test_the_fastest_of_several_is_chosen_whatever_their_order():
    records = [record(TILES, 1.2), default(2.0), record(OTHER, 1.0)]
    for order in (records, records[::-1]):
        (entry,) = Library.from_records(order).entries
        assert entry.dispatch.configuration == OTHER


@pytest.mark.parametrize("milliseconds", [2.0, 2.5])
def test_what_is_no_faster_leaves_the_operation_to_the_compiler(milliseconds: float):
    (choice,) = choose([default(2.0), record(TILES, milliseconds)])
    assert choice.entry is None
    assert choice.reason.startswith(f"the lower end of no speedup exceeds 1x; the fastest is {TILES.name}: ")


def test_noise_is_no_speedup():
    (choice,) = choose([default(2.0, noise=0.5), record(TILES, 1.9, noise=0.5)])
    assert choice.entry is None


def test_a_threshold_is_a_least_speedup():
    records = [default(2.0), record(TILES, 1.9)]
    assert len(Library.from_records(records)) == 1
    assert len(Library.from_records(records, rule=KeepRule(0.1))) == 0


@pytest.mark.parametrize("verdict", [each for each in Verdict if each is not Verdict.SUCCESS])
def test_what_was_not_verified_is_never_chosen_however_fast(verdict: Verdict):
    (entry,) = Library.from_records(
        [default(2.0), record(OTHER, 0.01, verdict=verdict), record(TILES)]
    ).entries
    assert entry.dispatch.configuration == TILES


def test_without_a_default_there_is_no_speedup_and_no_entry():
    (choice,) = choose([record(TILES, 1.0)])
    assert choice.entry is None
    assert "together with the default" in choice.reason


def test_each_operation_has_its_own_default():
    records = [default(2.0), record(TILES), default(0.5, operation=SECOND), record(TILES, operation=SECOND)]
    assert [entry.operation for entry in Library.from_records(records).entries] == [FIRST]


def test_a_function_of_a_library_is_no_configuration():
    call = Dispatch(FIRST, LibraryCall("numpy", "matmul"))
    numpy = replace(record(milliseconds=0.1), dispatch=call, provider="numpy")
    assert len(Library.from_records([default(), numpy])) == 0


def test_an_interrupted_measurement_does_not_count():
    stopped = replace(record(), measurement=Measurement((1.0,) * 5, 10, ended_by="interrupted"))
    assert len(Library.from_records([default(), stopped])) == 0


def test_the_last_record_of_a_dispatch_counts():
    """The one of the second run, although it is slower."""
    records = [default(2.0), record(TILES, 0.5), default(2.0), record(TILES, 1.0)]
    (entry,) = Library.from_records(records).entries
    assert entry.speedup.value == pytest.approx(2.0)


def test_a_paired_comparison_counts_more_than_separate_runs():
    faster = replace(stored(record(TILES)), confirmed=Confirmation("faster", "", 1.3, 1.2, 1.4))
    slower = replace(stored(record(OTHER, 0.5)), confirmed=Confirmation("unclear", "", 1.1, 0.9, 1.3))
    library = Library.from_records([default(), faster, slower], [Dispatch(FIRST, c) for c in (TILES, OTHER)])
    (entry,) = library.entries
    assert (entry.dispatch.configuration, entry.speedup) == (TILES, Estimate(1.3, 1.2, 1.4))


def test_a_comparison_without_a_result_keeps_nothing():
    failed = replace(stored(record(TILES)), confirmed=Confirmation("failed", "it crashed"))
    assert len(Library.from_records([default(), failed], [Dispatch(FIRST, TILES)])) == 0


def test_stored_records_are_of_the_dispatches_with_their_names_and_values():
    records = [stored(default()), stored(record(TILES))]
    assert len(Library.from_records(records)) == 0
    (entry,) = Library.from_records(records, [Dispatch(FIRST, TILES)]).entries
    assert entry.dispatch == Dispatch(FIRST, TILES)
    foreign = replace(records[1], configuration_fields={"distribution_tile": "1x1"})
    assert len(Library.from_records([records[0], foreign], [Dispatch(FIRST, TILES)])) == 0


def test_an_operation_that_has_another_type_is_another_operation():
    half = Matmul(64, 64, 32, ElementTypes("f16", "f16", "f32"))
    records = [default(), record(TILES), default(operation=half), record(TILES, operation=half)]
    assert {entry.operation for entry in Library.from_records(records).entries} == {FIRST, half}


def test_records_of_two_targets_are_not_one_library():
    there = replace(HERE, target="llvm-cpu:znver4")
    records = [
        default(), record(TILES),
        default(operation=SECOND, origin=there), record(TILES, operation=SECOND, origin=there),
    ]  # fmt: skip
    with pytest.raises(UsageError, match=r"2 targets or IREE versions: llvm-cpu with .*; llvm-cpu:znver4"):
        Library.from_records(records)


def test_the_default_is_never_an_entry():
    """The compiler chooses it without a library."""
    assert len(Library.from_records([default(2.0), default(1.0)])) == 0
    assert Default() != CpuTiles((64, 128), (8, 32, 4))
