"""The HTML report in a real browser: it loads, sorts, filters, and shows every number of the records."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sample_records import invented, written
from test_html_report import HOSTILE, numbers, unmeasured

from dispatch_profiler.profiler.records.record_file import StoredRecord, to_line
from dispatch_profiler.profiler.report.cli import main
from dispatch_profiler.profiler.report.html import export, grouped, render_page

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright drives the browser")

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
CHROMIUM = next(filter(None, map(shutil.which, NAMES)), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason=f"none of {', '.join(NAMES)} is on the PATH")

RECORDS = invented(75, samples=6)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as driver:
        # Root, as in a container, has no sandbox.
        opened = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


class Opened:
    """A page without a network, and everything that it complained of."""

    def __init__(self, browser: Any, path: Path) -> None:
        self.complaints: list[str] = []
        self.requests: list[str] = []
        context = browser.new_context(offline=True, viewport={"width": 1400, "height": 900})
        self.page = context.new_page()
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("dialog", lambda dialog: self.complaints.append(dialog.message))
        self.page.goto(path.as_uri())

    def column(self, table: str, key: str) -> list[str]:
        at = self.page.locator(f"#{table} th").evaluate_all(
            "(heads, key) => heads.findIndex((head) => head.dataset.key === key)", key
        )
        return self.page.locator(f"#{table} tbody td:nth-child({at + 1})").all_inner_texts()

    def sort(self, table: str, key: str) -> str:
        head = self.page.locator(f"#{table} th[data-key={key}]")
        head.locator("button").click()
        return head.get_attribute("aria-sort")

    def filter(self, table: str, text: str) -> None:
        self.page.locator(f"#{table} input").fill(text)

    def drawn(self, figure: str) -> None:
        self.page.locator(f"#{figure}").scroll_into_view_if_needed()
        self.page.wait_for_selector(f"#{figure}[data-drawn]")


@pytest.fixture
def opened(browser: Any, tmp_path: Path) -> Iterator[Opened]:
    output = tmp_path / "report.html"
    assert main([str(written(tmp_path / "data.jsonl", RECORDS)), "-o", str(output)]) == 0
    found = Opened(browser, output)
    yield found
    found.page.context.close()


def html(tmp_path: Path, records: list[StoredRecord]) -> Path:
    path = tmp_path / "report.html"
    path.write_bytes(render_page(records, "run").encode("utf-8", "backslashreplace"))
    return path


def test_it_loads_and_draws_without_a_complaint_and_without_a_network(opened):
    """All four figures; the only address is the file itself, and what the page made of it."""
    for figure in ("roofline", "comparison", "heat-map", "samples"):
        opened.drawn(figure)
    assert opened.complaints == []
    assert [url.split(":")[0] for url in opened.requests if not url.startswith("data:")] == ["file", "blob"]


def test_details_show_every_number_of_every_record(opened):
    """To the last digit, samples too."""
    opened.drawn("roofline")
    for index, record in enumerate(RECORDS):
        shown = opened.page.evaluate(
            "(index) => { showDetails(index); return document.querySelector('#details dl').innerText; }",
            index,
        )
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


def test_the_table_of_all_has_every_record(opened):
    """With its median to four digits, and more on request."""
    opened.page.select_option("#operation", "")
    medians = [record.measurement.median_ms for record in RECORDS if record.measurement]
    shown = [float(text) for text in opened.column("configurations-table", "ms") if text]
    assert shown == pytest.approx(sorted(medians), rel=1e-3)
    assert len(opened.column("configurations-table", "configuration")) == len(RECORDS)


def test_a_click_sorts_and_another_turns_the_order(opened):
    """Numbers as numbers; what is missing stays last."""
    assert opened.sort("configurations-table", "gflops") == "descending"
    speeds = [float(text) for text in opened.column("configurations-table", "gflops") if text]
    assert len(speeds) > 10 and speeds == sorted(speeds, reverse=True)
    assert opened.sort("configurations-table", "gflops") == "ascending"
    texts = opened.column("configurations-table", "gflops")
    speeds = [float(text) for text in texts if text]
    assert speeds == sorted(speeds) and all(texts[: len(speeds)])


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


def test_a_click_on_an_operation_shows_its_configurations_and_figures(opened):
    """Table, heat map and samples are those of that operation."""
    name = grouped(RECORDS)[2].label
    opened.page.locator("#operations-table tbody tr", has_text=name).click()
    assert opened.page.locator("#operation option:checked").inner_text() == name
    count = len(grouped(RECORDS)[2].entries)
    assert len(opened.column("configurations-table", "configuration")) == count
    opened.drawn("samples")
    samples = opened.page.evaluate("document.getElementById('samples').data[0].x.length")
    assert samples == sum(len(e.record.measurement.samples_ms) for e in grouped(RECORDS)[2].ranked)


def test_a_click_on_a_row_opens_its_record(opened):
    """And Close closes it."""
    opened.page.locator("#configurations-table tbody tr").nth(1).click()
    opened.drawn("in-order")
    assert opened.page.locator("#details").is_visible()
    opened.page.get_by_role("button", name="Close").click()
    assert not opened.page.locator("#details").is_visible()


def test_failures_are_listed_with_their_reasons(opened):
    """All that are none of SUCCESS and Not verified by request."""
    failed = [record for record in RECORDS if record.reason]
    assert sorted(opened.column("failures-table", "reason")) == sorted(record.reason for record in failed)


def test_a_figure_is_saved_as_svg_and_png(opened, tmp_path):
    """By the buttons beside it."""
    opened.drawn("roofline")
    for label, start in (("SVG", b"<svg"), ("PNG", b"\x89PNG")):
        with opened.page.expect_download() as download:
            opened.page.locator("#roofline .save button", has_text=label).click()
        path = tmp_path / label
        download.value.save_as(path)
        assert path.read_bytes().startswith(start)


def test_hostile_names_do_nothing(browser, tmp_path):
    """They are shown as they stand, in tables, details and figures."""
    name = HOSTILE.replace("\ud800", "")
    records = [
        replace(r, configuration=name + str(i), operation=name, provider=r.provider + name)
        for i, r in enumerate(RECORDS[:25])
    ]
    opened = Opened(browser, html(tmp_path, records))
    opened.drawn("roofline")
    opened.drawn("samples")
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


def test_nothing_overflows_a_narrow_window(opened):
    """Tables scroll in themselves."""
    opened.page.set_viewport_size({"width": 700, "height": 900})
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= 700


@pytest.mark.slow
def test_figures_for_papers_are_svg_and_png(tmp_path):
    """Kaleido finds the same browser."""
    pytest.importorskip("kaleido")
    written_ = export(grouped(RECORDS[:25]), tmp_path / "figures")
    assert [path.suffix for path in written_] == [".svg", ".png"] * 4
    for path in written_:
        assert path.read_bytes().startswith(b"<svg" if path.suffix == ".svg" else b"\x89PNG")
