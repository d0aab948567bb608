"""Which configurations are measured beside each other, and in which order they are benchmarked."""

from __future__ import annotations

from dataclasses import replace

import pytest
from search_samples import OPERATION, TILES, evaluation

from dispatch_profiler.configurations import Default
from dispatch_profiler.profiler.records.record import Confirmation
from dispatch_profiler.targets import NullTarget
from dispatch_profiler.tuner.evaluation.evaluations import SAME_KERNEL_AS, Evaluation
from dispatch_profiler.tuner.results.finalists import Contender
from dispatch_profiler.tuner.results.runners_up import by_speed, contenders
from dispatch_profiler.tuner.search.search import OperationResult
from dispatch_profiler.tuner.tunings.problems import TuningProblem

PROBLEM, TARGET = TuningProblem("SSS_NN_0", OPERATION), NullTarget("times.yaml")


def timed(configuration, low: float, median: float, high: float) -> Evaluation:
    """With samples whose median has an interval from `low` to `high`."""
    found = evaluation(configuration)
    assert found.record.measurement is not None
    samples = (low,) * 20 + (median,) * 3 + (high,) * 20
    measurement = replace(found.record.measurement, samples_ms=samples)
    return replace(found, record=replace(found.record, measurement=measurement))


def chosen(*evaluations: Evaluation) -> list[str]:
    result = OperationResult(OPERATION, evaluations, None, "evaluations")
    return [each.entry.dispatch.configuration.name for each in contenders(PROBLEM, result, TARGET)]


def test_configurations_whose_interval_overlaps_that_of_the_fastest_are_finalists():
    """At most three, and not the compiler's default."""
    one, two, three, four = TILES
    default = timed(Default(), 1.0, 1.5, 2.0)
    apart = timed(four, 1.25, 1.3, 1.4)
    close = (timed(one, 1.05, 1.1, 1.3), timed(two, 0.9, 1.0, 1.2))
    assert chosen(default, *close, apart) == [two.name, one.name]
    more = timed(three, 1.0, 1.05, 1.1)
    assert chosen(default, *close, more, timed(four, 1.15, 1.2, 1.4)) == [two.name, three.name, one.name]


def test_if_the_default_is_the_fastest_those_that_may_be_faster_are_finalists():
    assert chosen(timed(Default(), 0.9, 1.0, 1.1), timed(TILES[0], 1.05, 1.1, 1.2)) == [TILES[0].name]
    assert chosen(timed(Default(), 0.9, 1.0, 1.1), timed(TILES[0], 1.15, 1.2, 1.3)) == []
    assert chosen() == []


def test_a_kernel_is_a_finalist_once():
    one, two = timed(TILES[0], 0.9, 1.0, 1.1), timed(TILES[1], 0.9, 1.0, 1.1)
    same = replace(two, record=replace(two.record, tags={SAME_KERNEL_AS: one.dispatch.name}))
    assert chosen(one, same) == [TILES[0].name]


def group(count: int) -> list[Contender]:
    result = OperationResult(
        OPERATION, tuple(evaluation(each) for each in TILES[:count]), None, "evaluations"
    )
    return list(contenders(PROBLEM, result, TARGET))


@pytest.mark.parametrize(
    ("beside", "order", "reasons"),
    [
        (
            [Confirmation("faster", "", 1.1, 1.05, 1.2), Confirmation("slower", "", 0.8, 0.75, 0.85)],
            [1, 0, 2],
            [
                ("runner-up", "{1} is 1.100 (1.050 to 1.200) times as fast beside it"),
                ("runner-up", "{1} is 1.375 times as fast beside it"),
            ],
        ),
        (
            [Confirmation("same", "", 1.0, 0.99, 1.01), Confirmation("failed", "new: FAILED (NaN)")],
            [0, 1, 2],
            [
                ("runner-up", "{0} is 1.000 (0.990 to 1.010) times as fast beside it"),
                ("not compared", "it has no time beside {0}: new: FAILED (NaN)"),
            ],
        ),
    ],
)
def test_the_fastest_beside_each_other_comes_first(beside, order, reasons):
    """Of equals, the fastest in the search."""
    contenders = group(3)
    names = [each.entry.dispatch.configuration.name for each in contenders]
    found = by_speed(contenders, beside)
    assert list(found.contenders) == [contenders[at] for at in order]
    judged = [(each.judgement.value, each.reason) for each in found.beaten]
    assert judged == [(judgement, reason.format(*names)) for judgement, reason in reasons]
    times = [each.finalist.tuned.measurement for each in found.beaten if each.finalist.tuned]
    assert times == [None, None]
