#!/usr/bin/env python3
"""Tuned workloads on this CPU: the entries of a library against the compiler's default tiles, and against libraries.

    python benchmarks/tuned.py [--library=DIR] [--packed] [--quick] [--json=PATH]

ResNet-50's convolutions and BERT's matrix products, f32, each weighted by how often its workload runs it. An
operation without an entry runs as it does untuned. "Default" is the operation as it is, or its
fastest form with tiles that the compiler chooses. Weights are arguments of every call, for all sides.

With `--packed`, weights are packed at load time: the fastest packed form, with tiles of the library or of the
shipped list, against the tuned configuration as above and against torch, which packs too. Operations without a
packed form, such as the products of attention, run as tuned.

Everything is compiled and verified; then rounds of measurements follow, in which every side of an
operation is sampled in turn. A figure is the mean over rounds, with its 95 % interval.

The peak is that of numpy's BLAS on matrices in the caches, with a thread for each core. "Best peak" is the highest
that was ever measured on this machine, of each core's quickest product. "Peak of the round" is measured before and after each
round, of each core's median product, so both sides are timed alike: on a machine shared with others, the clock and
the caches differ from hour to hour.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks._table import Row, exit_with, report
from benchmarks._tuned_sides import TARGET, Sides, compiled, sides_of
from dispatch_profiler.command import user_cache
from dispatch_profiler.compiler import IreeCompiler
from dispatch_profiler.configurations import Configuration, Tuned
from dispatch_profiler.dispatches import Tree, load_manifest
from dispatch_profiler.isolation import Worker
from dispatch_profiler.library import Library, find_library
from dispatch_profiler.operations import Operation
from dispatch_profiler.operations.element_types import ELEMENT_TYPES
from dispatch_profiler.profiler.evaluation import device_worker
from dispatch_profiler.profiler.evaluation.candidate import EvaluatorOptions, TreeCandidates
from dispatch_profiler.profiler.evaluation.evaluator import Evaluator
from dispatch_profiler.profiler.evaluation.hardware import peaks_file
from dispatch_profiler.profiler.measurement.measure import MeasureOptions
from dispatch_profiler.profiler.measurement.peaks import environments, typical_flops
from dispatch_profiler.profiler.providers.library_calls import LibraryCall, ManifestPair, with_providers
from dispatch_profiler.profiler.records.record import Record
from dispatch_profiler.profiler.statistics.intervals import student_reach
from dispatch_profiler.profiler.statistics.stopping import StopRule
from dispatch_profiler.workloads import read_workload

WORKLOADS = Path(__file__).parent / "workloads"
PEAKS = user_cache() / "machines"
ROUNDS, QUICK_ROUNDS = 5, 3
SAMPLES, QUICK_SAMPLES = 12, 6
#: Seconds for each candidate that may be the default.
CHOOSING = StopRule(seconds=0.2)


@dataclass(frozen=True)
class Goals:
    """Speedups over the default and the fastest library, and a part of the measured peak."""

    default: float | None
    library: float | None
    peak: float | None = None


WORKS = {
    "resnet50_f32.txt": ("ResNet-50 convolutions", ("torch",), Goals(1.9, 1.15, 0.88)),
    "gemm_log.yaml": ("BERT matrix products", ("torch", "numpy"), Goals(1.65, 1.0)),
}


#: Libraries that pack weights too, where they can.
PACKING_LIBRARIES = ("torch-prepacked", "torch")


@dataclass(frozen=True)
class Times:
    """Milliseconds of each side. With `--packed`, `base` is tuned and `ours` is packed.

    `limit` is the least possible at the best peak, `limit_now` at the peak of the round.
    """

    base: float
    ours: float
    library: float
    limit: float
    limit_now: float

    @staticmethod
    def combined(every: Sequence[Times], how: Callable[[Iterable[float]], float]) -> Times:
        """`how` of each field."""
        return Times(*(how(column) for column in zip(*map(astuple, every), strict=True)))

    def times(self, count: int) -> Times:
        """Of `count` executions."""
        return Times(*(count * each for each in astuple(self)))


#: What `Times.base` and `Times.ours` are, in tables.
UNPACKED_SIDES, PACKED_SIDES = ("default", "tuned"), ("tuned", "packed")


def records(pairs: Sequence[ManifestPair], tree: Tree, evaluator: Evaluator) -> Iterator[Record]:
    """The records of `pairs`; failures are printed."""
    for record in evaluator.records(TreeCandidates(tree).candidates(pairs)):
        if record.is_failure:
            print(f"    {record.dispatch.name}: {record.verdict.value}, {record.reason}", flush=True)
        yield record


def milliseconds(record: Record) -> float:
    """The median; infinite without one."""
    measured = not record.is_failure and record.measurement is not None
    return record.measurement.median_ms if measured and record.measurement is not None else float("inf")


def contestants(
    tree: Tree, libraries: Sequence[str], options: EvaluatorOptions
) -> tuple[list[ManifestPair], Mapping[Operation, float]]:
    """Verify everything; of each operation the fastest default, the tuned side and the libraries, and its limit."""
    pairs = list(with_providers(load_manifest(tree).dispatches(), ("iree", *libraries)))
    fastest: dict[tuple[Operation, str], tuple[float, ManifestPair]] = {}
    limits: dict[Operation, float] = {}
    with Evaluator(options) as evaluator:
        for pair, record in zip(pairs, records(pairs, tree, evaluator), strict=True):
            operation, took = record.dispatch.operation, milliseconds(record)
            limits[operation] = max(record.limit_ms, limits.get(operation, 0.0))
            key = operation, side_of(record.dispatch.configuration)
            if took < fastest.get(key, (float("inf"), pair))[0]:
                fastest[key] = took, pair
    kept = {key: each for key, each in fastest.items() if not is_slower_packed(key, fastest)}
    return [pair for _, pair in kept.values()], limits


def is_slower_packed(
    key: tuple[Operation, str], fastest: Mapping[tuple[Operation, str], tuple[float, ManifestPair]]
) -> bool:
    """Whether `key` is a packed form that takes longer than the configuration without packing."""
    operation, side = key
    unpacked = fastest.get((operation, "tuned"), fastest.get((operation, "default")))
    return side == "packed" and unpacked is not None and unpacked[0] < fastest[key][0]


def side_of(configuration: Configuration) -> str:
    """Which side a configuration belongs to."""
    if isinstance(configuration, LibraryCall):
        return configuration.library
    if configuration.packs_weight:
        return "packed"
    return "tuned" if isinstance(configuration, Tuned) else "default"


def flops_now() -> float:
    """FLOP/s of f32 products at present, with the faster of the kernels of OpenBLAS."""
    found = []
    for environment in environments():
        with Worker(start=device_worker.ready, environment=environment) as worker:
            found.append(float(worker.call(typical_flops)))
    return max(found)


def measured_round(
    pairs: Sequence[ManifestPair],
    tree: Tree,
    evaluator: Evaluator,
    limits: Mapping[Operation, float],
    *,
    packed: bool,
) -> dict[Operation, Times]:
    """One measurement of every contestant, between two of the peak."""
    took: dict[Operation, dict[str, float]] = {}
    rates = [flops_now()]
    for record in records(pairs, tree, evaluator):
        took.setdefault(record.dispatch.operation, {})[side_of(record.dispatch.configuration)] = milliseconds(
            record
        )
    rates.append(flops_now())
    slower = best_flops() / statistics.fmean(rates)
    return {
        operation: times_of(found, limits[operation], slower * limits[operation], packed=packed)
        for operation, found in took.items()
    }


def best_flops() -> float:
    """The highest FLOP/s of f32 products that were measured on this machine."""
    peaks = peaks_file(PEAKS, TARGET.device_uri)
    assert peaks is not None  # it is a CPU
    return peaks.get().flops_of(ELEMENT_TYPES["f32"])


def times_of(found: Mapping[str, float], limit: float, limit_now: float, *, packed: bool) -> Times:
    """The times of one operation by side. What has neither entry nor form runs as the default.

    What has no packed form runs as tuned, and so does what is slower with it: weights may then be constants too.
    """
    library = min(ms for side, ms in found.items() if side not in ("default", "tuned", "packed"))
    tuned = found["tuned"] if "tuned" in found else found["default"]
    if packed:
        return Times(tuned, found.get("packed", tuned), library, limit, limit_now)
    return Times(found["default"], tuned, library, limit, limit_now)


def mean_with_interval(values: Sequence[float]) -> tuple[float, float]:
    """The mean, and half the width of its 95 % interval."""
    half = student_reach(0.95, len(values) - 1) * statistics.stdev(values) / len(values) ** 0.5
    return statistics.fmean(values), half


def totals(rounds: Sequence[Mapping[Operation, Times]], counts: Mapping[Operation, int]) -> list[Times]:
    """The time of the whole workload in each round."""
    return [
        Times.combined([times[operation].times(count) for operation, count in counts.items()], sum)
        for times in rounds
    ]


def rows_of(name: str, goals: Goals, sums: Sequence[Times], names: tuple[str, str]) -> Iterator[Row]:
    """The rows of one workload. `names` are those of `Times.base` and `Times.ours`."""
    base, ours = names
    figures = [
        (f"{ours} against the {base}", [each.base / each.ours for each in sums], goals.default),
        (f"{ours} against the fastest library", [each.library / each.ours for each in sums], goals.library),
        (
            f"{ours}: fraction of the peak of the round",
            [each.limit_now / each.ours for each in sums],
            goals.peak,
        ),
        (
            "library: fraction of the peak of the round",
            [each.limit_now / each.library for each in sums],
            None,
        ),
        (f"{ours}: fraction of the best peak", [each.limit / each.ours for each in sums], goals.peak),
        ("library: fraction of the best peak", [each.limit / each.library for each in sums], None),
    ]
    for what, values, goal in figures:
        mean, half = mean_with_interval(values)
        must = "any" if goal is None else f">= {goal:g}"
        yield Row(f"{name}, {what} (± {half:.3f})", mean, "x", must, goal is None or mean >= goal)


def print_operations(
    rounds: Sequence[Mapping[Operation, Times]],
    sides: Sequence[Sides],
    used: Mapping[Operation, str],
    names: tuple[str, str],
) -> None:
    """Each operation: its share of the time of the base, medians over rounds, and what is used."""
    median = {
        each.entry.operation: Times.combined(
            [times[each.entry.operation] for times in rounds], statistics.median
        )
        for each in sides
    }
    total = sum(each.entry.count * median[each.entry.operation].base for each in sides)
    base, ours = names
    print(f"{'operation':<64} {'share':>6} {base:>8} {ours:>8} {'library':>8} {'peak':>5}  configuration")
    for each in sides:
        operation = each.entry.operation
        times = median[operation]
        print(
            f"{operation.name[:64]:<64} {100 * each.entry.count * times.base / total:>5.1f}% "
            f"{times.base:>8.4f} {times.ours:>8.4f} {times.library:>8.4f} {times.limit_now / times.ours:>5.2f}  "
            f"{used.get(operation, 'default')}",
            flush=True,
        )


def used_names(pairs: Sequence[ManifestPair]) -> dict[Operation, str]:
    """What each operation runs: what packs the weight, or else the tuned configuration."""
    found: dict[Operation, str] = {}
    for _, entry in sorted(pairs, key=lambda pair: pair[1].dispatch.configuration.packs_weight):
        configuration = entry.dispatch.configuration
        if configuration.packs_weight:
            found[entry.dispatch.operation] = configuration.name
        elif isinstance(configuration, Tuned):
            found[entry.dispatch.operation] = configuration.inner.name
    return found


def measured(file: str, library: Library, quick: bool, packed: bool) -> list[Row]:
    """Compile, verify and measure one workload."""
    name, providers, goals = WORKS[file]
    names = UNPACKED_SIDES
    if packed:
        providers = (*PACKING_LIBRARIES, *(each for each in providers if each not in PACKING_LIBRARIES))
        goals, names = Goals(None, None), PACKED_SIDES
    read = read_workload(WORKLOADS / file).workload
    entries = [each for each in read.entries if each.operation.element_type.name == "f32"]
    compiler = IreeCompiler()
    chosen = replace(read, entries=tuple(entries[:: 4 if quick else 1]))
    sides = sides_of(chosen, library, compiler.revision, packed=packed)
    once = MeasureOptions(StopRule(count=SAMPLES if not quick else QUICK_SAMPLES))
    options = EvaluatorOptions(TARGET.device_uri, measure=once, peaks=PEAKS)
    with tempfile.TemporaryDirectory() as folder:
        tree = compiled(Path(folder), sides)
        print(f"{name}: {len(sides)} operations are compiled", flush=True)
        first = replace(options, measure=MeasureOptions(CHOOSING), references=tree.references)
        pairs, limits = contestants(tree, providers, first)
        print(f"{name}: everything is verified", flush=True)
        rounds = []
        with Evaluator(replace(options, verify=False)) as evaluator:
            for number in range(QUICK_ROUNDS if quick else ROUNDS):
                rounds.append(measured_round(pairs, tree, evaluator, limits, packed=packed))
                print(f"{name}: round {number + 1} is done", flush=True)
    print_operations(rounds, sides, used_names(pairs), names)
    counts = {each.entry.operation: each.entry.count for each in sides}
    return list(rows_of(name, goals, totals(rounds, counts), names))


def main() -> int:
    """Measure and print; the exit status is 1 if a goal was missed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--library", type=Path, default=Path("xeon-avx512"), metavar="DIR|NAME", help="default: xeon-avx512"
    )
    parser.add_argument("--workload", choices=list(WORKS), action="append", help="default: both")
    parser.add_argument(
        "--packed", action="store_true", help="with weights packed at load time, by all sides"
    )
    parser.add_argument("--quick", action="store_true", help="every fourth operation, in three rounds")
    parser.add_argument("--json", type=Path, metavar="PATH", help="also write the rows as JSON")
    options = parser.parse_args()
    library = Library.load(find_library(options.library))
    rows = [
        row
        for file in options.workload or WORKS
        for row in measured(file, library, options.quick, options.packed)
    ]
    return report(rows, options.json)


if __name__ == "__main__":
    exit_with(main)
