"""Entries for several CPUs and numbers of threads: which one counts here, and what replaces what."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from library_samples import FIRST, HERE, OTHER, SECOND, TILES, entry

from dispatch_profiler.errors import UsageError
from dispatch_profiler.library.entry import Hardware, best_for
from dispatch_profiler.library.library import Library, MergeOutcome, merge
from dispatch_profiler.library.tuned import TunedConfigurations
from dispatch_profiler.profiler.records.machine import Machine
from dispatch_profiler.profiler.records.record import Provenance
from dispatch_profiler.targets import cpu, parse_target

V2, V3, V4 = "x86-64-v2", "x86-64-v3", "x86-64-v4"


def on(level: str, threads: int, **fields: str) -> Provenance:
    machine = replace(HERE.machine, threads=threads, cpu_level=level)
    return replace(HERE, machine=machine, **{"iree": "compiler 3.13.0", **fields})


def every(*hardware: tuple[str, int]) -> list:
    """An entry for each, whose tiles tell them apart."""
    return [
        entry(FIRST, 100.0, replace(TILES, distribution=(8 * at, 128)), on(*each))
        for at, each in enumerate(hardware, 1)
    ]


@pytest.mark.parametrize(
    ("here", "expected"),
    [
        ((V4, 2), (V4, 2)),
        ((V4, 1), (V4, 2)),
        ((V4, 4), (V4, 2)),
        ((V4, 6), (V4, 16)),
        ((V4, 64), (V4, 16)),
        ((V3, 16), (V3, 2)),
        (("", 16), (V4, 16)),
        ((V4, 0), (V4, 2)),
        ((V2, 2), None),
    ],
)
def test_the_entry_for_the_most_similar_hardware_counts(here, expected):
    library = Library(every((V3, 2), (V4, 2), (V4, 16)))
    found = library.find(FIRST, hardware=Hardware(*here))
    assert (None if found is None else tuple(found.hardware)) == expected
    of_target = TunedConfigurations(library, parse_target("llvm-cpu"), "3.13.0", hardware=Hardware(*here))
    dispatch = of_target.of(FIRST).dispatch
    assert (None if dispatch is None else dispatch.configuration.inner) == (
        None if found is None else found.dispatch.configuration
    )


def test_similar_shapes_are_those_of_the_hardware():
    library = Library(every((V4, 2), (V4, 16)))
    for threads, rows in ((2, 8), (16, 16)):
        tuned = TunedConfigurations(
            library, parse_target("llvm-cpu"), "3.13.0", uses_nearest=True, hardware=Hardware(V4, threads)
        )
        assert tuned.of(SECOND).dispatch.configuration.inner.distribution == (rows, 128)


def test_files_keep_the_hardware_and_version_1_lacks_it(tmp_path: Path):
    entries = every((V4, 2), (V4, 16))
    Library(entries).save(tmp_path)
    assert [each.hardware for each in Library.load(tmp_path).entries] == [Hardware(V4, 2), Hardware(V4, 16)]

    file = Library(entries[:1]).save(tmp_path / "old.json")
    data = json.loads(file.read_text())
    (origin,) = data["origins"].values()
    del origin["machine"]["threads"], origin["machine"]["cpu_level"]
    (row,) = data["entries"]
    file.write_text(
        json.dumps({**data, "version": 1, "origins": [origin], "entries": [{**row, "origin": 0}]})
    )
    (old,) = Library.load(file).entries
    assert old.hardware == Hardware("", 2)  # its cores


def test_two_entries_for_the_same_hardware_are_refused():
    with pytest.raises(UsageError, match="two entries for x86-64-v4, 2 threads"):
        Library(every((V4, 2), (V4, 2)))


def test_merging_replaces_entries_for_the_same_hardware_only():
    base = Library([*every((V4, 2)), entry(SECOND, 100.0, TILES, on("", 2))])
    new = [entry(FIRST, 200.0, OTHER, on(V4, 16)), entry(SECOND, 200.0, OTHER, on(V4, 2))]
    merged = merge(base, Library(new))
    assert [change.outcome for change in merged.changes] == [MergeOutcome.ADDED, MergeOutcome.REPLACED]
    found = {(each.operation, each.hardware): each.gflops.value for each in merged.library.entries}
    assert found == {
        (FIRST, Hardware(V4, 2)): 100.0,
        (FIRST, Hardware(V4, 16)): 200.0,
        # The CPU of version 1 is unknown.
        (SECOND, Hardware(V4, 2)): 200.0,
    }


@pytest.mark.parametrize(
    ("origin", "expected"),
    [
        (on(V4, 2), Hardware(V4, 2)),
        (on(V4, 2, device="local-sync"), Hardware(V4, 1)),
        (on(V4, 2, target="llvm-cpu:haswell"), Hardware(V3, 2)),
        (on(V4, 2, target="llvm-cpu:znver4"), Hardware(V4, 2)),
        (on(V4, 2, target="llvm-cpu:neoverse-v2"), Hardware("", 2)),
        (on(V4, 2, target="cuda:sm_90"), Hardware()),
        (replace(HERE, machine=Machine()), Hardware()),
    ],
)
def test_hardware_follows_from_the_origin(origin: Provenance, expected: Hardware):
    assert Hardware.of(origin) == expected
    assert entry(origin=origin).hardware == expected


def test_an_unknown_target_has_unknown_hardware():
    assert entry(origin=on(V4, 2, target="tpu")).hardware == Hardware()


@pytest.mark.parametrize(
    ("features", "level"),
    [
        ((), ""),
        (("asimd",), ""),
        (cpu.LEVELS[V2], V2),
        (cpu.LEVELS[V2] | cpu.LEVELS[V3], V3),
        (cpu.LEVELS[V2] | cpu.LEVELS[V4], V2),
        (cpu.LEVELS[V2] | cpu.LEVELS[V3] | cpu.LEVELS[V4], V4),
        (cpu.LEVELS[V2] | cpu.LEVELS[V3] | {"avx512f"}, V3),
    ],
)
def test_a_level_needs_the_levels_below(features, level: str):
    assert cpu.HostCpu("a CPU", frozenset(features)).level == level


def test_this_hardware_has_the_threads_of_launches(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("dispatch_profiler.library.entry.usable_threads", lambda: 3)
    assert Hardware.here(parse_target("llvm-cpu")) == Hardware(cpu.host_cpu().level, 3)
    assert Hardware.here(parse_target("llvm-cpu:haswell")) == Hardware(V3)
    assert Hardware.here(parse_target("cuda:sm_90")) == Hardware()


def test_of_entries_without_hardware_the_first_counts():
    entries = every(("", 0), ("", 0))
    assert best_for(entries, Hardware(V4, 2)) == (entries[0],)
