"""From a run to a library: the records that `profile` wrote, and the dispatches of its tree."""

from __future__ import annotations

from pathlib import Path

import pytest

from dispatch_profiler.configurations import Default
from dispatch_profiler.dispatches import Tree, load_manifest
from dispatch_profiler.library import Library, choose
from dispatch_profiler.profiler.records.record import Verdict
from dispatch_profiler.profiler.records.record_file import read_records
from dispatch_profiler.profiler.records.speedup import SpeedupsOfRuns

#: The fastest is wrong.
FAULTS: dict[str, dict[str, object]] = {
    "*_8x32x4": {"fault": "wrong_element", "time_ms": 0.01},
    "*_default": {"time_ms": 0.25},
    "matmul_16*_4x16x1": {"time_ms": 0.1},
    "*": {"time_ms": 0.2},
}


@pytest.mark.usefixtures("in_process")
def test_the_records_of_a_run_become_a_library(run, null_tree):
    """The fastest of each operation, with the speedup and the speed that the records state; never a wrong one."""
    sizes = ("--problem-m=16,64", "--problem-n=32", "--problem-k=8", "--lhs=f32")
    null_tree(*sizes, faults=FAULTS)
    assert run("profiler", "--output=run.csv").status == 1
    records = read_records(Path("run.jsonl"))
    dispatches = [entry.dispatch for _, entry in load_manifest(Tree(Path())).dispatches()]
    library = Library.from_records(records, dispatches)
    library.save(Path("tuned"))

    faster = {
        record.dispatch: (record, found.vs_default)
        for record, found in SpeedupsOfRuns(records=records).all()
        if found.vs_default is not None and found.vs_default.low > 1.0
    }
    assert len(library) == len({record.operation for record, _ in faster.values()}) > 0
    for entry in Library.load(Path("tuned")).entries:
        record, speedup = faster[entry.dispatch.name]
        assert record.measurement is not None
        assert entry.gflops.value == record.measurement.gflops(record.flops)
        assert (entry.speedup.value, entry.provenance) == (speedup.value, record.provenance)
        rivals = [s.value for r, s in faster.values() if r.operation == record.operation]
        assert speedup.value == max(rivals)
    assert all(not isinstance(entry.dispatch.configuration, Default) for entry in library.entries)
    assert any(record.verdict is Verdict.FAILED for record in records)
    assert {choice.operation for choice in choose(records, dispatches)} == {
        each.operation for each in records
    }
