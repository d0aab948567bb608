"""Some operations are compiled while others are measured; the outcome is that of rounds one after the other."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pytest
import test_search
import yaml
from evaluator_bench import GONE, Bench
from test_search import LARGE, OPTIONS, SMALL, configurations, find, outcomes, task, times  # noqa: F401

from dispatch_profiler.compiler import NullCompiler
from dispatch_profiler.errors import ToolError
from dispatch_profiler.operations import Matmul
from dispatch_profiler.profiler.evaluation import device_worker
from dispatch_profiler.profiler.evaluation.evaluator import Evaluator
from dispatch_profiler.profiler.verification import verify
from dispatch_profiler.targets import NullTarget
from dispatch_profiler.tuner.evaluation import devices, measuring
from dispatch_profiler.tuner.evaluation.devices import compiles_beside, cores_beside
from dispatch_profiler.tuner.search.events import (
    DeviceJoined,
    DeviceLost,
    Evaluated,
    Event,
    Resumed,
    SearchEnded,
)
from dispatch_profiler.tuner.search.search import SearchPlace, search
from dispatch_profiler.tuner.storage.storage import open_storage

#: Long enough for the slowest machine.
PATIENCE = 60.0
PROBLEMS = [Matmul(16, 32, k) for k in (8, 16, 24, 32, 40)]


@pytest.fixture
def overlap(monkeypatch: pytest.MonkeyPatch) -> None:
    """Searches that compile beside measurements, on the null device."""
    build = replace(OPTIONS.build, workers=2)
    monkeypatch.setattr(test_search, "OPTIONS", replace(OPTIONS, overlap=True, build=build))


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize("strategy", ["random", pytest.param("prior", marks=pytest.mark.slow)])
def test_overlapping_changes_no_proposal_and_no_winner(find, request, strategy):  # noqa: F811
    """Of more operations than are in progress at once, with candidates that fail and kernels that are equal.

    The last proposals are neighbours of the fastest, and so depend on what was measured before.
    """
    tasks = [
        task(each, count=20, evaluations=11, strategy=strategy, descend_after=8) for each in PROBLEMS[:4]
    ]
    one, two, three, *_ = configurations(count=20)
    faults = {
        **times({one: {"fault": "wrong_element"}, two: {"kernel": "same"}, three: {"kernel": "same"}}, PROBLEMS[0]),
        "*_default": {"time_ms": 1.0},
        "*x1": {"time_ms": 0.5, "kernel": "same"},
    }  # fmt: skip
    rounds = find(*tasks, faults=faults, storage="rounds.log")
    request.getfixturevalue("overlap")
    overlapping = find(*tasks, faults=faults, storage="overlapping.log")

    assert outcomes(overlapping) == outcomes(rounds)
    assert [each.best.dispatch for each in overlapping.operations] == [
        each.best.dispatch for each in rounds.operations
    ]
    assert outcomes(find(*tasks, faults=faults, storage="overlapping.log")) == outcomes(rounds)
    assert {type(each) for each in find.events} == {Resumed, SearchEnded}


@pytest.mark.usefixtures("in_process", "overlap")
def test_one_operation_is_compiled_while_another_is_measured(find, monkeypatch):  # noqa: F811
    """Each waits for the other to have begun, which never ends if one follows the other."""
    measuring_small, compiling_large = threading.Event(), threading.Event()
    build, records = NullCompiler.build, Evaluator.records

    def slow_build(self, asked):
        if asked.dispatches[0].operation == LARGE:
            assert measuring_small.wait(PATIENCE)
            compiling_large.set()
        return build(self, asked)

    def slow_records(self, candidates):
        group = list(candidates)
        if group[0].dispatch.operation == SMALL:
            measuring_small.set()
            assert compiling_large.wait(PATIENCE)
        return records(self, group)

    monkeypatch.setattr(NullCompiler, "build", slow_build)
    monkeypatch.setattr(Evaluator, "records", slow_records)
    result = find(task(SMALL, evaluations=1), task(LARGE, evaluations=1))
    assert [len(each.evaluations) for each in result.operations] == [1, 1]


@pytest.mark.usefixtures("in_process", "overlap")
def test_references_are_computed_while_the_first_candidates_are_compiled(find, monkeypatch):  # noqa: F811
    """The compiler waits until they are."""
    prepared, build, prepare = threading.Event(), NullCompiler.build, device_worker.prepare

    def slow_build(self, asked):
        assert prepared.wait(PATIENCE)
        return build(self, asked)

    def noted(expected):
        prepare(expected)
        prepared.set()

    monkeypatch.setattr(NullCompiler, "build", slow_build)
    monkeypatch.setattr(device_worker, "prepare", noted)
    (found,) = find(task(SMALL, evaluations=1)).operations
    assert found.best is not None


@pytest.mark.usefixtures("in_process", "overlap")
def test_references_are_computed_once_although_operations_take_turns(find, monkeypatch):  # noqa: F811
    computed, draw = [], verify.draw

    def noted(operation, distribution, seed):
        computed.append((operation, distribution))
        return draw(operation, distribution, seed)

    monkeypatch.setattr(verify, "draw", noted)
    find(*(task(each, count=20, evaluations=10) for each in PROBLEMS[:2]))
    assert len(computed) == len(set(computed)) == 2 * len(PROBLEMS[0].distributions)


@pytest.mark.usefixtures("in_process", "overlap")
def test_an_interrupted_search_continues_with_the_same_proposals(find):  # noqa: F811
    tasks, after = [task(each, count=10, evaluations=6) for each in (SMALL, LARGE)], 5
    undisturbed = find(*tasks, storage="undisturbed.log")
    seen = []

    def interrupt(event: Event) -> None:
        seen.append(isinstance(event, Evaluated))
        if sum(seen) == after:
            raise KeyboardInterrupt

    with open_storage("search.log") as storage, pytest.raises(KeyboardInterrupt):
        search(tasks, NullTarget("faults.yaml"), storage, test_search.OPTIONS, interrupt)
    assert outcomes(find(*tasks)) == outcomes(undisturbed)
    assert sum(each.evaluations for each in find.events if isinstance(each, Resumed)) >= after


@pytest.mark.usefixtures("in_process", "overlap")
def test_an_error_of_the_compiler_ends_the_search(find, monkeypatch):  # noqa: F811
    def check_flags(self, flags):
        raise ToolError("it crashed")

    monkeypatch.setattr(NullCompiler, "check_flags", check_flags)
    with pytest.raises(ToolError, match="it crashed"):
        find(task(SMALL), task(LARGE))


@pytest.mark.usefixtures("in_process")
def test_the_operations_of_a_device_that_fails_continue_on_another(monkeypatch):
    """Only its candidates in flight are measured again."""
    bench = Bench()
    bench.breaks_at = {"gpu://1": 5}
    monkeypatch.setattr(measuring, "Evaluator", bench.evaluator)
    Path("faults.yaml").write_text(yaml.safe_dump(test_search.EQUALLY_FAST))
    options, events = replace(OPTIONS, overlap=True, devices=("gpu://0", "gpu://1")), []
    tasks = [task(each, count=20, evaluations=9) for each in PROBLEMS]
    with open_storage("search.log") as storage:
        result = search(tasks, NullTarget("faults.yaml"), storage, options, events.append)

    assert [each for each in events if isinstance(each, DeviceLost)] == [DeviceLost("gpu://1", GONE)]
    names = [each.dispatch.name for found in result.operations for each in found.evaluations]
    assert len(names) == len(set(names)) == 9 * len(PROBLEMS)
    assert sorted([*bench.given["gpu://0"], *bench.given["gpu://1"]]) == sorted(names)


@pytest.mark.usefixtures("in_process")
def test_a_device_that_comes_later_takes_operations_that_wait(monkeypatch):
    """Also if it fails when it is first used: then it is reported, and not used."""
    bench, events = Bench(), []
    bench.broken = {"gpu://2"}
    monkeypatch.setattr(measuring, "Evaluator", bench.evaluator)
    late = [bench.evaluator(replace(OPTIONS.evaluator, device=each)) for each in ("gpu://1", "gpu://2")]
    offers = iter([dict(zip(("gpu://1", "gpu://2"), late, strict=True))])
    monkeypatch.setattr(SearchPlace, "joining", lambda self, options, taken: next(offers, {}))
    Path("faults.yaml").write_text(yaml.safe_dump(test_search.EQUALLY_FAST))
    tasks = [task(each, count=20, evaluations=9) for each in PROBLEMS]
    with open_storage("search.log") as storage:
        options = replace(OPTIONS, overlap=True, devices=("gpu://0",), look_seconds=0.0)
        result = search(tasks, NullTarget("faults.yaml"), storage, options, events.append)

    assert [each for each in events if isinstance(each, (DeviceJoined, DeviceLost))] == [
        DeviceLost("gpu://2", GONE), DeviceJoined("gpu://1")
    ]  # fmt: skip
    assert bench.given["gpu://0"] and bench.given["gpu://1"] and not bench.given["gpu://2"]
    names = [each.dispatch.name for found in result.operations for each in found.evaluations]
    assert sorted([*bench.given["gpu://0"], *bench.given["gpu://1"]]) == sorted(names)
    assert len(set(names)) == 9 * len(PROBLEMS)


def test_the_compiler_leaves_the_cores_of_gpus_alone(monkeypatch):
    monkeypatch.setattr(devices, "find_gpu", lambda device: None)
    monkeypatch.setattr(devices, "usable_cores", lambda: list(range(16)))
    monkeypatch.setattr(
        "dispatch_profiler.profiler.measurement.cpu_idle.usable_cores", lambda: list(range(16))
    )
    assert cores_beside(("cuda://0", "cuda://1")) == tuple(range(8, 16))
    assert cores_beside(("null://0", "local-task")) == tuple(range(16))
    assert compiles_beside(("cuda://0", "cuda://1"))
    assert not compiles_beside(("cuda://0", "cuda://1", "cuda://2"))  # too few cores are left
    assert not compiles_beside(("local-task",)) and not compiles_beside(("null",))
