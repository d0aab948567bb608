"""`tune --range`: the products and convolutions of a workload, each tuned for a range of sizes."""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from dispatch_profiler.command import FAILED, SUCCESS, Parser, say, warn
from dispatch_profiler.compiler import compiler_for
from dispatch_profiler.console.plurals import counted
from dispatch_profiler.errors import DispatchProfilerError, OperationError, UsageError
from dispatch_profiler.library import Entry, Library, library_file
from dispatch_profiler.operations import DEFAULT_SEED, KINDS, Operation
from dispatch_profiler.operations.short_names import short_name
from dispatch_profiler.operations.size_range import SizeRange
from dispatch_profiler.targets import Target, of_any_batch
from dispatch_profiler.tuner.commands.arguments import StepOptions
from dispatch_profiler.tuner.commands.optimize import Outputs, check_output
from dispatch_profiler.tuner.ranges.batch_bench import BatchBench, BenchOptions
from dispatch_profiler.tuner.ranges.range_search import (
    USUAL_EVALUATIONS,
    JudgedBucket,
    RangeOptions,
    RangeResult,
    search_range,
)
from dispatch_profiler.workloads import Workload

#: Options that searches for one size have only, and where argparse puts them.
_OF_ONE_SIZE = {
    "--devices": "devices",
    "--min-share": "min_share",
    "--strategy": "strategy",
    "--least-gain": "least_gain",
    "--budget": "budget",
    "--storage": "storage",
    "--library": "library",
    "--cluster": "cluster",
}
#: Seconds between two lines about the progress.
_LINE_SECONDS = 10.0


def parse_ranges(texts: Sequence[str]) -> tuple[SizeRange, ...]:
    """The ranges of `--range`, one for each dimension. Raises UsageError."""
    known = {kind.batch_name: kind.family for kind in KINDS.values() if kind.batch_name}
    found: dict[str, SizeRange] = {}
    for text in texts:
        try:
            sizes = SizeRange.parse(text)
        except OperationError as error:
            raise UsageError(f"--range: {error.message}") from error
        if sizes.dimension not in known:
            may = " and ".join(f"{name} ({family})" for name, family in known.items())
            raise UsageError(
                f"--range={text}: no kernel is for several {sizes.dimension}; dimensions that may vary: {may}"
            )
        if sizes.dimension in found:
            raise UsageError(f"--range: {sizes.dimension} has two ranges; tune them one after another")
        found[sizes.dimension] = sizes
    return tuple(found.values())


def check_range_options(options: argparse.Namespace, parser: Parser) -> None:
    """Raise UsageError for options that searches for one size have only."""
    given = [name for name, at in _OF_ONE_SIZE.items() if getattr(options, at) != parser.get_default(at)]
    if given:
        raise UsageError(f"{', '.join(given)} cannot be combined with --range")


def tune_ranges(
    workload: Workload,
    ranges: Sequence[SizeRange],
    outputs: Outputs,
    target: Target,
    steps: StepOptions,
    evaluations: int | None = None,
    seed: int | None = None,
) -> int:
    """Tune the operations of `workload` for `ranges`, and write the library after each. Returns the exit status.

    Operations that differ in their size only are tuned once. Raises UsageError if no range applies to any operation.
    """
    problems, problem_reasons = _problems(workload, ranges)
    _check(outputs, target)
    for reason in problem_reasons:
        warn(f"skipped: {reason}")
    if not problems:
        raise UsageError(f"--range applies to no operation of the workload: {problem_reasons[0]}")
    done = 0
    with tempfile.TemporaryDirectory(prefix="dispatch_profiler_") as folder:
        options = BenchOptions(
            target,
            compiler_for(target),
            steps.benchmark_build,
            steps.search.cache,
            Path(folder),
            DEFAULT_SEED if seed is None else seed,
            steps.search.evaluator.seconds,
        )
        ends = _ends(steps.search.seconds, len(problems))
        try:
            for at, (operation, sizes) in enumerate(problems):
                search = RangeOptions(
                    evaluations or USUAL_EVALUATIONS,
                    steps.rule,
                    time_left(ends, at),
                    _paced(_title(operation, sizes)),
                )
                done += _tuned(operation, sizes, options, search, outputs)
        except KeyboardInterrupt:
            raise KeyboardInterrupt(
                f"{outputs.library} has the entries of {done} of {counted(len(problems), 'operation')}; "
                "compiled kernels are kept"
            ) from None
    return SUCCESS if done == len(problems) and not problem_reasons else FAILED


def _problems(
    workload: Workload, ranges: Sequence[SizeRange]
) -> tuple[list[tuple[Operation, SizeRange]], list[str]]:
    """Each operation once, whatever size it has, with its range; and why ranges do not apply to operations."""
    found: dict[Operation | None, tuple[Operation, SizeRange]] = {}
    reasons = []
    for operation in dict.fromkeys(each.operation for each in workload.entries):
        sizes = next((each for each in ranges if each.dimension == operation.batch_name), ranges[0])
        try:
            sizes.largest_of(operation)
        except OperationError as error:
            reasons.append(error.message)
        else:
            found.setdefault(of_any_batch(operation), (operation, sizes))
    return list(found.values()), reasons


def _check(outputs: Outputs, target: Target) -> None:
    """Raise UsageError if the library exists and is for another target."""
    known = Library.load(outputs.library).entries if library_file(outputs.library).exists() else ()
    check_output(outputs, target, [each.operation for each in known])


def _tuned(
    operation: Operation, sizes: SizeRange, bench: BenchOptions, search: RangeOptions, outputs: Outputs
) -> bool:
    """Tune an operation, print the buckets, and write the library. Returns whether there is a result."""
    title = _title(operation, sizes)
    if search.left() <= 0.0:
        warn(f"{title}: not tuned, for lack of time")
        return False
    try:
        with BatchBench(bench) as opened:
            result = search_range(operation, sizes, bench.target, opened, search)
            failures = dict(opened.failures)
    except DispatchProfilerError as error:
        warn(f"{title}: {error.message}")
        return False
    for name, reason in failures.items():
        warn(f"{title}: {name} is left out: {reason}")
    for each in result.buckets:
        say(f"{title}: {_line(each)}")
    kept = _save(result, outputs.library)
    new = counted(len(result.entries), "new entry")
    say(f"{title}: {counted(result.evaluated, 'kernel')} timed, {new}; {outputs.library} has {kept} in all")
    return True


def _title(operation: Operation, sizes: SizeRange) -> str:
    return f"{short_name(operation)}, {sizes.text}"


def _line(bucket: JudgedBucket) -> str:
    start, speedup = f"{bucket.sizes.text}: {bucket.configuration}", bucket.speedup
    if speedup is None:
        return f"{start}: {bucket.reason}"
    interval = f"{speedup.value:.2f} ({speedup.low:.2f} to {speedup.high:.2f})"
    end = "" if bucket.entry is not None else "; not kept"
    return f"{start}: {interval} times as fast as the kernel that launches use without an entry{end}"


def _save(result: RangeResult, folder: Path) -> int:
    """Write the library, and return its number of entries: new entries replace earlier ones within the tuned range."""
    earlier = Library.load(folder).entries if library_file(folder).exists() else ()
    others = [each for each in earlier if not _is_replaced(each, result)]
    library = Library([*others, *result.entries])
    library.save(folder)
    return len(library)


def _is_replaced(entry: Entry, result: RangeResult) -> bool:
    known = entry.sizes
    is_same = known is not None and of_any_batch(entry.operation) == of_any_batch(result.operation)
    return is_same and known is not None and known.least in result.sizes and known.most in result.sizes


def _ends(seconds: float | None, count: int) -> list[float]:
    """When the search of each operation ends, in seconds of `time.monotonic`: all have equal parts of the time."""
    if seconds is None:
        return []
    start = time.monotonic()
    return [start + seconds * (at + 1) / count for at in range(count)]


def time_left(ends: Sequence[float], at: int) -> Callable[[], float]:
    """Seconds that are left for the operation at a place, when they are asked for."""
    return lambda: ends[at] - time.monotonic() if ends else float("inf")


def _paced(title: str) -> Callable[[str], None]:
    """Prints a line about the progress if the last one is some seconds old."""
    printed = -_LINE_SECONDS

    def paced(line: str) -> None:
        nonlocal printed
        now = time.monotonic()
        if now - printed >= _LINE_SECONDS:
            printed = now
            say(f"{title}: {line}")

    return paced
