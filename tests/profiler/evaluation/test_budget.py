"""`--budget` holds on a machine under load, where every sample is disturbed."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from dispatch_profiler.dispatches import Tree, load_manifest
from dispatch_profiler.profiler.evaluation import device_worker
from dispatch_profiler.profiler.evaluation.evaluator import Evaluator
from dispatch_profiler.profiler.evaluation.from_manifest import TreeCandidates
from dispatch_profiler.profiler.evaluation.options import EvaluatorOptions
from dispatch_profiler.profiler.measurement.measure import MeasureOptions
from dispatch_profiler.profiler.records.record import Record, Verdict
from dispatch_profiler.profiler.statistics.stopping import StopRule
from dispatch_profiler.runtime.null import NullCall

pytestmark = pytest.mark.usefixtures("in_process")


class LoadedMachine:
    """Time passes only in calls of the null device, and a changing part of it other processes have the core."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.waited = 0.0
        self._draw = random.Random(1)

    def slowed(self, whole: Callable[[NullCall, int], float]) -> Callable[[NullCall, int], float]:
        def time(call: NullCall, calls: int) -> float:
            wanted = whole(call, calls)
            waited = wanted * self._draw.uniform(1.0, 9.0) + 2e-3
            self.seconds += wanted + waited
            self.waited += waited
            return wanted + waited

        return time


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> LoadedMachine:
    found = LoadedMachine()
    start = device_worker.start

    def start_loaded(uri: str, build_dir: str) -> None:
        start(uri, build_dir)
        device_worker.STATE.run_delay = lambda: found.waited

    monkeypatch.setattr(device_worker, "start", start_loaded)
    monkeypatch.setattr(device_worker.STATE, "clock", lambda: found.seconds)
    monkeypatch.setattr(NullCall, "time", found.slowed(NullCall.time))
    monkeypatch.setattr(NullCall, "now", property(lambda _: lambda: found.seconds))
    return found


def records_of(folder: Path, machine: LoadedMachine, rule: StopRule) -> list[Record]:
    tree = Tree(folder)
    options = EvaluatorOptions("null", measure=MeasureOptions(rule))
    with Evaluator(options, clock=lambda: machine.seconds) as evaluator:
        return list(evaluator.records(TreeCandidates(tree).candidates(load_manifest(tree).dispatches())))


@pytest.mark.parametrize(
    ("budget", "time_ms"),
    [(0.25, 0.002), (1.0, 0.002), (4.0, 0.002), (1.0, 0.2), (1.0, 0.5), (1.0, 2.0), (1.0, 10.0)],
)
def test_ten_dispatches_take_at_most_twice_their_budgets(
    null_tree, machine: LoadedMachine, budget: float, time_ms: float
):
    """Tiny ones, and slow ones: a call of a hundred executions takes seconds, one execution up to 0.1 s."""
    shapes = ("--problem-m=1:10", "--problem-n=8", "--problem-k=8", "--lhs=f32", "--default-config=only")
    folder = null_tree(*shapes, faults={"*": {"time_ms": time_ms}})

    records = records_of(folder, machine, StopRule(seconds=budget))

    assert len(records) == 10
    assert machine.seconds <= 2.0 * 10 * budget
    for record in records:
        assert record.verdict is Verdict.SUCCESS and record.measurement is not None
        assert len(record.measurement.samples_ms) >= 3
        assert record.measurement.ended_by in ("budget", "interval")
        assert any("other processes used a core that was needed" in w for w in record.measurement.warnings)


def test_a_number_of_samples_is_taken_however_long_it_takes(null_tree, machine: LoadedMachine):
    shapes = ("--problem-m=1", "--problem-n=8", "--problem-k=8", "--lhs=f32", "--default-config=only")
    folder = null_tree(*shapes, faults={"*": {"time_ms": 0.002}})

    (record,) = records_of(folder, machine, StopRule(seconds=0.01, count=24))

    assert record.measurement is not None and len(record.measurement.samples_ms) == 24
