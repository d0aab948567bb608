#!/usr/bin/env python3
"""Measuring: whether the same is called the same, a true 3 % is found, and another tool agrees.

All on this CPU, in one run. The slowdown is true: the profile vmfb of the slower side does each
dispatch 103 times where that of the other does it 100 times, and both are counted as 100.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks._table import Row, arguments, at_least, below, report
from dispatch_profiler.compiler import CompileOptions, IreeCompiler, compile_tree
from dispatch_profiler.configurations import Default, Entry
from dispatch_profiler.generator import Choices, Manifest, Tree, emit, load_manifest, plan_generation
from dispatch_profiler.isolation import Worker
from dispatch_profiler.operations import Matmul
from dispatch_profiler.profiler import MeasureOptions, StopRule, job
from dispatch_profiler.profiler.interleaved import InterleavedOptions, Side
from dispatch_profiler.profiler.vmfbs import Vmfbs
from dispatch_profiler.runtime import find_runtime_tools
from dispatch_profiler.targets import parse_target
from dispatch_profiler.workloads import Entry as Work
from dispatch_profiler.workloads import Workload

#: From 20 us to some ms on two cores.
OPERATIONS = [
    Matmul(m, n, k) for m, n, k in ((64, 64, 128), (128, 256, 128), (256, 256, 256), (512, 512, 512))
]
#: What one pair may take.
PAIR_SECONDS = 12.0
BIN = Path(sys.executable).parent


def compiled(folder: Path, repeat: int) -> Manifest:
    """The compiler's own choice of each operation, done `repeat` times in the profile vmfb."""
    target, tree = parse_target("llvm-cpu"), Tree(folder)
    workload = Workload(tuple(map(Work, OPERATIONS)))
    list(emit(plan_generation(workload, target, Choices([Entry(Default())])), tree))
    list(compile_tree(load_manifest(tree), IreeCompiler(), CompileOptions(repeat=repeat, workers=2)))
    return load_manifest(tree)


def profile_module(manifest: Manifest, operation: Matmul, claimed: int) -> tuple[job.Module, str]:
    """The profile vmfb of an operation, as if it did each dispatch `claimed` times; its function."""
    entry = next(e for e in manifest.entries if e.operation == operation)
    dispatch = entry.dispatches[0].dispatch
    module = entry.module_of(dispatch)
    assert module is not None
    return replace(Vmfbs(manifest.tree).module(entry, module, "profile"), repeat=claimed), dispatch.name


@contextmanager
def device() -> Iterator[Worker]:
    """A worker process that owns the device."""
    with Worker(start=job.start, start_arguments=("local-task", "")) as worker:
        yield worker


def outcomes(worker: Worker, base: Manifest, new: Manifest, pairs: int) -> Counter[str]:
    """What `pairs` interleaved comparisons of new with base say."""
    found: Counter[str] = Counter()
    for number in range(pairs):
        operation = OPERATIONS[number % len(OPERATIONS)]
        sides = {
            Side.BASE: profile_module(base, operation, 100),
            Side.NEW: profile_module(new, operation, 100),
        }
        options = InterleavedOptions(seed=number)
        taken = worker.call(job.interleave, sides, operation, number, options, PAIR_SECONDS)
        found[taken.result.outcome.value] += 1
    return found


def agreement(worker: Worker, manifest: Manifest) -> float:
    """Largest relative difference between our median and that of iree-benchmark-module, same vmfb."""
    _, tool = find_runtime_tools(BIN)
    worst = 0.0
    for operation in OPERATIONS:
        module, function = profile_module(manifest, operation, 100)
        ours, theirs = [], []
        for _ in range(3):  # in turns
            options = MeasureOptions(StopRule(count=20))
            measurement, _ = worker.call(
                job.take_samples, job.Modules(single, module), function, operation, 1, options
            )
            ours.append(measurement.median_ms)
            theirs.append(benchmark_module_ms(tool, module, function, operation))
        worst = max(worst, abs(sorted(ours)[1] / sorted(theirs)[1] - 1.0))
    return worst


def benchmark_module_ms(tool: Path, module: job.Module, function: str, operation: Matmul) -> float:
    """Median of its repetitions for one execution, in milliseconds."""
    import json

    shapes = [*operation.inputs, operation.result]
    inputs = [f"--input={'x'.join(map(str, t.shape))}x{t.type.name}=1" for t in shapes]
    command = [tool, f"--module={module.path}", "--device=local-task", f"--function={function}", *inputs]
    options = ["--benchmark_format=json", "--benchmark_repetitions=11", f"--batch_size={module.repeat}"]
    done = subprocess.run([*command, *options], capture_output=True, text=True, check=True)
    rows = json.loads(done.stdout[done.stdout.index("{") :])["benchmarks"]
    scale = {"ns": 1e-6, "us": 1e-3, "ms": 1.0, "s": 1e3}
    median = next(row for row in rows if row.get("aggregate_name") == "median")
    return float(median["real_time"]) * scale[median["time_unit"]]


def main() -> int:
    """Measure, print, and tell by the exit status whether every goal was reached."""
    options = arguments(__doc__ or "")
    same, slower = (8, 8) if options.quick else (200, 100)
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder, device() as worker:
        base, again = (compiled(Path(folder, name), 100) for name in ("base", "again"))
        more = compiled(Path(folder, "more"), 103)
        found = outcomes(worker, base, again, same)
        print(f"A/A, {same} pairs: {dict(found)}")
        wrong = found["faster"] + found["slower"]
        rows.append(below("A/A pairs called faster or slower", 100 * wrong / same, "%", 2.0001))
        found = outcomes(worker, base, more, slower)
        print(f"3 % more work, {slower} pairs: {dict(found)}")
        rows.append(
            at_least("pairs with 3 % more work called slower", 100 * found["slower"] / slower, "%", 95)
        )
        apart = agreement(worker, base)
        rows.append(below("median against iree-benchmark-module, furthest apart", 100 * apart, "%", 2))
    return report(rows, options.json)


if __name__ == "__main__":
    sys.exit(main())
