"""Dispatches become candidates in memory; what fails has a reason and affects nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from dispatch_profiler.compiler import Cache, NullCompiler
from dispatch_profiler.compiler.backends.null import Rule
from dispatch_profiler.compiler.workers import pool
from dispatch_profiler.configurations import CpuTiles, Default, Flow
from dispatch_profiler.dispatches import Dispatch, State
from dispatch_profiler.errors import UsageError
from dispatch_profiler.operations import Matmul
from dispatch_profiler.profiler.evaluation.evaluator import Evaluator
from dispatch_profiler.profiler.evaluation.options import EvaluatorOptions
from dispatch_profiler.profiler.measurement.measure import MeasureOptions
from dispatch_profiler.profiler.records.record import Verdict
from dispatch_profiler.profiler.statistics.stopping import StopRule
from dispatch_profiler.targets import NullTarget, parse_target
from dispatch_profiler.tuner.evaluation.building import BuildOptions, CandidateBuilder

SMALL, LARGE = Matmul(16, 32, 8), Matmul(32, 32, 8)
FINE, CRASHES, REFUSED = (CpuTiles((16, 32), (8, each, 1)) for each in (8, 16, 32))
RULES = (
    Rule(f"*{CRASHES.name}", compiler="crash"),
    Rule(f"*{REFUSED.name}", not_compiled="no such tile"),
)
ONE = BuildOptions(workers=1)


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
    """Configurations of an operation share modules, as few as the workers and the largest size allow."""
    tiles = [CpuTiles((16, 32), (8, each, 1)) for each in (1, 2, 4, 8, 16, 32)]
    for workers, sizes in ((1, [3, 3]), (2, [3, 3]), (6, [1] * 6)):
        builds.clear()
        with CandidateBuilder(NullTarget(), BuildOptions(workers=workers, largest_module=4)) as builder:
            builder.candidates(dispatches(SMALL, *tiles))
        assert sorted(map(len, builds)) == sizes


def test_a_failure_of_the_compiler_affects_no_other_dispatch():
    """One of a module crashes the compiler process, another is rejected."""
    with CandidateBuilder(NullTarget(), ONE, compiler=NullCompiler(RULES)) as builder:
        crashes, fine, refused = builder.candidates(dispatches(SMALL, CRASHES, FINE, REFUSED))
        (again,) = builder.candidates(dispatches(SMALL, Default()))

    assert (crashes.state, crashes.reason) == (State.NOT_COMPILED, "killed by SIGABRT")
    assert (refused.state, refused.reason) == (State.NOT_COMPILED, "no such tile")
    assert fine.state is again.state is State.COMPILED
    assert fine.verify is not None and crashes.verify is None and refused.profile is None


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
def test_what_is_in_the_cache_is_not_built_again(tmp_path: Path, builds):
    cache = Cache(tmp_path / "cache")
    found = []
    for _ in range(2):
        with CandidateBuilder(NullTarget(), ONE, cache) as builder:
            found.append(builder.candidates(dispatches(SMALL, FINE, Default())))
    assert found[0] == found[1]
    assert [each.profile.load() for each in found[0]] == [each.profile.load() for each in found[1]]
    assert len(builds) == 1


def test_an_unknown_flag_is_an_error_of_the_request():
    options = BuildOptions(flags=("--no-such-flag",), workers=1)
    with (
        CandidateBuilder(parse_target("llvm-cpu"), options) as builder,
        pytest.raises(UsageError, match="option not found: no-such-flag"),
    ):
        builder.candidates(dispatches(SMALL, Default()))


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
