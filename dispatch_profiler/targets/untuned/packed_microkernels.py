"""The microkernel that computes an operation with a constant weight if none was tuned, by a rule that follows measurements.

The rule estimates the cycles of each way to divide the work among threads, and takes the fewest: the instructions of the
busiest core, reading filters and pixels for the first time, and waiting for the slowest core. Its constants were fitted
to 26 products and convolutions on 2, 4, 8 and 16 threads of such Xeons, in some 20 ways each. Geometric means of the
times of its choices over the times of the fastest way, and speeds relative to torch with packed weights, both including
their launches:

                                2 threads    4       8      16
    time over the fastest            1.12    1.04    1.04    1.02
    speed relative to packed         1.07    1.07    1.03    0.92

The times on 2 threads vary by a tenth from run to run, which the first figure includes. Fitted to half of the operations
only, choices for the other half take 1.07 to 1.08 times as long as the fastest way. An earlier rule knew three register
tiles only. On 16 threads, it had no microkernel for 6 of the 26, for which forms take several times as long; its other
choices took 1.12, 1.13, 1.14 and 1.04 times as long as the fastest way.
`benchmarks/untuned.py` compares 35 other operations on 2 threads. The microkernels are 1.37 times as fast as the forms that
`fastest_form` chooses, with packed weights; 1.26 times as fast as torch with packed weights, and 1.38 times as fast as
torch's usual operators.

With up to 32 rows, or pixels, they are faster than the forms that would be used otherwise in 51 of 56 cases on 2 and 16
threads: 1.38 times as fast in the geometric mean (24 products of 1 to 32 rows and 4 convolutions of 1 to 25 pixels).

The same figures of 12 depthwise convolutions, 6 with groups of 4 to 16 filters, and 9 products of 1 to 32 rows, in some 13
ways each:

                                            2 threads      16
    depthwise, time over the fastest             1.14    1.15
    depthwise, speed relative to packed          1.67    0.92
    groups, time over the fastest                1.28    1.15
    groups, speed relative to packed             1.04    0.76
    few rows, time over the fastest              1.26    1.10
    few rows, speed relative to packed           1.17    0.65

Depthwise convolutions were measured before each of their pixels was loaded once for all taps of a row. Since then, 29 take
0.80 (f32) and 0.73 (bf16) of their earlier time on one thread of a Zen 4. The tiles chosen for the 7 that the rule's
constants come from took 1.07 times as long as the fastest of some 13 tiles, before the last changes of the kernels.

Large results that are stored in parts of pixels came later, from six convolutions with one tap on a Zen 4. With 64 filters
instead of 32 at a time, they take 0.5 to 0.9 times as long on 2 threads: 190 instead of 367 us for 112x112x16 to 64 filters.

Pixels that are prefetched, those of products and of convolutions with one tap, came last. Read in half the cycles of others,
24 such operations take 1.02 times as long as the fastest of some 8 ways on 2 threads of a Zen 4, instead of 1.03: 14x14 pixels
with 160 to 160 channels 51 instead of 58 us, and none loses more than 3 %. 26 others that were drawn take as long as before.

Weights that are no constants: microkernels whose workgroups copy their filters take 1.04 to 1.07 times as long as packed ones
for products of 128 and more rows on 1 and 2 threads of a Zen 4, 1.1 and 1.4 times for 16 rows; the constants of copying come
from nine such operations. On 16 threads of a Xeon, they take 1.06 to 1.5 times as long, and forms 1.1 to 3.3 times (five
products of 16 and more rows, three convolutions).

That many cores wait longer came last, from 52 operations in up to ten ways each on 16 threads of a Xeon whose other cores
were busy: the fastest expected way takes 1.04 times as long as the fastest measured one, instead of 1.06. On 39 recorded
operations of earlier sittings (`benchmarks/first_choice.py`), the first choice takes 1.07 instead of 1.08 times as long. With 14x14 pixels
and 256 to 256 channels, parts of 4 rows took 224 us, parts of 2 rows 192 and of one row 170.

Filters that are read in place, of products of 1 to 28 rows with rhs in layout t, on a Zen 4: 30 products take 0.55 and 0.37 of
torch's time on 1 and 2 threads, 0.56 and 0.64 of the compiler's, and 1.03 and 1.10 of the time with packed weights. The worst
cases are 1.02 (1x3072x768 on 1 thread) and 0.73 of torch's time, and 0.77 and 0.83 of the compiler's.

Products whose lhs is stored transposed, as the gradients of weights, were measured on 2 threads of a Zen 4: 11 products in 8
ways each. Where the rows of a term are 3072, tiles of 8 rows, which are in one cache line, take 0.92 to 0.95 of the time of
tiles of 6, 12 and 14 rows; otherwise these are as fast. Workgroups of all rows are up to 5 % faster than those of all filters,
since each workgroup copies its filters, about as long as the kernel multiplies them by two rows. The choice of the rule takes
1.06 times as long as the fastest of the 8 ways, where each way varies by 0.05, and 0.94 of torch's time for the nine products
of more than 10 MFLOP.

With vectors of 8 elements, for x86-64-v3, microkernels are 1.9 times as fast as forms on 2 threads (8 convolutions) and 2.2
times on 16 (28 operations): 1.06 and 0.98 times as fast as torch with packed weights, limited to AVX2.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace

from dispatch_profiler.configurations import Microkernel
from dispatch_profiler.configurations.cpu.microkernel import (
    bf16_features,
    padded_filters,
    register_tiles,
    registers_available,
    shape_reason,
    smallest_plan,
    usual_unroll,
    vector_lanes,
)
from dispatch_profiler.configurations.cpu.plans.microkernel import (
    LANES,
    LINE,
    MicrokernelPlan,
)
from dispatch_profiler.configurations.space import divisors
from dispatch_profiler.cores import usable_threads
from dispatch_profiler.operations import Operation
from dispatch_profiler.targets._base import Target
from dispatch_profiler.targets.cpu import CpuTarget

#: Multiply-adds in the text of a kernel at most; more take several seconds to compile.
_LONGEST = 8000
#: The best register tiles that are tried, besides the best of each width and the best of one row.
_TILES = 2
#: Workgroups of a core at most, and the least part of all cores' time that workgroups of equal length fill.
_OF_CORE, _BUSY = 8, 0.6
#: Cycles of a multiply-add, of a load, of following another row of the image, and of a chain of multiply-adds that are
#: too few to hide their latency.
_MULTIPLY, _LOAD, _ROW, _LATENCY = 0.5, 0.9, 0.3, 3
#: How many times as long as f32 a load of filters takes that are converted to f32.
_CONVERT = 2
_FEWEST_SUMS = 8
#: Cycles of loading and converting bf16 of a depthwise convolution, for each load of one or two vectors; of each register
#: that its tiles lack; and the registers that they need besides sums and filters.
_CONVERT_LANES, _SPILL, _OTHER_REGISTERS = 1.1, 2, 4
#: Cycles of reading a cache line of pixels of a depthwise convolution again, for other channels of it.
_LINE_AGAIN = 2
#: Bytes of filters that stay in the first cache, and the cycles of reading a vector that does not.
_FIRST_CACHE, _SECOND_CACHE = 2**15, 0.2
#: Sets of the first cache, the lines that a set holds, and cycles of loading a pixel that other pixels have evicted.
_SETS, _WAYS, _CONFLICT = 64, 8, 0.3
#: With the rows of a term side by side: cycles of a load, and of a line that the second cache, with so many sets of `_WAYS`
#: lines, has lost.
_LOAD_OF_LINE, _EVICTED_LINE, _LARGE_SETS = 0.5, 1.7, 2048
#: Cycles of starting a workgroup, of a register tile, and of storing a vector of sums.
_WORKGROUP, _TILE, _STORE = 4000, 25, 10
#: Cycles of storing some of the filters of a pixel, if the result is large: the hardware fetches the lines behind them, which
#: another block stores much later, in vain. Bytes of a large result.
_PART_OF_RESULT, _LARGE = 50, 2**19
_BYTES = {"f32": 4, "bf16": 2, "i32": 4}
#: Cycles of reading a byte of filters, of pixels, and of pixels that are prefetched, for the first time.
_FILTERS, _PIXELS, _PREFETCHED_PIXELS = 0.08, 0.2, 0.1
#: Cycles of copying a filter's term, transposed or not, or of many terms, as in the gradient of a weight, each in another
#: page; and of waiting for those of a workgroup's first block, which is not prefetched.
_TRANSPOSE, _COPY, _COPY_FAR, _FIRST_BLOCK = 0.45, 0.3, 1.2, 0.5
#: Cycles of filters that are read in place: of adding a vector of sums to those of earlier slices, in memory, of a register
#: tile in a slice, and of finding a workgroup's filters of a term: each term is in another page.
_EARLIER, _TILE_OF_SLICE, _PART_OF_TERM = 1.5, 10, 60
#: Cycles of reading a channel of a pixel of a depthwise convolution, and of finding the channels of a workgroup in a pixel,
#: twice as many if other workgroups use the same cache lines.
_LANES_OF_PIXEL, _PART_OF_PIXEL = 0.4, 60
#: The part of a round that cores wait for the slowest of them; of so many cores and more; and where memory limits all cores:
#: with filters in place, and on fewer cores with the rows of a term side by side (on others, that was not measured).
_WAITING = 0.5
_WAITING_OF_MANY, _MANY = 0.6, 8
_WAITING_IN_PLACE = 0.1


def packed_microkernel(operation: Operation, target: Target) -> Microkernel | None:
    """The microkernel that packs the weight and is likely to be the fastest on the threads at hand.

    None if none is valid, or if the vectors of `target` have another or an unknown width.
    """
    return next(iter(ranked_microkernels(operation, target)), None)


def ranked_microkernels(
    operation: Operation, target: Target, threads: int | None = None, *, packed: bool = True
) -> tuple[Microkernel, ...]:
    """Microkernels that pack the weight, the likely fastest on `threads` first (default: those at hand).

    They differ in their register tiles, or in the division of the work among workgroups. Without `packed`, each call copies
    the filters or reads each in place.
    """
    limits = target.limits
    if not has_known_vectors(target) or shape_reason(operation, packed):
        return ()
    features = bf16_features(operation, limits)
    whole = smallest_plan(operation, packed, lanes=vector_lanes(limits), pairs=features["pairs"])
    threads = threads or usable_threads()
    plans = {
        each: each.plan(operation)
        for tile in register_tiles_to_try(whole)
        for each in divided(whole, tile, threads, features["rounds"])
        if each.invalid_reason(operation, limits) is None
    }
    valid = [each for each, plan in plans.items() if plan.text_length <= _LONGEST]
    busy = [each for each in valid if _is_busy(plans[each], threads)]
    return tuple(sorted(busy or valid, key=lambda each: plan_cycles(plans[each], threads)))


def likely_cycles(microkernel: Microkernel, operation: Operation, threads: int | None = None) -> float:
    """Cycles that the rule expects on `threads` (default: those at hand)."""
    return plan_cycles(microkernel.plan(operation), threads or usable_threads())


def _stored_cycles(plan: MicrokernelPlan) -> float:
    """Cycles in which a workgroup copies its filters into panels, or finds filters in place; 0 if packed."""
    if plan.reads_in_place:
        return _PART_OF_TERM * plan.terms
    if plan.packed:
        return 0
    each = _TRANSPOSE if plan.rhs_is_transposed else _COPY_FAR if plan.lhs_is_transposed else _COPY
    return plan.terms * (each * plan.distribution[1] + _FIRST_BLOCK * plan.block)


def has_known_vectors(target: Target) -> bool:
    """Whether the target is known to have AVX-512, or AVX2 with its multiply-add."""
    limits = target.limits
    if limits.backend != "llvm-cpu" or limits.vector_bytes is None:
        return False
    return limits.vector_bytes >= 4 * LANES or (isinstance(target, CpuTarget) and target.level == "x86-64-v3")


def _is_busy(plan: MicrokernelPlan, threads: int) -> bool:
    """Whether workgroups of equal length keep all threads busy for most of the time."""
    workgroups = math.prod(plan.workgroups)
    return workgroups / (threads * math.ceil(workgroups / threads)) >= _BUSY


def register_tiles_to_try(whole: MicrokernelPlan) -> Iterable[tuple[int, int, int]]:
    """Register tiles that load the least for each product: the best of all, of each width, and of one row.

    At padded borders, workgroups with part of the rows need tiles of one row. Depthwise tiles also keep filters in
    registers: the best tiles that have enough are among these.
    """
    ranked = register_tiles(whole)
    single = [tile for tile in ranked if tile[0] == 1]
    fitting = [tile for tile in single if whole.is_depthwise and not _missing(replace(whole, registers=tile))]
    widest = [
        next((tile for tile in tiles if tile[2] == n * whole.lanes), None)
        for tiles in (ranked, single, fitting)
        for n in (1, 2, 3, 4)
    ]
    aligned = (
        [tile for tile in ranked if LINE // whole.pixel_bytes % tile[0] == 0]
        if whole.lhs_is_transposed
        else []
    )
    return dict.fromkeys(filter(None, (*ranked[:_TILES], *widest, *aligned[:_TILES])))


def divided(
    whole: MicrokernelPlan, tile: tuple[int, int, int], threads: int, rounds: bool
) -> Iterator[Microkernel]:
    """`tile` with the workgroups that keep `threads` busy, by parts of the rows and shares of the filters.

    `whole` gives the extents; some may be invalid.
    """
    blocks = padded_filters(whole, tile[2]) // tile[2]
    images = whole.images * whole.planes
    most = max(_OF_CORE * threads // images, 1)
    for rows in sorted({-(-whole.rows // parts) for parts in range(1, min(most, whole.rows) + 1)}):
        parts = -(-whole.rows // rows)
        for shares in divisors(blocks, most // parts):
            filters = blocks // shares * tile[2]
            unroll = usual_unroll(replace(whole, distribution=(rows, filters), registers=tile), tile)
            found = Microkernel((rows, filters), tile, unroll, packed=whole.packed, lanes=whole.lanes)
            yield replace(found, pairs=whole.pairs, rounds=rounds)


def plan_cycles(plan: MicrokernelPlan, threads: int) -> float:
    """Cycles until the last core is done."""
    every = {width: _block_cycles(plan, width) for width in (plan.block, plan.last_block)}
    shares, *_ = plan.workgroups
    blocks, narrow = plan.padded_filters // plan.block, plan.groups
    mean = (every[plan.block] * (blocks - narrow) + every[plan.last_block] * narrow) / shares
    # Of all workgroups, the one with the fewest last blocks of groups takes the longest.
    fewest = plan.distribution[1] // plan.padded_group
    longest = every[plan.block] * (blocks // shares - fewest) + every[plan.last_block] * fewest
    rounds = math.ceil(math.prod(plan.workgroups) / threads)
    each = _WORKGROUP + _reading_cycles(plan) + _stored_cycles(plan)
    waiting = _WAITING if threads < _MANY else _WAITING_OF_MANY
    if plan.reads_in_place or (plan.lhs_is_transposed and threads < _MANY):
        waiting = _WAITING_IN_PLACE
    return (rounds * each + (rounds - 1) * mean + longest) / (1 - waiting / rounds)


def _block_cycles(plan: MicrokernelPlan, block: int) -> float:
    """Cycles of a workgroup for `block` filters: reading them for the first time, and computing all register tiles."""
    height, width, _ = plan.registers
    vectors = block // plan.lanes
    sums = height * width * vectors
    if plan.is_depthwise:
        step = _row_cycles(plan) / plan.taps[1]
    else:
        read = vectors * (_CONVERT if plan.converts_images else 1) + height * width
        load = _LOAD_OF_LINE if plan.lhs_is_transposed else _LOAD
        step = max(_MULTIPLY * sums, load * read) + _CONFLICT * _conflicts(plan)
    if sums < _FEWEST_SUMS:
        step = max(step, _LATENCY)
    panel = plan.element_bytes * plan.terms * block
    if panel > _FIRST_CACHE and not plan.reads_in_place:
        step += _SECOND_CACHE * vectors
    step += _EVICTED_LINE * _evicted_lines(plan) if plan.lhs_is_transposed else _ROW * height
    again = _LINE_AGAIN * _lines(plan) if plan.is_depthwise else 0
    stores: float = _STORE * sums + _PART_OF_RESULT * _parts_of_pixels(plan, block)
    if plan.reads_in_place:
        stores += (math.ceil(plan.terms / plan.slice) - 1) * (_EARLIER * sums + _TILE_OF_SLICE)
    return plan.tiles * (plan.terms * step + stores + _TILE) + _FILTERS * panel + again


def _conflicts(plan: MicrokernelPlan) -> int:
    """Pixels of a register tile that evict each other from the first cache: too many of them have a multiple of 4 KiB in between."""
    height, width, _ = plan.registers
    if plan.lhs_is_transposed:
        return 0
    lines = Counter(at * plan.pixel_bytes // LINE % _SETS for at, _ in plan.pixels(height, width))
    return sum(count for count in lines.values() if count > _WAYS)


def _evicted_lines(plan: MicrokernelPlan) -> float:
    """Lines that hold a term of a register tile, on average, with the rows of a term side by side; 0 if they stay in the second cache.

    They do not if the terms are so far apart that the lines of the next tile, which are mostly the same, share few sets.
    """
    of_term, height = plan.pixel_bytes * plan.rows, plan.registers[0]
    sets = _LARGE_SETS // math.gcd(of_term // LINE, _LARGE_SETS) if of_term % LINE == 0 else _LARGE_SETS
    if plan.terms <= sets * _WAYS:
        return 0
    of_line = LINE // plan.pixel_bytes
    is_aligned = plan.rows % of_line == 0 and of_line % height == 0
    return 1 if is_aligned else 1 + (height - 1) / of_line


def _parts_of_pixels(plan: MicrokernelPlan, block: int) -> int:
    """Pixels of a register tile of which `block` filters are stored apart from others, in a large result."""
    height, width, _ = plan.registers
    pixels = plan.images * plan.planes * plan.rows * plan.columns
    is_large = pixels * plan.filters * _BYTES[plan.result] >= _LARGE
    return height * width if is_large and not plan.is_depthwise and block < plan.filters else 0


def _row_cycles(plan: MicrokernelPlan) -> float:
    """Cycles of a depthwise convolution for a row of taps of a register tile: each pixel is loaded once for all taps."""
    height, width, _ = plan.registers
    taps, loads = plan.taps[1], plan.blocks[0].loads
    columns = min(width * taps, (width - 1) * plan.stride[1] + (taps - 1) * plan.dilation[1] + 1)
    sums, loaded = height * width * plan.block // plan.lanes, height * columns + taps
    multiplying = _MULTIPLY * sums * taps + _SPILL * _missing(plan)
    if plan.element_bytes == 2:
        return multiplying + _CONVERT_LANES * loaded * len(loads)
    return max(multiplying, _LOAD * loaded * len(loads))


def _missing(plan: MicrokernelPlan) -> int:
    """Registers that a depthwise tile has too few: the filters of a row of taps, of vectors that are loaded together, stay there."""
    height, width, block = plan.registers
    filters = plan.taps[1] * len(plan.blocks[0].loads[0])
    needed = height * width * block // plan.lanes + filters + _OTHER_REGISTERS
    return max(needed - registers_available(plan.lanes), 0)


def _lines(plan: MicrokernelPlan) -> int:
    """Cache lines that hold a block's channels of the pixels of a workgroup; 0 if these stay in the first cache."""
    bytes_ = plan.block * plan.pixel_bytes
    lines = _pixels(plan) * -(-bytes_ // LINE)
    return lines if lines * LINE > _FIRST_CACHE else 0


def _pixels(plan: MicrokernelPlan) -> int:
    """Pixels that a workgroup reads."""
    rows = plan.distribution[0]
    return plan.plane.taps * (rows * plan.stride[0] + plan.taps[0] - 1) * plan.image[1]


def _reading_cycles(plan: MicrokernelPlan) -> float:
    """Cycles of a workgroup for reading its pixels for the first time."""
    filters, pixels = plan.distribution[1], _pixels(plan)
    if plan.is_depthwise:
        shares_lines = plan.group % LANES > 0 and filters < plan.padded_filters
        return pixels * (_LANES_OF_PIXEL * filters + _PART_OF_PIXEL * (2 if shares_lines else 1))
    groups = math.ceil(filters / plan.padded_group)
    each = _PREFETCHED_PIXELS if plan.prefetches_pixels else _PIXELS
    return plan.pixel_bytes * each * pixels * groups * plan.channels
