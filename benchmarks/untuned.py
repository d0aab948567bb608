#!/usr/bin/env python3
"""Untuned operations with constant weights on this CPU: what compiled models run without an entry, against torch.

    python benchmarks/untuned.py [--quick] [--json=PATH]

f32 convolutions and linear layers, GFLOP/s: the packed microkernel that rules choose for the cores of this process,
the fastest form with a packed weight, torch with weights packed by MKL or oneDNN, and torch as it is. Everything is
verified; then every side of an operation is sampled in turn, in rounds. A figure is the median over rounds. To measure
with fewer cores, start it with `taskset`.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks._table import Row, arguments, at_least, exit_with, report
from dispatch_profiler.command import user_cache
from dispatch_profiler.compiler import Cache, CompileOptions, IreeCompiler, compile_tree
from dispatch_profiler.configurations import Configuration, Default, Microkernel, WinogradMicrokernel
from dispatch_profiler.cores import usable_cores
from dispatch_profiler.dispatches import Dispatch, Tree, load_manifest
from dispatch_profiler.generator import Plan, emit
from dispatch_profiler.operations import Conv2d, Matmul, Operation
from dispatch_profiler.profiler.evaluation.candidate import EvaluatorOptions, TreeCandidates
from dispatch_profiler.profiler.evaluation.evaluator import Evaluator
from dispatch_profiler.profiler.measurement.measure import MeasureOptions
from dispatch_profiler.profiler.providers.library_calls import LibraryCall, with_providers
from dispatch_profiler.profiler.statistics.stopping import StopRule
from dispatch_profiler.targets import fastest_form, packed_kernels, parse_target

TARGET = parse_target("llvm-cpu")
LIBRARIES = ("torch-prepacked", "torch")
SIDES = ("microkernel", "form", *LIBRARIES)
ROUNDS, QUICK_ROUNDS = 5, 2
SECONDS = 0.1


@dataclass(frozen=True)
class Convolution:
    """Rows of a square image, its channels, rows of the square filters, and their number."""

    size: int
    channels: int
    taps: int
    filters: int
    stride: int = 1
    images: int = 1

    @property
    def operation(self) -> Operation:
        """With filters in layout fhwc, and zeros around images for filters of 3 x 3."""
        padding = self.taps // 2
        return Conv2d(
            self.images, self.size, self.size, self.channels, self.filters, self.taps, self.taps,
            stride=(self.stride, self.stride), padding=(padding, padding), layout="nhwc_fhwc_nhwc",
        )  # fmt: skip


CONVOLUTIONS = (
    Convolution(14, 384, 3, 384),
    Convolution(14, 256, 3, 256, images=4),
    Convolution(28, 96, 3, 192, stride=2),
    Convolution(10, 128, 3, 128, images=2),
    Convolution(56, 64, 3, 64),
    Convolution(56, 48, 1, 96, images=2),
    Convolution(14, 512, 1, 1024),
    Convolution(28, 320, 1, 160, images=4),
    Convolution(7, 832, 1, 384),
    Convolution(7, 320, 1, 1280),
    Convolution(14, 112, 1, 672, images=16),
    Convolution(14, 256, 1, 256),
    Convolution(28, 128, 1, 512),
    Convolution(7, 512, 1, 2048),
    Convolution(56, 64, 1, 256),
    Convolution(14, 576, 1, 96),
    Convolution(28, 192, 1, 32),
    Convolution(7, 160, 1, 960),
    Convolution(14, 64, 1, 384),
    Convolution(56, 64, 1, 64, images=8),
    Convolution(7, 512, 1, 2048, images=8),
    Convolution(56, 96, 1, 384),
)
#: Rows, outputs and inputs of linear layers.
LINEAR = (
    (33, 4096, 4096),
    (50, 3072, 768),
    (64, 1024, 1024),
    (128, 768, 768),
    (128, 3072, 768),
    (128, 768, 3072),
    (196, 384, 384),
    (197, 768, 2304),
    (256, 512, 2048),
    (512, 1024, 4096),
    (577, 4096, 1024),
    (1024, 3072, 768),
    (8192, 512, 512),
)


def operations() -> list[Operation]:
    """What is measured."""
    linear = (Matmul(*each, rhs_layout="n") for each in LINEAR)
    return [*(each.operation for each in CONVOLUTIONS), *linear]


def untuned(operation: Operation) -> list[Dispatch]:
    """The microkernel and the form that pack the weight; the compiler's default if there is no form."""
    form = fastest_form(operation, TARGET, packed_weights=True) or Default()
    found = (*packed_kernels(operation, TARGET)[:1], form.with_packed_weight(operation) or form)
    return [Dispatch(operation, each) for each in found]


def side_of(configuration: Configuration) -> str:
    """Which of `SIDES` a configuration belongs to."""
    if isinstance(configuration, LibraryCall):
        return configuration.library
    return "microkernel" if isinstance(configuration, (Microkernel, WinogradMicrokernel)) else "form"


def measured(chosen: Sequence[Operation], rounds: int) -> dict[Operation, dict[str, float]]:
    """GFLOP/s of each operation by side; a side that fails is printed and left out."""
    found: dict[Operation, dict[str, list[float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        tree = Tree(Path(folder))
        list(emit(Plan(TARGET, tuple((each, tuple(untuned(each))) for each in chosen)), tree))
        jobs = CompileOptions(workers=len(usable_cores()))
        list(compile_tree(load_manifest(tree), IreeCompiler(), jobs, Cache(user_cache())))
        pairs = list(with_providers(load_manifest(tree).dispatches(), ("iree", *LIBRARIES)))
        options = EvaluatorOptions(
            TARGET.device_uri, measure=MeasureOptions(StopRule(seconds=SECONDS)), references=tree.references
        )
        for number in range(rounds):
            with Evaluator(replace(options, verify=number == 0)) as evaluator:
                for record in evaluator.records(TreeCandidates(tree).candidates(pairs)):
                    operation, side = record.dispatch.operation, side_of(record.dispatch.configuration)
                    if record.is_failure or record.measurement is None:
                        print(f"{record.dispatch.name}: {record.verdict.value}, {record.reason}", flush=True)
                        continue
                    rate = operation.flops / record.measurement.median_ms / 1e6
                    found.setdefault(operation, {}).setdefault(side, []).append(rate)
            print(f"round {number + 1} of {rounds} is done", flush=True)
    return {
        operation: {side: statistics.median(rates) for side, rates in sides.items()}
        for operation, sides in found.items()
    }


def print_rates(rates: Mapping[Operation, Mapping[str, float]]) -> None:
    """A row for each operation, with the microkernel's name."""
    print(f"{'GFLOP/s':<48}", *(f"{side:>15}" for side in SIDES))
    for operation, sides in rates.items():
        chosen = next(iter(packed_kernels(operation, TARGET)), None)
        columns = (f"{sides[side]:>15.0f}" if side in sides else f"{'':>15}" for side in SIDES)
        print(f"{operation.name[:48]:<48}", *columns, chosen.name if chosen is not None else "")


def rows_of(rates: Iterable[Mapping[str, float]]) -> list[Row]:
    """Geometric means of the microkernel's speed relative to the other sides."""
    both = [each for each in rates if "microkernel" in each]
    ratios = {side: [each["microkernel"] / each[side] for each in both if side in each] for side in SIDES[1:]}
    goals = {"form": 1.0}
    rows = []
    for side, values in ratios.items():
        name = f"packed microkernels against {side}, {len(values)} operations, {len(usable_cores())} cores"
        mean = statistics.geometric_mean(values)
        rows.append(
            at_least(name, mean, "x", goals[side]) if side in goals else Row(name, mean, "x", "any", True)
        )
    return rows


def main() -> int:
    """Measure and print; the exit status is 1 if microkernels are slower than forms on average."""
    options = arguments(__doc__.splitlines()[0])
    chosen = operations()[:: 4 if options.quick else 1]
    rates = measured(chosen, QUICK_ROUNDS if options.quick else ROUNDS)
    print_rates(rates)
    return report(rows_of(rates.values()), options.json)


if __name__ == "__main__":
    exit_with(main)
