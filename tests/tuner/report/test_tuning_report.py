"""The report of a tuning: what is in the file, compared with the records, and how a browser shows it."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browser_helpers import OVERLAPS, Opened, needs_chromium
from tuned_samples import invented_tuning

from dispatch_profiler.configurations import Formed
from dispatch_profiler.dispatches import Dispatch
from dispatch_profiler.operations.short_names import short_name
from dispatch_profiler.profiler.records.record import Confirmation
from dispatch_profiler.profiler.statistics.stopping import Ended
from dispatch_profiler.tuner.evaluation.evaluations import Evaluation
from dispatch_profiler.tuner.report.figures import ProblemEvaluations, progress, tiles, uplift_by_share
from dispatch_profiler.tuner.report.page import TuningOutcome, render_search, render_tuning
from dispatch_profiler.tuner.results.uplift import Finalist, Judged, Judgement, uplift
from dispatch_profiler.tuner.spaces.seeds import baselines
from dispatch_profiler.tuner.tunings.problems import TuningProblem
from dispatch_profiler.tuner.tunings.tuning_file import Searched

NOTHING = uplift([])


@cache
def sample() -> TuningOutcome:
    return invented_tuning(6, 30)


def data_of(page: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, flags=re.DOTALL)
    assert found
    return json.loads(found[1])


@cache
def sample_data() -> dict[str, Any]:
    return data_of(render_tuning(sample()))


def evaluations() -> list[Evaluation]:
    return [each for one in sample().searched if one.result for each in one.result.evaluations]


def searched(at: int = 0) -> ProblemEvaluations:
    result = sample().searched[at].result
    assert result is not None
    tuning = sample().searched[at].tuning
    return ProblemEvaluations(
        tuning.operation, result.evaluations, baselines(tuning.operation, tuning.target), 7
    )


# -- the data --------------------------------------------------------------------------------------


def test_every_evaluation_is_in_the_page_as_in_its_record():
    """Its time with the interval, its verdict and reason; its place among those of its problem."""
    found = evaluations()
    assert len(sample_data()["evaluations"]) == len(found) and any(
        each.milliseconds is None for each in found
    )
    for row, each in zip(sample_data()["evaluations"], found, strict=True):
        record = each.record
        assert (row["configuration"], row["verdict"]) == (record.configuration, record.verdict.value)
        assert record.reason in row["reason"] and row["fields"] == dict(each.configuration.fields())
        if record.measurement is None:
            assert (row["ms"], row["low"], row["gflops"], row["vs_default"]) == (None, None, None, None)
            continue
        assert (row["ms"], row["low"], row["high"]) == (
            record.measurement.median_ms,
            *record.measurement.interval_ms,
        )
        assert row["gflops"] == pytest.approx(record.measurement.gflops(record.flops))
        assert row["of_limit"] == pytest.approx(record.limit_ms / record.measurement.median_ms)
    for problem in sample_data()["problems"]:
        rows = sample_data()["evaluations"][problem["start"] : problem["start"] + problem["count"]]
        assert [row["number"] for row in rows] == list(range(1, problem["count"] + 1))
        assert {sample_data()["problems"][row["problem"]]["name"] for row in rows} <= {problem["name"]}


def test_every_finalist_is_in_the_page_with_its_judgement():
    """Other finalists follow that of their problem."""
    every = [each for judged in sample().judged for each in (judged, *judged.others)]
    assert len(sample_data()["finalists"]) == len(every) > len(sample().judged)
    for row, each in zip(sample_data()["finalists"], every, strict=True):
        assert (row["name"], row["judgement"], row["reason"]) == (
            each.finalist.problem.name,
            each.judgement.value,
            each.reason,
        )
        speedup = each.finalist.speedup
        expected = (None, None, None) if speedup is None else (speedup.value, speedup.low, speedup.high)
        assert (row["speedup"], row["low"], row["high"]) == expected


def test_the_page_has_both_uplifts_with_intervals_and_the_coverage():
    page = render_tuning(sample())
    for interval in (sample().uplift.average, sample().uplift.geometric, sample().uplift.weighted):
        assert interval is not None
        assert f"<b>{interval.value:.1f} %</b></td><td>{interval.low:.1f} to {interval.high:.1f} %" in page
    assert "The average is the arithmetic mean, which one large uplift dominates" in page
    attempted, improved = sample().uplift.attempted, sample().uplift.improved
    assert f"{attempted:.1f} % of the time was tuned, and {improved:.1f} % became faster." in page
    counts = {
        judgement: sum(each.judgement is judgement for each in sample().judged) for judgement in Judgement
    }
    for judgement, count in counts.items():
        assert (f">{judgement.value} <b>{count}</b>" in page) == (count > 0)


def test_names_stay_text():
    hostile = "</script><img src=x onerror=alert(1)>&amp;%{x}"
    judged = replace(sample().judged[0], reason=hostile)
    problem = replace(judged.finalist.problem, name=hostile)
    judged = replace(judged, finalist=replace(judged.finalist, problem=problem))
    tuned = replace(sample(), judged=(judged, *sample().judged[1:]))
    page = render_tuning(tuned, title=hostile)
    assert "<img" not in page and data_of(page)["problems"][0]["name"] == hostile


# -- figures ---------------------------------------------------------------------------------------


def trace(figure: dict[str, Any], name: str) -> dict[str, Any]:
    (found,) = (each for each in figure["data"] if each["name"] == name)
    return found


def test_plotly_accepts_every_figure():
    graph = pytest.importorskip("plotly.graph_objects")
    graph.Figure(sample_data()["uplift"])
    for problem in sample_data()["problems"][:-1]:
        for figure in (problem["progress"], *problem["tiles"].values()):
            graph.Figure(figure)
    assert (sample_data()["problems"][-1]["progress"], sample_data()["problems"][-1]["tiles"]) == (None, {})


def test_best_so_far_is_the_running_maximum_of_the_speeds():
    """Lines are at the speeds of the default and of the limit; what has no time is on the floor."""
    problem = searched()
    figure = progress(problem)
    assert figure is not None
    flops = problem.operation.flops
    times = np.array([each.milliseconds or np.inf for each in problem.evaluations])
    best = flops / 1e6 / np.minimum.accumulate(times)
    step = trace(figure, "best so far")
    places = np.searchsorted(step["x"], np.arange(1, len(times) + 1), side="right") - 1
    assert np.array(step["y"])[places] == pytest.approx(best)
    assert trace(figure, "compiler's default")["y"] == pytest.approx([flops / 1e6 / times[0]] * 2)
    assert trace(figure, "hardware limit")["y"] == pytest.approx([90.0] * 2)
    dots = trace(figure, "evaluation")
    assert [index - 7 for index in dots["customdata"]] == [int(at) - 1 for at in dots["x"]]
    assert dots["y"] == pytest.approx(flops / 1e6 / times[np.isfinite(times)])
    failed = trace(figure, "no time")
    assert failed["x"] == [int(at) + 1 for at in np.flatnonzero(~np.isfinite(times))]
    assert max(failed["y"]) < min(dots["y"])


def test_each_evaluation_with_tiles_is_above_its_tiles():
    problem = searched()
    figures = tiles(problem)
    assert set(figures) == {"distribution_tile", "vector_tile"}
    for name, figure in figures.items():
        seen = {}
        for each in figure["data"]:
            if each["mode"] == "markers" and each["name"] != "fastest":
                seen |= dict(zip(each["customdata"], zip(each["x"], each["y"], strict=True), strict=True))
        for at, each in enumerate(problem.evaluations):
            if not each.configuration.fields():
                assert 7 + at not in seen
                continue
            x, y = seen.pop(7 + at)
            assert x == str(each.configuration.fields()[name])
            if each.milliseconds:
                assert y == pytest.approx(problem.operation.flops / each.milliseconds / 1e6)
        assert not seen
        values = figure["layout"]["xaxis"]["categoryarray"]
        sizes = [[int(number) for number in value.split("x")] for value in values]
        assert sizes == sorted(sizes)


def test_bars_are_as_wide_as_shares_and_as_high_as_speedups():
    """Side by side from the largest to what was not tuned, coloured by judgement; a wrong winner stays at 1."""
    figure = uplift_by_share(sample().judged, "time")
    assert figure is not None
    bars = {}
    for each in figure["data"]:
        for at, index in enumerate(each.get("customdata", [])):
            left = each["x"][at] - each["width"][at] / 2
            bars[-1 - index] = (left, each["width"][at], each["y"][at], each["name"])
    assert sorted(bars) == list(range(len(sample().judged)))
    shares = [each.finalist.share for each in sample().judged]
    assert [bars[at][1] for at in range(len(shares))] == shares
    order = sorted(bars, key=lambda at: bars[at][0])
    assert [shares[at] for at in order] == sorted(shares, reverse=True)
    assert [bars[at][0] for at in order] == pytest.approx(
        [sum(shares[one] for one in order[:place]) for place in range(len(order))]
    )
    for at, judged in enumerate(sample().judged):
        speedup = judged.finalist.speedup
        assert bars[at][2] == (1.0 if speedup is None else speedup.value)
        assert (bars[at][3] == "kept") == judged.is_kept
    assert trace(figure, "not tuned")["width"] == [pytest.approx(100.0 - sum(shares))]


def test_a_speedup_that_is_far_larger_does_not_flatten_the_others():
    """From a factor above 5 on, the axis of speedups is logarithmic, and has room for all of them."""

    def axis(*speedups: float) -> dict[str, Any]:
        judged = []
        for each in speedups:
            paired = Confirmation("faster", "", each, each, each)
            finalist = replace(sample().judged[0].finalist, paired=paired)
            judged.append(replace(sample().judged[0], finalist=finalist))
        figure = uplift_by_share(judged, "time")
        assert figure is not None
        return figure["layout"]["yaxis"]

    assert "type" not in axis(1.5, 4.9) and axis(1.5, 4.9)["rangemode"] == "tozero"
    wide = axis(0.4, 1.5, 24.0)
    assert wide["type"] == "log" and 10 ** wide["range"][0] < 0.4 and 10 ** wide["range"][1] > 24.0


def test_a_name_is_in_the_legend_once():
    """All candidates were abandoned: those with tiles, and those with a form and tiles."""
    every = []
    for each in searched().evaluations:
        if each.milliseconds and each.configuration.fields() and each.record.measurement is not None:
            taken = replace(each.record.measurement, ended_by=Ended.ABANDONED.value)
            formed = Dispatch(searched().operation, Formed("transposed", each.configuration))
            slow = replace(each, record=replace(each.record, measurement=taken))
            every += [slow, replace(slow, dispatch=formed)]
    figure = tiles(replace(searched(), evaluations=tuple(every)))["vector_tile"]
    assert [each["name"] for each in figure["data"]].count("abandoned") == 2
    assert [each["name"] for each in figure["data"] if each.get("showlegend", True)].count("abandoned") == 1


def test_without_shares_bars_are_equally_wide():
    tuned = invented_tuning(3, 5, knows_shares=False)
    figure = uplift_by_share(tuned.judged, "time")
    assert figure is not None
    assert {width for each in figure["data"] for width in each["width"]} == {1.0}
    assert figure["layout"]["xaxis"]["title"]["text"] == "3 problems (shares are unknown)"


def failed_tuning() -> TuningOutcome:
    """One problem whose search failed."""
    tuning = sample().searched[0].tuning
    finalist = Finalist(TuningProblem(tuning.name, tuning.operation), None)
    judged = Judged(finalist, Judgement.NO_FINALIST, "no such device")
    return TuningOutcome((Searched(tuning, failure="no such device"),), (judged,), NOTHING)


def test_a_tuning_that_kept_nothing_has_a_page():
    page = render_tuning(failed_tuning())
    assert "No finalist is kept, so there is no uplift." in page and "Nothing was evaluated" in page
    assert data_of(page)["problems"][0]["progress"] is None
    assert data_of(render_tuning(TuningOutcome((), (), NOTHING)))["uplift"] is None


def test_operations_have_the_names_that_people_say_beside_their_full_names():
    tuning = replace(sample().searched[0].tuning, modules=("layer1.0.conv1",))
    (problem,) = data_of(render_search([replace(sample().searched[0], tuning=tuning)]))["problems"]
    assert problem["label"] == f"{short_name(tuning.operation)} (layer1.0.conv1)"
    assert problem["operation"] == tuning.operation.name
    for line in (*sample_data()["problems"], *sample_data()["finalists"]):
        assert line["label"] and line["label"] != line["operation"]


# -- a search alone --------------------------------------------------------------------------------


def test_the_page_of_a_search_has_the_same_searches_and_no_uplift():
    """Its table has the fastest of each problem, relative to the fastest untuned configuration."""
    page = render_search(sample().searched)
    data = data_of(page)
    assert "nothing is benchmarked yet, so there is no uplift" in page and 'id="uplift"' not in page
    assert data["evaluations"] == sample_data()["evaluations"]
    for found, tuned in zip(data["problems"], sample_data()["problems"], strict=True):
        assert (found["name"], found["progress"], found["tiles"]) == (
            tuned["name"],
            tuned["progress"],
            tuned["tiles"],
        )
        assert (found["judgement"], found["speedup"]) == ("", None)
    *lines, failed = data["finalists"]
    for line, each in zip(lines, sample().searched, strict=False):
        assert each.result is not None and each.result.best is not None and each.result.default is not None
        best, default = each.result.best.milliseconds, each.result.default.milliseconds
        assert line["configuration"] == each.result.best.configuration.name
        assert best and default and line["speedup"] == pytest.approx(default / best)
    assert (failed["speedup"], failed["reason"]) == (None, "the device failed: no such device")


# -- in a browser ----------------------------------------------------------------------------------


@pytest.mark.slow
@needs_chromium
def test_the_page_in_a_browser(browser, tmp_path):
    """It draws without a complaint, fits wide and narrow windows, and shows the problem that is chosen."""
    path = Path(tmp_path / "report.html")
    names = {sample().searched[at].tuning.operation.name for at in range(len(sample().searched))}
    page = render_tuning(sample())
    for name in names:
        page = page.replace(
            name, f"conv2d_1x14x14x16_16x3x3x16_1x12x12x16_f32nhwc_f32fhwc_f32nhwc_s1x1_p0x0_d1x1_g1_{name}"
        )
    path.write_text(page)
    opened = Opened(browser, path)
    for figure in ("uplift", "progress", "tiles"):
        opened.drawn(figure)
    opened.page.select_option("#problem", "2")
    problem = sample_data()["problems"][2]
    rows = sample_data()["evaluations"][problem["start"] : problem["start"] + problem["count"]]
    assert opened.column("evaluations-table", "configuration") == [row["configuration"] for row in rows]
    assert problem["label"] in opened.page.locator("#verdict-of-problem").inner_text()
    assert opened.page.locator("#name-of-problem").inner_text().endswith(problem["operation"])
    opened.page.locator("#verdicts-table a").first.click()
    assert opened.page.url.endswith(f"#problem-{1 + _largest()}")
    opened.page.select_option("#field", index=1)
    opened.drawn("tiles")
    opened.page.locator("#evaluations-table tbody tr").nth(1).click()
    assert opened.page.locator("#details dl").inner_text().count("tile_config_") >= 1
    opened.page.get_by_role("button", name="Close").click()
    for width in (1200, 400):
        opened.page.set_viewport_size({"width": width, "height": 900})
        opened.page.wait_for_timeout(500)
        assert opened.page.evaluate("document.documentElement.scrollWidth") <= width
        assert opened.page.evaluate(OVERLAPS) == [], width
    assert opened.complaints == []
    path.write_text(render_tuning(failed_tuning()))
    opened.page.goto(path.as_uri())
    opened.drawn("uplift")
    assert opened.column("verdicts-table", "reason") == ["no such device"]
    assert not opened.page.locator("#progress").is_visible() and opened.complaints == []
    path.write_text(render_search(sample().searched))
    opened.page.goto(path.as_uri())
    opened.drawn("progress")
    assert "judgement" not in opened.page.locator("#verdicts-table thead").inner_text()
    first = sample_data()["problems"][0]
    assert opened.column("verdicts-table", "name")[0] == f"{first['name']}\n{first['label']}"
    opened.page.set_viewport_size({"width": 400, "height": 900})
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= 400 and opened.complaints == []
    opened.page.context.close()


def _largest() -> int:
    shares = [each.finalist.share or 0.0 for each in sample().judged]
    return shares.index(max(shares))
