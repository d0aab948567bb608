#!/usr/bin/env python3
"""A GPU: the speed of IREE's own code, external kernels, IREE's default and torch on twelve shapes.

The machine with the compiler often has no GPU, so there are two halves:

    python benchmarks/gpu.py --prepare=gpu.zip                      compiles; needs no GPU
    python benchmarks/gpu.py --bundle=gpu.zip --records=gpu.jsonl   measures; needs no compiler, but torch

The second half verifies and measures every dispatch, and torch, in one run. It lists dispatches that failed
to compile or were wrong by reason.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks._gpu_shapes import DOCUMENT, F16, PRODUCTS
from benchmarks._table import Row, at_least, exit_with, report
from dispatch_profiler.command import user_cache
from dispatch_profiler.configurations import (
    Configuration,
    Default,
    MmaTiles,
    TritonTiles,
    draw_valid,
    rejection_reason,
    shipped_configurations,
    spaces,
)
from dispatch_profiler.dispatches import Dispatch, Manifest
from dispatch_profiler.dispatches.bundle import unpacked, write_bundle
from dispatch_profiler.generator import Plan
from dispatch_profiler.operations import Conv2d, Operation
from dispatch_profiler.profiler.evaluation.candidate import EvaluatorOptions, TreeCandidates
from dispatch_profiler.profiler.evaluation.evaluator import Evaluator
from dispatch_profiler.profiler.measurement.measure import MeasureOptions
from dispatch_profiler.profiler.providers.library_calls import with_providers
from dispatch_profiler.profiler.records.record import PROVIDER, Record
from dispatch_profiler.profiler.records.record_file import JsonLines
from dispatch_profiler.profiler.statistics.stopping import StopRule
from dispatch_profiler.targets import Target, parse_target

TARGET = "cuda:h200"
#: Matrix products, and convolutions of ResNet-50.
OPERATIONS: tuple[Operation, ...] = (
    *PRODUCTS,
    Conv2d(32, 56, 56, 64, 64, 3, 3, padding=(1, 1), types=F16),
    Conv2d(32, 14, 14, 256, 256, 3, 3, padding=(1, 1), types=F16),
    Conv2d(32, 56, 56, 64, 256, 1, 1, types=F16),
    Conv2d(32, 14, 14, 1024, 256, 1, 1, types=F16),
)
#: Points drawn from IREE's space and from Triton's besides the shipped lists: for `DOCUMENT`, for others.
DRAWN, DRAWN_ELSEWHERE = (150, 30), (60, 30)
#: Smaller tiles load too much for what they multiply, larger ones leave multiprocessors idle or spill.
TILE_ELEMENTS, TILE_K = (2048, 32768), 32
SEED = 13


def options_of(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    half = parser.add_mutually_exclusive_group(required=True)
    half.add_argument("--prepare", type=Path, metavar="FILE.zip", help="compile, and write a bundle")
    half.add_argument("--bundle", type=Path, metavar="FILE.zip", help="measure a bundle")
    parser.add_argument("--records", type=Path, metavar="FILE.jsonl", help="also write all samples")
    parser.add_argument("--device", default="cuda", help="device URI (default: cuda)")
    parser.add_argument(
        "--budget", type=float, default=0.1, metavar="S", help="seconds per dispatch (default: 0.1)"
    )
    parser.add_argument("--quick", action="store_true", help="prepare two shapes and few configurations")
    parser.add_argument("--json", type=Path, metavar="PATH", help="also write the rows as JSON")
    return parser.parse_args(arguments)


# -- on the machine with the compiler --------------------------------------------------------------


def prepare(path: Path, quick: bool) -> None:
    """Generate and compile in a temporary folder, and write the bundle."""
    # Imported here because the other machine lacks the compiler.
    from dispatch_profiler.compiler import CompileOptions, IreeCompiler, compile_tree
    from dispatch_profiler.dispatches import Tree, load_manifest
    from dispatch_profiler.generator import emit

    target, began = parse_target(TARGET), time.monotonic()
    operations = (DOCUMENT, OPERATIONS[1]) if quick else OPERATIONS
    groups = tuple((each, tuple(dispatches_of(each, target, quick))) for each in operations)
    with tempfile.TemporaryDirectory() as folder:
        tree = Tree(Path(folder))
        list(emit(Plan(target, groups), tree))
        list(compile_tree(load_manifest(tree), IreeCompiler(), CompileOptions(workers=2)))
        manifest = load_manifest(tree)
        size = write_bundle(path, manifest, manifest.dispatches())
    states = Counter(dispatch.state.value for _, dispatch in manifest.dispatches())
    counts = ", ".join(f"{count} {state}" for state, count in states.items())
    print(f"{path}: {counts}, {size / 2**20:.1f} MiB, {time.monotonic() - began:.0f} s")


def dispatches_of(operation: Operation, target: Target, quick: bool) -> Iterator[Dispatch]:
    """IREE's default, the shipped lists, and points drawn from the spaces, the same in every run."""
    limits, rng = target.limits, np.random.default_rng(SEED)
    own, outside = DRAWN if operation == DOCUMENT else DRAWN_ELSEWHERE
    if quick:
        own, outside = 8, 4
    shipped = [e.configuration for e in shipped_configurations(target.shipped_list) if e.is_for(operation)]
    found: dict[Configuration, None] = dict.fromkeys([Default(), *shipped])
    tiled = [space for space in spaces(operation, limits) if space.kind is not Default]
    triton = [space for space in tiled if space.kind is TritonTiles]
    iree = [space for space in tiled if space.kind is not TritonTiles]
    for among, count in ((iree, own), (triton, outside)):
        drawn = filter(is_promising, draw_valid(among, operation, limits, rng))
        found.update(dict.fromkeys(islice(drawn, count)))
    return (Dispatch(operation, each) for each in found if rejection_reason(each, operation, limits) is None)


def is_promising(configuration: Configuration) -> bool:
    """Whether it is worth time on the GPU: it uses tensor cores, in tiles of a sensible size."""
    if isinstance(configuration, TritonTiles):
        tile, k = configuration.tile[:2], configuration.tile[2]
    elif isinstance(configuration, MmaTiles):
        tile, k = configuration.workgroup, math.prod(configuration.reduction)
    else:
        return False
    return TILE_ELEMENTS[0] <= math.prod(tile) <= TILE_ELEMENTS[1] and k >= TILE_K


# -- on the machine with the GPU -------------------------------------------------------------------


def measure(options: argparse.Namespace) -> list[Row]:
    """Measure every dispatch of the bundle and torch in one run; prints the speeds for each shape."""
    with unpacked(options.bundle) as (manifest, _):
        records, seconds = _records(manifest, options)
    by_operation: dict[Operation, list[Record]] = defaultdict(list)
    for record in records:
        by_operation[record.dispatch.operation].append(record)
    best = {operation: Best(found) for operation, found in by_operation.items()}
    for operation, each in best.items():
        print(each.line(operation))
    failures(records)
    known = [record.measurement.half_width for record in records if record.measurement is not None]
    measured = len(known)
    print(f"{measured} measurements, with a median precision of {100 * statistics.median(known):.2g} %")
    return [*rows(best), at_least("verified and profiled a second", measured / seconds, "", 5)]


def _records(manifest: Manifest, options: argparse.Namespace) -> tuple[list[Record], float]:
    """All records, and the seconds from loading the first vmfb on."""
    how = EvaluatorOptions(
        options.device,
        measure=MeasureOptions(StopRule(seconds=options.budget)),
        peaks=user_cache() / "machines",
        references=manifest.tree.references,
    )
    pairs = with_providers(manifest.dispatches(), ("iree", "torch"))
    candidates = TreeCandidates(manifest.tree).candidates(pairs)
    found = []
    with Evaluator(how) as evaluator:
        evaluator.check_device()
        evaluator.check_libraries(["torch"])
        evaluator.measure_limits()
        writer = JsonLines(options.records) if options.records else None
        began = time.monotonic()
        evaluator.load_ahead(candidates, print)
        for record in evaluator.records(candidates):
            if writer is not None:
                writer.add(record)
            found.append(record)
        return found, time.monotonic() - began


class Best:
    """The fastest correct dispatches of one operation, by their origin."""

    def __init__(self, records: Iterable[Record]) -> None:
        right = [r for r in records if r.measurement is not None and not r.is_failure]
        self.default = _fastest(r for r in right if r.dispatch.configuration == Default())
        self.iree = _fastest(r for r in right if r.provider == PROVIDER)
        self.torch = _fastest(r for r in right if r.provider == "torch")
        self.all = _fastest(r for r in right if r.provider != "torch")

    def line(self, operation: Operation) -> str:
        """Each with its speed."""
        parts = []
        for name in ("default", "iree", "all", "torch"):
            record: Record | None = getattr(self, name)
            if record is None or record.measurement is None:
                parts.append(f"{name}: none")
                continue
            speed = record.measurement.gflops(operation.flops) / 1e3
            parts.append(f"{name}: {speed:.1f} TFLOP/s ({record.dispatch.configuration.name})")
        return f"{operation.name}: " + "; ".join(parts)


def _fastest(records: Iterable[Record]) -> Record | None:
    return min(records, key=_ms, default=None)


def _ms(record: Record | None) -> float:
    """Median in milliseconds; infinite without a measurement, so that a ratio of speeds is 0."""
    return math.inf if record is None or record.measurement is None else record.measurement.median_ms


def rows(best: Mapping[Operation, Best]) -> Iterator[Row]:
    """The rows, with their goals."""
    document = best.get(DOCUMENT)
    if document is not None:
        for what, record, goal in (("IREE's code", document.iree, 163), ("all", document.all, 450)):
            speed = DOCUMENT.flops / _ms(record) / 1e9
            yield at_least(f"3456x1024x2048 f16, best of {what}", speed, "TFLOP/s", goal)
        yield at_least("the same against torch", _ms(document.torch) / _ms(document.all), "x", 0.9)
    gains = [_ms(each.default) / _ms(each.iree) for each in best.values()]
    mean = math.exp(math.fsum(map(math.log, gains)) / len(gains)) if all(gains) else 0.0
    yield at_least(f"best of IREE's tiles against its default, {len(gains)} shapes", mean, "x", 2.5)
    for operation, each in best.items():
        yield at_least(f"{operation.name} against torch", _ms(each.torch) / _ms(each.all), "x", 0.7)


def failures(records: Iterable[Record]) -> None:
    """Print why dispatches have no measurement, counted by reason."""
    counts = Counter((r.verdict.value, r.reason) for r in records if r.measurement is None)
    for (verdict, reason), count in counts.most_common():
        print(f"{count} {verdict}: {reason}")


def main() -> int:
    """Prepare, or measure; the exit status is 1 if a goal was missed."""
    options = options_of()
    if options.prepare:
        prepare(options.prepare, options.quick)
        return 0
    return report(measure(options), options.json)


if __name__ == "__main__":
    exit_with(main)
