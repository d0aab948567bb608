"""A search finds the fastest correct configuration, whatever else happens to its candidates."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path

import pytest
import yaml
from search_samples import change_owner

from dispatch_profiler.configurations import Axis, Configuration, CpuTiles, Default, Space
from dispatch_profiler.dispatches import Dispatch, State
from dispatch_profiler.errors import StorageError, TargetError, WorkerCrashed
from dispatch_profiler.operations import Matmul, Operation
from dispatch_profiler.profiler.evaluation import device_worker
from dispatch_profiler.profiler.evaluation.candidate import EvaluatorOptions
from dispatch_profiler.profiler.evaluation.evaluator import Evaluator
from dispatch_profiler.profiler.evaluation.hardware import this_machine
from dispatch_profiler.profiler.evaluation.workers import Runners
from dispatch_profiler.profiler.measurement.measure import MeasureOptions
from dispatch_profiler.profiler.records.record import Verdict
from dispatch_profiler.profiler.statistics.stopping import StopRule
from dispatch_profiler.targets import NullTarget, parse_target
from dispatch_profiler.tuner.evaluation.building import BuildOptions, CandidateBuilder
from dispatch_profiler.tuner.evaluation.measuring import Devices
from dispatch_profiler.tuner.evaluation.stopwatch import Stopwatch
from dispatch_profiler.tuner.search import rounds as rounds_module
from dispatch_profiler.tuner.search import search as search_module
from dispatch_profiler.tuner.search.events import Compiling, Evaluated, Event, Measuring, Resumed, SearchEnded
from dispatch_profiler.tuner.search.operation_search import SearchTask, finalists
from dispatch_profiler.tuner.search.search import OperationResult, SearchOptions, SearchResult, search
from dispatch_profiler.tuner.spaces.space import SearchSpace
from dispatch_profiler.tuner.storage import owners
from dispatch_profiler.tuner.storage.storage import open_storage

SMALL, LARGE = Matmul(16, 32, 8), Matmul(32, 32, 8)
LIMITS = NullTarget().limits
MEASURE = MeasureOptions(StopRule(count=3), 1, keeps_disturbed=True)
QUICK = EvaluatorOptions("null", measure=MEASURE, seconds=5.0)
OPTIONS = SearchOptions(QUICK, BuildOptions(workers=1, seconds=5.0))

Faults = dict[str, dict[str, object]]
EQUALLY_FAST: Faults = {"*": {"time_ms": 1.0}}


def tiles(operation: Operation) -> Space[Configuration]:
    """30 valid configurations."""
    m, n = (loop.extent for loop in operation.loops[:2])
    return Space(
        CpuTiles,
        (
            Axis("distribution_m", (m,), "distribution"),
            Axis("distribution_n", (n,), "distribution"),
            Axis("vector_m", (1, 2, 4, 8, 16), "vector"),
            Axis("vector_n", (1, 2, 4, 8, 16, 32), "vector"),
            Axis("vector_k", (1,), "vector"),
        ),
    )


def configurations(operation: Operation = SMALL, count: int = 6) -> list[Configuration]:
    """The first ones of the space."""
    return [tiles(operation).to_configuration(point) for point in islice(tiles(operation).points(), count)]


def task(operation: Operation = SMALL, count: int = 6, **options: object) -> SearchTask:
    """A search of the compiler's choice and `count` configurations."""
    space = SearchSpace(operation, LIMITS, [tiles(operation)], [Default(), *configurations(operation, count)])
    return SearchTask(space, **{"strategy": "random", "evaluations": None, **options})


def outcomes(result: SearchResult) -> list[tuple[object, ...]]:
    """What every search on the null target must find again: everything but the time that it took."""
    return [
        (each.dispatch, each.record.verdict, each.reason, each.milliseconds, each.same_kernel_as)
        for found in result.operations
        for each in found.evaluations
    ]


@pytest.fixture
def find() -> Callable[..., SearchResult]:
    """`find(task, faults={...})`: the result of a search on the null target, with its events in `find.events`."""

    def run(*tasks: SearchTask, faults: Faults | None = None, storage: str = "search.log") -> SearchResult:
        Path("faults.yaml").write_text(yaml.safe_dump(faults or EQUALLY_FAST, sort_keys=False))
        run.events = []
        with open_storage(storage) as opened:
            return search(tasks, NullTarget("faults.yaml"), opened, OPTIONS, run.events.append)

    return run


def times(milliseconds: dict[Configuration, object], operation: Operation = SMALL) -> Faults:
    """Faults that give each configuration its time, or its own fault."""
    return {
        f"{operation.name}_{each.name}": value if isinstance(value, dict) else {"time_ms": value}
        for each, value in milliseconds.items()
    }


def only_result(result: SearchResult) -> OperationResult:
    (found,) = result.operations
    return found


@pytest.mark.usefixtures("in_process")
def test_a_search_compiles_with_an_open_builder_that_is_like_its_own(monkeypatch):
    """It leaves that builder open. A builder for another target, or with other options, would build something else."""
    target, usual, used = NullTarget(), OPTIONS.build, []
    whole = CandidateBuilder.candidates

    def candidates(self, *arguments, **options):
        used.append(self)
        return whole(self, *arguments, **options)

    monkeypatch.setattr(CandidateBuilder, "candidates", candidates)
    Path("faults.yaml").write_text(yaml.safe_dump(EQUALLY_FAST))
    for number, (other, build, is_used) in enumerate(
        (
            (target, usual, True),
            (NullTarget("faults.yaml"), usual, False),
            (target, replace(usual, flags=("-x",)), False),
        )
    ):
        used.clear()
        with CandidateBuilder(other, build) as builder, open_storage(f"{number}.log") as storage:
            search([task()], target, storage, replace(OPTIONS, builder=builder))
            assert {each is builder for each in used} == {is_used}
            if is_used:
                (again,) = builder.candidates([Dispatch(LARGE, Default())])
                assert again.state is State.COMPILED


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the dispatches that an evaluator was given."""
    seen: list[str] = []
    whole = Evaluator.records

    def records(self, candidates):
        group = list(candidates)
        seen.extend(each.dispatch.name for each in group)
        return whole(self, group)

    monkeypatch.setattr(Evaluator, "records", records)
    return seen


@pytest.mark.usefixtures("in_process")
def test_the_winner_is_the_fastest_that_is_correct(find):
    """Of a space that was searched completely; a faster one that computes something else is never it."""
    one, two, three, four, five, six = configurations()
    faults = times(
        {
            Default(): 1.0,
            one: 0.9,
            two: {"time_ms": 0.01, "fault": "wrong_element"},
            three: 0.4,
            four: {"time_ms": 0.02, "fault": "nan"},
            five: {"not_compiled": "no such tile"},
            six: {"not_applied": True},
        }
    )
    found = only_result(find(task(), faults=faults))

    assert found.best is not None and found.best.configuration == three
    assert found.default is not None and found.default.milliseconds == pytest.approx(1.0)
    assert found.ended_by == "exhausted"
    reasons = {each.configuration: each.reason for each in found.evaluations}
    assert set(reasons) == {Default(), *configurations()}
    assert reasons[two].startswith("FAILED: ") and reasons[four].startswith("FAILED: ")
    assert reasons[five] == "Not compiled: no such tile"
    assert reasons[six].startswith("Not applied: requested ")
    assert reasons[one] == reasons[three] == ""
    assert [each.configuration for each in finalists(found.evaluations, 2)] == [three, one]


@pytest.mark.slow
def test_a_candidate_that_crashes_or_hangs_costs_only_itself(find, monkeypatch):
    """In the compiler and on the device: with processes of their own."""
    evaluator = replace(QUICK, seconds=3.0)
    monkeypatch.setattr("test_search.OPTIONS", replace(OPTIONS, evaluator=evaluator))
    one, two, three, four, five, six = configurations()
    faults = times(
        {
            Default(): 1.0,
            one: {"compiler": "crash"},
            two: {"fault": "crash"},
            three: {"compiler": "memory"},
            four: 0.5,
            five: {"fault": "hang"},
            six: 2.0,
        }
    )
    found = only_result(find(task(), faults=faults))
    assert found.best is not None and found.best.configuration == four
    verdicts = {each.configuration: each.record.verdict for each in found.evaluations}
    assert [verdicts[each] for each in (one, two, three, five)] == [
        Verdict.NOT_COMPILED, Verdict.CRASHED, Verdict.NOT_COMPILED, Verdict.TIMED_OUT
    ]  # fmt: skip
    assert verdicts[six] is Verdict.SUCCESS


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.usefixtures("in_process")
def test_after_its_time_nothing_is_proposed_and_the_next_run_continues(find, monkeypatch, overlap: bool):
    over = replace(OPTIONS, seconds=0.0, overlap=overlap)
    monkeypatch.setattr("test_search.OPTIONS", over)
    found = only_result(find(task()))
    assert (found.ended_by, found.evaluations, found.best) == ("time", (), None)
    monkeypatch.setattr("test_search.OPTIONS", replace(over, seconds=1e6))
    assert only_result(find(task())).ended_by == "exhausted"


@pytest.mark.usefixtures("in_process")
def test_a_round_that_is_too_long_for_the_time_left_is_shorter(find, monkeypatch):
    """A candidate takes 10 s by this clock, so that 4 of the second 16 fit into the time: 2 of each operation."""
    now = 1000.0

    class Clock:
        monotonic = staticmethod(lambda: now)

    def listen(event: Event) -> None:
        nonlocal now
        now += 10.0 if isinstance(event, Evaluated) else 0.0

    monkeypatch.setattr(search_module, "time", Clock)
    monkeypatch.setattr(rounds_module, "time", Clock)
    monkeypatch.setattr(search_module, "Stopwatch", lambda: Stopwatch(Clock.monotonic))
    Path("faults.yaml").write_text(yaml.safe_dump(EQUALLY_FAST))
    tasks = [task(SMALL, 30), task(LARGE, 30)]
    with open_storage("search.log") as opened:
        found = search(tasks, NullTarget("faults.yaml"), opened, replace(OPTIONS, seconds=200.0), listen)
    assert [(len(each.evaluations), each.ended_by) for each in found.operations] == [(10, "time")] * 2


@pytest.mark.usefixtures("in_process")
def test_without_a_faster_candidate_the_default_wins(find):
    found = only_result(find(task(), faults={"*_default": {"time_ms": 1.0}, "*": {"time_ms": 1.2}}))
    assert found.best is not None and found.best == found.default


@pytest.mark.usefixtures("in_process")
def test_the_default_is_the_first_candidate_and_the_fastest_form_the_second(find):
    """Before all seeds, whatever their order."""
    one, two, *_ = configurations()
    found = only_result(find(task(baselines=(Default(), one), seeds=(two, Default()), evaluations=3)))
    assert [each.configuration for each in found.evaluations] == [Default(), one, two]
    assert found.ended_by == "evaluations"


@pytest.mark.usefixtures("in_process")
def test_a_failing_default_does_not_end_a_search(find):
    one, *_ = configurations()
    found = only_result(
        find(
            task(),
            faults={
                "*_default": {"not_compiled": "no"},
                f"*{one.name}": {"time_ms": 0.5},
                "*": {"time_ms": 1},
            },
        )
    )
    assert found.default is None
    assert found.best is not None and found.best.configuration == one


@pytest.mark.usefixtures("in_process")
def test_what_lacked_memory_is_evaluated_again_when_the_search_is_started_again(find, measured):
    """Its record is that of this run; the study has the others, and what the compiler rejects."""
    lacking, rejected, *_ = configurations()
    faults = times({lacking: {"compiler": "memory"}, rejected: {"not_compiled": "no"}}) | {
        "*": {"time_ms": 1}
    }
    first = only_result(find(task(), faults=faults))
    reasons = {each.configuration: each.reason for each in first.evaluations}
    assert reasons[lacking] == "Not compiled: out of memory: simulated by the null compiler"
    measured.clear()

    again = only_result(find(task(), faults=faults))

    assert measured == [Dispatch(SMALL, lacking).name]
    assert {each.configuration: each.reason for each in again.evaluations} == reasons


@pytest.mark.usefixtures("in_process")
def test_equal_kernels_are_measured_once(find, measured):
    """In one round and in a later one; each has the record of the one that was measured."""
    count = 20
    everyone = configurations(count=count)
    same = [everyone[0], everyone[5], everyone[19]]
    faults = {
        **times({each: {"time_ms": 0.5, "kernel": "shared"} for each in same}),
        "*": {"time_ms": 1.0},
    }
    found = only_result(find(task(count=count), faults=faults))

    names = {Dispatch(SMALL, each).name for each in same}
    assert len(names & set(measured)) == 1 and len(measured) == len(set(measured)) == count - 1
    (own,) = names & set(measured)
    evaluations = {each.dispatch.name: each for each in found.evaluations}
    assert len(evaluations) == count + 1
    for name in names:
        assert evaluations[name].milliseconds == evaluations[own].milliseconds == pytest.approx(0.5)
        assert evaluations[name].record.configuration == evaluations[name].configuration.name
        assert evaluations[name].same_kernel_as == ("" if name == own else own)
    assert found.best == evaluations[own]
    assert len([each for each in finalists(found.evaluations, 3) if each.dispatch.name in names]) == 1


@pytest.mark.usefixtures("in_process")
def test_kernels_with_other_results_are_not_equal(find, measured):
    """The code of another operation may have the same hash; its results are others."""
    faults = {"*": {"time_ms": 1.0, "kernel": "shared"}}
    find(task(), task(LARGE), faults=faults)
    assert sorted(measured) == sorted(Dispatch(each, Default()).name for each in (SMALL, LARGE))


@pytest.mark.usefixtures("in_process")
def test_several_operations_are_compiled_together(find):
    """One build per round for all of them; a search that is done takes no part in later rounds."""
    result = find(task(evaluations=4), task(LARGE, count=12, evaluations=14))
    compiling = [each for each in find.events if isinstance(each, Compiling)]
    assert [(each.operations, each.candidates) for each in compiling] == [(2, 2), (2, 3 + 8), (1, 4)]
    assert [len(each.evaluations) for each in result.operations] == [4, 13]
    assert [each.ended_by for each in result.operations] == ["evaluations", "exhausted"]


@pytest.mark.usefixtures("in_process")
def test_a_reference_is_computed_once_while_the_first_candidates_are_compiled(find, monkeypatch):
    prepared: list[Operation] = []
    is_prepared = threading.Event()
    build = CandidateBuilder.candidates

    def prepare(self, device, operation):
        prepared.append(operation)
        is_prepared.set()

    def candidates(self, dispatches, ready, further):
        assert is_prepared.wait(60.0)
        return build(self, dispatches, ready, further=further)

    monkeypatch.setattr(Devices, "prepare", prepare)
    monkeypatch.setattr(CandidateBuilder, "candidates", candidates)
    result = find(task(evaluations=4))
    assert [type(each) for each in find.events].count(Compiling) > 1
    assert prepared == [SMALL] and only_result(result).evaluations


@pytest.mark.usefixtures("in_process")
def test_candidates_are_verified_while_others_are_compiled(find, monkeypatch):
    """The builder is not done before all candidates that it made are verified; then they are only measured."""
    build, verify = CandidateBuilder.candidates, Devices.verify
    verified: list[Dispatch] = []
    steps: list[str] = []

    def candidates(self, dispatches, ready, further):
        before = len(verified)
        found = build(self, dispatches, ready, further=further)
        while len(verified) < before + len(found):
            time.sleep(0.01)
        steps.clear()
        return found

    def verified_now(self, device, candidate):
        verify(self, device, candidate)
        verified.append(candidate.dispatch)

    whole = device_worker.run_once
    monkeypatch.setattr(device_worker, "run_once", lambda *given: steps.append("run_once") or whole(*given))
    monkeypatch.setattr(Devices, "verify", verified_now)
    monkeypatch.setattr(CandidateBuilder, "candidates", candidates)
    result = only_result(find(task(evaluations=4)))
    assert sorted(each.dispatch.name for each in result.evaluations) == sorted(each.name for each in verified)
    assert all(each.milliseconds for each in result.evaluations) and steps == []


@pytest.mark.usefixtures("in_process")
def test_events_show_the_best_so_far(find):
    one, *others = configurations()
    faults = times({Default(): 1.0, one: 0.25} | dict.fromkeys(others, 2.0))
    find(task(), faults=faults)

    evaluated = [each for each in find.events if isinstance(each, Evaluated)]
    assert [each.done for each in evaluated] == list(range(1, 8))
    assert evaluated[0].speedup == 1.0 and evaluated[-1].speedup == pytest.approx(4.0)
    assert {each.budget for each in evaluated} == {None}
    assert evaluated[-1].best is not None and evaluated[-1].best.configuration == one
    assert evaluated[-1].fraction_of_peak is None  # the null device has no peak
    kinds = [type(each) for each in find.events if not isinstance(each, Evaluated)]
    assert kinds == [*[Compiling, Measuring] * 2, SearchEnded]


@pytest.mark.usefixtures("in_process")
def test_a_clearly_slower_candidate_is_abandoned(find, monkeypatch):
    """Also against the best of an earlier run; an abandoned one is never the best."""
    one, *others = configurations()
    faults = times({Default(): 1.0, one: 0.25} | dict.fromkeys(others, 5.0))
    monkeypatch.setattr("test_search.OPTIONS", replace(OPTIONS, evaluator=EvaluatorOptions("null")))
    find(task(seeds=(one,), evaluations=3), faults=faults)
    found = only_result(find(task(seeds=(one,)), faults=faults))
    abandoned = {each.configuration for each in found.evaluations if each.was_abandoned}
    assert abandoned == set(others)
    assert found.best is not None and found.best.configuration == one


# -- restarting --------------------------------------------------------------------------------------


@pytest.mark.usefixtures("in_process")
def test_a_search_that_is_done_measures_nothing_again(find, measured):
    first = find(task())
    count = len(measured)
    assert count == 7
    second = find(task())
    assert outcomes(second) == outcomes(first) and len(measured) == count
    assert [type(each) for each in find.events] == [Resumed, SearchEnded]


@pytest.mark.slow
@pytest.mark.usefixtures("in_process")
def test_a_search_that_is_started_again_with_a_larger_budget_continues(find, measured):
    """As if it had had that from the start."""
    undisturbed = find(task(count=20, evaluations=17), storage="undisturbed.log")
    names = list(measured)
    measured.clear()
    for budget in (1, 4, 11, 17):
        continued = find(task(count=20, evaluations=budget))
    assert outcomes(continued) == outcomes(undisturbed)
    assert measured == names


@pytest.mark.parametrize("file", ["search.db", "search.log"])
@pytest.mark.usefixtures("in_process")
def test_a_search_is_carried_to_another_machine_of_the_same_kind(find, measured, monkeypatch, file):
    """Its storage is one file. On a machine with another CPU, the search begins anew in the same file."""
    undisturbed = find(task(count=20, evaluations=17), storage="undisturbed.log")
    names = list(measured)
    measured.clear()
    find(task(count=20, evaluations=6), storage=file)
    Path("there").mkdir()
    Path(file).rename(Path("there", file))

    here = this_machine("null")
    alike = replace(here, memory_bytes=2 * here.memory_bytes, system="Linux 9.9 x86_64")
    monkeypatch.setattr(owners, "host_name", lambda: "node7")
    monkeypatch.setattr(search_module, "this_machine", lambda device: alike)
    continued = find(task(count=20, evaluations=17), storage=f"there/{file}")
    assert [each.evaluations for each in find.events if isinstance(each, Resumed)] == [6]
    assert outcomes(continued) == outcomes(undisturbed)
    assert measured == names

    monkeypatch.setattr(search_module, "this_machine", lambda device: replace(here, cpu="another CPU"))
    find(task(count=20, evaluations=6), storage=f"there/{file}")
    assert not [each for each in find.events if isinstance(each, Resumed)]
    assert len(measured) == len(names) + 6


@pytest.mark.some(2)
@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize("after", [1, 5, 12])
def test_an_interrupted_search_keeps_what_it_measured(find, measured, after, monkeypatch):
    """Ctrl-C after some evaluations: the rest follows, with the same proposals."""
    undisturbed = find(task(count=20, evaluations=17), storage="undisturbed.log")
    names = list(measured)
    measured.clear()

    def interrupt(event: Event) -> None:
        if isinstance(event, Evaluated) and event.done == after:
            raise KeyboardInterrupt

    with open_storage("search.log") as storage, pytest.raises(KeyboardInterrupt):
        search([task(count=20, evaluations=17)], NullTarget("faults.yaml"), storage, OPTIONS, interrupt)
    assert outcomes(find(task(count=20, evaluations=17))) == outcomes(undisturbed)
    assert list(dict.fromkeys(measured)) == names


@pytest.mark.usefixtures("in_process")
def test_a_device_that_fails_ends_the_search_and_loses_nothing(find, monkeypatch):
    """The message says how much is stored; the candidates in flight are evaluated by the next run."""
    one, two, *_ = configurations()
    estimate, gone = device_worker.estimate, []

    def dies(verify, function, operation, seed):
        if function.endswith(two.name) or gone:
            gone.append(function)
            raise WorkerCrashed("the GPU has fallen off the bus")
        return estimate(verify, function, operation, seed)

    def check_device(self):
        if gone:
            raise TargetError("the GPU has fallen off the bus")

    with monkeypatch.context() as patched:
        patched.setattr(device_worker, "estimate", dies)
        patched.setattr(Runners, "check_device", check_device)
        with pytest.raises(TargetError, match="the device failed: the GPU has fallen off the bus") as raised:
            find(task(seeds=(one, two)))
    assert "2 evaluations are stored; start the search again" in raised.value.hint
    found = only_result(find(task(seeds=(one, two))))
    assert {each.record.verdict for each in found.evaluations} == {Verdict.SUCCESS}
    assert len(found.evaluations) == 7


@pytest.mark.usefixtures("in_process")
def test_a_time_budget_ends_a_search(find, monkeypatch):
    """After the round that exceeds it, and no further round is begun."""
    ticks = iter(range(10_000))
    clock = lambda: float(next(ticks))  # noqa: E731
    monkeypatch.setattr("dispatch_profiler.tuner.search.search.Stopwatch", partial(Stopwatch, clock))
    monkeypatch.setattr("dispatch_profiler.tuner.search.search.Devices", partial(Devices, clock=clock))
    found = only_result(find(task(count=20, seconds=14.0)))
    assert found.ended_by == "seconds"
    assert 4 <= len(found.evaluations) < 21
    spent = sum(each.seconds for each in found.evaluations)
    assert 14.0 <= spent < 18.0


# -- several devices ---------------------------------------------------------------------------------


@pytest.mark.slow
def test_several_devices_find_what_one_finds(find, monkeypatch):
    """Each operation is measured on one device, both devices have work, and the storage is the same.

    Also if operations are compiled while others are measured.
    """
    tasks = [task(Matmul(16, 32, k), evaluations=5) for k in (8, 16, 24)]
    alone = find(*tasks, storage="alone.log")
    monkeypatch.setattr(
        "test_search.OPTIONS", replace(OPTIONS, devices=("null://0", "null://1"), overlap=True)
    )
    both = find(*tasks, storage="both.log")

    assert outcomes(both) == outcomes(alone)
    devices = [{each.record.provenance.device for each in found.evaluations} for found in both.operations]
    assert all(len(each) == 1 for each in devices)
    assert set.union(*devices) == {"null://0", "null://1"}
    assert outcomes(find(*tasks, storage="alone.log")) == outcomes(alone)
    assert {type(each) for each in find.events} == {Resumed, SearchEnded}


# -- docs/tuning.md ---------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.usefixtures("in_process")
def test_the_program_in_the_docs_runs(capsys, monkeypatch):
    """On the null target, and with few evaluations."""
    document = Path(__file__).parents[3] / "docs" / "tuning.md"
    (program,) = re.findall(r"```python\n(.*?)```", document.read_text(), flags=re.DOTALL)
    shorter = (
        program.replace('"llvm-cpu"', '"null"').replace("128, 768, 768", "16, 32, 8").replace("=32", "=4")
    )
    assert shorter.count('"null"') == shorter.count("=4") == 1
    exec(shorter, {})
    assert capsys.readouterr().out.count("Evaluated(") == 4
    assert Path("search.db").is_file()


# -- on this CPU -------------------------------------------------------------------------------------


def test_a_search_with_iree_finds_a_verified_configuration(measured):
    """Two of the seeds are the same kernel: cache tiles that hold a whole workgroup tile change nothing."""
    operation, target = Matmul(64, 64, 64), parse_target("llvm-cpu")
    tiled, cached = CpuTiles((64, 64), (8, 32, 1)), CpuTiles((64, 64), (8, 32, 1), (64, 64, 64))
    space = SearchSpace(operation, target.limits)
    task = SearchTask(space, seeds=(tiled, cached), evaluations=4)
    options = SearchOptions(replace(QUICK, device="local-sync", seconds=120.0))
    with open_storage("search.db") as storage:
        found = only_result(search([task], target, storage, options))

    evaluations = {each.configuration: each for each in found.evaluations}
    assert len(evaluations) == 4 and len(measured) == 3
    assert evaluations[cached].same_kernel_as == evaluations[tiled].dispatch.name
    assert evaluations[cached].milliseconds == evaluations[tiled].milliseconds
    assert found.default is not None and found.best is not None
    assert found.best.record.verdict is Verdict.SUCCESS


@pytest.mark.usefixtures("in_process")
def test_a_search_whose_study_was_taken_over_ends_before_the_next_round(find, monkeypatch):
    """What it had stored is kept."""
    with open_storage("search.log", alive_seconds=0.0) as storage:
        studies = []
        whole = storage.study

        def study(*arguments):
            studies.append(whole(*arguments))
            return studies[-1]

        def take_over(event: Event) -> None:
            if isinstance(event, Evaluated) and event.done == 9:
                change_owner("search.log", token="other", host="node7")

        monkeypatch.setattr(storage, "study", study)
        Path("faults.yaml").write_text(yaml.safe_dump(EQUALLY_FAST))
        with pytest.raises(StorageError, match=r"another search took over .*\(process \d+ on node7\)"):
            search([task(count=20)], NullTarget("faults.yaml"), storage, OPTIONS, take_over)
        assert len(studies[0].evaluations) == 9
