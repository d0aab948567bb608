#!/usr/bin/env python3
"""How good the kernels of untuned launches are: the rules' choices among recorded ones, for shapes that were drawn by a seed.

    python benchmarks/first_choice.py [FILES] [--threads=N] [--json=PATH]

A line of a file has the times of some 25 microkernels of an operation on a number of threads, measured on local-task one
after another in rounds (`scripts/record_microkernels.py`). Half of them or more are ranked by the rules, the others drawn;
the fastest of all stands for what a long search finds. Rows have the geometric means of times relative to it:

    first     the one that the rules rank first, which `torch.compile` uses without measuring
    four      the fastest of those that are measured by `options={"autotune": "quick"}`
    nearest   the recorded one that is most similar to the fastest one of the most similar operation

Of microkernels, operations in f32 only; others are skipped. A line of a file of `triton_kernels` has the times of all Triton
kernels that the rule of GPUs chooses among, and of torch (`scripts/record_triton_kernels.py`).

No operation took part in fitting the constants of the rules. Requires no device.
"""

from __future__ import annotations

import gzip
import json
import math
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import itemgetter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks._table import Row, at_most, exit_with, make_parser, report
from dispatch_profiler.boo.kernels.variants import MOST_CANDIDATES
from dispatch_profiler.configurations import (
    Configuration,
    Microkernel,
    WinogradMicrokernel,
    configuration_from_dict,
)
from dispatch_profiler.operations import Operation, operation_from_dict
from dispatch_profiler.targets import parse_target
from dispatch_profiler.targets.untuned.packed_kernels import best_kernels, further_kernels
from dispatch_profiler.targets.untuned.packed_microkernels import likely_cycles
from dispatch_profiler.targets.untuned.triton.tiles import ranked_triton_tiles
from dispatch_profiler.targets.untuned.winograd_microkernels import winograd_cycles

RECORDED = Path(__file__).resolve().parent / "microkernels"
RECORDED_ON_GPUS = Path(__file__).resolve().parent / "triton_kernels"
#: The end of the names of files that constants were fitted to.
_FITTED = "fitted.jsonl.gz"
Kernel = Microkernel | WinogradMicrokernel


@dataclass(frozen=True)
class Recorded:
    """Milliseconds of kernels of an operation on a number of threads of a CPU, the fastest first."""

    operation: Operation
    cpu: str
    threads: int
    times: dict[Configuration, float]

    def ratio(self, chosen: Sequence[Configuration]) -> float:
        """The time of the fastest of `chosen` over that of the fastest of all."""
        return min(self.times[each] for each in chosen) / min(self.times.values())

    @cached_property
    def ranked(self) -> tuple[list[tuple[float, Microkernel]], list[tuple[float, WinogradMicrokernel]]]:
        """(cycles, kernel) pairs that multiply directly, and by Winograd's form, as the rules rank them."""
        operation, threads = self.operation, self.threads
        direct = [
            (likely_cycles(each, operation, threads), each)
            for each in self.times
            if isinstance(each, Microkernel)
        ]
        winograd = [
            (winograd_cycles(each, operation, threads), each)
            for each in self.times
            if isinstance(each, WinogradMicrokernel)
        ]
        return sorted(direct, key=itemgetter(0)), sorted(winograd, key=itemgetter(0))

    @property
    def best(self) -> tuple[Configuration, ...]:
        """The first choices of both kinds."""
        direct, winograd = self.ranked
        return best_kernels(next(iter(direct), None), next(iter(winograd), None))

    @property
    def four(self) -> tuple[Configuration, ...]:
        """What is measured on a machine without tuned entries."""
        direct, winograd = ([each for _, each in ranked] for ranked in self.ranked)
        further = further_kernels(self.operation, direct, winograd)
        return tuple(dict.fromkeys((*self.best, *further)))[:MOST_CANDIDATES]


def read(path: Path) -> Iterator[Recorded]:
    """The f32 operations of a file that have several kernels."""
    for line in gzip.decompress(path.read_bytes()).decode().splitlines():
        fields = json.loads(line)
        operation = operation_from_dict(fields["operation"])
        times = {configuration_from_dict(each): ms for each, ms in fields["times"]}
        kernels = {each: ms for each, ms in times.items() if isinstance(each, Kernel)}
        if len(kernels) > 1 and operation.element_type.name == "f32":
            yield Recorded(operation, fields["cpu"], fields["threads"], kernels)


def nearest(recorded: Recorded, others: Sequence[Recorded]) -> Configuration:
    """What a library of the `others` suggests: the recorded kernel nearest to the fastest of the most similar operation."""
    place = extents(recorded.operation)
    similar = [each for each in others if each.operation != recorded.operation]
    donor = min(similar, key=lambda each: distance(place, extents(each.operation)))
    wanted = tiles(next(iter(donor.times)), donor)
    return min(recorded.times, key=lambda each: distance(wanted, tiles(each, recorded)))


def distance(first: Sequence[float], second: Sequence[float]) -> float:
    """The sum of differences of logarithms."""
    return sum(abs(math.log2(one / other)) for one, other in zip(first, second, strict=True))


def extents(operation: Operation) -> tuple[float, ...]:
    """Extents of an operation; a product is a convolution with one tap. Another kind of operation is far away."""
    if operation.convolution is None:
        product = operation.product
        assert product is not None
        return 1, product.m, product.k, product.n, 1, 1, 2.0**20
    geometry = operation.convolution
    rows = math.prod(operation.results[0].shape[:-1])
    taps, stride = math.prod(geometry.filter_size), math.prod(geometry.stride)
    is_depthwise = 2.0**10 if geometry.variant == "depthwise" else 1
    channels, filters = operation.operands[0].shape[-1], operation.results[0].shape[-1]
    return taps**2, rows, channels, filters, stride, geometry.groups, is_depthwise


def tiles(kernel: Configuration, recorded: Recorded) -> tuple[float, ...]:
    """The register tile, the kind of kernel, and the numbers of workgroups of a configuration."""
    assert isinstance(kernel, Kernel)
    plan = kernel.plan(recorded.operation)
    kind = 2.0 ** (10 * kernel.pixels) if isinstance(kernel, WinogradMicrokernel) else 1
    *down, filters = kernel.registers
    return kind, math.prod(down), filters, *plan.workgroups[:2]


def rows_of(
    name: str, choose: Callable[[Recorded], Sequence[Configuration]], found: Sequence[Recorded]
) -> list[Row]:
    """The geometric mean, the shares within 5 and 20 %, and the worst."""
    ratios = [each.ratio(choose(each)) for each in found]
    goals = {"first choice": 1.2, "best of four": 1.05}
    mean = statistics.geometric_mean(ratios)
    label = f"{name}, {len(ratios)} operations, {found[0].threads} threads, {found[0].cpu}: time"
    first = at_most(label, mean, "x", goals[name]) if name in goals else Row(label, mean, "x", "any", True)
    shares = [
        Row(
            f"  within {limit} %",
            100 * statistics.fmean(r <= 1 + limit / 100 for r in ratios),
            "%",
            "any",
            True,
        )
        for limit in (5, 20)
    ]
    return [first, *shares, Row("  worst", max(ratios), "x", "any", True)]


def gpu_rows(path: Path) -> list[Row]:
    """The rule's first choice on a GPU: its time relative to the fastest kernel, and its speed relative to torch."""
    target, choices, speeds = parse_target("cuda:h200"), list[float](), list[float]()
    for line in gzip.decompress(path.read_bytes()).decode().splitlines():
        fields = json.loads(line)
        times = {configuration_from_dict(each): us for each, us in fields["times"]}
        ranked = ranked_triton_tiles(operation_from_dict(fields["operation"]), target)
        chosen = next((times[each] for each in ranked if each in times), None)
        if chosen is not None:
            choices.append(chosen / min(times.values()))
            speeds.append(min(fields["torch"]) / chosen)
    label = f"first choice, {len(choices)} operations, {path.name.partition('-')[0]}: time"
    within = 100 * statistics.fmean(each <= 1.15 for each in choices)
    return [
        at_most(label, statistics.geometric_mean(choices), "x", 1.15),
        Row("  within 15 %", within, "%", "any", True),
        Row("  worst", max(choices), "x", "any", True),
        Row("  torch's time over it", statistics.geometric_mean(speeds), "x", "any", True),
    ]


def main() -> int:
    """Print the table; the exit status is 1 if a goal was missed."""
    parser = make_parser(__doc__.splitlines()[0])
    parser.add_argument("files", nargs="*", type=Path, default=sorted(RECORDED.glob("*.jsonl.gz")))
    parser.add_argument("--threads", type=int, help="only this number of threads")
    options = parser.parse_args()
    for path in options.files:
        if not path.is_file():
            parser.error(f"{path} is not a file")
    every = [each for path in options.files for each in read(path)]
    rows: list[Row] = []
    for cpu, threads in sorted({(each.cpu, each.threads) for each in every}):
        found = [each for each in every if (each.cpu, each.threads) == (cpu, threads)]
        if options.threads in (None, threads) and len(found) > 1:
            rows += rows_of("first choice", lambda each: each.best[:1], found)
            rows += rows_of("best of four", lambda each: each.four, found)
            rows += rows_of("nearest entry", lambda each, found=found: [nearest(each, found)], found)
    if options.threads is None:
        files = (
            each for each in sorted(RECORDED_ON_GPUS.glob("*.jsonl.gz")) if not each.name.endswith(_FITTED)
        )
        rows += [row for each in files for row in gpu_rows(each)]
    return report(rows, options.json)


if __name__ == "__main__":
    exit_with(main)
