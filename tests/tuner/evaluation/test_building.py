"""Candidates are built in memory and measured on devices; time is attributed to what a search does."""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from evaluator_bench import GONE, Bench
from search_samples import TILES

from dispatch_profiler import cores
from dispatch_profiler.compiler import Cache, NullCompiler
from dispatch_profiler.compiler.backends.null import Rule
from dispatch_profiler.compiler.request import repeat_count
from dispatch_profiler.compiler.workers import pool
from dispatch_profiler.configurations import CpuTiles, Default, Flow, Microkernel, Tuned
from dispatch_profiler.dispatches import Dispatch, State
from dispatch_profiler.errors import TargetError, ToolError, UsageError
from dispatch_profiler.operations import ElementTypes, Matmul
from dispatch_profiler.profiler.evaluation.candidate import Candidate, EvaluatorOptions
from dispatch_profiler.profiler.evaluation.evaluator import Evaluator
from dispatch_profiler.profiler.measurement.measure import MeasureOptions
from dispatch_profiler.profiler.records.record import Provenance, Record, Verdict, stored
from dispatch_profiler.profiler.statistics.stopping import StopRule
from dispatch_profiler.targets import NullTarget, parse_target
from dispatch_profiler.tuner.evaluation import building, devices, measuring
from dispatch_profiler.tuner.evaluation.building import BuildOptions, CandidateBuilder, short_repeat
from dispatch_profiler.tuner.evaluation.devices import (
    SharedDevices,
    alike,
    confined,
    usual_devices,
    working_on,
)
from dispatch_profiler.tuner.evaluation.evaluations import Evaluation
from dispatch_profiler.tuner.evaluation.measuring import Devices, Measured
from dispatch_profiler.tuner.evaluation.stopwatch import SearchPhase, Stopwatch, Times

SMALL, LARGE = Matmul(16, 32, 8), Matmul(32, 32, 8)
FINE, CRASHES, REFUSED = (CpuTiles((16, 32), (8, each, 1)) for each in (8, 16, 32))
RULES = (
    Rule(f"*{CRASHES.name}", compiler="crash"),
    Rule(f"*{REFUSED.name}", not_compiled="no such tile"),
)
ONE = BuildOptions(workers=1)
PROVENANCE = Provenance("null", "null", "compiler null", 0)


def dispatches(operation: Matmul, *configurations: object) -> list[Dispatch]:
    return [Dispatch(operation, each) for each in configurations]


@pytest.fixture
def builds(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """The configurations of each module that is built, in the order of the builds."""
    seen: list[tuple[str, ...]] = []
    whole = NullCompiler.build

    def build(self, request):
        seen.append(tuple(each.configuration.name for each in request.dispatches))
        return whole(self, request)

    monkeypatch.setattr(NullCompiler, "build", build)
    return seen


@pytest.mark.usefixtures("in_process")
def test_candidates_come_in_order_with_what_a_record_needs():
    """Those of several operations, with flags of their own, and one that is asked for twice."""
    asked = [
        *dispatches(LARGE, Default()),
        *dispatches(SMALL, FINE, Flow("data_tiling"), Default(), FINE),
    ]
    with CandidateBuilder(NullTarget(), BuildOptions(flags=("--mine",), repeat=7, workers=1)) as builder:
        found = builder.candidates(asked)
        assert builder.candidates([]) == []

    assert [each.dispatch for each in found] == asked
    assert {each.state for each in found} == {State.COMPILED}
    assert {each.repeat for each in found} == {7} and {each.target for each in found} == {"null"}
    assert {each.compiler for each in found} == {builder.revision}
    assert [each.flags for each in found[1:3]] == [("--mine",), (*Flow("data_tiling").flags, "--mine")]
    assert found[1].module_key == found[3].module_key
    assert len({each.module_key for each in found}) == 3
    assert found[1].verify is not None and found[1].verify == found[4].verify


@pytest.mark.usefixtures("in_process")
def test_an_invalid_configuration_never_reaches_the_compiler(builds):
    invalid = CpuTiles((16, 32), (8, 8, 8, 1))
    with CandidateBuilder(NullTarget(), ONE) as builder:
        first, second = builder.candidates(dispatches(SMALL, invalid, FINE))

    assert first.state is State.NOT_COMPILED and first.reason == invalid.invalid_reason(
        SMALL, NullTarget().limits
    )
    assert first.vmfbs == () and second.state is State.COMPILED
    assert builds == [(FINE.name,)]


@pytest.mark.usefixtures("in_process")
def test_modules_keep_all_workers_busy(builds):
    """Configurations of an operation share modules, two for each worker that another one may wait for."""
    tiles = [CpuTiles((16, 32), (8, each, 1)) for each in (1, 2, 4, 8, 16, 32)]
    for workers, sizes in ((1, [3, 3]), (2, [3, 3]), (3, [2, 2, 2]), (4, [1] * 6)):
        builds.clear()
        with CandidateBuilder(NullTarget(), BuildOptions(workers=workers, largest_module=4)) as builder:
            builder.candidates(dispatches(SMALL, *tiles))
        assert sorted(map(len, builds)) == sizes


@pytest.mark.usefixtures("in_process")
def test_kernels_of_the_source_are_in_modules_of_their_own(builds):
    """The front end does not see their bodies, so that they would share nothing."""
    operation = Matmul(20, 128, 34)
    kernels = [Microkernel((10, 64), (each, 1, 64), 2) for each in (2, 6)]
    target, options = parse_target("llvm-cpu:x86-64-v4"), BuildOptions(workers=1)
    with CandidateBuilder(target, options, compiler=NullCompiler()) as builder:
        found = builder.candidates(dispatches(operation, Default(), *kernels, CpuTiles((4, 32), (4, 32, 1))))
    assert sorted(map(len, builds)) == [1, 1, 2]
    assert {each.state for each in found} == {State.COMPILED}


@pytest.mark.parametrize(
    ("operation", "threads", "repeat"),
    [
        (Matmul(1024, 1024, 1024), 2, 1),
        (Matmul(256, 256, 256), 2, 3),
        (Matmul(256, 256, 256, ElementTypes("bf16", "bf16", "f32")), 2, 6),
        (Matmul(256, 256, 256), 64, 60),  # as in a profile
        (Matmul(16, 32, 8), 2, 100),
    ],
)
def test_calls_of_candidates_last_half_a_millisecond_or_less(monkeypatch, operation, threads, repeat):
    """At 100 GFLOP/s for each thread, and with no more executions than in a profile."""
    monkeypatch.setattr(building, "usable_threads", lambda: threads)
    assert short_repeat(operation, parse_target("llvm-cpu:x86-64-v4")) == repeat
    gpu = parse_target("cuda:sm_80")
    assert short_repeat(operation, gpu) == repeat_count(operation, on_gpu=True)


@pytest.mark.usefixtures("in_process")
def test_modules_with_large_sources_are_built_first(builds):
    """They take longest, so that no core waits for them at the end."""
    tiles = [CpuTiles((16, 32), (8, each, 1)) for each in (1, 2, 4)]
    with CandidateBuilder(NullTarget(), BuildOptions(workers=1, largest_module=2)) as builder:
        builder.candidates([*dispatches(LARGE, Default()), *dispatches(SMALL, *tiles)])
    assert [len(each) for each in builds] == [2, 1, 1]


@pytest.mark.usefixtures("in_process")
def test_modules_whose_code_the_compiler_generates_are_built_before_short_kernels(builds):
    """Their sources are short, but the compiler takes longer for them."""
    operation = Matmul(20, 128, 34)
    kernel, tiles = Microkernel((10, 64), (2, 1, 64), 2), CpuTiles((4, 32), (4, 32, 1))
    target, options = parse_target("llvm-cpu:x86-64-v4"), BuildOptions(workers=1)
    with CandidateBuilder(target, options, compiler=NullCompiler()) as builder:
        builder.candidates(dispatches(operation, kernel, Default(), tiles))
    assert [len(each) for each in builds] == [2, 1]


@pytest.mark.usefixtures("in_process")
def test_sources_are_rendered_in_the_compiler_processes(monkeypatch):
    """The candidates are the same as if this process rendered them; other processes are not started for a few."""
    called: list[str] = []
    whole = pool.Worker.call

    def call(worker, function, *arguments, **options):
        called.append(function.__name__)
        return whole(worker, function, *arguments, **options)

    monkeypatch.setattr(pool.Worker, "call", call)
    every = dispatches(SMALL, *(CpuTiles((16, 32), (8, each, 1)) for each in (1, 2, 4, 8, 16, 32)))
    asked = [*every, *dispatches(LARGE, Default(), FINE)]
    found = []
    for workers, count, rendered in ((1, 8, 0), (8, 8, 8), (8, 2, 0)):
        called.clear()
        with CandidateBuilder(NullTarget(), BuildOptions(workers=workers, largest_module=1)) as builder:
            found.append(builder.candidates(asked[:count]))
        assert called.count("render_module") == rendered
    assert found[0] == found[1] and found[1][:2] == found[2]


@pytest.mark.slow
def test_a_failure_of_the_compiler_affects_no_other_dispatch():
    """One of a module crashes the compiler process, another is rejected."""
    with CandidateBuilder(NullTarget(), ONE, compiler=NullCompiler(RULES)) as builder:
        crashes, fine, refused = builder.candidates(dispatches(SMALL, CRASHES, FINE, REFUSED))
        (again,) = builder.candidates(dispatches(SMALL, Default()))

    assert (crashes.state, crashes.reason) == (State.NOT_COMPILED, "killed by SIGABRT")
    assert (refused.state, refused.reason) == (State.NOT_COMPILED, "no such tile")
    assert fine.state is again.state is State.COMPILED
    assert fine.verify is not None and crashes.verify is None and refused.profile is None


@pytest.mark.parametrize(("workers", "order"), [(2, "bbbbrrrrbr"), (8, "brbrbrbrbr")])
def test_other_work_begins_when_builders_are_idle_or_if_they_are_many(workers: int, order: str):
    """The order in which five candidates are built and ready."""
    seen: list[str] = []
    options = BuildOptions(workers=workers, largest_module=1)
    each = dispatches(SMALL, *(CpuTiles((16, 32), (8, columns, 1)) for columns in (2, 4, 8, 16)), Default())
    with CandidateBuilder(NullTarget(), options, compiler=NullCompiler()) as builder:
        builder.candidates(each, lambda _: seen.append("r"), lambda _: seen.append("b"))
    assert "".join(seen) == order


def test_the_compiler_process_persists_between_calls(monkeypatch):
    started = []
    whole = pool.Worker

    def start(*arguments, **options):
        started.append(arguments)
        return whole(*arguments, **options)

    monkeypatch.setattr(pool, "Worker", start)
    with CandidateBuilder(NullTarget(), ONE) as builder:
        builder.candidates(dispatches(SMALL, Default()))
        builder.candidates(dispatches(LARGE, Default()))
    assert len(started) == 1


@pytest.mark.usefixtures("in_process")
def test_what_a_record_was_made_of_is_taken_from_the_module_that_it_names(tmp_path: Path, builds):
    """Also if that had other dispatches. What the cache lacks is left out, and a key names no file elsewhere."""
    asked = dispatches(SMALL, Default(), FINE)

    def evaluation(key: str, repeat: int) -> Evaluation:
        provenance = replace(PROVENANCE, module_key=key, flags=fine.flags)
        record = Record(asked[1], provenance, Verdict.SUCCESS)
        return Evaluation(asked[1], stored(record), repeat=repeat)

    with CandidateBuilder(NullTarget(), ONE, Cache(tmp_path / "cache")) as builder:
        _, fine = builder.candidates(asked)
        assert builder.again([evaluation(fine.module_key, fine.repeat)]) == {asked[1]: fine}
        for key in ("", "0" * 64, f"../{fine.module_key}"):
            assert builder.again([evaluation(key, fine.repeat)]) == {}
        # Evaluations of earlier versions: how often a call executes it is unknown.
        assert builder.again([evaluation(fine.module_key, 0)]) == {}
        assert builds == [("tile_config_default", FINE.name)]


@pytest.mark.usefixtures("in_process")
def test_what_is_in_the_cache_is_not_built_again(tmp_path: Path, builds):
    cache = Cache(tmp_path / "cache")
    found = []
    for _ in range(2):
        with CandidateBuilder(NullTarget(), ONE, cache) as builder:
            found.append(builder.candidates(dispatches(SMALL, FINE, Default())))
    assert found[0] == found[1]
    assert [each.profile.load() for each in found[0]] == [each.profile.load() for each in found[1]]
    assert len(builds) == 1


@pytest.mark.usefixtures("in_process")
def test_further_dispatches_are_built_last_for_a_later_call(tmp_path: Path, builds):
    """Each in a module of its own. Without a cache, and if they are invalid, they are left out."""
    invalid, entry = Dispatch(SMALL, CpuTiles((16, 32), (8, 8, 8, 1))), Dispatch(SMALL, Tuned(FINE))
    own, built = dispatches(SMALL, Default()), ("tile_config_default",)
    with CandidateBuilder(NullTarget(), ONE) as builder:
        builder.candidates(own, further=[entry])
    assert builds == [built]
    builds.clear()
    with CandidateBuilder(NullTarget(), ONE, Cache(tmp_path / "cache")) as builder:
        found = builder.candidates(own, further=[invalid, entry, Dispatch(LARGE, Tuned(FINE))])
        assert [each.dispatch for each in found] == own
        assert builds == [built, ("tile_config_tuned",), ("tile_config_tuned",)]
        (later,) = builder.candidates([entry])
    assert later.state is State.COMPILED and len(builds) == 3


def test_the_compiler_is_tried_once_and_its_error_is_raised_where_it_matters(monkeypatch):
    """Not in the thread that tries it ahead."""
    tried: list[object] = []
    whole = NullCompiler.resolve

    def resolve(self, flags):
        tried.append(threading.current_thread())
        if len(tried) < 2:
            raise ToolError("no compiler")
        return whole(self, flags)

    monkeypatch.setattr(NullCompiler, "resolve", resolve)
    with CandidateBuilder(NullTarget(), ONE) as builder:
        trial = builder.start_ahead()
        assert builder.start_ahead() is trial
        (found,) = builder.candidates(dispatches(SMALL, Default()))
    assert found.state is State.COMPILED
    assert tried[0] is trial and trial not in tried[1:]


def test_an_unknown_flag_is_an_error_of_the_request():
    options = BuildOptions(flags=("--no-such-flag",), workers=1)
    with (
        CandidateBuilder(parse_target("llvm-cpu"), options) as builder,
        pytest.raises(UsageError, match="option not found: no-such-flag"),
    ):
        builder.candidates(dispatches(SMALL, Default()))


@pytest.mark.slow
def test_iree_compiles_candidates_that_are_correct():
    """Tiles, the compiler's own choice and a flow, on this CPU."""
    target = parse_target("llvm-cpu")
    asked = dispatches(SMALL, CpuTiles((16, 32), (8, 32, 1)), Default(), Flow("data_tiling"))
    with CandidateBuilder(target) as builder:
        candidates = builder.candidates(asked)
    assert {each.state: each.reason for each in candidates} == {State.COMPILED: ""}

    measure = MeasureOptions(StopRule(count=1), 1)
    with Evaluator(EvaluatorOptions("local-sync", measure=measure)) as evaluator:
        records = list(evaluator.records(candidates))
    assert [record.verdict for record in records] == [Verdict.SUCCESS] * 3
    assert [record.dispatch for record in records] == asked
    assert {record.provenance.module_key for record in records} == {each.module_key for each in candidates}


OPTIONS = EvaluatorOptions("")
TWO = ("gpu://0", "gpu://1")


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    made = Bench()
    monkeypatch.setattr(measuring, "Evaluator", made.evaluator)
    return made


def groups(count: int) -> dict[int, list[Candidate]]:
    """Four candidates of each of `count` operations."""
    return {
        at: [Candidate(Dispatch(Matmul(16, 32, 8 + at), each), "null") for each in TILES]
        for at in range(count)
    }


def names(found: Iterable[Measured], at: int) -> list[str]:
    return [each.record.dispatch.name for each in found if each.at == at]


def wanted(given: dict[int, list[Candidate]], at: int) -> list[str]:
    return [each.dispatch.name for each in given[at]]


def homes(found: Sequence[Measured]) -> dict[int, set[str]]:
    return {
        at: {each.record.provenance.device for each in found if each.at == at} for at in {e.at for e in found}
    }


@pytest.mark.parametrize("devices", [TWO[:1], TWO, ("gpu://0", "gpu://1", "gpu://2")])
def test_every_candidate_has_a_record_in_the_order_of_its_operation(bench, devices):
    given = groups(5)
    with Devices(OPTIONS, devices) as opened:
        opened.check()
        found = list(opened.records(given))
        again = list(opened.records(given))
    for measured in (found, again):
        assert all(names(measured, at) == wanted(given, at) for at in given)
        assert all(each.seconds >= 0.0 for each in measured)
    assert homes(found) == homes(again) and all(len(each) == 1 for each in homes(found).values())
    counts = [list(homes(found).values()).count({device}) for device in devices]
    assert max(counts) - min(counts) <= 1


def test_the_work_of_a_device_that_fails_moves_to_another(bench):
    """The kernel that broke it has its record; the others of the device have none, and are asked for again."""
    bench.breaks_at = {"gpu://1": 2}
    given = groups(4)
    with Devices(OPTIONS, TWO) as opened:
        first = list(opened.records(given))
        assert opened.failures == {"gpu://1": GONE}
        known = {each.record.dispatch.name for each in first}
        left = {
            at: [each for each in group if each.dispatch.name not in known] for at, group in given.items()
        }
        second = list(opened.records({at: group for at, group in left.items() if group}))

    crashed = [each.record for each in first if each.record.verdict is Verdict.CRASHED]
    assert [each.reason for each in crashed] == ["killed by SIGBUS"]
    assert len(first) == 8 + 2 and len(second) == 6
    assert {each.record.provenance.device for each in second} == {"gpu://0"}
    assert all(sorted(names([*first, *second], at)) == sorted(wanted(given, at)) for at in given)


def test_without_a_device_there_is_an_error(bench):
    """Whether they fail one after the other or do not open at all."""
    bench.breaks_at = {"gpu://0": 1, "gpu://1": 1}
    with Devices(OPTIONS, TWO) as opened, pytest.raises(TargetError, match=GONE):
        list(opened.records(groups(2)))
    with Devices(OPTIONS, TWO) as opened, pytest.raises(TargetError, match=GONE):
        opened.check()


def test_a_device_that_does_not_open_is_left_out(bench):
    bench.broken = {"gpu://0"}
    given = groups(2)
    with Devices(OPTIONS, TWO) as opened:
        opened.check()
        assert opened.failures == {"gpu://0": GONE}
        found = list(opened.records(given))
    assert {each.record.provenance.device for each in found} == {"gpu://1"} and len(found) == 8


def test_who_stops_reading_ends_all_devices(bench):
    """Their workers are killed, so that nothing is measured any more."""

    with Devices(OPTIONS, TWO) as opened, contextlib.closing(opened.records(groups(4))) as records:
        next(records)
    assert sorted(bench.killed) == list(TWO)


@pytest.mark.parametrize("devices", [("local-task", "local-sync"), ("null://0", "null://0")])
def test_the_same_hardware_twice_is_an_error(devices):
    with pytest.raises(UsageError, match="are the same hardware"):
        Devices(OPTIONS, devices)


def test_a_driver_stands_for_all_of_its_devices(monkeypatch):
    monkeypatch.setattr(devices, "all_devices", lambda uri: tuple(f"{uri}://{each}" for each in range(3)))
    assert usual_devices("hip") == SharedDevices(("hip://0", "hip://1", "hip://2"))


@pytest.mark.parametrize("device", ["hip://1", "cuda://GPU-3f", "null", "local-task", "local-sync"])
def test_a_device_that_is_named_and_a_cpu_are_used_alone(device):
    assert usual_devices(device) == SharedDevices((device,))


def test_a_driver_without_devices_is_left_to_the_search_which_reports_it(monkeypatch):
    def none(uri):
        raise TargetError(f"no {uri} device on this machine")

    monkeypatch.setattr(devices, "all_devices", none)
    assert usual_devices("hip") == SharedDevices(("hip",))


def test_devices_unlike_the_first_are_left_out(monkeypatch):
    class Machine:
        def __init__(self, gpu: str) -> None:
            self.gpu = gpu

    monkeypatch.setattr(devices, "this_machine", lambda uri: Machine("old" if uri.endswith("1") else "new"))
    found = alike(("cuda://0", "cuda://1", "cuda://2"))
    assert found == SharedDevices(("cuda://0", "cuda://2"), ("cuda://1",))


def test_each_second_counts_for_one_phase():
    now = [10.0]
    watch = Stopwatch(lambda: now[0])
    for seconds, phase in (
        (1, SearchPhase.COMPILING),
        (4, SearchPhase.OTHER),
        (2, SearchPhase.MEASURING),
        (8, SearchPhase.OTHER),
    ):
        now[0] += seconds
        assert watch.switch(phase) == seconds
    now[0] += 1
    assert watch.times == Times(compiling=4.0, measuring=8.0, other=4.0)
    assert watch.times.total == 16.0 and watch.times.overhead == pytest.approx(0.25)


def test_no_time_has_no_overhead():
    assert Times().overhead == 0.0


# -- confinement -----------------------------------------------------------------------------------


@pytest.fixture
def masks(monkeypatch: pytest.MonkeyPatch) -> dict[int, set[int]]:
    """The affinity masks of the threads 1 to 3 of a process on eight hardware threads of four cores; 3 is the spawner."""
    found = {thread: set(range(8)) for thread in (1, 2, 3)}

    def move(thread: int, cores: Iterable[int]) -> None:
        found[thread or 1] = set(cores)

    monkeypatch.setattr(devices.os, "sched_getaffinity", lambda thread: set(found[thread or 1]))
    monkeypatch.setattr(devices.os, "sched_setaffinity", move)
    monkeypatch.setattr(devices.os, "listdir", lambda folder: ["1", "2", "3"])
    monkeypatch.setattr(devices, "spawner_thread", lambda: 3)
    monkeypatch.setattr(cores, "_threads_of_core", lambda system, number: str(number % 4))
    monkeypatch.setattr(devices, "cpu_quota", lambda: math.inf)
    return found


def test_kernels_are_measured_on_whole_cores_and_the_others_are_spare(masks):
    """Hardware threads of one core are on one side. Processes that are started inherit the mask of the spawner."""
    with confined(1) as spare:
        assert masks == {1: {0, 4}, 2: {0, 4}, 3: {0, 4}}
        assert set(spare) == {1, 5, 2, 6, 3, 7} and cores.usable_threads() == 1
        with working_on(spare):
            assert masks == {1: set(spare), 2: set(spare), 3: {0, 4}}
        assert masks == {1: {0, 4}, 2: {0, 4}, 3: {0, 4}}
    assert all(mask == set(range(8)) for mask in masks.values())


def test_without_threads_a_process_keeps_its_cores(masks):
    with confined(None) as spare:
        assert spare == () and masks[1] == set(range(8))
    with confined(4) as spare:
        assert spare == () and masks[1] == set(range(8))


def test_where_a_quota_limits_all_cores_none_is_spare(masks, monkeypatch):
    """The compiler would take the time of the kernels, whatever cores it is on."""
    monkeypatch.setattr(devices, "cpu_quota", lambda: 2.0)
    with confined(2) as spare:
        assert spare == () and masks[1] == {0, 1, 4, 5}


def test_more_threads_than_cores_are_rejected(masks):
    message = "--threads: this process may use 4 physical cores, not 5"
    with pytest.raises(UsageError, match=message), confined(5):
        pass
    assert masks[1] == set(range(8))
