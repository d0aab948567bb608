"""Opening a library of 10,000 entries and finding operations in it, against `json.loads` of the same files.

    python benchmarks/library.py [--quick] [--json PATH]

Both sides read the files from the page cache, in turns.
"""

from __future__ import annotations

import gc
import json
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from _table import Row, arguments, below, exit_with, report

from dispatch_profiler.configurations import CpuTiles
from dispatch_profiler.dispatches import Dispatch
from dispatch_profiler.library import Entry, Estimate, Library
from dispatch_profiler.operations import Conv2d, Matmul, Operation
from dispatch_profiler.profiler.records.machine import Machine
from dispatch_profiler.profiler.records.record import Provenance

ENTRIES = 10_000
#: Operations that a program looks up: those of a large model.
LOOKUPS = 100
FLAGS = ("--iree-hal-target-device=local", "--iree-hal-local-target-device-backends=llvm-cpu", "--iree-llvmcpu-target-cpu=host")  # fmt: skip


def library() -> Library:
    """Three matrix products for each convolution."""
    origin = Provenance(
        "local-task", "llvm-cpu", "compiler 3.13.0, runtime 3.13.0", 7, machine=Machine("A", 2)
    )
    speed = Estimate(100.0, 98.5, 101.5)
    entries = []
    for number in range(ENTRIES):
        operation: Operation = Matmul(16 + number, 768, 3072)
        configuration = CpuTiles((64, 128), (8, 32, 4), (64, 64, 32))
        if number % 4 == 0:
            operation = Conv2d(1, 8 + number, 28, 64, 64, 3, 3, padding=(1, 1))
            configuration = CpuTiles((1, 14, 28, 64), (1, 1, 14, 32, 1, 1, 1))
        own = Provenance(
            *(origin.device, origin.target, origin.iree, origin.seed, f"2026-11-22T10:00:00.{number:06}+00:00"),
            machine=origin.machine, module_key=f"{number:064x}", flags=FLAGS,
        )  # fmt: skip
        entries.append(Entry(Dispatch(operation, configuration), speed, Estimate(1.4, 1.38, 1.42), own))
    return Library(entries)


def seconds(action: Callable[[], object]) -> float:
    """The time of one execution; garbage of earlier ones is collected before it."""
    gc.collect()
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def measured(folder: Path, runs: int) -> list[Row]:
    """Time both sides `runs` times, in turns."""
    whole = library()
    whole.save(folder)
    files = Library.load(folder).files
    convolution = next(each.operation for each in whole.entries if each.operation.family == "convolution")
    wanted = [entry.operation for entry in random.Random(1).sample(whole.entries, LOOKUPS)]
    found: dict[str, list[float]] = {"first": [], "load": [], "find": [], "json": []}
    for _ in range(runs):
        found["json"].append(seconds(lambda: [json.loads(file.read_bytes()) for file in files]))
        opened = [Library.load(folder)]
        found["load"].append(seconds(lambda: len(opened[0])))  # noqa: B023 - called at once
        found["first"].append(seconds(lambda: Library.load(folder).find(convolution)))
        found["find"].append(seconds(lambda: [opened[0].find(each) for each in wanted]))  # noqa: B023
    median = {name: statistics.median(values) for name, values in found.items()}
    size = sum(file.stat().st_size for file in files)
    print(f"{ENTRIES} entries, {size / 2**20:.1f} MiB; json.loads alone: {median['json']:.3f} s")
    return [
        below(f"load {ENTRIES} entries", median["load"], "s", 0.2),
        below("against json.loads of the same files", median["load"] / median["json"], "times its time", 2),
        below("open, and find the first convolution", median["first"], "s", 0.1),
        below(f"find {LOOKUPS} operations", 1e3 * median["find"], "ms", 50),
    ]


def main() -> int:
    """Measure and print; the exit status is 1 if a goal was missed."""
    options = arguments(__doc__ or "")
    with tempfile.TemporaryDirectory() as folder:
        rows = measured(Path(folder), 7 if options.quick else 31)
    return report(rows, options.json)


if __name__ == "__main__":
    exit_with(main)
