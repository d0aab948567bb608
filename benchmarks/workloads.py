#!/usr/bin/env python3
"""Reading a hipBLASLt log of 100,000 distinct calls: `read_workload` against PyYAML, in one run.

PyYAML (its C parser, where there is one) reads a twentieth of the lines, which only gives plain dictionaries;
the figure is multiplied by 20. `read_workload` also makes operations and merges them.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import yaml

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks._table import Row, arguments, at_least, below, exit_with, report
from dispatch_profiler.workloads import read_workload

SAMPLE = Path(__file__).parent / "workloads" / "gemm_log.yaml"
LINES = 100_000
SECONDS = 5.0
#: PyYAML reads one line in so many.
SHARE = 20


def log(lines: int) -> list[str]:
    """Lines of the sample's form, each a problem of its own."""
    sample = SAMPLE.read_text().splitlines()[0]
    return [
        sample.replace("M: 768", f"M: {768 + at % 1000}", 1)
        .replace("N: 128", f"N: {128 + at // 1000}", 1)
        .replace("ldd: 768", "ldd: 2000")
        for at in range(lines)
    ]


def rows(lines: int, runs: int) -> list[Row]:
    """The median of `runs` readings by both."""
    text = log(lines)
    ours, theirs = [], []
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log.yaml"
        path.write_text("\n".join(text) + "\n")
        few = "\n".join(text[::SHARE])
        for _ in range(runs):
            began = time.perf_counter()
            reading = read_workload(path)
            ours.append(time.perf_counter() - began)
            began = time.perf_counter()
            yaml.load(few, Loader=loader)
            theirs.append((time.perf_counter() - began) * SHARE)
    if len(reading.workload.entries) != lines:
        sys.exit(f"read {len(reading.workload.entries)} operations of {lines} lines")
    mine, other = sorted(ours)[runs // 2], sorted(theirs)[runs // 2]
    return [
        below(f"a log of {lines} distinct calls, read and merged", mine, "s", SECONDS * lines / LINES),
        at_least(f"the same by PyYAML's {loader.__name__}, relative", other / mine, "x", 1.0),
    ]


def main() -> int:
    """Measure and print; the exit status is 1 if a goal was missed."""
    options = arguments(__doc__ or "")
    return report(rows(LINES // 10 if options.quick else LINES, 3), options.json)


if __name__ == "__main__":
    exit_with(main)
