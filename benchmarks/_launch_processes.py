"""The first launch of a new process, the import, and preloading: rows of benchmarks/launch.py."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks._launch_timing import FILTERS, IMAGE, Scale
from benchmarks._table import Row, at_least, below

COMMANDS = Path(__file__).parent / "workloads" / "miopen_commands.txt"
#: As users have it: Python keeps compiled modules.
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
FIRST_LAUNCH = """
import sys, time
import numpy, torch, iree.runtime
from dispatch_profiler.boo import get_launchable
from dispatch_profiler.boo.conv_exports import ConvSignature
x, w = torch.ones({image}), torch.ones({filters})
start = time.perf_counter()
signature = ConvSignature(input_shape={image}, kernel_shape={filters}, padding=1, dtype="f32")
result = get_launchable(signature)(x, w)
print(time.perf_counter() - start)
assert "iree.compiler" not in sys.modules or not {is_warm}
torch.testing.assert_close(result, torch.nn.functional.conv2d(x, w, padding=1))
"""
IMPORT = """
import sys, time
start = time.perf_counter()
import dispatch_profiler.boo
print(time.perf_counter() - start)
assert not {name.partition(".")[0] for name in sys.modules} & {"torch", "numpy", "iree"}
"""


def seconds_of(program: str, **environment: str) -> float:
    """What a program that runs in a new process prints."""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**ENVIRONMENT, "PYTHONPATH": str(Path(__file__).parent.parent), **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(done.stderr)
    return float(done.stdout)


def process_rows(scale: Scale) -> Iterator[Row]:
    """The first launch in a new process, and the import."""
    with tempfile.TemporaryDirectory() as folder:
        program = FIRST_LAUNCH.format(image=IMAGE, filters=FILTERS, is_warm=False)
        cold = seconds_of(program, BOO_CACHE_DIR=folder)
        program = FIRST_LAUNCH.format(image=IMAGE, filters=FILTERS, is_warm=True)
        warm = [seconds_of(program, BOO_CACHE_DIR=folder) for _ in range(scale.processes)]
    print(f"first launch with a cold cache: {cold:.2f} s", flush=True)
    yield below("first launch of a process, warm cache, after imports", statistics.median(warm), "s", 0.1)
    imports = [seconds_of(IMPORT) for _ in range(scale.processes)]
    yield below("import dispatch_profiler.boo", statistics.median(imports), "s", 0.15)


# -- preloading ------------------------------------------------------------------------------------


def preload_rows(scale: Scale) -> Iterator[Row]:
    """Filling a cold cache, against one `iree-compile` per line: one after another, and one on each core.

    `iree-compile` gets the plain form of each operation, the launch cache the fastest one, which has several kernels
    for half of the lines.
    """
    from dispatch_profiler.boo import CachePopulator
    from dispatch_profiler.targets import parse_target

    lines = [line for line in COMMANDS.read_text().splitlines() if line.strip() and not line.startswith("#")]
    lines, cores = lines[: scale.lines], len(os.sched_getaffinity(0))
    tool, flags = Path(sys.executable).parent / "iree-compile", parse_target("llvm-cpu").compile_flags
    preload = [sys.executable, "-m", "dispatch_profiler.boo.driver.preload", "-d", "local-task", f"-j{cores}"]
    ours, loop, parallel = [], [], []
    for _ in range(scale.preloads):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            (folder / "commands.txt").write_text("\n".join(lines) + "\n")
            files = CachePopulator(commands=lines).write_mlir(folder)
            commands = [[tool, *flags, file, "-o", file.with_suffix(".vmfb")] for file in files]
            ours.append(timed([[*preload, folder / "commands.txt", "-o", folder / "cache"]], 1))
            loop.append(timed(commands, 1))
            parallel.append(timed(commands, cores))
        took = (
            f"preload {ours[-1]:.1f} s, iree-compile {loop[-1]:.1f} s, {cores} at a time {parallel[-1]:.1f} s"
        )
        print(f"{len(lines)} lines: {took}", flush=True)
    took = statistics.median(ours)
    yield at_least(
        "cold preload against one iree-compile per line", statistics.median(loop) / took, "times as fast", 1.4
    )
    yield Row(
        f"the same against {cores} at a time",
        statistics.median(parallel) / took,
        "times as fast",
        "any",
        True,
    )


def timed(commands: Sequence[Sequence[object]], workers: int) -> float:
    """Seconds in which all commands end, `workers` at a time."""

    def run(command: Sequence[object]) -> None:
        words = [str(each) for each in command]
        done = subprocess.run(words, env=ENVIRONMENT, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"{command[0]} ended with status {done.returncode}: {done.stderr[:2000]}")

    start = time.perf_counter()
    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(run, commands))
    return time.perf_counter() - start
