"""Proving a library with entries for several numbers of threads, of which this machine can measure one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dispatch_profiler.boo.model_tuning.cli import main as tune_main
from dispatch_profiler.configurations import CpuTiles
from dispatch_profiler.dispatches import Dispatch
from dispatch_profiler.library.entry import Entry, Estimate, Hardware
from dispatch_profiler.library.library import Library
from dispatch_profiler.operations import Matmul
from dispatch_profiler.profiler.records.machine import Machine
from dispatch_profiler.profiler.records.record import Provenance
from dispatch_profiler.targets import cpu
from dispatch_profiler.tuner.results.prove import Proof, ProofOutcome, ProvenLibrary

LEVEL = "x86-64-v4"
DISPATCH = Dispatch(Matmul(64, 64, 32), CpuTiles((64, 128), (8, 32, 4)))


def entry(threads: int, revision: str = "3.12.0") -> Entry:
    machine = Machine("A", threads, threads=threads, cpu_level=LEVEL)
    origin = Provenance("local-task", "llvm-cpu", f"compiler {revision}, runtime {revision}", 7, "", machine)
    return Entry(DISPATCH, Estimate(3.0, 2.9, 3.1), Estimate(2.0, 1.9, 2.1), origin)


@pytest.mark.parametrize(
    ("output", "expected"), [("tuned", {2: "3.13.0", 16: "3.12.0"}), ("new", {2: "3.13.0"})]
)
def test_entries_for_other_threads_stay_in_place_and_are_not_copied(output: str, expected: dict[int, str]):
    Library([entry(2), entry(16)]).save(Path("tuned"))
    proven = ProvenLibrary.open(Path("tuned"), Path(output), "3.13.0", Hardware(LEVEL, 3))
    assert [each.hardware.threads for each in proven.left] == [2]

    judged: Any = None  # it is written for lost entries only
    (old,) = proven.left
    proven.take(
        Proof(old, judged, ProofOutcome.PROVEN, replace(old, provenance=entry(2, "3.13.0").provenance))
    )
    proven.save()

    found = Library.load(Path(output)).entries
    revisions = {each.hardware.threads: each.provenance.iree.split()[1].rstrip(",") for each in found}
    assert revisions == expected and len(proven) == len(expected)


def test_a_library_for_a_higher_level_cannot_be_measured_again(monkeypatch: pytest.MonkeyPatch, capsys: Any):
    Library([entry(2), entry(16)]).save(Path("tuned"))
    features = frozenset(cpu.LEVELS["x86-64-v2"])
    monkeypatch.setattr(cpu, "host_cpu", lambda: cpu.HostCpu("a CPU", features))
    assert tune_main(["--recheck=tuned"]) != 0
    assert (
        "all entries of tuned for llvm-cpu need instructions that this CPU lacks" in capsys.readouterr().err
    )
