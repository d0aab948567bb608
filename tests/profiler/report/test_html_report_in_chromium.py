"""The HTML report in a real browser: it loads, sorts, filters, and shows every number of the records."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from browser_helpers import OVERLAPS, Opened, needs_chromium
from sample_records import invented, written
from test_html_report import HOSTILE, numbers, times, unmeasured

from dispatch_profiler.profiler.records.record import Confirmation, StoredRecord
from dispatch_profiler.profiler.records.record_file import to_line
from dispatch_profiler.profiler.report.cli import main
from dispatch_profiler.profiler.report.html import export, grouped, render_page

pytestmark = needs_chromium
RECORDS = invented(75, samples=6)
FIGURES = ("comparison", "scaling", "roofline", "heat-map", "samples")


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    data = written(folder / "data.jsonl", RECORDS)
    assert main([str(data), "-o", str(folder / "report.html")]) == 0
    return folder / "report.html"


@pytest.fixture
def opened(browser: Any, report: Path) -> Iterator[Opened]:
    found = Opened(browser, report)
    yield found
    found.page.context.close()


def html(tmp_path: Path, records: list[StoredRecord]) -> Path:
    path = tmp_path / "report.html"
    path.write_bytes(render_page(records, "run").encode("utf-8", "backslashreplace"))
    return path


def test_it_loads_and_draws_without_a_complaint_and_without_a_network(opened):
    """All figures; the only address is the file itself, and what the page made of it."""
    opened.choose(grouped(RECORDS)[0].label)
    for figure in FIGURES:
        opened.drawn(figure)
    assert opened.complaints == []
    assert [url.split(":")[0] for url in opened.requests if not url.startswith("data:")] == ["file", "blob"]


@pytest.mark.slow
def test_details_show_every_number_of_every_record(opened):
    """To the last digit, samples too."""
    opened.drawn("roofline")
    every = opened.page.evaluate(
        "() => DATA.records.map((_, index) => {"
        " showDetails(index); return [...document.querySelector('#details dl').children]"
        ".map((each) => each.textContent).join(' '); })"
    )
    for record, shown in zip(RECORDS, every, strict=True):
        words = shown.replace(",", " ").split()
        found = {float(word) for word in words if word[0].isdigit() and _is_number(word)}
        line = json.loads(to_line(record))
        del line["version"]
        assert set(map(float, numbers(line))) <= found
        assert record.dispatch in shown and record.reproduce in shown


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


@pytest.mark.slow
def test_the_table_of_all_has_every_record(opened):
    """With its median to four digits, and more on request."""
    opened.page.select_option("#operation", "")
    medians = [record.measurement.median_ms for record in RECORDS if record.measurement]
    shown = [float(text) for text in opened.column("configurations-table", "ms") if text]
    assert shown == pytest.approx(sorted(medians), rel=1e-3)
    assert len(opened.column("configurations-table", "configuration")) == len(RECORDS)


@pytest.mark.slow
def test_a_click_sorts_and_another_turns_the_order(opened):
    """Numbers as numbers; what is missing stays last."""
    assert opened.sort("configurations-table", "gflops") == "descending"
    speeds = [float(text) for text in opened.column("configurations-table", "gflops") if text]
    assert len(speeds) > 10 and speeds == sorted(speeds, reverse=True)
    assert opened.sort("configurations-table", "gflops") == "ascending"
    texts = opened.column("configurations-table", "gflops")
    speeds = [float(text) for text in texts if text]
    assert speeds == sorted(speeds) and all(texts[: len(speeds)])


def test_every_column_is_on_a_page_of_1280_pixels(opened):
    """A button shows the others; the filter compares these without it."""
    opened.page.set_viewport_size({"width": 1280, "height": 900})
    widths = "[...document.querySelectorAll('.scroll')].map((each) => each.scrollWidth - each.clientWidth)"
    assert max(opened.page.evaluate(widths)) <= 0
    opened.page.select_option("#operation", "0")
    assert max(opened.page.evaluate(widths)) <= 0
    opened.filter("configurations-table", "executions>64")
    executions = "#configurations-table th[data-key=executions]"
    count = opened.page.locator("#configurations-table tbody tr").count()
    assert count and not opened.page.locator(executions).count()
    opened.page.get_by_role("button", name="more columns").last.click()
    assert opened.column("configurations-table", "executions") == ["512"] * count
    assert opened.complaints == []


@pytest.mark.slow
def test_a_filter_takes_words_and_comparisons(opened):
    """All of them must hold."""
    opened.page.select_option("#operation", "")
    opened.filter("configurations-table", "numpy")
    assert opened.column("configurations-table", "provider") == ["numpy"] * 3
    opened.filter("configurations-table", "peel ms<0.05")
    names = opened.column("configurations-table", "configuration")
    times = [float(text) for text in opened.column("configurations-table", "ms")]
    assert names and all("peel" in name for name in names) and max(times) < 0.05
    opened.filter("configurations-table", "no such thing")
    assert opened.column("configurations-table", "ms") == []


@pytest.mark.slow
def test_it_opens_on_a_summary_whose_links_lead_to_the_operations(opened):
    """Table, heat map and samples are then those of that operation, and Back returns to all of them."""
    name = grouped(RECORDS)[2].label
    assert opened.page.locator("section").first.get_attribute("id") == "summary"
    assert opened.page.locator("#operation option:checked").inner_text() == "all 3 operations"
    assert not opened.page.locator("#heat-map").is_visible()
    opened.page.get_by_role("link", name=name).click()
    assert opened.page.locator("#operation option:checked").inner_text() == name
    count = len(grouped(RECORDS)[2].entries)
    assert len(opened.column("configurations-table", "configuration")) == count
    opened.drawn("samples")
    samples = opened.page.evaluate("document.querySelector('#samples .plot').data[0].x.length")
    assert samples == sum(len(e.record.measurement.samples_ms) for e in grouped(RECORDS)[2].ranked)
    opened.page.go_back()
    assert opened.page.locator("#operation option:checked").inner_text() == "all 3 operations"


@pytest.mark.slow
def test_a_click_on_a_row_opens_its_record(opened):
    """And Close closes it."""
    opened.page.locator("#configurations-table tbody tr").nth(1).click()
    opened.drawn("in-order")
    assert opened.page.locator("#details").is_visible()
    opened.page.get_by_role("button", name="Close").click()
    assert not opened.page.locator("#details").is_visible()


@pytest.mark.slow
def test_failures_are_listed_with_their_reasons(opened):
    """All that are none of SUCCESS and Not verified by request."""
    failed = [record for record in RECORDS if record.reason]
    assert sorted(opened.column("failures-table", "reason")) == sorted(record.reason for record in failed)


@pytest.mark.slow
def test_a_figure_is_saved_as_svg_and_png(opened, tmp_path):
    """By the buttons beside it."""
    opened.drawn("roofline")
    for label, start in (("SVG", b"<svg"), ("PNG", b"\x89PNG")):
        with opened.page.expect_download() as download:
            opened.page.locator("#roofline .save button", has_text=label).click()
        path = tmp_path / label
        download.value.save_as(path)
        assert path.read_bytes().startswith(start)


@pytest.mark.slow
def test_hostile_names_do_nothing(browser, tmp_path):
    """They are shown as they stand, in tables, details and figures."""
    name = HOSTILE.replace("\ud800", "")
    records = [
        replace(r, configuration=name + str(i), operation=name, provider=r.provider + name)
        for i, r in enumerate(RECORDS[:25])
    ]
    opened = Opened(browser, html(tmp_path, records))
    for figure in ("roofline", "scaling", "samples"):
        opened.drawn(figure)
    assert name in opened.column("configurations-table", "configuration")[0]
    assert opened.page.locator("img").count() == 0
    # plotly would read tags in what it shows beside the pointer.
    assert "<" not in opened.page.evaluate("hover(0)").replace("<br>", "")
    assert opened.complaints == []
    opened.page.context.close()


@pytest.mark.parametrize("records", [[], [unmeasured(record) for record in RECORDS[:5]]])
def test_nothing_to_draw_is_no_error(records, browser, tmp_path):
    """An empty file, and one where everything failed."""
    opened = Opened(browser, html(tmp_path, records))
    assert opened.complaints == []
    assert opened.page.locator("figure:visible").count() == 0
    opened.page.context.close()


@pytest.mark.slow
def test_nothing_overlaps_or_overflows_at_any_width(opened):
    """No labels of ticks, no buttons over captions; tables scroll in themselves."""
    opened.choose(grouped(RECORDS)[0].label)
    for figure in FIGURES:
        opened.drawn(figure)
    for width in (1920, 1280, 768, 360):
        opened.page.set_viewport_size({"width": width, "height": 900})
        opened.until(
            "[...document.querySelectorAll('.main-svg')].every((svg) => svg.clientWidth <= innerWidth)"
        )
        opened.page.wait_for_timeout(300)
        assert opened.page.evaluate("document.documentElement.scrollWidth") <= width
        assert opened.page.evaluate(OVERLAPS) == [], width


@pytest.mark.slow
def test_the_theme_is_that_of_the_system_or_of_the_button(opened):
    """Page and figures."""

    def colours() -> tuple[str, str]:
        opened.until(
            "getComputedStyle(document.body).backgroundColor"
            " === getComputedStyle(document.querySelector('#roofline .main-svg')).backgroundColor"
        )
        background = opened.page.evaluate("getComputedStyle(document.body).backgroundColor")
        return background, opened.page.locator("#theme").inner_text()

    opened.drawn("roofline")
    light, dark = "rgb(255, 255, 255)", "rgb(13, 17, 23)"
    assert colours() == (light, "Theme: system")
    opened.page.emulate_media(color_scheme="dark")
    assert colours() == (dark, "Theme: system")
    opened.page.locator("#theme").click()
    assert colours() == (light, "Theme: light")
    opened.page.locator("#theme").click()
    assert colours() == (dark, "Theme: dark")
    assert opened.complaints == []


@pytest.mark.slow
def test_rows_of_two_runs_are_told_apart(browser, tmp_path):
    """By a column that a single run does not have."""
    records = [*RECORDS[:25], *(times(r, 2.0) if r.measurement else r for r in RECORDS[:25])]
    path = tmp_path / "report.html"
    path.write_text(render_page(records, "two", ["monday.jsonl"] * 25 + ["tuesday.jsonl"] * 25))
    opened = Opened(browser, path)
    assert sorted(opened.column("operations-table", "run")) == ["monday.jsonl", "tuesday.jsonl"]
    days = opened.column("configurations-table", "run")
    assert sorted(days) == [*["monday.jsonl"] * 25, *["tuesday.jsonl"] * 25]
    opened.page.context.close()


@pytest.mark.slow
def test_what_paired_sampling_confirmed_has_a_column(browser, tmp_path):
    """Of the best of an operation in both tables, with its interval or the reason for none."""
    default, best, other = [r for r in RECORDS[:25] if not r.is_failure and r.provider == "IREE Codegen"][:3]
    best = times(best, 0.01)
    found = Confirmation("faster", "", 1.452, 1.418, 1.484)
    without = Confirmation("not measured", "the clock stood still")
    path = html(tmp_path, [default, replace(best, confirmed=found), replace(other, confirmed=without)])
    opened = Opened(browser, path)
    text = "1.45x (1.42x to 1.48x), faster"
    assert opened.column("operations-table", "confirmed") == [text]
    assert sorted(opened.column("configurations-table", "confirmed")) == ["", text, "not measured"]
    opened.filter("configurations-table", "confirmed>1.4")
    assert opened.column("configurations-table", "confirmed") == [text]
    assert opened.complaints == []
    opened.page.context.close()


@pytest.mark.slow
def test_without_confirmations_there_is_no_column(opened):
    assert not opened.page.locator("th[data-key=confirmed]").count()


@pytest.mark.slow
def test_figures_for_papers_are_svg_and_png(tmp_path):
    """Kaleido finds the same browser."""
    pytest.importorskip("kaleido")
    written_ = export(grouped(RECORDS[:25]), tmp_path / "figures")
    assert [path.suffix for path in written_] == [".svg", ".png"] * 6
    for path in written_:
        assert path.read_bytes().startswith(b"<svg" if path.suffix == ".svg" else b"\x89PNG")
