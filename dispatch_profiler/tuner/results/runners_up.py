"""The best few of a search, measured beside each other: the fastest of many candidates was also the luckiest.

    search -> finalists with indistinguishable times -> paired sampling -> the order to benchmark them in

Only the order is decided here. The speedup of the kept finalist comes from fresh samples (`finalists`),
because the samples here favour the luckiest, too.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dispatch_profiler.configurations import Default
from dispatch_profiler.dispatches import Tree, load_manifest
from dispatch_profiler.generator.emit import emit
from dispatch_profiler.generator.plan import Plan
from dispatch_profiler.library import Estimate
from dispatch_profiler.library.entry import confirmed_speedup
from dispatch_profiler.profiler.compare.confirm import confirmation_of
from dispatch_profiler.profiler.compare.live import LiveComparison
from dispatch_profiler.profiler.records.record import Confirmation
from dispatch_profiler.targets import Target
from dispatch_profiler.tuner.evaluation.evaluations import Evaluation
from dispatch_profiler.tuner.results.finalists import (
    Benchmark,
    Contender,
    compile_all,
    entry_of,
    untuned_best,
)
from dispatch_profiler.tuner.results.uplift import Finalist, Judged, Judgement
from dispatch_profiler.tuner.search.search import OperationResult
from dispatch_profiler.tuner.spaces.seeds import baselines
from dispatch_profiler.tuner.tunings.problems import TuningProblem

#: The largest number of tuned finalists of a problem.
MOST = 3
#: Seconds to compare two finalists. Their order alone matters, so this is less than for a speedup.
_SECONDS = 10.0


def contenders(problem: TuningProblem, result: OperationResult, target: Target) -> tuple[Contender, ...]:
    """The candidates to replace the compiler's default, in the order to benchmark them; may be empty.

    The fastest tuned configuration, and up to two others whose intervals overlap the interval of the fastest.
    Then the fastest known form, if it is the fastest untuned configuration.
    """
    best = result.best
    if best is None:
        return ()
    untuned = baselines(result.operation, target)
    slowest = _interval(best)[1]
    close = sorted(
        (
            each
            for each in result.evaluations
            if _is_complete(each) and each.configuration not in untuned and _interval(each)[0] <= slowest
        ),
        key=lambda each: each.milliseconds or 0.0,
    )
    form = untuned_best(result, target)
    forms = [form] if form is not None and not isinstance(form.configuration, Default) else []
    return tuple(
        Contender(problem, entry_of(each, result, target), each.record) for each in [*close[:MOST], *forms]
    )


def _is_complete(evaluation: Evaluation) -> bool:
    """Whether it was verified and measured to the end, and is a kernel of its own."""
    is_measured = evaluation.milliseconds is not None and not evaluation.was_abandoned
    return is_measured and not evaluation.same_kernel_as


def _interval(evaluation: Evaluation) -> tuple[float, float]:
    measurement = evaluation.record.measurement
    assert measurement is not None  # it has a time
    return measurement.interval_ms


@dataclass(frozen=True)
class Ranked:
    """The contenders of a problem, in the order to benchmark them, and a judgement of each that another one beat.

    `compared` counts the finalists that were measured beside each other, 0 if there was no choice.
    """

    contenders: tuple[Contender, ...]
    beaten: tuple[Judged, ...] = ()
    compared: int = 0


def ranked(fields: Sequence[tuple[Contender, ...]], benchmark: Benchmark, folder: Path) -> Iterator[Ranked]:
    """Each of `fields`, the contenders of a problem, by their speed beside each other.

    `folder` is for a tree; it must be new or empty. Raises TargetError if the device does not open.
    """
    target = benchmark.target
    tuned = [[each for each in field if not each.is_untuned(target)] for field in fields]
    groups = tuple(
        (group[0].problem.operation, tuple(each.entry.dispatch for each in group))
        for group in tuned
        if len(group) > 1
    )
    if not groups:
        yield from map(Ranked, fields)
        return
    tree = Tree(folder)
    for _ in emit(Plan(target, groups), tree):
        pass
    compile_all(tree, benchmark)
    manifest = load_manifest(tree)
    pairs = {pair[1].dispatch: pair for pair in manifest.dispatches()}
    with LiveComparison(manifest, manifest, replace(benchmark.paired, seconds=_SECONDS)) as comparison:
        for field, group in zip(fields, tuned, strict=True):
            if len(group) < 2:
                yield Ranked(field)
                continue
            first, *others = (pairs[each.entry.dispatch] for each in group)
            compared = comparison.pairs([(first, each) for each in others])
            order = by_speed(group, [confirmation_of(each) for each in compared])
            forms = [each for each in field if each not in group]
            yield replace(order, contenders=(*order.contenders, *forms))


def by_speed(group: Sequence[Contender], beside: Sequence[Confirmation]) -> Ranked:
    """The order of `group`, whose others were measured beside its first: `beside` has their speeds relative to it.

    A contender that failed beside it comes last. Equally fast contenders keep the order of `group`.
    """
    speeds = [Estimate(1.0, 1.0, 1.0), *map(confirmed_speedup, beside)]
    values = [0.0 if each is None else each.value for each in speeds]
    order = sorted(range(len(group)), key=lambda at: -values[at])
    name = group[order[0]].entry.dispatch.configuration.name
    beaten = []
    for at in order[1:]:
        speed, other = speeds[at], speeds[order[0]]
        if speed is None or other is None:
            outcome = Judgement.NOT_COMPARED
            reason = (
                f"it has no time beside {group[0].entry.dispatch.configuration.name}: {beside[at - 1].reason}"
            )
        else:
            outcome = Judgement.RUNNER_UP
            reason = f"{name} is {_text(other, speed)} times as fast beside it"
        beaten.append(Judged(Finalist(group[at].problem, None, group[at].untimed), outcome, reason))
    return Ranked(tuple(group[at] for at in order), tuple(beaten), len(group))


def _text(one: Estimate, other: Estimate) -> str:
    """How much faster `one` is: `1.031 (1.012 to 1.048)`. The interval is known if one of them is the reference."""
    ratio = f"{one.value / other.value:.3f}"
    ends = (one.low / other.high, one.high / other.low if other.low else math.inf)
    is_direct = 1.0 in (one.low, other.low) and 1.0 in (one.high, other.high)
    return f"{ratio} ({ends[0]:.3f} to {ends[1]:.3f})" if is_direct and math.isfinite(ends[1]) else ratio
