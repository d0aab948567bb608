#!/usr/bin/env python3
"""Measuring: the same is called the same, a true 3 % is found, two runs agree, and ranks hold.

All on this CPU. Everything that is compared is measured in one run. The rows about noise are measured
twice, first with another process that uses one core half of the time (with --quick only without it, and
with fewer pairs). The slowdown is real: the profile vmfb of the slower side executes each dispatch 103
times, that of the other side 100 times, and both count as 100.

The difference between our medians and those of iree-benchmark-module is printed, not judged: that command
differs from itself by up to 14 % when only the memory of its operands differs.
"""

from __future__ import annotations

import math
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks._figures import Figure, Rate, allowed, kendall_tau, overlapping, rate_ratio
from benchmarks._iree_tools import Tools
from benchmarks._load import load
from benchmarks._table import Row, arguments, at_least, exit_with, report
from dispatch_profiler.compiler import CompileOptions, IreeCompiler, compile_tree
from dispatch_profiler.configurations import Configuration, CpuTiles, Default, ListedConfiguration
from dispatch_profiler.dispatches import Manifest, State, Tree, load_manifest
from dispatch_profiler.generator import Choices, emit, plan_generation
from dispatch_profiler.isolation import Worker
from dispatch_profiler.operations import Matmul, Operation
from dispatch_profiler.profiler.compare.live import LiveOptions
from dispatch_profiler.profiler.evaluation import device_worker
from dispatch_profiler.profiler.evaluation.candidate import Candidate, EvaluatorOptions, TreeCandidates
from dispatch_profiler.profiler.evaluation.evaluator import Evaluator
from dispatch_profiler.profiler.evaluation.workers import provide, ref_of, refs_of
from dispatch_profiler.profiler.measurement.measure import MeasureOptions
from dispatch_profiler.profiler.measurement.paired_sampling import PairLimit
from dispatch_profiler.profiler.measurement.sample_batches import SampleBatch, joined, next_batch
from dispatch_profiler.profiler.statistics.comparison import SequentialTestOptions, Side
from dispatch_profiler.profiler.statistics.intervals import median_interval, signed_rank_interval
from dispatch_profiler.profiler.statistics.stopping import StopRule
from dispatch_profiler.targets import parse_target
from dispatch_profiler.workloads import Workload, WorkloadEntry

REPEAT, MORE = 100, 103
#: At most so many of our sample batches, and as many processes of iree-benchmark-module, are compared.
PROCESSES = 96
#: Both sides take memory from the heap, in pages of 2 MiB (glibc 2.35 or newer). With malloc's defaults,
#: processes of iree-benchmark-module were up to 9 % faster than ours.
LARGE_PAGES = {
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1:glibc.malloc.mmap_threshold=1073741824:glibc.malloc.top_pad=67108864"
}
#: From 3 us to 0.1 ms on two cores; a call has 100 executions.
NOISY = [Matmul(m, n, k) for m, n, k in ((64, 64, 128), (128, 256, 128), (96, 128, 384), (256, 256, 256))]
#: From 20 us to 50 ms on two cores.
AGREED = [
    Matmul(m, n, k)
    for m, n in ((64, 256), (128, 512), (256, 1024), (512, 1024), (1024, 2048), (1536, 1536))
    for k in (256, 384, 512, 768, 1024)
]
#: A hundred operations from 3 us to 1 ms, which two runs measure.
REPEATED = [
    Matmul(m, n, k)
    for k in (128, 192, 256, 384, 512)
    for n in (64, 128, 256, 512)
    for m in (64, 96, 128, 192, 256)
]
RANKED = Matmul(256, 256, 512)
TILES = [
    CpuTiles((m, n), (vm, vn, vk))
    for m, n in ((32, 64), (64, 64), (64, 128), (128, 128), (128, 64))
    for vm, vn, vk in ((8, 32, 1), (4, 32, 2), (8, 16, 4), (2, 16, 8))
]


@dataclass(frozen=True)
class Scale:
    """How much is measured, and the goals.

    `by_commands` is how many dispatches IREE's commands are timed for with their default samples; `agreed`
    are the products timed beside iree-benchmark-module. `is_small` allows as many failures as chance may
    cause in so few cases at a rate that reaches the goal.
    """

    loads: tuple[bool, ...] = (True, False)
    same: int = 200
    slower: int = 100
    pair_seconds: float = LiveOptions.seconds
    tiles: Sequence[CpuTiles] = tuple(TILES)
    rank_seconds: float = 3.0
    repeated: Sequence[Operation] = tuple(REPEATED)
    agreed: Sequence[Operation] = tuple(AGREED)
    by_commands: int = 20
    ranks_goal: float = 0.95
    rate_goals: tuple[float, float] = (4.0, 1.0)
    is_small: bool = False

    def unloaded(self) -> Scale:
        """Without load it is easier: a quarter of the pairs, where there are many."""
        return replace(self, same=max(8, self.same // 4), slower=max(8, self.slower // 4))

    def failures(self, cases: int, rate: float) -> float:
        """How many of `cases` may fail at a failure rate of `rate`."""
        return max(rate * cases, allowed(cases, rate) if self.is_small else 0)


#: Under five minutes. Starting a process is a third of so short a run, and one swapped pair of ranks 1 of 21.
QUICK = Scale(
    loads=(False,),
    same=8,
    slower=8,
    pair_seconds=10.0,
    tiles=tuple(TILES[::3]),
    rank_seconds=1.0,
    repeated=tuple(REPEATED[::6]),
    agreed=(),
    by_commands=2,
    ranks_goal=0.85,
    rate_goals=(2.0, 0.5),
    is_small=True,
)


# -- what is measured ------------------------------------------------------------------------------


def compiled(
    folder: Path,
    operations: Sequence[Operation],
    configurations: Sequence[Configuration] = (Default(),),
    repeat: int | None = None,
) -> Manifest:
    """A compiled tree; its profile vmfb executes each dispatch `repeat` times."""
    target, tree = parse_target("llvm-cpu"), Tree(folder)
    workload = Workload(tuple(map(WorkloadEntry, operations)))
    choices = Choices([ListedConfiguration(each) for each in configurations])
    list(emit(plan_generation(workload, target, choices), tree))
    list(compile_tree(load_manifest(tree), IreeCompiler(), CompileOptions(repeat=repeat, workers=2)))
    return load_manifest(tree)


def candidates_of(manifest: Manifest) -> list[Candidate]:
    """Every compiled dispatch of a tree."""
    pairs = [pair for pair in manifest.dispatches() if pair[1].state is State.COMPILED]
    return TreeCandidates(manifest.tree).candidates(pairs)


def only(manifest: Manifest, operation: Operation) -> Candidate:
    """The only dispatch of an operation."""
    (found,) = [each for each in candidates_of(manifest) if each.dispatch.operation == operation]
    return found


@contextmanager
def device(environment: Mapping[str, str] | None = None) -> Iterator[Worker]:
    """A worker process that owns the device."""
    with Worker(
        start=device_worker.start, start_arguments=("local-task", ""), environment=environment
    ) as worker:
        yield worker


# -- one against another ---------------------------------------------------------------------------


def outcomes(worker: Worker, base: Manifest, new: Manifest, pairs: int, seconds: float) -> Counter[str]:
    """Outcomes of `pairs` comparisons of new with base, by paired sampling, each for at most `seconds`."""
    found: Counter[str] = Counter()
    for number in range(pairs):
        operation = NOISY[number % len(NOISY)]
        sides = {}
        for side, manifest in ((Side.BASE, base), (Side.NEW, new)):
            candidate = only(manifest, operation)
            provide(worker, candidate.vmfbs)
            sides[side] = ref_of(candidate.profile, REPEAT), candidate.dispatch.name
        options = SequentialTestOptions(seed=number)
        taken = worker.call(device_worker.sample_pairs, sides, operation, number, options, PairLimit(seconds))
        found[taken.result.outcome.value] += 1
    return found


def noise_rows(folder: Path, scale: Scale, where: str) -> Iterator[Row]:
    """A/A pairs, and pairs with 3 % more work."""
    base, again = (compiled(folder / name, NOISY, repeat=REPEAT) for name in ("base", "again"))
    more = compiled(folder / "more", NOISY, repeat=MORE)
    with device() as worker:
        began = time.monotonic()
        found = outcomes(worker, base, again, scale.same, scale.pair_seconds)
        print(
            f"A/A{where}, {scale.same} pairs in {time.monotonic() - began:.0f} s: {dict(found)}", flush=True
        )
        yield called_different_row(found, scale, where)
        began = time.monotonic()
        found = outcomes(worker, base, more, scale.slower, scale.pair_seconds)
        took = time.monotonic() - began
        print(f"3 % more{where}, {scale.slower} pairs in {took:.0f} s: {dict(found)}", flush=True)
        yield called_slower_row(found, scale, where)


def called_different_row(found: Mapping[str, int], scale: Scale, where: str) -> Row:
    """At most 2 % of the A/A pairs may be called different."""
    pairs = sum(found.values())
    wrong, most = found.get("faster", 0) + found.get("slower", 0), scale.failures(pairs, 0.02)
    name = f"A/A pairs called faster or slower{where}"
    return Row(name, 100 * wrong / pairs, "%", f"<= {100 * most / pairs:g}", wrong <= most)


def called_slower_row(found: Mapping[str, int], scale: Scale, where: str) -> Row:
    """At least 95 % of the pairs with 3 % more work must be called slower."""
    pairs = sum(found.values())
    goal = 100 * (1 - scale.failures(pairs, 0.05) / pairs)
    name = f"pairs with 3 % more work called slower{where}"
    return at_least(name, 100 * found.get("slower", 0) / pairs, "%", goal)


# -- one run against another -----------------------------------------------------------------------


def figures(candidates: Sequence[Candidate], rule: StopRule) -> dict[str, Figure]:
    """The figures of a separate run, in its own process, for each dispatch."""
    with Evaluator(EvaluatorOptions("local-task", measure=MeasureOptions(rule))) as evaluator:
        return {
            record.dispatch.name: Figure(record.measurement.median_ms, *record.measurement.interval_ms)
            for record in evaluator.records(candidates)
            if record.measurement is not None
        }


def overlap_row(folder: Path, scale: Scale) -> Row:
    """Whether the 95 % intervals of two runs overlap, for 95 % of the operations.

    Correct intervals would overlap for 99.4 %, if the machine were the same in both runs.
    """
    candidates = candidates_of(compiled(folder / "repeated", scale.repeated))
    one, other = (figures(candidates, StopRule()) for _ in range(2))
    count = len(scale.repeated)
    assert len(one) == len(other) == count
    goal = 100 * (1 - scale.failures(count, 0.05) / count)
    name = f"of {count} operations those whose 95 % intervals overlap in two runs"
    return at_least(name, overlapping(one, other), "%", goal)


def rank_row(folder: Path, scale: Scale, where: str) -> Row:
    """The order of configurations in two runs; disturbances of this machine last 5 to 15 s."""
    candidates = candidates_of(compiled(folder / "ranked", [RANKED], scale.tiles))
    one, other = (figures(candidates, StopRule(seconds=scale.rank_seconds)) for _ in range(2))
    tau, pairs = kendall_tau(one, other)
    print(
        f"ranks{where}: {len(one)} configurations, {pairs} pairs differ by more than the intervals",
        flush=True,
    )
    return at_least(f"Kendall tau of the ranks in two runs{where}", tau, "", scale.ranks_goal)


# -- against another tool --------------------------------------------------------------------------


def agreement(
    folder: Path, operations: Sequence[Operation], memory: str, environment: Mapping[str, str]
) -> list[float]:
    """Relative excess of our median over theirs for each operation, with the same vmfb and operands."""
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
    """Relative excess of our median over theirs, with its 95 % interval; and our median in ms.

    Alternates one of our sample batches with one of their processes and uses the ratio of each pair,
    because the machine's speed varies. Ends when the ratio is precise to 1 %.
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
        # No overhead is subtracted from our samples, since `single_seconds` is not given, nor from theirs.
        theirs = statistics.median(tools.times_ms(candidate, 3, 0.02))
        ratios.append(math.log(statistics.median(batches[-1].samples_ms) / theirs))
        centre, low, high = signed_rank_interval(ratios, 0.95)
        if len(batches) >= 8 and high - low <= 0.02:
            break
    more, least, most = map(math.expm1, (centre, low, high))
    return more, least, most, joined(options, batches).median_ms


# -- how many a minute -----------------------------------------------------------------------------


def rate_rows(folder: Path, scale: Scale) -> Iterator[Row]:
    """Verified and measured dispatches a minute against two commands for each, at equal information.

    Once with the default samples of iree-benchmark-module, 0.5 s, and once with samples as short as ours.
    """
    candidates = candidates_of(compiled(folder / "rated", [RANKED, Matmul(128, 512, 384)], scale.tiles))
    tools = Tools(folder)
    kinds = ((0.5, "with default samples"), (0.02, "with short samples"))
    for (seconds, what), goal in zip(kinds, scale.rate_goals, strict=True):
        some = candidates[:: max(1, len(candidates) // scale.by_commands)] if seconds > 0.1 else candidates
        theirs = by_commands(tools, some, seconds)
        ours = by_evaluator(candidates, theirs.half_width)
        print(
            f"{60 * ours.per_second:.0f} dispatches a minute to ±{ours.half_width:.1%}, "
            f"{60 * theirs.per_second:.0f} to ±{theirs.half_width:.1%} by two commands for each, {what}",
            flush=True,
        )
        name = f"dispatches a minute at equal information against two commands, {what}"
        yield at_least(name, rate_ratio(ours, theirs), "x", goal)


def by_evaluator(candidates: Sequence[Candidate], width: float) -> Rate:
    """Our rate, sampling each dispatch until its median is precise to `width`."""
    options = EvaluatorOptions("local-task", measure=MeasureOptions(StopRule(width=width)))
    began = time.monotonic()
    with Evaluator(options) as evaluator:
        records = list(evaluator.records(candidates))
    rate = len(candidates) / (time.monotonic() - began)
    assert all(record.verdict.value == "SUCCESS" for record in records)
    return Rate(rate, statistics.median(r.measurement.half_width for r in records if r.measurement))


def by_commands(tools: Tools, candidates: Sequence[Candidate], seconds: float) -> Rate:
    """Their rate: iree-run-module, and iree-benchmark-module with ten samples of `seconds`, for each."""
    began, widths = time.monotonic(), []
    for candidate in candidates:
        assert tools.verified(candidate)
        times = tools.times_ms(candidate, 10, seconds)
        low, high = median_interval(times)
        widths.append((high - low) / statistics.median(times) / 2.0)
    return Rate(len(candidates) / (time.monotonic() - began), statistics.median(widths))


def main() -> int:
    """Measure and print; the exit status is 1 if a goal was missed."""
    options = arguments(__doc__ or "")
    scale = QUICK if options.quick else Scale()
    rows: list[Row] = []
    for loaded in scale.loads:
        with tempfile.TemporaryDirectory() as folder, ExitStack() as others:
            if loaded:
                others.enter_context(load())
            where, part = (", a core half loaded", scale) if loaded else ("", scale.unloaded())
            rows.extend(noise_rows(Path(folder), part, where))
            rows.append(rank_row(Path(folder), part, where))
    with tempfile.TemporaryDirectory() as folder:
        rows.append(overlap_row(Path(folder), scale))
        rows.extend(rate_rows(Path(folder), scale))
        if scale.agreed:
            agreement(Path(folder), scale.agreed, "malloc's own choice of memory", {})
            agreement(Path(folder), scale.agreed, "pages of 2 MiB", LARGE_PAGES)
    return report(rows, options.json)


if __name__ == "__main__":
    exit_with(main)
