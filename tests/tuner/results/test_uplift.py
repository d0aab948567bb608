"""Which configurations are measured beside each other, which are kept, and the uplift of a workload."""

from __future__ import annotations

import csv
import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from search_samples import OPERATION, TILES, evaluation

from dispatch_profiler.boo.kernels.variants import LaunchTuning
from dispatch_profiler.configurations import Configuration, CpuTiles, Default, Formed
from dispatch_profiler.dispatches import Dispatch
from dispatch_profiler.library import Entry, Estimate, KeepRule
from dispatch_profiler.operations import Conv2d, LayerNorm, Matmul, Operation
from dispatch_profiler.profiler.measurement.measure import Measurement
from dispatch_profiler.profiler.records.record import (
    Confirmation,
    Provenance,
    Record,
    StoredRecord,
    Verdict,
    stored,
)
from dispatch_profiler.profiler.statistics.comparison import Ratio, SequentialTest
from dispatch_profiler.targets import (
    NullTarget,
    fastest_form,
    packed_kernels,
    parse_target,
    untuned_kernels,
)
from dispatch_profiler.tuner.evaluation.evaluations import SAME_KERNEL_AS, Evaluation
from dispatch_profiler.tuner.results.entries import EntrySpeedups
from dispatch_profiler.tuner.results.finalists import (
    Contender,
    by_speed,
    contenders,
    keeping,
    untuned_rival,
)
from dispatch_profiler.tuner.results.uplift import (
    FINAL_FILE,
    METRICS_FILE,
    RAW_FILE,
    Finalist,
    Interval,
    Judged,
    Judgement,
    combined,
    judge,
    results_text,
    uplift,
    uplift_lines,
    write_results,
)
from dispatch_profiler.tuner.search.search import OperationResult
from dispatch_profiler.tuner.spaces.seeds import baselines, seeds
from dispatch_profiler.tuner.tunings.problems import TuningProblem

SQUARE = Matmul(64, 64, 64)
HERE = Provenance("local-task", "llvm-cpu", "compiler 3.13.0, runtime 3.13.0", seed=7)
KEPT_TILES = CpuTiles((32, 32), (8, 16, 1))
EXACT = 1e-12


def recorded(configuration=KEPT_TILES, milliseconds=1.0, verdict=Verdict.SUCCESS, reason="") -> StoredRecord:
    samples = (milliseconds,) * 24
    return stored(Record(Dispatch(SQUARE, configuration), HERE, verdict, reason, Measurement(samples, 10)))


def paired(value: float | None = 2.0, low: float | None = 1.9, high: float | None = 2.1, outcome="faster") -> Confirmation:  # fmt: skip
    return Confirmation(outcome, "a reason", value, low, high)


def finalist(speedup: Confirmation | None = None, share: float | None = None, **more) -> Finalist:
    values = {"tuned": recorded(), "paired": speedup or paired(), "share": share, **more}
    return Finalist(TuningProblem("SSS_NN_0", SQUARE, 3, "log:1"), recorded(Default(), 2.0), **values)


def kept(value: float, low: float, high: float, share: float | None = None) -> Judged:
    found = judge(finalist(paired(value, low, high), share))
    assert found.is_kept
    return found


# -- judgements ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "judgement", "reason"),
    [
        ({}, Judgement.KEPT, ""),
        ({"tuned": None}, Judgement.NO_FINALIST, "no configuration was faster"),
        ({"tuned": recorded(verdict=Verdict.FAILED, reason="1 of 9 elements")}, Judgement.INCORRECT, "1 of 9 elements"),
        ({"tuned": recorded(verdict=Verdict.IMPLAUSIBLE, reason="too fast")}, Judgement.IMPLAUSIBLE, "too fast"),
        ({"tuned": recorded(verdict=Verdict.CRASHED, reason="signal 11")}, Judgement.CRASHED, "signal 11"),
        ({"tuned": recorded(verdict=Verdict.NOT_VERIFIED)}, Judgement.NOT_VERIFIED, "Not verified"),
        ({"paired": None}, Judgement.NOT_COMPARED, "not measured beside the default"),
        ({"paired": paired(None, None, None, "not measured")}, Judgement.NOT_COMPARED, "a reason"),
        ({"paired": paired(outcome="failed")}, Judgement.NOT_COMPARED, "it failed beside the default: a reason"),
        ({"paired": paired(1.5, 0.9, 2.0)}, Judgement.INTERVAL_OVERLAPS, "1.500 (0.900 to 2.000), which includes 1"),
        ({"paired": paired(1.5, 1.0, 2.0)}, Judgement.INTERVAL_OVERLAPS, "which includes 1"),
        ({"paired": paired(1.5, None, None)}, Judgement.INTERVAL_OVERLAPS, "(0.000 to inf)"),
        ({"paired": paired(0.9, 0.8, 0.95)}, Judgement.SLOWER, "its speedup is 0.900"),
        ({"paired": paired(1.05, 1.02, 1.1)}, Judgement.BELOW_THRESHOLD, "does not exceed 1.03"),
        ({"paired": paired(1.05, 1.031, 1.1)}, Judgement.KEPT, ""),
    ],
)  # fmt: skip
def test_a_finalist_has_a_judgement_with_its_reason(changes, judgement: Judgement, reason: str):
    """With a threshold of 3 %."""
    found = judge(replace(finalist(), **changes), KeepRule(0.03))
    assert found.judgement is judgement
    assert reason in found.reason
    assert bool(found.reason) is not found.is_kept


@pytest.mark.parametrize("verdict", [each for each in Verdict if each is not Verdict.SUCCESS])
def test_only_what_is_verified_is_kept(verdict: Verdict):
    """However fast it is."""
    found = judge(finalist(paired(99.0, 98.0, 100.0), tuned=recorded(verdict=verdict)))
    assert not found.is_kept
    assert found.kept_speedup == Estimate(1.0, 1.0, 1.0)


# -- uplift ----------------------------------------------------------------------------------------


def test_the_average_uplift_is_the_mean_of_the_kept_speedups():
    """(2 + 1.5) / 2 = 1.75; ends by half the root of the sum of squares: sqrt(0.3^2 + 0.4^2) / 2 = 0.25."""
    judged = [kept(2.0, 1.7, 2.6), kept(1.5, 1.1, 2.3), judge(finalist(paired(9.0, 0.5, 99.0)))]
    found = uplift(judged)
    assert found.kept == 2
    assert found.average is not None
    assert found.average.value == pytest.approx(75.0, rel=EXACT)
    assert found.average.low == pytest.approx(50.0, rel=EXACT)
    assert found.average.high == pytest.approx(75.0 + 50.0, rel=EXACT)  # hypot(0.6, 0.8) / 2 = 0.5


def test_the_geometric_mean_uplift():
    """sqrt(2 * 8) = 4; the logarithms of the ends are off by log 2 each: 4 / 2^(sqrt(2) / 2)."""
    found = uplift([kept(2.0, 1.0001, 4.0), kept(8.0, 4.0, 16.0)]).geometric
    assert found is not None
    assert found.value == pytest.approx(300.0, rel=EXACT)
    assert found.high == pytest.approx(100.0 * (4.0 * 2.0 ** math.sqrt(0.5) - 1.0), rel=EXACT)


def test_the_weighted_uplift_is_that_of_the_whole_workload():
    """60 % twice as fast, 30 % as it was, 10 % not tuned: 100 / (30 + 30 + 10)."""
    judged = [kept(2.0, 2.0, 2.0, share=60.0), judge(finalist(paired(9.0, 0.5, 99.0), share=30.0))]
    found = uplift(judged)
    assert found.weighted is not None
    assert found.weighted.value == pytest.approx(100.0 * (100.0 / 70.0 - 1.0), rel=EXACT)
    assert (found.weighted.low, found.weighted.high) == (found.weighted.value, found.weighted.value)
    assert (found.attempted, found.improved) == (90.0, 60.0)


def test_the_interval_of_the_weighted_uplift():
    """50 % at 2 (1.25 to 4): 25 s, off by 15 s above and 12.5 s below; 50 % stay."""
    found = uplift([kept(2.0, 1.25, 4.0, share=50.0)]).weighted
    assert found is not None
    assert found.value == pytest.approx(100.0 * (100.0 / 75.0 - 1.0), rel=EXACT)
    assert found.low == pytest.approx(100.0 * (100.0 / 90.0 - 1.0), rel=EXACT)
    assert found.high == pytest.approx(100.0 * (100.0 / 62.5 - 1.0), rel=EXACT)


def test_a_whole_workload_twice_as_fast():
    found = uplift([kept(2.0, 2.0, 2.0, share=share) for share in (25.0, 25.0, 50.0)])
    assert found.weighted is not None
    assert found.weighted.value == pytest.approx(100.0, rel=EXACT)


def test_nothing_kept_is_no_uplift_and_never_a_loss():
    found = uplift([judge(finalist(paired(0.5, 0.4, 0.6), share=70.0))])
    assert (found.average, found.geometric, found.improved, found.attempted) == (None, None, 0.0, 70.0)
    assert found.weighted is not None
    assert (found.weighted.value, found.weighted.low, found.weighted.high) == (0.0, 0.0, 0.0)


def test_without_shares_there_is_no_weighted_uplift():
    found = uplift([kept(2.0, 1.9, 2.1)])
    assert (found.weighted, found.attempted, found.improved) == (None, None, None)
    assert uplift([]).average is None


def test_an_unknown_end_stays_unknown():
    found = uplift([judge(finalist(paired(2.0, 1.5, None), share=100.0))])
    for each in (found.average, found.geometric, found.weighted):
        assert each is not None
        assert each.high == math.inf
        assert each.low == pytest.approx(50.0, rel=EXACT)


SPEEDS = st.tuples(st.floats(1.001, 5.0), st.floats(1.0, 3.0), st.floats(1.0, 3.0)).map(
    lambda each: (each[0] * each[1], each[0], each[0] * each[1] * each[2])
)


@given(st.lists(st.tuples(SPEEDS, st.floats(0.1, 10.0)), min_size=1, max_size=9))
def test_kept_problems_never_slow_the_workload(parts):
    """Their lower ends exceed 1, so that of the whole does too."""
    found = uplift([kept(*speed, share=share) for speed, share in parts])
    for each in (found.average, found.geometric, found.weighted):
        assert each is not None
        assert -1e-9 <= each.low <= each.value + 1e-9 <= each.high + 2e-9


def test_combined_intervals_are_narrower_than_the_sum_of_their_ends():
    found = combined([(1.0, Estimate(5.0, 2.0, 8.0)), (1.0, Estimate(6.0, 2.0, 10.0))])
    assert (found.value, found.low, found.high) == (11.0, 6.0, 16.0)


# -- files -----------------------------------------------------------------------------------------

JUDGED = [
    kept(2.0, 1.7, 2.6, share=60.0),
    judge(finalist(tuned=recorded(verdict=Verdict.FAILED, reason='wrong, "very"'), share=30.0)),
    judge(finalist(tuned=None, share=None)),
]


def rows(name: str) -> list[dict[str, str]]:
    with Path("results", name).open(newline="") as file:
        return list(csv.DictReader(file, strict=True))


def test_every_problem_is_in_the_raw_results_and_the_kept_ones_are_final():
    write_results(Path("results"), JUDGED, {})
    raw = rows(RAW_FILE)
    assert [each["judgement"] for each in raw] == ["kept", "incorrect", "no finalist"]
    assert [each["reason"] for each in raw] == [each.reason for each in JUDGED]
    assert rows(FINAL_FILE) == raw[:1]
    first = raw[0]
    assert (float(first["speedup"]), float(first["uplift(%)"]), float(first["saved_share(%)"])) == (
        2.0,
        100.0,
        30.0,
    )
    assert (float(first["reference(ms)"]), float(first["tuned(ms)"])) == (2.0, 1.0)
    assert (first["reference_configuration"], first["tuned_configuration"]) == (
        "tile_config_default",
        KEPT_TILES.name,
    )


def test_a_wrong_kernel_has_no_time_in_the_results():
    write_results(Path("results"), JUDGED, {})
    wrong = rows(RAW_FILE)[1]
    assert (wrong["tuned(ms)"], wrong["saved_share(%)"], wrong["verification"]) == ("", "0.0", "FAILED")


def test_metrics_have_the_figures_with_their_intervals():
    found = write_results(Path("results"), JUDGED, {"threshold": 0.03, "device": "local-task"})
    metrics = json.loads(Path("results", METRICS_FILE).read_text())
    assert found.average is not None
    assert found.weighted is not None
    assert metrics["average_uplift"] == vars(found.average)
    assert metrics["geometric_mean_uplift"] == vars(found.geometric)
    assert metrics["weighted_uplift"] == vars(found.weighted)
    assert metrics["definitions"].keys() == {name for name in metrics if name.endswith("_uplift")}
    assert metrics["judgements"] == {"kept": 1, "no finalist": 1, "incorrect": 1}
    assert metrics["coverage"] == {"attempted": 90.0, "improved": 60.0}
    assert (metrics["problems"], metrics["settings"]["threshold"]) == (3, 0.03)


def test_metrics_of_unknown_figures_are_json():
    """Infinity is not."""
    judged = [judge(finalist(paired(2.0, 1.5, None), share=100.0))]
    write_results(Path("results"), judged, {})
    metrics = json.loads(Path("results", METRICS_FILE).read_text())
    assert metrics["average_uplift"]["high"] is None
    write_results(Path("results"), [], {})
    assert json.loads(Path("results", METRICS_FILE).read_text())["average_uplift"] is None


def test_results_of_nothing_have_their_columns():
    assert results_text([]).startswith("problem,operation,count,share(%),judgement,reason,")


def with_entry(judged: Judged, over_default: Estimate | None, over_launch: Estimate | None) -> Judged:
    return replace(judged, entry=EntrySpeedups(over_default, over_launch))


def test_what_is_printed():
    """A winner, three times as fast as the default and twice as fast as a launch, among two failures."""
    won = with_entry(JUDGED[0], Estimate(3.0, 2.0, 4.0), JUDGED[0].kept_speedup)
    assert uplift_lines(uplift([won, *JUDGED[1:]])) == (
        "Average uplift against the compiler's default: 200.0 % (100.0 to 300.0 %), of 1 entry; geometric mean 200.0 % (100.0 to 300.0 %)",
        "Average uplift against an untuned launch: 100.0 % (70.0 to 160.0 %), of 1 entry; geometric mean 100.0 % (70.0 to 160.0 %)",
        "Weighted total uplift: 85.7 % (42.9 to 128.6 %) against the compiler's default, and against "
        "an untuned launch 42.9 % (30.0 to 68.6 %); the kept problems are 60.0 % of the time, all tuned problems 90.0 %",
    )
    assert uplift_lines(uplift(JUDGED[1:]), "flops") == (
        "Average uplift: none, because the library has no entry",
        "Weighted total uplift: 0.0 % (0.0 to 0.0 %)",
    )
    assert len(uplift_lines(uplift([]))) == 1


def test_entries_that_launches_run_anyway_have_an_uplift_against_the_default_alone():
    """Five untuned forms, 32 times as fast as the default: launches gain nothing from them."""
    form = judge(finalist(tuned=None, share=20.0))
    same = Estimate(1.0, 1.0, 1.0)
    found = uplift([with_entry(form, Estimate(32.0, 32.0, 32.0), same)] * 5)
    assert found.over_default is not None and found.over_launch is not None
    assert (
        found.over_default.average == found.over_default.geometric == Interval(*(pytest.approx(3100.0),) * 3)
    )
    assert found.over_default.weighted == Interval(*(pytest.approx(3100.0),) * 3)
    assert (
        found.over_launch.average
        == found.over_launch.weighted
        == Interval(*(pytest.approx(0.0, abs=1e-9),) * 3)
    )
    assert (found.kept, found.average) == (0, None)
    assert "0.0 % (0.0 to 0.0 %), of 5 entries" in uplift_lines(found)[1]


def test_no_uplift_is_minus_zero():
    slightly = Estimate(1.0 - 1e-12, 1.0 - 1e-12, 1.0 - 1e-12)
    lines = uplift_lines(uplift([with_entry(JUDGED[0], slightly, slightly)] * 3))
    assert "0.0 % (0.0 to 0.0 %)" in lines[0] and "-0.0" not in "".join(lines)


def test_the_weighted_uplift_is_a_ratio_of_whole_times():
    """Time of the whole workload with the default, over its time with the library, from times of each problem."""
    default, launch, entry, counts = (9.0, 8.0, 4.0), (3.0, 8.0, 4.0), (1.5, 2.0, None), (1, 2, 5)
    untuned = [
        min(pair) * count for pair, count in zip(zip(default, launch, strict=True), counts, strict=True)
    ]
    shares = [100.0 * each / sum(untuned) for each in untuned]
    judged = []
    for one, two, own, share in zip(default, launch, entry, shares, strict=True):
        if own is None:
            judged.append(judge(finalist(tuned=None, share=share)))
            continue
        speedup = min(one, two) / own
        found = kept(speedup, speedup, speedup, share=share)
        judged.append(with_entry(found, *(Estimate(*(each / own,) * 3) for each in (one, two))))
    found = uplift(judged)
    after = sum(count * (own or one) for count, own, one in zip(counts, entry, default, strict=True))
    for each, times in ((found.over_default, default), (found.over_launch, launch)):
        before = sum(count * time for count, time in zip(counts, times, strict=True))
        assert each is not None and each.weighted is not None
        assert each.weighted.value == pytest.approx(100.0 * (before / after - 1.0), rel=1e-9)


def test_an_entry_without_a_time_of_the_default_is_counted_but_not_averaged():
    two = [
        with_entry(kept(2.0, 2.0, 2.0), None, Estimate(2.0, 2.0, 2.0)),
        with_entry(kept(4.0, 4.0, 4.0), Estimate(4.0, 4.0, 4.0), None),
    ]
    first, second = uplift_lines(uplift(two))
    assert "300.0 % (300.0 to 300.0 %), of 1 of 2 entries, the others being unknown" in first
    assert "100.0 % (100.0 to 100.0 %), of 1 of 2 entries" in second
    (first, _) = uplift_lines(uplift(two[:1]))
    assert (
        first == "Average uplift against the compiler's default: unknown, because it has no time for 1 entry"
    )


def test_metrics_have_both_uplifts_of_entries():
    won = with_entry(JUDGED[0], Estimate(3.0, 2.0, math.inf), Estimate(2.0, 1.5, 2.5))
    write_results(Path("results"), [won], {})
    metrics = json.loads(Path("results", METRICS_FILE).read_text())
    assert metrics["over_default"]["entries"] == metrics["over_default"]["known"] == 1
    assert metrics["over_default"]["average"] == {"value": 200.0, "low": 100.0, "high": None}
    assert metrics["over_launch"]["geometric_mean"]["value"] == pytest.approx(100.0)
    write_results(Path("results"), JUDGED[1:], {})
    assert json.loads(Path("results", METRICS_FILE).read_text())["over_launch"] is None


PROBLEM, TARGET = TuningProblem("SSS_NN_0", OPERATION), NullTarget("times.yaml")


def timed(configuration, decile: float, fastest: float | None = None) -> Evaluation:
    """With samples whose lowest decile is `decile`; one of them took `fastest`."""
    found = evaluation(configuration)
    assert found.record.measurement is not None
    samples = (fastest or decile, *(decile,) * 10, *(1.2 * decile,) * 10)
    measurement = replace(found.record.measurement, samples_ms=samples)
    return replace(found, record=replace(found.record, measurement=measurement))


def chosen(*evaluations: Evaluation) -> list[str]:
    result = OperationResult(OPERATION, evaluations, None, "evaluations")
    return [each.entry.dispatch.configuration.name for each in contenders(PROBLEM, result, TARGET)]


def test_configurations_that_may_be_faster_than_the_fastest_are_finalists():
    """At most three, whose fastest sample is 2 % faster than the lowest decile of the fastest, and not the compiler's default."""
    one, two, three, four = TILES
    default = timed(Default(), 1.5, 0.9)
    close = (timed(one, 1.03, 0.97), timed(two, 1.0, 0.99))
    assert chosen(default, *close, timed(four, 1.2, 0.9)) == [two.name, one.name]
    more = timed(three, 1.02, 0.98)
    assert chosen(default, *close, more, timed(four, 1.08, 0.98)) == [two.name, three.name, one.name]
    assert chosen(default, *close, timed(three, 1.02, 0.99)) == [two.name, one.name]


@pytest.mark.parametrize(("untuned", "is_chosen"), [(1.5, True), (1.021, True), (1.019, False), (0.9, False)])
def test_nothing_is_benchmarked_that_is_as_fast_as_an_untuned_configuration_in_the_search(
    untuned: float, is_chosen: bool
):
    """Up to 2 %: even if one of its samples is far faster."""
    evaluations = timed(Default(), untuned), timed(TILES[0], 1.0, 0.5), timed(TILES[1], 1.01, 0.5)
    assert chosen(*evaluations) == ([TILES[0].name, TILES[1].name] if is_chosen else [])
    rival = untuned_rival(OPERATION, evaluations, TARGET)
    assert rival is (None if is_chosen else evaluations[0])


@pytest.mark.usefixtures("two_threads")
def test_a_configuration_that_packs_the_weight_must_be_faster_than_the_untuned_kernel_that_does():
    """Launches would use that one otherwise. It is itself a finalist if it is the fastest."""
    target = parse_target("llvm-cpu:x86-64-v3")
    conv = Conv2d(1, 14, 14, 32, 64, 1, 1, layout="nhwc_fhwc_nhwc")
    (untuned,) = packed_kernels(conv, target)
    form, other = fastest_form(conv, target), Formed("blocked", packed=True)
    for time, finalist in ((0.9, other), (0.99, None), (1.01, untuned)):
        times = {Default(): 3.0, form: 3.0, untuned: 1.0, other: time}
        found = [
            replace(timed(each, ms), dispatch=Dispatch(conv, each)) for each, ms in times.items() if each
        ]
        rival = untuned_rival(conv, found, target)
        assert (rival and rival.configuration) == (untuned if finalist is None else None)
        result = OperationResult(conv, tuple(found), found[0], "evaluations")
        (first, *_) = [*contenders(TuningProblem("p", conv), result, target), None]
        is_fallback = first is None or first.is_untuned(target)
        assert (None if is_fallback else first.entry.dispatch.configuration) == finalist


def test_a_form_that_was_abandoned_in_the_search_is_still_the_fallback():
    """It is slower than the winner, but may be faster than the compiler's default."""
    conv = Conv2d(1, 16, 16, 32, 32, 3, 3, layout="nhwc_fhwc_nhwc")
    form = fastest_form(conv, TARGET)
    assert form is not None
    found = [replace(timed(each, time), dispatch=Dispatch(conv, each)) for each, time in (
        (Default(), 2.0), (form, 1.0), (TILES[0], 0.5),
    )]  # fmt: skip
    abandoned = found[1].record.measurement
    assert abandoned is not None
    found[1] = replace(
        found[1], record=replace(found[1].record, measurement=replace(abandoned, ended_by="abandoned"))
    )
    result = OperationResult(conv, tuple(found), found[0], "evaluations")
    chosen_ones = contenders(TuningProblem("p", conv), result, TARGET)
    assert [each.entry.dispatch.configuration for each in chosen_ones] == [TILES[0], form]


def test_a_comparison_takes_no_more_than_a_part_of_the_search():
    """An eighth, and ten seconds at least; a library that is measured again has no search."""
    (entry,) = (each.entry for each in group(1))
    assert Contender(PROBLEM, entry, search_seconds=200.0).pair_seconds == 25.0
    assert Contender(PROBLEM, entry, search_seconds=3.0).pair_seconds == 10.0
    assert Contender(PROBLEM, entry).pair_seconds == math.inf


def test_finalists_are_compared_for_a_smaller_part_of_the_search():
    """A thirty-second, from one second to five."""
    (entry,) = (each.entry for each in group(1))
    seconds = [Contender(PROBLEM, entry, search_seconds=each).ranking_seconds for each in (3.0, 64.0, 1000.0)]
    assert seconds == [1.0, 2.0, 5.0]


def test_an_untuned_configuration_that_is_far_slower_than_another_is_not_measured_again():
    """But the form, as an entry, is compared with the compiler's default, however slow that is."""
    conv = Conv2d(1, 16, 16, 32, 32, 3, 3, layout="nhwc_fhwc_nhwc")
    form = fastest_form(conv, TARGET)
    assert form is not None
    for slow, references in ((1.2, [Default(), form]), (1.3, [form])):
        found = [
            replace(timed(each, time), dispatch=Dispatch(conv, each))
            for each, time in ((Default(), slow), (form, 1.0), (TILES[0], 0.5))
        ]
        result = OperationResult(conv, tuple(found), found[0], "evaluations")
        tuned, fallback = contenders(TuningProblem("p", conv), result, TARGET)
        assert set(tuned.references(TARGET)) == set(references)
        assert fallback.references(TARGET) == (Default(),)


@pytest.mark.usefixtures("two_threads")
def test_an_entry_that_packs_the_weight_is_also_compared_with_the_untuned_kernel_that_does():
    """Launches would use that one otherwise. Without packing, they would use one that reads the weight as it is stored."""
    target = parse_target("llvm-cpu:x86-64-v3")
    conv = Conv2d(1, 14, 14, 32, 64, 1, 1, layout="nhwc_fhwc_nhwc")
    (packing,), (reading, *_) = packed_kernels(conv, target), untuned_kernels(conv, target)
    other, form = Formed("blocked", packed=True), fastest_form(conv, target)
    for configuration, untuned in ((other, packing), (packing, None), (Formed("blocked"), reading)):
        entry = replace(group(1)[0].entry, dispatch=Dispatch(conv, configuration))
        references = Contender(TuningProblem("p", conv), entry).references(target)
        assert set(references) == {Default(), form, untuned} - {None}


@pytest.mark.parametrize(
    ("operation", "other"),
    [
        (Matmul(784, 192, 768, rhs_layout="n"), CpuTiles((28, 64), (7, 32, 4))),
        (Conv2d(1, 28, 28, 128, 128, 3, 3, layout="nhwc_fhwc_nhwc"), Formed("blocked")),
        (LayerNorm(6272, 144), CpuTiles((64,), (2, 16))),
    ],
    ids=str,
)
def test_an_entry_for_operands_that_may_change_is_compared_with_the_kernel_that_launches_use_then(
    host_has, operation: Operation, other: Configuration
):
    """Otherwise an entry that is faster than forms, but slower than that kernel, would replace it."""
    host_has("avx512f")
    target = parse_target("llvm-cpu")
    launched = next(LaunchTuning().variants(operation, target)).dispatch.configuration
    assert launched not in baselines(operation, target)
    for configuration, is_compared in ((other, True), (launched, False)):
        entry = replace(group(1)[0].entry, dispatch=Dispatch(operation, configuration))
        references = Contender(TuningProblem("p", operation), entry).references(target)
        assert (launched in references) is is_compared
    assert other not in seeds(operation, target)[:1] and launched in seeds(operation, target)


@pytest.mark.usefixtures("two_threads")
def test_the_untuned_kernel_that_packs_the_weight_makes_slower_configurations_irrelevant():
    """They are not measured again for an entry that packs the weight, but for others they are."""
    target = parse_target("llvm-cpu:x86-64-v3")
    conv = Conv2d(1, 14, 14, 32, 64, 1, 1, layout="nhwc_fhwc_nhwc")
    (untuned,), (reading, *_) = packed_kernels(conv, target), untuned_kernels(conv, target)
    searched = [
        replace(timed(each, time), dispatch=Dispatch(conv, each))
        for each, time in ((Default(), 3.0), (untuned, 1.0))
    ]
    for packed, references in ((True, (untuned,)), (False, (Default(), reading))):
        entry = replace(group(1)[0].entry, dispatch=Dispatch(conv, Formed("blocked", packed=packed)))
        found = Contender(TuningProblem("p", conv), entry, tuple(searched)).references(target)
        assert set(found) - {fastest_form(conv, target)} == set(references)


def test_without_a_tuned_configuration_nothing_is_a_finalist():
    assert chosen() == [] == chosen(timed(Default(), 1.0))


def test_a_kernel_is_a_finalist_once():
    one, two = timed(TILES[0], 1.0, 0.9), timed(TILES[1], 1.0, 0.9)
    same = replace(two, record=replace(two.record, tags={SAME_KERNEL_AS: one.dispatch.name}))
    assert chosen(one, same) == [TILES[0].name]


def group(count: int) -> list[Contender]:
    result = OperationResult(
        OPERATION, tuple(timed(each, 1.0, 0.97) for each in TILES[:count]), None, "evaluations"
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


@pytest.mark.parametrize(
    ("searched", "fresh", "seconds"),
    [
        (0.99, 0.99, 1.25),  # as for finalists
        (1.04, 1.01, 8.0),
        (1.01, 1.04, 8.0),
        (1.005, 1.0, 1.25),
        (1.01, 1.2, 10.0),
        (1.01, None, 10.0),
        (None, 1.01, 10.0),
    ],
)
def test_a_comparison_takes_less_if_less_is_at_stake(
    searched: float | None, fresh: float | None, seconds: float
):
    """In proportion up to 5 %, by the search or fresh records; times are relative to those of the entry."""
    tuned, untuned = evaluation(TILES[0], 1.0), evaluation(Default(), searched or 1.0)
    evaluations = (tuned, untuned) if searched else (tuned,)
    entry = Entry(tuned.dispatch, *[Estimate(1.0, 1.0, 1.0)] * 2, tuned.record.provenance)
    contender = Contender(PROBLEM, entry, evaluations, search_seconds=40.0)
    record = evaluation(Default(), fresh or 1.0).record
    reference = record if fresh else replace(record, measurement=None)
    assert contender.seconds_beside(reference, tuned.record, Default()) == pytest.approx(seconds)


@pytest.mark.parametrize(("seeds", "most"), [(250, 0), pytest.param(1000, 2, marks=pytest.mark.slow)])
def test_of_equal_sides_hardly_any_is_kept(seeds: int, most: int):
    """Samples as on a loaded machine, with bursts. At 99.95 %, at most one of 4,000: one of 250, and more than 2 of 1,000, are
    three deviations."""
    kept = 0
    for seed in range(seeds):
        rng = np.random.default_rng(seed)
        rule = SequentialTest(replace(keeping(KeepRule()), turns=1, seed=seed))
        while not rule.finished:
            bursts = (rng.random(4) < 0.3) * rng.random(4)
            rule.add(list((1.0 + bursts) * np.exp(0.02 * rng.standard_normal(4))))
        ratio = rule.result().ratio
        assert ratio is not None
        kept += KeepRule().keeps(Estimate(1.0 / ratio.value, 1.0 / ratio.high, 1.0 / ratio.low))
    assert kept <= most


def test_a_winner_is_kept_if_a_gain_is_certain_and_given_up_if_two_percent_are_ruled_out():
    """Whatever `--threshold` says is added to both."""
    for threshold in (0.0, 0.05):
        test = keeping(KeepRule(threshold))
        assert test.threshold == threshold
        assert not test.rules_out_gain(Ratio(0.99, 1.0 / (1.021 + threshold), 1.1))
        assert test.rules_out_gain(Ratio(0.99, 1.0 / (1.019 + threshold), 1.1))
