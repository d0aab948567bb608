#!/usr/bin/env python3
"""A GPU: Triton kernels against torch, for convolutions of ResNet-50, layer norms of BERT, and their gradients.

    python benchmarks/gpu_operations.py --target=cuda:h200 --records=operations.jsonl

The machine needs the compiler, Triton, torch and the GPU; or compile on another machine:

    python benchmarks/gpu_operations.py --prepare=operations.zip    needs no GPU and no torch
    python benchmarks/gpu_operations.py --bundle=operations.zip     needs no compiler and no Triton

Every dispatch is verified. torch runs in a CUDA graph, with cuDNN in benchmark mode. Without --explore, only the
shipped configurations are measured.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks._table import Row, at_least, exit_with, report
from dispatch_profiler.command import user_cache
from dispatch_profiler.configurations import (
    Configuration,
    TritonRows,
    TritonTiles,
    rejection_reason,
    shipped_configurations,
)
from dispatch_profiler.dispatches import Dispatch, Manifest, Tree, load_manifest
from dispatch_profiler.dispatches.bundle import unpacked, write_bundle
from dispatch_profiler.generator import Plan, emit
from dispatch_profiler.operations import (
    Conv2d,
    ElementTypes,
    LayerNorm,
    LayerNormInputBackward,
    LayerNormWeightBackward,
    Operation,
)
from dispatch_profiler.operations.geometry import Mode
from dispatch_profiler.profiler.evaluation.candidate import EvaluatorOptions, TreeCandidates
from dispatch_profiler.profiler.evaluation.evaluator import Evaluator
from dispatch_profiler.profiler.measurement.measure import MeasureOptions
from dispatch_profiler.profiler.providers.library_calls import with_providers
from dispatch_profiler.profiler.records.record import Record
from dispatch_profiler.profiler.records.record_file import JsonLines
from dispatch_profiler.profiler.statistics.stopping import StopRule
from dispatch_profiler.targets import Target, parse_target

#: Pixels along each axis, channels, filters, taps along each axis.
SHAPES = (
    (56, 64, 64, 3), (28, 128, 128, 3), (14, 256, 256, 3), (7, 512, 512, 3), (56, 64, 256, 1), (14, 1024, 256, 1)
)  # fmt: skip
MODES: tuple[Mode, ...] = ("forward", "input_backward", "weight_backward")
#: Rows and elements per row of BERT-base (batches of 8 and 32 of 512 tokens) and BERT-large (8).
BERT = ((4096, 768), (16384, 768), (4096, 1024))
NORMS = (LayerNorm, LayerNormInputBackward, LayerNormWeightBackward)
#: Multiprocessors of an H100 and an H200.
PROCESSORS = 132


def options_of(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    half = parser.add_mutually_exclusive_group()
    half.add_argument("--prepare", type=Path, metavar="FILE.zip", help="only compile, and write a bundle")
    half.add_argument("--bundle", type=Path, metavar="FILE.zip", help="measure a bundle")
    parser.add_argument("--target", default="cuda:h200", help="default: cuda:h200")
    parser.add_argument("--device", default="cuda", help="device URI (default: cuda)")
    parser.add_argument("--types", default="bf16,f16", help="default: bf16,f16")
    parser.add_argument("--kinds", default="conv2d,layer_norm", help="default: conv2d,layer_norm")
    parser.add_argument(
        "--explore", action="store_true", help="measure tiles of sensible sizes, not the shipped ones"
    )
    parser.add_argument("--workers", type=int, default=16, help="processes that compile (default: 16)")
    parser.add_argument("--budget", type=float, default=0.1, metavar="S", help="seconds per dispatch")
    parser.add_argument("--records", type=Path, metavar="FILE.jsonl", help="also write all samples")
    parser.add_argument("--quick", action="store_true", help="one shape of each kind")
    parser.add_argument("--json", type=Path, metavar="PATH", help="also write the rows as JSON")
    return parser.parse_args(arguments)


def operations_of(kind: str, types: str, quick: bool) -> Iterator[Operation]:
    """Batches of 32 images in NHWC with KYXC filters, or layer norms; of each the modes."""
    if kind == "layer_norm":
        for norm, shape in product(NORMS, BERT[:1] if quick else BERT):
            yield norm(*shape, types)
        return
    for mode, (size, c, k, taps) in product(MODES, SHAPES[:1] if quick else SHAPES):
        fields = {"padding": (taps // 2, taps // 2), "layout": "nhwc_fhwc_nhwc", "mode": mode}
        yield Conv2d(32, size, size, c, k, taps, taps, types=ElementTypes(types, types, types), **fields)


def dispatches_of(operation: Operation, target: Target, explore: bool) -> Iterator[Dispatch]:
    """The shipped Triton configurations, or if `explore` more tiles of sensible sizes."""
    shipped = [e.configuration for e in shipped_configurations("triton") if e.is_for(operation)]
    found = explored(operation) if explore else shipped
    for configuration in dict.fromkeys(found):
        if rejection_reason(configuration, operation, target.limits) is None:
            yield Dispatch(operation, configuration)


def explored(operation: Operation) -> Iterator[Configuration]:
    """Tiles whose number suits the multiprocessors: from most of them busy to many rounds."""
    convolution = operation.convolution
    if convolution is None:
        yield from explored_rows(operation)
        return
    is_weight, is_pointwise = convolution.mode == "weight_backward", math.prod(convolution.filter_size) == 1
    for m, n in TILES:
        tiles = TritonTiles(tile=(m, n, 64), warps=8 if m * n >= 128 * 128 else 4, stages=3)
        parts, rows, columns, reduced = tiles.product(operation)
        if m > rows or n > columns:
            continue
        count = parts * math.ceil(rows / m) * math.ceil(columns / n)
        if is_weight and (m, n) == (64, 64) and columns > 600:
            continue
        sliced = split(tiles, count, reduced) if is_weight else [tiles] if count > 0.7 * PROCESSORS else []
        for each in sliced:
            deep = replace(each, stages=4)
            if is_pointwise:
                yield from (deep, replace(deep, descriptors=True))
                if not is_weight:
                    yield replace(each, descriptors=True, persistent=PROCESSORS)
            elif is_weight:
                yield from (each, replace(each, l1=True))
            else:
                yield from (each, replace(each, l1=True), replace(deep, l1=True))
                if count <= 2 * PROCESSORS:
                    yield replace(each, stages=6, l1=True)


def explored_rows(operation: Operation) -> Iterator[TritonRows]:
    """Blocks of a few rows, or of a few columns."""
    norm = operation.normalization
    assert norm is not None
    if norm.mode == "weight_backward":
        for columns, rows, warps in product((16, 32), (64, 128, 256), (4, 8, 16)):
            yield TritonRows(block=(rows, columns), warps=warps, stages=3)
        return
    for rows, warps in product((1, 2, 4), (1, 2, 4, 8)):
        yield TritonRows(block=(rows, 1024), warps=warps, stages=1)


TILES = ((128, 64), (128, 128), (64, 128), (64, 64), (256, 64), (64, 256), (128, 256), (256, 128))


def split(tiles: TritonTiles, count: int, reduced: int) -> Iterator[TritonTiles]:
    """`tiles` with slices that give one and two workgroups per multiprocessor, at least four steps each."""
    steps = reduced // tiles.tile[2]
    for per_processor in (1, 2):
        slices = PROCESSORS * per_processor // count
        exact = [s for s in range(max(1, slices - slices // 4), slices + 1) if reduced % s == 0]
        if slices >= 1 and steps // slices >= 4:
            yield replace(tiles, split_k=max(exact, default=slices))


def measure(options: argparse.Namespace) -> list[Row]:
    """Compile, unless there is a bundle, and measure; prints the result of each shape."""
    ratios: dict[Operation, float] = {}
    for manifest in manifests(options):
        for operation, records in measured(manifest, options):
            ratios[operation] = line(operation, records)
    groups: dict[str, list[float]] = defaultdict(list)
    for operation, ratio in ratios.items():
        mode = "" if operation.convolution is None else f" {operation.convolution.mode}"
        groups[f"{operation.kind}{mode}, {operation.element_type.name}"].append(ratio)
        groups[f"{operation.kind.partition('_')[0]}, all"].append(ratio)
    return [
        at_least(f"{name}: {len(found)} shapes, geometric mean", mean(found), "of torch", 1.0)
        for name, found in groups.items()
    ]


def manifests(options: argparse.Namespace) -> Iterator[Manifest]:
    """The bundle's, or one for each kind and element type, compiled when it is its turn."""
    if options.bundle:
        with unpacked(options.bundle) as (manifest, _):
            yield manifest
        return
    for kind, types in product(options.kinds.split(","), options.types.split(",")):
        with compiled(operations_of(kind, types, options.quick), options) as manifest:
            yield manifest


def prepare(options: argparse.Namespace) -> None:
    """Compile everything and write the bundle."""
    wanted = product(options.kinds.split(","), options.types.split(","))
    operations = [each for kind, types in wanted for each in operations_of(kind, types, options.quick)]
    with compiled(operations, options) as manifest:
        size = write_bundle(options.prepare, manifest, manifest.dispatches())
    say(f"{options.prepare}: {size / 2**20:.1f} MiB")


@contextlib.contextmanager
def compiled(operations: Iterable[Operation], options: argparse.Namespace) -> Iterator[Manifest]:
    """The manifest of the compiled dispatches of `operations`, in a temporary folder."""
    # The machine that measures a bundle lacks the compiler.
    from dispatch_profiler.compiler import CompileOptions, IreeCompiler, compile_tree

    began, target = time.monotonic(), parse_target(options.target)
    groups = tuple((each, tuple(dispatches_of(each, target, options.explore))) for each in operations)
    with tempfile.TemporaryDirectory() as folder:
        tree = Tree(Path(folder))
        list(emit(Plan(target, groups), tree))
        list(compile_tree(load_manifest(tree), IreeCompiler(), CompileOptions(workers=options.workers)))
        manifest = load_manifest(tree)
        states = Counter(entry.state.value for _, entry in manifest.dispatches())
        say(f"compiled in {time.monotonic() - began:.0f} s: {dict(states)}")
        for reason, count in Counter(e.reason for _, e in manifest.dispatches() if e.reason).most_common(8):
            say(f"  {count}: {reason}")
        yield manifest


def measured(manifest: Manifest, options: argparse.Namespace) -> Iterator[tuple[Operation, list[Record]]]:
    """Records of each operation, as soon as they are complete."""
    began = time.monotonic()
    pairs = with_providers(manifest.dispatches(), ("iree", "torch"))
    candidates = TreeCandidates(manifest.tree).candidates(pairs)
    how = EvaluatorOptions(
        options.device,
        measure=MeasureOptions(StopRule(seconds=options.budget)),
        peaks=user_cache() / "machines",
        references=manifest.tree.references,
    )
    with Evaluator(how) as evaluator:
        evaluator.check_device()
        evaluator.check_libraries(["torch"])
        evaluator.measure_limits()
        evaluator.load_ahead(candidates, say)
        yield from by_operation(evaluator.records(candidates), options.records)
    say(f"measured in {time.monotonic() - began:.0f} s")


def by_operation(records: Iterable[Record], path: Path | None) -> Iterator[tuple[Operation, list[Record]]]:
    """Consecutive records of one operation; each is also appended to the file at `path`."""
    found: list[Record] = []
    writer = JsonLines(path, append=True) if path else None
    for record in records:
        if writer is not None:
            writer.add(record)
        if found and found[0].dispatch.operation != record.dispatch.operation:
            yield found[0].dispatch.operation, found
            found = []
        found.append(record)
    if found:
        yield found[0].dispatch.operation, found


def line(operation: Operation, records: Sequence[Record]) -> float:
    """Print the three fastest kernels, torch and the failures; returns the speed relative to torch."""
    correct = [r for r in records if r.measurement is not None and not r.is_failure]
    own = sorted((r for r in correct if r.provider == "Triton"), key=microseconds)
    torch = [microseconds(r) for r in correct if r.provider == "torch"]
    ratio = torch[0] / microseconds(own[0]) if torch and own else math.nan
    fastest = ", ".join(
        f"{r.dispatch.configuration.name.removeprefix('triton_')} {microseconds(r):.1f}" for r in own[:4]
    )
    say(f"{ratio:.2f} {operation.name}: torch {torch[0] if torch else math.nan:.1f} us; {fastest}")
    failed = Counter(f"{r.verdict.value} {r.provider}: {r.reason}"[:200] for r in records if r not in correct)
    for reason, count in failed.most_common(4):
        say(f"  {count} {reason}")
    return ratio


def microseconds(record: Record) -> float:
    """The median time."""
    assert record.measurement is not None
    return record.measurement.median_ms * 1e3


def mean(ratios: Sequence[float]) -> float:
    """The geometric mean; 0 if a ratio is unknown."""
    if not ratios or not all(ratio > 0 for ratio in ratios):
        return 0.0
    return math.exp(math.fsum(map(math.log, ratios)) / len(ratios))


def say(text: str) -> None:
    """Print at once, so that an interrupted run has its results."""
    print(text, flush=True)


def main() -> int:
    """The exit status is 1 if a goal was missed."""
    options = options_of()
    if options.prepare:
        prepare(options)
        return 0
    return report(measure(options), options.json)


if __name__ == "__main__":
    exit_with(main)
