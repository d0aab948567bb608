"""Entries with packed weights beside those without: found only when asked for, and never in each other's place."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from library_samples import HERE, IREE, TILES, default, entry, record

from dispatch_profiler.configurations import Configuration, CpuTiles, Formed, Tuned
from dispatch_profiler.errors import UsageError
from dispatch_profiler.library import Entry, Library, merge
from dispatch_profiler.library.choice import choose
from dispatch_profiler.library.compile_cli import main
from dispatch_profiler.library.tuned import TunedConfigurations
from dispatch_profiler.operations import Epilogue, Matmul
from dispatch_profiler.profiler.measurement.included import Included, included
from dispatch_profiler.targets import parse_target
from dispatch_profiler.tuner.spaces.seeds import seeds

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


def test_seeds_have_packed_winners_only_if_weights_are_constants():
    library = Library([entry(LINEAR, 80.0, PACKED)])

    assert seeds(LINEAR, TARGET, library, packed_weights=True)[0] == PACKED
    assert not any(each.packs_weight for each in seeds(LINEAR, TARGET, library))


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
