#!/usr/bin/env python3
"""Products whose number of rows varies: one kernel for any number of rows, against kernels that are made for each number.

    python benchmarks/ranges.py [--quick] [--json=PATH] [--sizes=40] [--seed=0] [--most=4096] [--kernels=8]

Numbers of rows are drawn from 1 to `--most`, each power of two as often as others. For each of them, the first kernels that
the rules for this number suggest (`--kernels` of them, with packed weights) are compiled and timed, as `tune` would, and the
fastest is chosen in half of the rounds. The other half compares it with the kernel for any number of rows, and both with
torch's linear layer. All sides of a size run in turns, in one process, through their launches; all results are verified.

regret   time of the kernel for any number of rows over the time of the fastest kernel for this number
"""

from __future__ import annotations

import math
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

import torch

from benchmarks._table import Row, at_most, exit_with, make_parser, report
from dispatch_profiler.boo.driver.launch import get_batch_launch
from dispatch_profiler.boo.environment import launch_settings
from dispatch_profiler.boo.fusion.spec import RegionSignature
from dispatch_profiler.boo.interface import LaunchKernel
from dispatch_profiler.boo.kernels import KernelSearch, Toolchain, find_kernels, target_of
from dispatch_profiler.boo.kernels.variants import Variant
from dispatch_profiler.boo.launching.packing import PackedLaunch, packed_launch
from dispatch_profiler.boo.launching.torch_threads import release_torch_threads
from dispatch_profiler.cores import usable_cores, usable_threads
from dispatch_profiler.dispatches import Dispatch
from dispatch_profiler.operations import Matmul
from dispatch_profiler.runtime.device_uri import DeviceUri
from dispatch_profiler.targets import likely_kernels

#: Columns and terms of the products: of BERT, of GPT-2's attention, of a classifier, and of a smaller model.
PRODUCTS = ((3072, 768), (768, 3072), (2304, 768), (1000, 1280), (512, 512))
QUICK_PRODUCTS = PRODUCTS[:2]
CPU = DeviceUri("local-task")
#: Seconds of a side in a round, and rounds: the kernel of a number is chosen in the odd ones.
SECONDS, ROUNDS = 0.02, 10
#: Largest difference from float64, relative to the largest element: of f32 sums of some thousand terms.
TOLERANCE = 1e-5
MOST_REGRET = 1.10


@dataclass(frozen=True)
class Compared:
    """A size, and the microseconds of each side in the rounds that nothing was chosen in."""

    rows: int
    any_batch: float
    fastest: float
    torchs: float

    @property
    def regret(self) -> float:
        """Of the kernel for any number of rows: its time over the fastest kernel's."""
        return self.any_batch / self.fastest


def drawn(count: int, most: int, seed: int) -> list[int]:
    """Different numbers of rows, evenly distributed on a logarithmic scale, in order."""
    draw, found = random.Random(seed), set[int]()
    while len(found) < min(count, most):
        found.add(round(math.exp(draw.uniform(0, math.log(most)))))
    return sorted(found)


def made_for(operation: Matmul, count: int) -> list[LaunchKernel]:
    """The first `count` kernels that rules suggest for exactly this operation."""
    target = target_of(CPU)
    toolchain = Toolchain.of(target, launch_settings().tuning)
    configurations = islice(likely_kernels(operation, target), count)
    searches = [
        KernelSearch(
            operation,
            operation.name,
            toolchain,
            packs_weight=True,
            variants=[Variant(Dispatch(operation, each))],
        )
        for each in configurations
    ]
    found = find_kernels(searches, None, workers=len(usable_cores()))
    return [kernel for _, kernel in found if isinstance(kernel, LaunchKernel)]


def call_of(
    launch: PackedLaunch, x: torch.Tensor, weight: torch.Tensor, expected: torch.Tensor
) -> Callable[[], object]:
    """A call of a launch, whose result was verified. Raises AssertionError for a wrong result."""
    operands = (x.reshape(-1), *launch.pack(weight))
    result = launch.launchable(*operands).reshape(expected.shape)
    error = float((result - expected).abs().max() / expected.abs().max())
    assert error < TOLERANCE, f"{launch.launchable}: the result is off by {error:g}"
    return lambda: launch.launchable(*operands)


def round_of(calls: Sequence[Callable[[], object]], counts: Sequence[int]) -> list[float]:
    """Microseconds of a call of each side, one after another."""
    taken = []
    for call, count in zip(calls, counts, strict=True):
        release_torch_threads()
        call()
        start = time.perf_counter()
        for _ in range(count):
            call()
        taken.append((time.perf_counter() - start) / count * 1e6)
    return taken


def calls_in_a_round(calls: Sequence[Callable[[], object]]) -> list[int]:
    """How often each side is called in a round of `SECONDS`."""
    once = [min(each) for each in zip(*(round_of(calls, [1] * len(calls)) for _ in range(3)), strict=True)]
    return [max(1, round(SECONDS * 1e6 / each)) for each in once]


def compared(rows: int, columns: int, terms: int, kernels: int) -> Compared:
    """One size of one product."""
    operation = Matmul(rows, columns, terms, rhs_layout="n")
    signature = RegionSignature(operation)
    x, weight = torch.randn(rows, terms), torch.randn(columns, terms)
    expected = x.double() @ weight.double().T
    linear = torch.nn.functional.linear
    calls = [
        call_of(get_batch_launch(signature), x, weight, expected),
        lambda: linear(x, weight),
        *(
            call_of(packed_launch(signature.launch, kernel), x, weight, expected)
            for kernel in made_for(operation, kernels)
            if kernel.packing is not None
        ),
    ]
    counts = calls_in_a_round(calls)
    rounds = [round_of(calls, counts) for _ in range(ROUNDS)]
    for_choosing, for_comparing = (list(zip(*rounds[first::2], strict=True)) for first in (0, 1))
    chosen = min(range(2, len(calls)), key=lambda side: statistics.median(for_choosing[side]))
    of_any, torchs, fastest = (statistics.median(for_comparing[side]) for side in (0, 1, chosen))
    return Compared(rows, of_any, fastest, torchs)


def of_product(columns: int, terms: int, sizes: Sequence[int], kernels: int) -> list[Compared]:
    """All sizes of a product, printed."""
    print(
        f"{columns} columns, {terms} terms: us of any rows, of the fastest for these rows, of torch; regret"
    )
    every = []
    for rows in sizes:
        each = compared(rows, columns, terms, kernels)
        every.append(each)
        print(
            f"{rows:>8} {each.any_batch:>10.1f} {each.fastest:>10.1f} {each.torchs:>10.1f} {each.regret:>8.2f}",
            flush=True,
        )
    return every


def rows_of(name: str, every: Sequence[Compared]) -> list[Row]:
    """The claims about a product."""
    regret = statistics.geometric_mean(each.regret for each in every)
    worst = max(each.regret for each in every)
    faster = statistics.geometric_mean(each.torchs / each.any_batch for each in every)
    return [
        at_most(f"{name}: regret, geometric mean", regret, "of the fastest", MOST_REGRET),
        Row(f"{name}: regret, worst of {len(every)}", worst, "of the fastest", "any", True),
        Row(f"{name}: speed relative to torch, geometric mean", faster, "times", "any", True),
    ]


def main() -> int:
    parser = make_parser(__doc__.partition("\n")[0])
    parser.add_argument("--sizes", type=int, default=40, metavar="N", help="numbers of rows (default: 40)")
    parser.add_argument("--most", type=int, default=4096, metavar="N", help="rows at most (default: 4096)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the numbers (default: 0)")
    parser.add_argument(
        "--kernels", type=int, default=8, metavar="N", help="tried for each number (default: 8)"
    )
    asked = parser.parse_args()
    torch.manual_seed(asked.seed)
    torch.set_num_threads(usable_threads())
    sizes = drawn(10 if asked.quick else asked.sizes, asked.most, asked.seed)
    rows = []
    for columns, terms in QUICK_PRODUCTS if asked.quick else PRODUCTS:
        rows += rows_of(f"{columns} x {terms}", of_product(columns, terms, sizes, asked.kernels))
    return report(rows, asked.json)


if __name__ == "__main__":
    exit_with(main)
