"""Which entry of a library is chosen, also for packed weights."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
from library_samples import FIRST, HERE, IREE, OTHER, SECOND, TILES, default, entry, record

from dispatch_profiler.configurations import Configuration, CpuTiles, Default, Formed, Tuned
from dispatch_profiler.cores import usable_threads
from dispatch_profiler.dispatches import Dispatch
from dispatch_profiler.errors import UsageError
from dispatch_profiler.library import Entry, Estimate, KeepRule, Library, choose, merge
from dispatch_profiler.library.compile_cli import main
from dispatch_profiler.library.tuned import TunedConfigurations
from dispatch_profiler.operations import ElementTypes, Epilogue, Matmul
from dispatch_profiler.profiler.measurement.measure import Included, Measurement, included
from dispatch_profiler.profiler.providers.library_calls import LibraryCall
from dispatch_profiler.profiler.records.record import Confirmation, Verdict, stored
from dispatch_profiler.targets import parse_target
from dispatch_profiler.tuner.spaces.seeds import seeds

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


LINEAR = Matmul(64, 128, 32, rhs_layout="n")
NEAR = replace(LINEAR, m=128)
PACKED = Formed("permuted", CpuTiles((32, 64), (8, 32, 1)), packed=True)
REVISION = IREE.removeprefix("compiler ").partition(",")[0]
TARGET = parse_target("llvm-cpu")
BOTH = Library([entry(LINEAR, 50.0), entry(LINEAR, 80.0, PACKED)])


def test_each_kind_is_found_apart_also_after_saving():
    BOTH.save(Path("both"))
    for library in (BOTH, Library.load(Path("both"))):
        assert library.find(LINEAR).dispatch.configuration == TILES
        assert library.find(LINEAR, packed_weights=True).dispatch.configuration == PACKED
    assert Library([entry(LINEAR, 80.0, PACKED)]).find(LINEAR) is None
    assert Library([entry(LINEAR, 50.0)]).find(LINEAR, packed_weights=True).packs_weight is False
    slower = Library([entry(LINEAR, 80.0), entry(LINEAR, 50.0, PACKED)])
    assert slower.find(LINEAR, packed_weights=True).packs_weight is False


def test_two_of_one_kind_are_refused():
    with pytest.raises(UsageError, match="two entries with packed weights"):
        Library([entry(LINEAR, 80.0, PACKED), entry(LINEAR, 70.0, Formed("panels", packed=True))])


@pytest.mark.parametrize("force", [True, False])
def test_merging_never_replaces_one_kind_by_the_other(force):
    packed, plain = Library([entry(LINEAR, 80.0, PACKED)]), Library([entry(LINEAR, 50.0)])

    for base, incremental in ((packed, plain), (plain, packed)):
        merged = merge(base, incremental, force=force)
        assert [change.outcome.value for change in merged.changes] == ["added"]
        assert {each.gflops.value for each in merged.library.entries} == {50.0, 80.0}
    again = merge(BOTH, Library([entry(LINEAR, 90.0, PACKED)]), force=force).library
    assert again.find(LINEAR).gflops.value == 50.0
    assert again.find(LINEAR, packed_weights=True).gflops.value == 90.0


@pytest.mark.parametrize("operation", [LINEAR, NEAR], ids=["its own", "nearest"])
def test_a_packed_entry_is_applied_only_if_weights_are_constants(operation):
    library = Library([entry(LINEAR, 80.0, PACKED)])

    def found(packed_weights: bool):
        return TunedConfigurations(library, TARGET, REVISION, True, packed_weights).of(operation).dispatch

    assert found(packed_weights=False) is None
    assert found(packed_weights=True).configuration == Tuned(
        PACKED, ("-O2",), LINEAR.name if operation is NEAR else ""
    )


@pytest.mark.usefixtures("two_threads")
def test_seeds_have_packed_winners_only_if_weights_are_constants():
    library = Library([entry(LINEAR, 80.0, PACKED)])

    assert seeds(LINEAR, TARGET, library, packed_weights=True)[0] == PACKED
    assert not any(each.packs_weight for each in seeds(LINEAR, TARGET, library))


def test_seeds_begin_with_winners_for_similar_threads_in_turns_with_what_rules_choose(host_has):
    """The work of a winner for another number of threads is divided badly here."""
    host_has("avx512f")
    ruled = seeds(LINEAR, TARGET, packed_weights=True)

    def first_seeds(ratio: int) -> list[Configuration]:
        origin = replace(HERE, machine=replace(HERE.machine, threads=ratio * usable_threads()))
        library = Library([entry(LINEAR, 80.0, PACKED, origin)])
        return list(seeds(LINEAR, TARGET, library, packed_weights=True)[:2])

    assert first_seeds(1) == first_seeds(2) == [PACKED, ruled[0]]
    assert first_seeds(8) == list(ruled[:2])


def test_records_of_a_sweep_make_no_packed_entry():
    """Their speedup is over a default whose time includes more."""
    whole = included(weights=True, call=False)
    plain, packed, base = (
        record(operation=LINEAR),
        record(PACKED, 0.5, operation=LINEAR),
        default(operation=LINEAR),
    )
    records = [
        replace(each, measurement=replace(each.measurement, includes=parts))
        for each, parts in (
            (base, whole),
            (packed, tuple(part for part in whole if part is not Included.WEIGHT_CONVERSION)),
            (plain, whole),
        )
    ]

    (choice,) = choose(records)

    assert choice.entry is not None and choice.entry.dispatch.configuration == TILES


def test_packed_weights_of_compile_needs_a_library(capsys):
    assert main(["--packed-weights"]) == 2
    assert "--packed-weights needs --library" in capsys.readouterr().err
    assert HERE.target == TARGET.name


def test_an_entry_that_cannot_pack_gives_way_to_a_packed_one_with_another_epilogue():
    """Unless an entry of the operation itself packs, which was slower."""
    biased = replace(LINEAR, epilogue=Epilogue.parse("bias"))
    other = entry(LINEAR, 80.0, PACKED)

    def found(*entries: Entry, packed_weights: bool = True, ignores_epilogues: bool = True) -> Configuration:
        tuned = TunedConfigurations(
            Library(list(entries)), TARGET, REVISION,
            packed_weights=packed_weights, ignores_epilogues=ignores_epilogues,
        )  # fmt: skip
        configuration = tuned.of(biased).dispatch.configuration
        assert isinstance(configuration, Tuned)
        return configuration.inner

    cannot = entry(biased, 50.0)
    assert found(cannot, other) == PACKED
    assert found(cannot, other, packed_weights=False) == TILES
    assert found(cannot, other, ignores_epilogues=False) == TILES
    assert found(cannot, entry(biased, 40.0, PACKED), other) == TILES
    can = Formed("permuted", TILES)
    assert found(entry(biased, 50.0, can), other) == can
