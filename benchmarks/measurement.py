#!/usr/bin/env python3
"""Measuring: whether the same is called the same, a true 3 % is found, other tools agree, ranks hold.

All on this CPU. Whatever is compared is measured in one run. The rows about noise are measured twice,
the first time with another process that has one core half of the time. The slowdown is true: the
profile vmfb of the slower side does each dispatch 103 times where that of the other does it 100
times, and both are counted as 100.
"""

from __future__ import annotations

import itertools
import json
import math
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks._table import Row, arguments, at_least, below, report
from dispatch_profiler.compiler import CompileOptions, IreeCompiler, compile_tree
from dispatch_profiler.configurations import Configuration, CpuTiles, Default, ListedConfiguration
from dispatch_profiler.dispatches import Manifest, State, Tree, load_manifest
from dispatch_profiler.generator import Choices, emit, plan_generation
from dispatch_profiler.isolation import Worker
from dispatch_profiler.operations import Distribution, Matmul, Operation
from dispatch_profiler.profiler.compare.live import LiveOptions
from dispatch_profiler.profiler.evaluation import device_worker
from dispatch_profiler.profiler.evaluation.candidate import Candidate, Vmfb
from dispatch_profiler.profiler.evaluation.evaluator import Evaluator, EvaluatorOptions
from dispatch_profiler.profiler.evaluation.from_manifest import TreeCandidates
from dispatch_profiler.profiler.evaluation.workers import provide, ref_of, refs_of
from dispatch_profiler.profiler.measurement.measure import MeasureOptions
from dispatch_profiler.profiler.measurement.sample_batches import SampleBatch, joined, next_batch
from dispatch_profiler.profiler.records.record import Record
from dispatch_profiler.profiler.statistics.intervals import median_interval, signed_rank_interval
from dispatch_profiler.profiler.statistics.sequential_test import SequentialTestOptions, Side
from dispatch_profiler.profiler.statistics.stopping import StopRule
from dispatch_profiler.profiler.verification.inputs import draw
from dispatch_profiler.runtime import find_runtime_tools
from dispatch_profiler.targets import parse_target
from dispatch_profiler.workloads import Workload, WorkloadEntry

BIN = Path(sys.executable).parent
REPEAT, MORE = 100, 103
#: At most so many of our sample batches are compared with as many processes of iree-benchmark-module.
PROCESSES = 96
#: Memory of both sides from the heap, in pages of 2 MiB (glibc from 2.35 on). With malloc's own choice
#: processes of iree-benchmark-module were up to 9 % faster than ours.
LARGE_PAGES = {
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1:glibc.malloc.mmap_threshold=1073741824:glibc.malloc.top_pad=67108864"
}
#: From 3 us to a tenth of a millisecond on two cores; a call is 100 of them.
NOISY = [Matmul(m, n, k) for m, n, k in ((64, 64, 128), (128, 256, 128), (96, 128, 384), (256, 256, 256))]
#: From 20 us to 50 ms on two cores.
AGREED = [
    Matmul(m, n, k)
    for m, n in ((64, 256), (128, 512), (256, 1024), (512, 1024), (1024, 2048), (1536, 1536))
    for k in (256, 384, 512, 768, 1024)
]
RANKED = Matmul(256, 256, 512)
TILES = [
    CpuTiles((m, n), (vm, vn, vk))
    for m, n in ((32, 64), (64, 64), (64, 128), (128, 128), (128, 64))
    for vm, vn, vk in ((8, 32, 1), (4, 32, 2), (8, 16, 4), (2, 16, 8))
]


# -- what is measured ------------------------------------------------------------------------------


def compiled(
    folder: Path,
    operations: Sequence[Operation],
    configurations: Sequence[Configuration] = (Default(),),
    repeat: int | None = None,
) -> Manifest:
    """A compiled tree of them; in the profile vmfb each dispatch `repeat` times."""
    target, tree = parse_target("llvm-cpu"), Tree(folder)
    workload = Workload(tuple(map(WorkloadEntry, operations)))
    choices = Choices([ListedConfiguration(each) for each in configurations])
    list(emit(plan_generation(workload, target, choices), tree))
    list(compile_tree(load_manifest(tree), IreeCompiler(), CompileOptions(repeat=repeat, workers=2)))
    return load_manifest(tree)


def candidates_of(manifest: Manifest) -> list[Candidate]:
    """Every dispatch of a tree that was compiled."""
    pairs = [pair for pair in manifest.dispatches() if pair[1].state is State.COMPILED]
    return TreeCandidates(manifest.tree).candidates(pairs)


def only(manifest: Manifest, operation: Operation) -> Candidate:
    """The one dispatch of an operation."""
    (found,) = [each for each in candidates_of(manifest) if each.dispatch.operation == operation]
    return found


@contextmanager
def device(environment: Mapping[str, str] | None = None) -> Iterator[Worker]:
    """A worker process that owns the device."""
    with Worker(
        start=device_worker.start, start_arguments=("local-task", ""), environment=environment
    ) as worker:
        yield worker


def _work_and_sleep() -> None:
    """50 ms of work, 50 ms of sleep, for ever."""
    while True:
        end = time.monotonic() + 0.05
        while time.monotonic() < end:
            pass
        time.sleep(0.05)


@contextmanager
def load() -> Iterator[None]:
    """Another process has one core half of the time."""
    process = multiprocessing.get_context("spawn").Process(target=_work_and_sleep, daemon=True)
    process.start()
    try:
        yield
    finally:
        process.kill()
        process.join()


# -- one against another ---------------------------------------------------------------------------


def outcomes(worker: Worker, base: Manifest, new: Manifest, pairs: int) -> Counter[str]:
    """Outcomes of `pairs` comparisons of new with base, by paired sampling."""
    found: Counter[str] = Counter()
    for number in range(pairs):
        operation = NOISY[number % len(NOISY)]
        sides = {}
        for side, manifest in ((Side.BASE, base), (Side.NEW, new)):
            candidate = only(manifest, operation)
            provide(worker, candidate.vmfbs)
            sides[side] = ref_of(candidate.profile, REPEAT), candidate.dispatch.name
        options = SequentialTestOptions(seed=number)
        taken = worker.call(
            device_worker.sample_pairs, sides, operation, number, options, LiveOptions.seconds
        )
        found[taken.result.outcome.value] += 1
    return found


def noise_rows(folder: Path, same: int, slower: int, where: str) -> Iterator[Row]:
    """A/A, and 3 % more work."""
    base, again = (compiled(folder / name, NOISY, repeat=REPEAT) for name in ("base", "again"))
    more = compiled(folder / "more", NOISY, repeat=MORE)
    with device() as worker:
        began = time.monotonic()
        found = outcomes(worker, base, again, same)
        print(f"A/A{where}, {same} pairs in {time.monotonic() - began:.0f} s: {dict(found)}", flush=True)
        wrong = 100 * (found["faster"] + found["slower"]) / same
        yield below(f"A/A pairs called faster or slower{where}", wrong, "%", 2.0001)
        began = time.monotonic()
        found = outcomes(worker, base, more, slower)
        print(
            f"3 % more{where}, {slower} pairs in {time.monotonic() - began:.0f} s: {dict(found)}", flush=True
        )
        yield at_least(
            f"pairs with 3 % more work called slower{where}", 100 * found["slower"] / slower, "%", 95
        )


# -- against another tool --------------------------------------------------------------------------


class Tools:
    """The commands of the installed runtime, on the operands that we use, from files."""

    def __init__(self, folder: Path, environment: Mapping[str, str] | None = None) -> None:
        self._run, self._benchmark = find_runtime_tools(BIN)
        self._folder = folder
        self._environment = {**os.environ, **(environment or {})}

    def operands(self, operation: Operation) -> list[str]:
        """`--input=` for each operand and the result's memory."""
        arrays = [*draw(operation, Distribution.REALS, 1), np.zeros(operation.result.shape, np.float32)]
        found = []
        for tensor, array in zip((*operation.operands, operation.result), arrays, strict=True):
            path = self._folder / f"{operation.name}_{tensor.name}.npy"
            if not path.exists():
                np.save(path, array)
            found.append(f"--input=@{path}")
        return found

    def verified(self, candidate: Candidate) -> bool:
        """Does iree-run-module compute what numpy does?"""
        output = self._folder / "output.npy"
        self._call(self._run, candidate, candidate.verify, f"--output=@{output}")
        lhs, rhs = draw(candidate.dispatch.operation, Distribution.REALS, 1)
        return np.allclose(np.load(output), lhs @ rhs, rtol=1e-3, atol=1e-2)

    def times_ms(self, candidate: Candidate, repetitions: int, seconds: float) -> list[float]:
        """Milliseconds of one execution, of each repetition of so long of iree-benchmark-module."""
        options = ["--benchmark_format=json", f"--benchmark_repetitions={repetitions}"]
        options += [f"--batch_size={candidate.repeat}", f"--benchmark_min_time={seconds}s"]
        said = self._call(self._benchmark, candidate, candidate.profile, *options)
        scale = {"ns": 1e-6, "us": 1e-3, "ms": 1.0, "s": 1e3}
        rows = json.loads(said[said.index("{") :])["benchmarks"]
        return [float(r["real_time"]) * scale[r["time_unit"]] for r in rows if r["run_type"] == "iteration"]

    def _call(self, tool: Path, candidate: Candidate, vmfb: Vmfb | None, *options: str) -> str:
        assert vmfb is not None
        path = self._folder / f"{vmfb.sha256}.vmfb"
        if not path.exists():
            path.write_bytes(vmfb.load())
        command = [tool, f"--module={path}", "--device=local-task", f"--function={candidate.dispatch.name}"]
        # As our own caller does: its spinning does not keep a worker from its core.
        done = subprocess.run(
            ["chrt", "--batch", "0", *command, *self.operands(candidate.dispatch.operation), *options],
            capture_output=True, text=True, check=True, env=self._environment,
        )  # fmt: skip
        return done.stdout


def agreement_rows(folder: Path, operations: Sequence[Operation]) -> Iterator[Row]:
    """Our median against that of iree-benchmark-module, of the same vmfb and operands, in two kinds of memory."""
    for memory, environment in (("malloc's own choice of memory", {}), ("pages of 2 MiB", LARGE_PAGES)):
        apart = max(map(abs, agreement(folder, operations, memory, environment)))
        yield below(f"median against iree-benchmark-module, {memory}, furthest apart", 100 * apart, "%", 2)


def agreement(
    folder: Path, operations: Sequence[Operation], memory: str, environment: Mapping[str, str]
) -> list[float]:
    """By how much ours exceeds theirs, relative, for each operation."""
    manifest, tools, found = compiled(folder / "agreed", operations), Tools(folder, environment), []
    with device(environment) as worker:
        for operation in operations:
            more, low, high, ours = in_pairs(worker, manifest, tools, operation)
            found.append(more)
            print(
                f"{operation.name}: {ours:.4f} ms, {more:+.1%} ({low:+.1%} to {high:+.1%}) against "
                f"iree-benchmark-module, {memory}",
                flush=True,
            )
    within = sum(abs(each) <= 0.02 for each in found)
    mean = math.expm1(statistics.fmean(map(math.log1p, found)))
    print(f"{memory}: within 2 % in {within} of {len(found)}, {mean:+.1%} on average", flush=True)
    return found


def in_pairs(
    worker: Worker, manifest: Manifest, tools: Tools, operation: Operation
) -> tuple[float, float, float, float]:
    """By how much ours exceeds theirs, relative, with its 95 % interval; and our median in ms.

    One of our sample batches and one of their processes alternate, and the ratio of each pair counts,
    because the machine's speed varies. Ends when the ratio is known to 1 %.
    """
    candidate = only(manifest, operation)
    provide(worker, candidate.vmfbs)
    refs, name = refs_of(candidate), candidate.dispatch.name
    options = MeasureOptions(StopRule(count=4 * PROCESSES))
    batches: list[SampleBatch] = []
    ratios: list[float] = []
    while len(batches) < PROCESSES:
        plan = replace(next_batch(options, batches, None), most=4)
        batches.append(worker.call(device_worker.take_batch, refs, name, operation, 1, plan))
        # Nothing is taken off our samples, since `single_seconds` was not given: nor off theirs.
        theirs = statistics.median(tools.times_ms(candidate, 3, 0.02))
        ratios.append(math.log(statistics.median(batches[-1].samples_ms) / theirs))
        centre, low, high = signed_rank_interval(ratios, 0.95)
        if len(batches) >= 8 and high - low <= 0.02:
            break
    more, least, most = map(math.expm1, (centre, low, high))
    return more, least, most, joined(options, batches).median_ms


# -- how many a minute -----------------------------------------------------------------------------


def rate_rows(folder: Path, count: int) -> Iterator[Row]:
    """Verified and measured dispatches a minute against both commands for each, as precise as they are.

    Once with samples as iree-benchmark-module takes them unless told, of 0.5 s, and once as short as ours.
    """
    manifest = compiled(folder / "rated", [RANKED, Matmul(128, 512, 384)], TILES)
    candidates = candidates_of(manifest)
    tools = Tools(folder)
    for seconds, what, goal in ((0.5, "as they are", 4.0), (0.02, "with short samples", 1.0)):
        some = candidates[:: len(candidates) // count] if seconds > 0.1 else candidates
        theirs, precise = by_commands(tools, some, seconds)
        options = EvaluatorOptions("local-task", measure=MeasureOptions(StopRule(width=precise)))
        began = time.monotonic()
        with Evaluator(options) as evaluator:
            records = list(evaluator.records(candidates))
        ours = len(candidates) / (time.monotonic() - began)
        assert all(record.verdict.value == "SUCCESS" for record in records)
        width = statistics.median(r.measurement.half_width for r in records if r.measurement)
        print(
            f"{60 * ours:.0f} dispatches a minute known to {width:.1%}, "
            f"{60 * theirs:.0f} known to {precise:.1%} by two commands for each, {what}",
            flush=True,
        )
        ratio = ours / theirs if width <= precise else 0.0
        yield at_least(f"dispatches a minute against two commands for each, {what}", ratio, "x", goal)


def by_commands(tools: Tools, candidates: Sequence[Candidate], seconds: float) -> tuple[float, float]:
    """Dispatches a second, and the half of the interval of their medians, relative, of the median one."""
    began, widths = time.monotonic(), []
    for candidate in candidates:
        assert tools.verified(candidate)
        times = tools.times_ms(candidate, 10, seconds)
        low, high = median_interval(times)
        widths.append((high - low) / statistics.median(times) / 2.0)
    return len(candidates) / (time.monotonic() - began), statistics.median(widths)


# -- ranks -----------------------------------------------------------------------------------------


def ranked(manifest: Manifest) -> dict[str, Record]:
    """A record of each dispatch of a run of its own, 3 s each: spells of this machine last 5 to 15 s."""
    how = EvaluatorOptions("local-task", measure=MeasureOptions(StopRule(seconds=3.0)))
    with Evaluator(how) as evaluator:
        records = evaluator.records(candidates_of(manifest))
        return {record.dispatch.name: record for record in records if record.measurement}


def kendall_tau(one: dict[str, Record], other: dict[str, Record]) -> tuple[float, int]:
    """Of the pairs that differ by more than the intervals in one of both runs; how many those are."""
    agree = pairs = 0
    for left, right in itertools.combinations(sorted(one.keys() & other.keys()), 2):
        signs = []
        for run in (one, other):
            a, b = run[left].measurement, run[right].measurement
            assert a is not None and b is not None
            apart = a.interval_ms[1] < b.interval_ms[0] or b.interval_ms[1] < a.interval_ms[0]
            signs.append((1 if a.median_ms < b.median_ms else -1, apart))
        if signs[0][1] or signs[1][1]:
            pairs += 1
            agree += signs[0][0] == signs[1][0]
    return (2 * agree - pairs) / pairs, pairs


def rank_row(folder: Path, where: str) -> Row:
    """The order of configurations in two runs."""
    manifest = compiled(folder / "ranked", [RANKED], TILES)
    one, other = ranked(manifest), ranked(manifest)
    tau, pairs = kendall_tau(one, other)
    print(
        f"ranks{where}: {len(one)} configurations, {pairs} pairs differ by more than the intervals",
        flush=True,
    )
    return at_least(f"Kendall tau of the ranks in two runs{where}", tau, "", 0.95)


def main() -> int:
    """Measure, print, and tell by the exit status whether every goal was reached."""
    options = arguments(__doc__ or "")
    same, slower, agreed = (8, 8, AGREED[::15]) if options.quick else (200, 100, AGREED)
    rows: list[Row] = []
    # Without the load it is easier: a quarter of the pairs.
    for where, part in ((", a core half loaded", 1), ("", 1 if options.quick else 4)):
        with tempfile.TemporaryDirectory() as folder, ExitStack() as others:
            if where:
                others.enter_context(load())
            rows.extend(noise_rows(Path(folder), same // part, slower // part, where))
            rows.append(rank_row(Path(folder), where))
    with tempfile.TemporaryDirectory() as folder:
        rows.extend(agreement_rows(Path(folder), agreed))
        rows.extend(rate_rows(Path(folder), 5 if options.quick else 20))
    return report(rows, options.json)


if __name__ == "__main__":
    sys.exit(main())
