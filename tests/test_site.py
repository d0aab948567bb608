"""The site that `make docs` builds: every page can be read on a phone and on a screen, without a network."""

from __future__ import annotations

import itertools
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from browser_helpers import Opened, needs_chromium

ROOT = Path(__file__).parents[1]
WIDTHS = (400, 1280)
#: What is wider than the window, for messages.
TOO_WIDE = """() => [...document.querySelectorAll("article *")]
  .filter((each) => each.getBoundingClientRect().right > window.innerWidth + 1
    && !each.closest(".table-wrapper, pre, .highlight"))
  .slice(0, 3).map((each) => each.outerHTML.slice(0, 120))"""


@pytest.fixture(scope="module")
def site() -> Path:
    """Built with warnings as errors."""
    environment = {name: text for name, text in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL")}
    done = subprocess.run(
        ["make", "docs"], cwd=ROOT, capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr
    return ROOT / "build" / "site"


@pytest.mark.slow
@pytest.mark.timeout(600)
@needs_chromium
def test_no_page_scrolls_sideways(site: Path, browser: Any):
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 30
    for path, width in itertools.product(pages, WIDTHS):
        opened = Opened(browser, path)
        opened.page.set_viewport_size({"width": width, "height": 900})
        reach = opened.page.evaluate("document.documentElement.scrollWidth")
        assert reach <= width, (
            f"{path.relative_to(site)} at {width}: {reach}: {opened.page.evaluate(TOO_WIDE)}"
        )
        assert [each for each in opened.requests if not each.startswith(("file:", "data:"))] == []
        opened.page.context.close()
