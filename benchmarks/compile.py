#!/usr/bin/env python3
"""Compiling: against two `iree-compile` commands per operation, as the IREE dispatch profiler runs them.

Both sides compile the same `.mlir` files on the same cores, in one run, alternating; figures are
medians. "Per core-second" divides by the processor time of all processes: it measures the machine's work
and not the waiting time.
"""

from __future__ import annotations

import contextlib
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks._table import Row, arguments, at_least, below, exit_with, report
from dispatch_profiler.compiler import repeat_count
from dispatch_profiler.dispatches import Tree, load_manifest
from dispatch_profiler.targets import parse_target

ROOT = Path(__file__).parent.parent
#: Tiles without peeling and flows: one module per operation, on both sides.
TILES = """configurations:
  - {distribution: [64, 128], vector: [8, 32, 4]}
  - {distribution: [64, 128], vector: [8, 64, 1]}
  - {distribution: [128, 128], vector: [8, 32, 1]}
  - {distribution: [64, 128], vector: [16, 16, 1]}
  - {distribution: [16, 64], vector: [4, 16, 1]}
"""
#: The sweep in the IREE dispatch profiler's documentation, in both of its types.
DOCUMENT = ("--problem-m=64:1024:128", "--problem-n=64:1024:128", "--problem-k=4096", "--lhs=f16,f32")


@dataclass(frozen=True)
class Cost:
    """Cost of one run: wall seconds, processor seconds, and bytes of the largest process so far."""

    wall: float
    cpu: float
    peak: int


def cost(work: Callable[[], None]) -> Cost:
    """Run `work`, which starts processes and waits for them."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.perf_counter()
    work()
    wall = time.perf_counter() - start
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Cost(wall, cpu, after.ru_maxrss * 1024)


def ours(script: str, *options: str) -> None:
    """Run one of the three commands quietly; exit if it fails."""
    command = [sys.executable, str(ROOT / script), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stderr}")


def generate(folder: Path, *shapes: str) -> int:
    """Generate a tree of tile configurations; returns the number of dispatches."""
    (folder / "tiles.yaml").write_text(TILES)
    ours("generator.py", f"--generated-dir={folder}", f"--configurations={folder / 'tiles.yaml'}", *shapes)
    return sum(len(entry.dispatches) for entry in load_manifest(Tree(folder)).entries)


def two_commands(folder: Path, workers: int) -> None:
    """`iree-compile` twice for each operation, `workers` at a time."""
    tree, flags = Tree(folder), parse_target("llvm-cpu").compile_flags
    tool = Path(sys.executable).parent / "iree-compile"

    def compile_one(source: Path, repeat: int, output: Path) -> None:
        repeats = f"--iree-hal-benchmark-dispatch-repeat-count={repeat}"
        subprocess.run([tool, *flags, repeats, source, "-o", output], check=True, capture_output=True)

    with ThreadPoolExecutor(workers) as pool:
        jobs = []
        for entry in load_manifest(tree).entries:
            source = tree.source(entry.operation)
            for purpose, repeat in (("verify", 1), ("profile", repeat_count(entry.operation))):
                jobs.append(pool.submit(compile_one, source, repeat, source.with_suffix(f".{purpose}")))
        for job in jobs:
            job.result()


def compared(folder: Path, runs: int, dispatches: int, unchanged_goal: float) -> list[Row]:
    """Cold and up to date against two commands, and one worker against two."""
    cores = len(os.sched_getaffinity(0))
    cold = ("--no-cache", "--force-compile", f"--generated-dir={folder}")
    theirs, two, one, again = [], [], [], []
    for _ in range(runs):
        theirs.append(cost(lambda: two_commands(folder, cores)))
        two.append(cost(lambda: ours("compile.py", *cold, f"-j{cores}")))
        again.append(cost(lambda: ours("compile.py", f"--generated-dir={folder}", "--no-cache")))
        one.append(cost(lambda: ours("compile.py", *cold, "-j1")))

    def median(costs: list[Cost], field: str) -> float:
        return statistics.median(getattr(each, field) for each in costs)

    rate, their_rate = (dispatches / median(costs, "cpu") for costs in (two, theirs))
    unchanged = median(theirs, "wall") / median(again, "wall")
    print(f"{dispatches} dispatches; commands: {their_rate:.2f}, ours: {rate:.2f} dispatches per core-second")
    return [
        at_least("cold, dispatches per core-second against two commands", rate / their_rate, "times", 2.5),
        at_least("unchanged, against two commands", unchanged, "times", unchanged_goal),
        at_least("two workers against one", median(one, "wall") / median(two, "wall"), "times", 1.8),
    ]


def memory(folder: Path) -> list[Row]:
    """Memory of the largest compiler process over one sweep: its peak, and its growth after loading."""
    command = [sys.executable, str(ROOT / "compile.py"), f"--generated-dir={folder}", "--no-cache"]
    sizes: list[int] = []
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as running:
        while running.poll() is None:
            sizes.append(max(map(resident_bytes, processes_below(running.pid)), default=0))
            time.sleep(0.2)
    if running.returncode:
        sys.exit(f"{' '.join(command)} ended with status {running.returncode}")
    third = len(sizes) // 3
    growth = max(sizes[2 * third :]) / max(sizes[third : 2 * third])
    return [
        below("largest process of the documented sweep", max(sizes) / 2**30, "GiB", 1.5),
        below("its peak in the last third against the second", growth, "times", 1.1),
    ]


def processes_below(pid: int) -> list[int]:
    """All descendants of the process `pid`."""
    parents: dict[int, int] = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has just ended
            parents[int(status.parent.name)] = int(status.read_text().rpartition(")")[2].split()[1])
    found, new = [], [pid]
    while new:
        new = [child for child, parent in parents.items() if parent in new]
        found += new
    return found


def resident_bytes(pid: int) -> int:
    """Resident memory of a process; 0 if it has ended."""
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()
    return 0


def generating(folder: Path) -> list[Row]:
    """Ten thousand dispatches from one sweep."""
    shapes = ("--problem-m=64:2048:64", "--problem-n=64:2048:64", "--problem-k=1024", "--lhs=f32")
    took = cost(lambda: ours("generator.py", f"--generated-dir={folder}", *shapes))
    count = sum(len(entry.dispatches) for entry in load_manifest(Tree(folder)).entries)
    return [
        at_least("dispatches generated", count, "dispatches", 10_000),
        below("generating them", took.wall, "s", 10),
        below("the process that generated them", took.peak / 2**20, "MiB", 500),
    ]


def main() -> int:
    """Measure and print; the exit status is 1 if a goal was missed."""
    options = arguments(__doc__ or "")
    shapes = ("--problem-m=128:512:128", "--problem-n=128:512:128", "--problem-k=4096")
    if options.quick:
        shapes = ("--problem-m=128:512:128", "--problem-n=128:256:128", "--problem-k=4096")
    with tempfile.TemporaryDirectory() as folder:
        generated = Path(folder, "ten_thousand")
        generated.mkdir()
        rows = generating(generated)
        sweep = Path(folder, "sweep")
        sweep.mkdir()
        dispatches = generate(sweep, *shapes)
        # Checking that 96 dispatches are up to date takes less time than starting Python.
        runs, unchanged_goal = (3, 50) if options.quick else (5, 100)
        rows += compared(sweep, runs, dispatches, unchanged_goal)
        if not options.quick:
            document = Path(folder, "document")
            document.mkdir()
            generate(document, *DOCUMENT)
            rows += memory(document)
    return report(rows, options.json)


if __name__ == "__main__":
    exit_with(main)
