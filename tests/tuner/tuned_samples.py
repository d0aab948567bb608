"""The outcome of an invented tuning: faster, slower, wrong and failed candidates, without a compiler or a device."""

from __future__ import annotations

import random
from dataclasses import replace

from search_samples import ORIGIN

from dispatch_profiler.configurations import Configuration, CpuTiles, Default
from dispatch_profiler.dispatches import Dispatch
from dispatch_profiler.library import KeepRule
from dispatch_profiler.operations import Matmul
from dispatch_profiler.profiler.measurement.measure import Measurement
from dispatch_profiler.profiler.records.record import Confirmation, Record, StoredRecord, Verdict, stored
from dispatch_profiler.targets import NullTarget
from dispatch_profiler.tuner.evaluation.evaluations import Evaluation
from dispatch_profiler.tuner.report.page import TuningOutcome
from dispatch_profiler.tuner.results.entries import EntrySpeedups
from dispatch_profiler.tuner.results.uplift import Finalist, Judged, Judgement, judge, uplift
from dispatch_profiler.tuner.search.operation_search import finalists
from dispatch_profiler.tuner.search.search import OperationResult
from dispatch_profiler.tuner.tunings.problems import TuningProblem
from dispatch_profiler.tuner.tunings.tuning_file import Searched, Tuning

TARGET = NullTarget("times.yaml")
_FAILURES = (
    (Verdict.NOT_COMPILED, "error: 'linalg.matmul' op vector sizes exceed the registers of the target"),
    (Verdict.FAILED, "37 of 512 elements differ; the largest error is 0.5 at [3, 7]"),
    (Verdict.CRASHED, "killed by SIGSEGV"),
)


def record(
    operation: Matmul, configuration: Configuration, milliseconds: float, draw: random.Random
) -> Record:
    samples = tuple(milliseconds * (1.0 + 0.03 * draw.random()) for _ in range(9))
    limit = operation.flops / 90e6
    taken = Measurement(samples, 10)
    return Record(
        Dispatch(operation, configuration), ORIGIN, Verdict.SUCCESS, measurement=taken, limit_ms=limit
    )


def _evaluations(operation: Matmul, count: int, draw: random.Random) -> tuple[Evaluation, ...]:
    tiles = [
        CpuTiles((m, n), (a, b, k))
        for m in (8, 16, 32, 64)
        for n in (16, 32, 64, 128)
        for a, b, k in ((4, 8, 1), (8, 16, 1), (8, 32, 4), (1, 32, 8))
    ]
    draw.shuffle(tiles)
    found = []
    for configuration in [Default(), *tiles[: count - 1]]:
        if not isinstance(configuration, Default) and draw.random() < 0.15:
            verdict, reason = draw.choice(_FAILURES)
            made = Record(Dispatch(operation, configuration), ORIGIN, verdict, reason)
        else:
            slowdown = 2.5 if isinstance(configuration, Default) else draw.choice((1.4, 1.8, 2.2, 3.0, 6.0))
            milliseconds = operation.flops / 90e6 * (slowdown + draw.random() * 0.4)
            made = record(operation, configuration, milliseconds, draw)
        found.append(Evaluation(made.dispatch, stored(made), "", 0.5))
    return tuple(found)


def _judged(
    problem: TuningProblem, result: OperationResult, share: float | None, draw: random.Random
) -> Judged:
    best, default = result.best, result.default
    assert best is not None and default is not None and best.milliseconds and default.milliseconds
    if best == default:
        reason = "no configuration was faster than tile_config_default in the search"
        return Judged(Finalist(problem, default.record, share=share), Judgement.NO_FINALIST, reason)
    value = default.milliseconds / best.milliseconds * (0.75 + 0.3 * draw.random())
    paired = Confirmation("faster", "", value, value * 0.96, value * 1.05)
    tuned: StoredRecord = best.record
    if draw.random() < 0.1:
        tuned = replace(tuned, verdict=Verdict.FAILED, reason=_FAILURES[1][1])
    other = finalists(result.evaluations, 2)[1]
    runner_up = Judged(
        Finalist(problem, None, replace(other.record, measurement=None)),
        Judgement.RUNNER_UP,
        f"{tuned.configuration} is 1.031 (1.012 to 1.048) times as fast beside it",
    )
    beside = paired if tuned.verdict is Verdict.SUCCESS else None
    judged = judge(Finalist(problem, default.record, tuned, beside, share=share), KeepRule(0.0))
    speedup = judged.kept_speedup
    entry = EntrySpeedups(speedup, speedup) if judged.is_kept else None
    return replace(judged, others=(runner_up,), entry=entry)


def invented_tuning(
    problems: int, evaluations: int = 24, *, knows_shares: bool = True, seed: int = 0
) -> TuningOutcome:
    """`problems` of which the last one has no result."""
    draw = random.Random(seed)
    searched, judged = [], []
    weights = [draw.random() ** 3 + 0.02 for _ in range(problems)]
    for at, weight in enumerate(weights):
        operation = Matmul(16 * (at + 1), 32 * (1 + at % 5), 64)
        problem = TuningProblem(f"SSS_NN_{at}", operation, 1 + at % 7, f"log.yaml:{at + 1}")
        share = 92.0 * weight / sum(weights) if knows_shares else None
        tuning = Tuning(problem.name, operation, TARGET, "null", problem.count)
        if at == problems - 1 and problems > 1:
            searched.append(Searched(tuning, failure="the device failed: no such device"))
            reason = "the device failed: no such device"
            judged.append(Judged(Finalist(problem, None, share=share), Judgement.NO_FINALIST, reason))
            continue
        found = _evaluations(operation, evaluations, draw)
        result = OperationResult(operation, found, found[0], "evaluations")
        searched.append(Searched(tuning, result))
        judged.append(_judged(problem, result, share, draw))
    return TuningOutcome(tuple(searched), tuple(judged), uplift(judged))
