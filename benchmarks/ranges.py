#!/usr/bin/env python3
"""Products whose number of rows varies: one kernel for any number of rows, against kernels that are made for each number.

    python benchmarks/ranges.py [--quick] [--json=PATH] [--sizes=40] [--seed=0] [--most=4096] [--kernels=8]
                                [--library=DIR] [--blocks=32,48]

Numbers of rows are drawn from 1 to `--most`, each power of two as often as others. For each of them, the first kernels that
the rules for this number suggest (`--kernels` of them, with packed weights) are compiled and timed, as `tune` would, and the
fastest is chosen in half of the rounds. The other half compares it with the kernel for any number of rows, and both with
torch's linear layer. All sides of a size run in turns, in one process, through their launches; all results are verified.

regret   time of the kernel for any number of rows over the time of the fastest kernel for this number

The kernel for any number of rows is that of the rule (`rule`). With `--library`, the entries of a library for ranges of rows,
which `tune --range` makes, are measured beside it (`tuned`, for which the goal holds then):

    python benchmarks/ranges.py --workload=products.csv
    dispatch-profiler tune products.csv --range=m=1:4096 -o tuned
    python benchmarks/ranges.py --library=tuned/final

With `--blocks`, so are kernels whose register tiles have so many filters, with divisions by the rule (`block 32`): whether the
rule should choose narrower blocks where products have many terms.
"""

from __future__ import annotations

import math
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

import torch

from benchmarks._table import Row, at_most, exit_with, make_parser, report
from dispatch_profiler.boo.environment import launch_settings
from dispatch_profiler.boo.fusion.spec import RegionSignature
from dispatch_profiler.boo.interface import LaunchKernel
from dispatch_profiler.boo.kernels import BatchKernels, KernelSearch, Toolchain, find_kernels, target_of
from dispatch_profiler.boo.kernels.variants import Variant
from dispatch_profiler.boo.launching.packing import PackedLaunch, packed_launch
from dispatch_profiler.boo.launching.torch_threads import release_torch_threads
from dispatch_profiler.cores import usable_cores, usable_threads
from dispatch_profiler.dispatches import Dispatch
from dispatch_profiler.operations import Matmul
from dispatch_profiler.runtime.device_uri import DeviceUri
from dispatch_profiler.targets import RowsSpace, batch_space, likely_kernels, of_any_batch

#: Columns and terms of the products: of BERT, of GPT-2's attention, of a classifier, and of a smaller model.
PRODUCTS = ((3072, 768), (768, 3072), (2304, 768), (1000, 1280), (512, 512))
QUICK_PRODUCTS = PRODUCTS[:2]
CPU = DeviceUri("local-task")
#: Seconds of a side in a round, and rounds: the kernel of a number is chosen in the odd ones.
SECONDS, ROUNDS = 0.02, 10
#: Largest difference from float64, relative to the largest element: of f32 sums of some thousand terms.
TOLERANCE = 1e-5
MOST_REGRET = 1.10
RULE, TUNED = "rule", "tuned"


@dataclass(frozen=True)
class Request:
    """What to compare at each size: kernels for this size, a library with ranges (or none), and widths of blocks."""

    kernels: int
    library: str = ""
    blocks: tuple[int, ...] = ()


@dataclass(frozen=True)
class Compared:
    """A size, and the microseconds of each side in the rounds that nothing was chosen in.

    `any_batch` has the kernels for any number of rows, by name.
    """

    rows: int
    any_batch: dict[str, float]
    fastest: float
    torchs: float

    def regret(self, name: str) -> float:
        """Of a kernel for any number of rows: its time over the fastest kernel's."""
        return self.any_batch[name] / self.fastest


def drawn(count: int, most: int, seed: int) -> list[int]:
    """Different numbers of rows, evenly distributed on a logarithmic scale, in order."""
    draw, found = random.Random(seed), set[int]()
    while len(found) < min(count, most):
        found.add(round(math.exp(draw.uniform(0, math.log(most)))))
    return sorted(found)


def found(searches: list[KernelSearch]) -> list[LaunchKernel]:
    """The kernels of the searches that compile."""
    every = find_kernels(searches, None, workers=len(usable_cores()))
    return [kernel for _, kernel in every if isinstance(kernel, LaunchKernel)]


def search_of(dispatch: Dispatch) -> KernelSearch:
    """The search that compiles exactly this dispatch."""
    toolchain = Toolchain.of(target_of(CPU), launch_settings().tuning)
    variants = [Variant(dispatch)]
    operation = dispatch.operation
    return KernelSearch(operation, operation.name, toolchain, packs_weight=True, variants=variants)


def made_for(operation: Matmul, count: int) -> list[LaunchKernel]:
    """The first `count` kernels that rules suggest for exactly this operation."""
    configurations = islice(likely_kernels(operation, target_of(CPU)), count)
    return found([search_of(Dispatch(operation, each)) for each in configurations])


def any_batch_kernels(operation: Matmul, request: Request) -> dict[str, LaunchKernel]:
    """The kernels for any number of rows to compare, by name."""
    libraries = {RULE: "", **({TUNED: request.library} if request.library else {})}
    settings = launch_settings()
    kernels = {
        name: BatchKernels(operation, replace(settings, tuning=library)).kernel(CPU)
        for name, library in libraries.items()
    }
    return kernels | {
        f"block {block}": kernel
        for block in request.blocks
        if (kernel := kernel_with_block(replace(operation, m=1), block)) is not None
    }


@lru_cache(maxsize=64)
def kernel_with_block(operation: Matmul, block: int) -> LaunchKernel | None:
    """The kernel for any number of rows that the rule would choose among those with so many filters in a register tile."""
    whole = of_any_batch(operation)
    space = None if whole is None else batch_space(whole, target_of(CPU))
    if whole is None or not isinstance(space, RowsSpace):
        return None
    tiles = [tile for tile in space.tiles if tile[1] == block]
    kernels = found([search_of(Dispatch(whole, space.kernel(tile))) for tile in tiles[:1]])
    return kernels[0] if kernels else None


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


def compared(rows: int, columns: int, terms: int, request: Request) -> Compared:
    """One size of one product."""
    operation = Matmul(rows, columns, terms, rhs_layout="n")
    signature = RegionSignature(operation)
    x, weight = torch.randn(rows, terms), torch.randn(columns, terms)
    expected = x.double() @ weight.double().T
    linear = torch.nn.functional.linear
    of_any = any_batch_kernels(operation, request)
    kernels = [*of_any.values(), *(each for each in made_for(operation, request.kernels) if each.packing)]
    calls: list[Callable[[], object]] = [
        lambda: linear(x, weight),
        *(call_of(packed_launch(signature.launch, each), x, weight, expected) for each in kernels),
    ]
    counts = calls_in_a_round(calls)
    rounds = [round_of(calls, counts) for _ in range(ROUNDS)]
    for_choosing, for_comparing = (list(zip(*rounds[first::2], strict=True)) for first in (0, 1))
    chosen = min(range(1 + len(of_any), len(calls)), key=lambda side: statistics.median(for_choosing[side]))
    times = [statistics.median(side) for side in for_comparing]
    return Compared(rows, dict(zip(of_any, times[1:], strict=False)), times[chosen], times[0])


def of_product(columns: int, terms: int, sizes: Sequence[int], request: Request) -> list[Compared]:
    """All sizes of a product, printed."""
    print(f"{columns} columns, {terms} terms: us, and regret of each kernel for any number of rows")
    every: list[Compared] = []
    for rows in sizes:
        each = compared(rows, columns, terms, request)
        if not every:
            names = "".join(f"{name:>12} {'':>5}" for name in each.any_batch)
            print(f"{'rows':>8} {'fastest':>10} {'torch':>10} {names.rstrip()}")
        every.append(each)
        sides = "".join(f"{time:>12.1f} {each.regret(name):>5.2f}" for name, time in each.any_batch.items())
        print(f"{rows:>8} {each.fastest:>10.1f} {each.torchs:>10.1f} {sides}", flush=True)
    return every


def rows_of(name: str, every: Sequence[Compared]) -> list[Row]:
    """The claims about a product: the goal is for tuned kernels, if there are any."""
    rows = []
    goal = TUNED if TUNED in every[0].any_batch else RULE
    for side in every[0].any_batch:
        title = f"{name}, {side}" if len(every[0].any_batch) > 1 else name
        regret = statistics.geometric_mean(each.regret(side) for each in every)
        worst = max(each.regret(side) for each in every)
        faster = statistics.geometric_mean(each.torchs / each.any_batch[side] for each in every)
        mean = f"{title}: regret, geometric mean"
        rows += [
            at_most(mean, regret, "of the fastest", MOST_REGRET)
            if side == goal
            else Row(mean, regret, "of the fastest", "any", True),
            Row(f"{title}: regret, worst of {len(every)}", worst, "of the fastest", "any", True),
            Row(f"{title}: speed relative to torch, geometric mean", faster, "times", "any", True),
        ]
    return rows


def workload_text(products: Sequence[tuple[int, int]]) -> str:
    """The products as a CSV of shapes, for `tune --range`: linear layers store the weight by columns."""
    return "m,n,k,layout\n" + "".join(f"1,{columns},{terms},tn\n" for columns, terms in products)


def main() -> int:
    parser = make_parser(__doc__.partition("\n")[0])
    parser.add_argument("--sizes", type=int, default=40, metavar="N", help="numbers of rows (default: 40)")
    parser.add_argument("--most", type=int, default=4096, metavar="N", help="rows at most (default: 4096)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the numbers (default: 0)")
    parser.add_argument(
        "--kernels", type=int, default=8, metavar="N", help="tried for each number (default: 8)"
    )
    parser.add_argument("--library", default="", metavar="DIR", help="with entries of `tune --range`")
    parser.add_argument(
        "--blocks", default="", metavar="LIST", help="filters of register tiles, such as 32,48"
    )
    parser.add_argument("--workload", metavar="CSV", help="write the products to a file, and measure nothing")
    asked = parser.parse_args()
    products = QUICK_PRODUCTS if asked.quick else PRODUCTS
    if asked.workload:
        Path(asked.workload).write_text(workload_text(products))
        return 0
    torch.manual_seed(asked.seed)
    torch.set_num_threads(usable_threads())
    sizes = drawn(10 if asked.quick else asked.sizes, asked.most, asked.seed)
    request = Request(asked.kernels, asked.library, tuple(map(int, filter(None, asked.blocks.split(",")))))
    rows = []
    for columns, terms in products:
        rows += rows_of(f"{columns} x {terms}", of_product(columns, terms, sizes, request))
    return report(rows, asked.json)


if __name__ == "__main__":
    exit_with(main)
