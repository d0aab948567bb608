"""Candidates that were never on disk: compiled, verified and measured in one process, batch after batch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from dispatch_profiler.compiler import BuildRequest, Compiler, IreeCompiler, NullCompiler
from dispatch_profiler.compiler.backends.null import Rule
from dispatch_profiler.configurations import Configuration, CpuTiles, Default
from dispatch_profiler.dispatches import Dispatch
from dispatch_profiler.generator.render import render_module
from dispatch_profiler.isolation import Worker
from dispatch_profiler.operations import Matmul, Operation
from dispatch_profiler.profiler.evaluation import device_worker
from dispatch_profiler.profiler.evaluation.candidate import Candidate, Vmfb
from dispatch_profiler.profiler.evaluation.evaluator import Evaluator
from dispatch_profiler.profiler.evaluation.options import EvaluatorOptions
from dispatch_profiler.profiler.measurement.measure import MeasureOptions
from dispatch_profiler.profiler.records.record import Verdict
from dispatch_profiler.profiler.statistics.stopping import StopRule
from dispatch_profiler.targets import parse_target

OPERATION = Matmul(16, 32, 8)
SLOW, FAST = CpuTiles((16, 32), (8, 16, 1)), CpuTiles((16, 32), (8, 32, 1))
RULES = (
    Rule("*_default", time_ms=1.0),
    Rule(f"*{SLOW.name}", time_ms=90.0),
    Rule(f"*{FAST.name}", time_ms=0.5),
)


def candidates(
    compiler: Compiler,
    operation: Operation,
    configurations: Sequence[Configuration],
    target: str,
    repeat: int,
) -> list[Candidate]:
    """Compile a module in memory."""
    dispatches = tuple(Dispatch(operation, each) for each in configurations)
    flags = parse_target(target).compile_flags
    built = compiler.build(BuildRequest(render_module(operation, dispatches), dispatches, flags, repeat))
    verify, profile = Vmfb.of(built.verify), Vmfb.of(built.profile)
    return [
        Candidate(dispatch, target, verify, profile, repeat, outcome.state, outcome.reason, compiler.revision)
        for dispatch in dispatches
        for outcome in [built.outcomes[dispatch.name]]
    ]


def in_null(*configurations: Configuration) -> list[Candidate]:
    return candidates(NullCompiler(RULES), OPERATION, configurations, "null", 10)


@pytest.mark.usefixtures("in_process")
def test_the_best_result_persists_from_batch_to_batch():
    """The default is in the first batch only; a candidate of the second is given up against it."""
    with Evaluator(EvaluatorOptions("null")) as evaluator:
        assert evaluator.best(OPERATION) is None
        (default,) = evaluator.records(in_null(Default()))
        assert evaluator.best(OPERATION) == default
        (slow,) = evaluator.records(in_null(SLOW))
        assert evaluator.best(OPERATION) == default
        assert evaluator.best(Matmul(1, 1, 1)) is None
        (fast,) = evaluator.records(in_null(FAST))
        assert evaluator.best(OPERATION) == fast

    assert [record.verdict for record in (default, slow, fast)] == [Verdict.SUCCESS] * 3
    assert slow.measurement.ended_by == "abandoned"
    assert (default.measurement.ended_by, fast.measurement.ended_by) == ("interval", "interval")
    assert not list(Path().iterdir())  # nothing was written

    with Evaluator(EvaluatorOptions("null")) as alone:
        (slow,) = alone.records(in_null(SLOW))
    assert slow.measurement.ended_by == "interval"


@pytest.mark.usefixtures("in_process")
def test_what_fails_is_never_the_best():
    wrong = (Rule(f"*{FAST.name}", fault="wrong_element", time_ms=0.1), *RULES)
    with Evaluator(EvaluatorOptions("null")) as evaluator:
        default, failed = evaluator.records(
            candidates(NullCompiler(wrong), OPERATION, [Default(), FAST], "null", 10)
        )
        assert evaluator.best(OPERATION) == default

    assert failed.verdict is Verdict.FAILED


@pytest.mark.usefixtures("in_process")
def test_no_record_names_a_command_line_that_could_not_make_it_again():
    with Evaluator(EvaluatorOptions("null")) as evaluator:
        (record,) = evaluator.records(in_null(Default()))
    assert record.reproduce == ""


@pytest.mark.slow
@pytest.mark.usefixtures("shared_cache")
def test_a_real_matmul_is_compiled_verified_and_measured_without_a_tree(monkeypatch):
    """Both vmfbs of a module reach the process once, however many candidates and sample batches it has."""
    sent: list[int] = []
    whole = Worker.call

    def call(worker: Worker, function, *arguments, **options):
        if function is device_worker.receive:
            sent.append(len(arguments[1]))
        return whole(worker, function, *arguments, **options)

    monkeypatch.setattr(Worker, "call", call)
    operation, tiles = Matmul(32, 64, 16), CpuTiles((16, 32), (8, 16, 1))
    options = EvaluatorOptions("local-task", measure=MeasureOptions(StopRule(count=6)))
    with Evaluator(options) as evaluator:
        records = []
        for batch in ([Default()], [tiles]):
            made = candidates(IreeCompiler(), operation, batch, "llvm-cpu", 10)
            records += [*evaluator.records(made), *evaluator.records(made)]
        best = evaluator.best(operation)

    assert [record.verdict for record in records] == [Verdict.SUCCESS] * 4, [r.reason for r in records]
    assert all(record.measurement and record.measurement.median_ms > 0 for record in records)
    assert best in records
    assert len(sent) == 4
    assert not list(Path().iterdir())
