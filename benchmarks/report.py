#!/usr/bin/env python3
"""The HTML report of 1,000 dispatches: against a page with the same figures by plotly's own `to_html`.

Both are opened in the same headless Chromium, in one run, alternating; figures are medians. A page
counts as loaded after its `load` event, once it has drawn: the report its tables and the first figure,
plotly's page all its figures, because it draws them at once and has no tables.
"""

from __future__ import annotations

import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright
from plotly.graph_objects import Figure

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks._table import Row, arguments, at_least, below, exit_with, report
from dispatch_profiler.profiler.records.record import StoredRecord
from dispatch_profiler.profiler.report.html import figures, grouped, render_page
from tests.profiler.sample_records import invented

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
DISPATCHES = 1000
#: Milliseconds since navigation began, once `ready` holds.
CLOCK = """(ready) => new Promise((done) => {
  const look = () => (document.readyState === "complete" && eval(ready) ? done(performance.now())
    : setTimeout(look, 5));
  look();
})"""
TABLES = "document.documentElement.dataset.ready === 'yes'"
FIRST_FIGURE = "document.querySelector('#comparison').scrollIntoView() || document.querySelector('#comparison[data-drawn]') !== null"
ALL_FIGURES = "document.querySelectorAll('.plotly-graph-div').length === {0} && document.querySelectorAll('.main-svg').length >= {0}"


def theirs(records: list[StoredRecord]) -> tuple[str, int]:
    """A page of all figures as plotly writes it, and the number of figures."""
    made = [Figure(figure) for _, figure in figures(grouped(records))]
    parts = [figure.to_html(full_html=False, include_plotlyjs=at == 0) for at, figure in enumerate(made)]
    return (
        f"<!DOCTYPE html><html><head><meta charset='utf-8'></head><body>{''.join(parts)}</body></html>",
        len(parts),
    )


def seconds(browser: Any, path: Path, *ready: str) -> list[float]:
    """Seconds from the start of navigation until each of `ready` held, in a new page."""
    # The benchmark evaluates its conditions, which the report's own policy forbids.
    context = browser.new_context(offline=True, viewport={"width": 1400, "height": 900}, bypass_csp=True)
    page = context.new_page()
    page.goto(path.as_uri(), wait_until="commit")
    found = [page.evaluate(CLOCK, condition) / 1e3 for condition in ready]
    context.close()
    return found


def loading(folder: Path, runs: int) -> list[Row]:
    """Load both pages, `runs` times."""
    records = invented(DISPATCHES)
    start = time.perf_counter()
    text = render_page(records, "data.jsonl")
    made = time.perf_counter() - start
    ours, other = folder / "report.html", folder / "plotly.html"
    ours.write_text(text)
    page, count = theirs(records)
    other.write_text(page)
    found: dict[str, list[float]] = {"tables": [], "figure": [], "theirs": []}
    with sync_playwright() as driver:
        path = next(filter(None, map(shutil.which, NAMES)), None)
        if path is None:
            sys.exit(f"none of {', '.join(NAMES)} is on the PATH")
        browser = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        for _ in range(runs):
            tables, figure = seconds(browser, ours, TABLES, FIRST_FIGURE)
            found["tables"].append(tables)
            found["figure"].append(figure)
            found["theirs"] += seconds(browser, other, ALL_FIGURES.format(count))
        browser.close()
    median = {name: statistics.median(values) for name, values in found.items()}
    print(
        f"{count} figures by plotly's to_html: {median['theirs']:.2f} s, {other.stat().st_size / 2**20:.1f} MiB"
    )
    return [
        below(f"tables of {DISPATCHES} dispatches can be used", median["tables"], "s", 1),
        below("and the first figure is drawn", median["figure"], "s", 3),
        at_least("against plotly's page", median["theirs"] / median["figure"], "times", 2),
        below("size of the file", ours.stat().st_size / 2**20, "MiB", 5),
        below("writing it", made, "s", 5),
    ]


def main() -> int:
    """Measure and print; the exit status is 1 if a goal was missed."""
    options = arguments(__doc__ or "")
    with tempfile.TemporaryDirectory() as folder:
        rows = loading(Path(folder), 5 if options.quick else 15)
    return report(rows, options.json)


if __name__ == "__main__":
    exit_with(main)
