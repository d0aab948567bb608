"""The search for the kernels of a range of sizes: few kernels are compiled, and each is timed at many sizes.

    space of kernels -> the first ones, timed at all sizes -> further ones like the fastest of them, timed likewise
      -> one kernel that is like the fastest of its kind for each size -> buckets -> final kernels
      -> timed again beside the kernel of the rule: an entry for each bucket whose kernel is faster

Only the times of the last step count as evidence: those of the steps before were chosen among, and are too short.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from dispatch_profiler.configurations import Configuration
from dispatch_profiler.console.plurals import counted
from dispatch_profiler.dispatches import Dispatch
from dispatch_profiler.errors import CompilerError, UsageError
from dispatch_profiler.library import Entry, Estimate, KeepRule
from dispatch_profiler.library.entry import SizeTime
from dispatch_profiler.operations import Operation
from dispatch_profiler.operations.size_range import SizeRange
from dispatch_profiler.profiler.statistics.comparison import signed_rank_ratio
from dispatch_profiler.targets import BatchSpace, Target, batch_space, of_any_batch
from dispatch_profiler.tuner.ranges.batch_bench import BatchBench, RangeKernel
from dispatch_profiler.tuner.ranges.buckets import Bucket, best_buckets, ranges_of

#: Sizes at which kernels are timed.
SAMPLES = 16
#: Rounds of the search, and of the comparison with the kernel of the rule.
_ROUNDS, _FINAL_ROUNDS = 7, 15
#: Kernels to compile and time, besides the final ones.
USUAL_EVALUATIONS = 20
#: A kernel of the same kind takes the place of the rule's for a size only if it is faster by this much: times vary.
_MARGIN = 0.03
#: The confidence of the intervals in entries, and of the interval that decides whether a bucket becomes an entry: there are
#: many buckets, and with 95 % one of forty kernels that are as fast as the rule's would be kept.
_CONFIDENCE, _KEEPING = 0.95, 0.999


@dataclass(frozen=True)
class RangeOptions:
    """How to search: the number of kernels that are compiled, which entries to keep, and what time is left, in seconds."""

    evaluations: int = USUAL_EVALUATIONS
    rule: KeepRule = KeepRule()
    left: Callable[[], float] = lambda: math.inf
    say: Callable[[str], None] = lambda line: None


@dataclass(frozen=True)
class JudgedBucket:
    """A bucket whose kernel was compared with the kernel of the rule, which launches use without an `entry`.

    Without a `speedup`, `reason` says why nothing was compared.
    """

    sizes: SizeRange
    configuration: str
    speedup: Estimate | None = None
    entry: Entry | None = None
    reason: str = ""


@dataclass(frozen=True)
class RangeResult:
    """The buckets of an operation's range, in order, and how many kernels were timed."""

    operation: Operation
    sizes: SizeRange
    buckets: tuple[JudgedBucket, ...]
    evaluated: int

    @property
    def entries(self) -> tuple[Entry, ...]:
        """The entries for the library."""
        return tuple(each.entry for each in self.buckets if each.entry is not None)


@dataclass(frozen=True)
class _FinalBucket:
    """A bucket, the sizes in it at which kernels were timed, and its configuration; None if this is the rule's choice."""

    sizes: SizeRange
    measured: tuple[int, ...]
    configuration: Configuration | None


#: Seconds of each kernel, by name, in each round, at each size.
_Times = dict[int, dict[str, list[float]]]


def search_range(
    operation: Operation, sizes: SizeRange, target: Target, bench: BatchBench, options: RangeOptions
) -> RangeResult:
    """Search the kernels of `operation` for `sizes`.

    Raises OperationError if its size is not that of a dimension which may vary, UsageError if no kernel for any size is
    valid, and CompilerError if the kernel that launches use without an entry is wrong or does not compile.
    """
    sizes.largest_of(operation)
    whole = of_any_batch(operation)
    space = None if whole is None else batch_space(whole, target)
    if whole is None or space is None:
        raise UsageError(f"{operation.name}: no kernel for {target.name} is for several sizes of it")
    return _RangeSearch(whole, sizes, space, bench, options).run()


class _RangeSearch:
    def __init__(
        self,
        whole: Operation,
        sizes: SizeRange,
        space: BatchSpace,
        bench: BatchBench,
        options: RangeOptions,
    ) -> None:
        self._whole = whole
        self._sizes = sizes
        self._space = space
        self._bench = bench
        self._options = options
        self._samples = sizes.samples(SAMPLES)

    def run(self) -> RangeResult:
        first = self._space.first[: self._options.evaluations]
        kernels = self._built(first)
        times = self._timed(kernels, _ROUNDS)
        kernels = self._complete(kernels, times)
        self._check_rule(kernels)
        if self._options.left() > 0.0:
            left = max(0, self._options.evaluations - len(first))
            others = self._space.further(self._fastest_somewhere(kernels, times))[:left]
            kernels += self._built(others)
            # All in turns: times of different minutes are not compared.
            times = self._timed(kernels, _ROUNDS)
            kernels = self._complete(kernels, times)
            self._check_rule(kernels)
        final = self._final(kernels, times)
        return RangeResult(self._whole, self._sizes, tuple(self._judged(final, kernels[0])), len(kernels))

    def _built(self, configurations: Sequence[Configuration]) -> list[RangeKernel]:
        self._options.say(f"compiling {counted(len(configurations), 'kernel')}")
        return self._bench.build([Dispatch(self._whole, each) for each in configurations])

    def _timed(self, kernels: Sequence[RangeKernel], rounds: int) -> _Times:
        times: _Times = {}
        for at, size in enumerate(self._samples, 1):
            times[size] = self._bench.seconds_at(self._sized(size), kernels, rounds)
            done = f"{at} of {len(self._samples)} sizes"
            self._options.say(f"{counted(len(kernels), 'kernel')} at {self._sizes.dimension}={size} [{done}]")
        return times

    def _sized(self, size: int) -> Operation:
        sized = self._whole.with_batch(size)
        assert sized is not None  # `largest_of`
        return sized

    def _complete(self, kernels: Sequence[RangeKernel], times: _Times) -> list[RangeKernel]:
        """The kernels that are right, and were timed, at all sizes."""
        return [each for each in kernels if all(each.name in found for found in times.values())]

    def _check_rule(self, kernels: Sequence[RangeKernel]) -> None:
        """Raises CompilerError unless the first kernel is that of the rule."""
        ruled = Dispatch(self._whole, self._space.first[0])
        if not kernels or kernels[0].dispatch != ruled:
            reason = self._bench.failures.get(ruled.name, "it was not timed")
            raise CompilerError(f"{ruled.name}, which launches use without an entry: {reason}")

    # -- choice -------------------------------------------------------------------------------

    def _fastest_somewhere(self, kernels: Sequence[RangeKernel], times: _Times) -> list[Configuration]:
        """The kernels of the best buckets."""
        seconds = [[_typical(times[size][each.name]) for size in self._samples] for each in kernels]
        buckets = best_buckets(seconds, [each.layout for each in kernels])
        return list(dict.fromkeys(kernels[each.kernel].dispatch.configuration for each in buckets))

    def _final(self, kernels: Sequence[RangeKernel], times: _Times) -> list[_FinalBucket]:
        """The buckets by the times of `kernels`, the first of which is the kernel of the rule."""
        kinds: dict[object, list[RangeKernel]] = {}
        for each in kernels:
            kinds.setdefault(self._space.kind(each.dispatch.configuration), []).append(each)
        groups = list(kinds.values())
        fastest = [{size: self._fastest(group, times[size]) for size in self._samples} for group in groups]
        seconds = [[_typical(times[size][own[size].name]) for size in self._samples] for own in fastest]
        buckets = best_buckets(seconds, [group[0].layout for group in groups])
        ranges = ranges_of(buckets, self._samples, self._sizes.least, self._sizes.most)
        return [
            self._final_bucket(
                bucket, SizeRange(self._sizes.dimension, *ends), fastest[bucket.kernel], kernels[0]
            )
            for bucket, ends in zip(buckets, ranges, strict=True)
        ]

    def _final_bucket(
        self, bucket: Bucket, sizes: SizeRange, fastest: Mapping[int, RangeKernel], ruled: RangeKernel
    ) -> _FinalBucket:
        measured = self._samples[bucket.first : bucket.last + 1]
        of_sizes = {size: fastest[size].dispatch.configuration for size in measured}
        is_ruled = set(of_sizes.values()) == {ruled.dispatch.configuration}
        joined = None if is_ruled else self._space.joined(of_sizes, sizes.most)
        return _FinalBucket(sizes, measured, joined)

    def _fastest(self, group: Sequence[RangeKernel], found: Mapping[str, list[float]]) -> RangeKernel:
        """The fastest kernel of a kind at a size: the first of them unless another one is clearly faster."""
        first, best = group[0], min(group, key=lambda each: _typical(found[each.name]))
        is_faster = _typical(found[best.name]) * (1.0 + _MARGIN) < _typical(found[first.name])
        return best if is_faster else first

    # -- judgement ----------------------------------------------------------------------------

    def _judged(self, final: Sequence[_FinalBucket], ruled: RangeKernel) -> Iterator[JudgedBucket]:
        """Each bucket, compared with the kernel of the rule at its measured sizes."""
        for bucket in final:
            if bucket.configuration is None:
                name = ruled.dispatch.configuration.name
                yield JudgedBucket(bucket.sizes, name, reason="nothing is faster than the kernel of the rule")
                continue
            dispatch = Dispatch(bucket.sizes.largest_of(self._whole), bucket.configuration)
            kernels = self._bench.build([dispatch])
            self._options.say(f"comparing the kernel for {bucket.sizes.text} with the kernel of the rule")
            rounds = {
                size: self._bench.seconds_at(self._sized(size), [ruled, *kernels], _FINAL_ROUNDS)
                for size in bucket.measured
            }
            if kernels and all(len(found) > 1 for found in rounds.values()):
                yield self._compared(bucket.sizes, kernels[0], ruled, rounds)
            else:
                reason = self._bench.failures.get(dispatch.name, "the kernel of the rule failed beside it")
                yield JudgedBucket(bucket.sizes, bucket.configuration.name, reason=reason)

    def _compared(
        self, sizes: SizeRange, kernel: RangeKernel, ruled: RangeKernel, rounds: _Times
    ) -> JudgedBucket:
        tuned = {size: found[kernel.name] for size, found in rounds.items()}
        untuned = {size: found[ruled.name] for size, found in rounds.items()}
        logs = [
            statistics.fmean(math.log(untuned[size][at] / tuned[size][at]) for size in rounds)
            for at in range(_FINAL_ROUNDS)
        ]
        speeds = [
            statistics.fmean(math.log(self._sized(size).flops / tuned[size][at] / 1e9) for size in rounds)
            for at in range(_FINAL_ROUNDS)
        ]
        speedup = _estimate(logs)
        measured = tuple(
            SizeTime(size, 1e3 * _typical(tuned[size]), 1e3 * _typical(untuned[size])) for size in rounds
        )
        entry = Entry(
            kernel.dispatch, _estimate(speeds), speedup, self._bench.provenance(kernel), sizes, measured
        )
        is_kept = self._options.rule.keeps(_estimate(logs, _KEEPING))
        name = kernel.dispatch.configuration.name
        return JudgedBucket(sizes, name, speedup, entry if is_kept else None)


def _typical(seconds: Sequence[float]) -> float:
    return statistics.median(seconds)


def _estimate(logs: Sequence[float], confidence: float = _CONFIDENCE) -> Estimate:
    """The geometric mean, with its interval, of the logarithms of several rounds."""
    ratio = signed_rank_ratio(logs, confidence)
    return Estimate(ratio.value, min(ratio.low, ratio.value), max(ratio.high, ratio.value))
