"""A headless Chromium, which opens pages without a network and collects what they complain of."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

try:
    from playwright import sync_api
except ImportError:
    sync_api = None

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
CHROMIUM = next(filter(None, map(shutil.which, NAMES)), None)
#: For tests that need it.
needs_chromium = pytest.mark.skipif(
    CHROMIUM is None or sync_api is None,
    reason=f"playwright is not installed, or none of {', '.join(NAMES)} is on the PATH",
)


@contextlib.contextmanager
def chromium() -> Iterator[Any]:
    """A running browser."""
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

    def until(self, condition: str) -> None:
        """Wait; `wait_for_function` would need `eval`, which the page forbids."""
        for _ in range(200):
            if self.page.evaluate(condition):
                return
            self.page.wait_for_timeout(50)
        raise AssertionError(f"still not: {condition}")

    def choose(self, operation: str) -> None:
        self.page.select_option("#operation", label=operation)

    def drawn(self, figure: str) -> None:
        self.page.locator(f"#{figure}").scroll_into_view_if_needed()
        self.page.wait_for_selector(f"#{figure}[data-drawn]")


#: Pairs of boxes that overlap: labels of one axis, and buttons, captions and legends.
OVERLAPS = """() => {
  const boxes = (within, selector) => [...within.querySelectorAll(selector)]
    .map((each) => ({ text: each.textContent.slice(0, 40), box: each.getBoundingClientRect() }))
    .filter(({ box }) => box.width > 0 && box.height > 0);
  const touch = ({ box: a }, { box: b }) =>
    a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 1 && b.top < a.bottom - 1;
  const pairs = (some) => some.flatMap((one, at) =>
    some.slice(at + 1).filter((other) => touch(one, other)).map((other) => [one.text, other.text]));
  // Boxes of turned labels overlap though the labels do not.
  const upright = [...document.querySelectorAll(".plot")].filter((plot) => !/rotate\\([1-9]/.test(
    plot.querySelector(".xtick text")?.getAttribute("transform") ?? ""));
  return [...upright.flatMap((plot) => [".xtick", ".ytick"].flatMap((axis) => pairs(boxes(plot, axis)))),
    ...pairs(boxes(document, ".save button, .note, h2, h3, .xtitle, .legend"))];
}"""
