"""The Triton kernel of a product or a convolution on NVIDIA GPUs if none was tuned: the tile of `_NARROW` or `_SINGLE`, with or
without slices, that likely takes the least time.

The constants of `likely_microseconds` were fitted to 110 drawn operations on an H200, each with all of these kernels
(`scripts/record_triton_kernels.py`); `benchmarks/first_choice.py` compares its choices for 110 others.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from dispatch_profiler.configurations import TritonTiles
from dispatch_profiler.configurations.triton.convolutions import product_of
from dispatch_profiler.configurations.triton.limits import processors_of
from dispatch_profiler.operations import Operation
from dispatch_profiler.targets._base import Target

#: m, n, k, warps and stages of tiles of narrow types, and of f32, whose products of parts need more registers. Of tiles that
#: likely take as long, the first one is chosen.
_NARROW = (
    (128, 128, 64, 4, 3), (128, 256, 64, 8, 3), (128, 256, 64, 8, 4), (256, 128, 64, 8, 3), (128, 128, 64, 8, 4),
    (64, 256, 64, 4, 4), (64, 128, 64, 4, 4), (128, 64, 64, 4, 4), (64, 64, 64, 4, 4), (64, 64, 128, 4, 3),
    (64, 32, 64, 4, 5), (32, 64, 128, 4, 4), (32, 128, 64, 4, 4), (16, 64, 128, 4, 4), (16, 128, 128, 4, 3),
    (16, 32, 256, 4, 3),
)  # fmt: skip
_SINGLE = (
    (128, 128, 32, 8, 3), (128, 64, 32, 4, 3), (64, 128, 32, 4, 3), (64, 64, 32, 4, 3), (32, 64, 32, 4, 3),
    (64, 32, 32, 4, 3), (16, 64, 64, 4, 3),
)  # fmt: skip
#: Numbers of slices of a long sum, and products of a slice at least.
_SLICES, _SLICE = (1, 2, 4, 8, 16, 32), 256
#: Workgroups of slices for each multiprocessor at most.
_MOST_WORKGROUPS = 2.2
#: Rows of a `wgmma`: with fewer, operands are exchanged.
_ROWS = 64
#: Microseconds until a workgroup multiplies and after it, of a step of 64 products along k at least, and of a kernel that adds
#: up slices.
_START_US, _STEP_US, _ADDING_US = 2.1, 0.082, 1.25
#: FLOP of a multiprocessor in a microsecond if tiles were infinite, the factor of f32 in products of parts, and the extents of
#: tiles, along their larger and their smaller side, that reach half.
_FLOP, _SINGLE_FLOP, _HALF_LARGE, _HALF_SMALL = 7.8e6, 0.08, 17.0, 37.0
#: Bytes in a microsecond: that a multiprocessor copies to shared memory, of memory, and of slices that are added up.
_COPIED, _MEMORY, _ADDED = 1.1e5, 3.5e6, 3.3e6
#: The part of the shorter of computing and reading memory that the longer one does not hide.
_NOT_HIDDEN = 0.3
#: How many times as long steps take whose operands are gathered from windows of images.
_GATHERED = {"forward": 1.26, "input_backward": 1.6, "weight_backward": 1.85}
#: Bytes of shared memory and registers of a multiprocessor, threads that it runs, and registers of a thread beside its sums.
_SHARED, _REGISTERS, _THREADS = 228 * 1024, 65536, 2048
_OWN_REGISTERS, _OWN_REGISTERS_OF_PARTS = 60, 110


def ranked_triton_tiles(operation: Operation, target: Target) -> tuple[TritonTiles, ...]:
    """The kernels of a product or a convolution, the likely fastest first; empty for other operations and targets."""
    gpu = target.limits.gpu
    if operation.contraction is None or target.limits.backend != "cuda" or gpu is None:
        return ()
    processors = processors_of(gpu)
    every = triton_candidates(operation, target)
    return tuple(sorted(every, key=lambda each: likely_microseconds(each, operation, processors)))


def triton_candidates(operation: Operation, target: Target) -> Iterator[TritonTiles]:
    """The kernels that the rule chooses among, for a product or a convolution on a GPU."""
    assert target.limits.gpu is not None
    is_single = operation.element_type.name == "f32"
    processors = processors_of(target.limits.gpu)
    for m, n, k, warps, stages in _SINGLE if is_single else _NARROW:
        tiles = TritonTiles(
            tile=(m, n, k),
            warps=warps,
            stages=stages,
            precision="tf32x3" if is_single else "ieee",
            swapped=operation.product is not None and m < _ROWS <= n,
        )
        for slices in _SLICES:
            each = replace(tiles, split_k=slices)
            if slices > 1 and not _is_useful(each, operation, processors):
                break
            if each.invalid_reason(operation, target.limits) is None:
                yield each


def _is_useful(tiles: TritonTiles, operation: Operation, processors: int) -> bool:
    """Slices help where tiles are fewer than the multiprocessors, if each is long enough."""
    most = _MOST_WORKGROUPS * processors
    return _workgroups(tiles, operation) <= most and tiles.product(operation)[3] >= _SLICE


def _workgroups(tiles: TritonTiles, operation: Operation) -> int:
    parts, m, n, _ = tiles.product(operation)
    return parts * -(-m // tiles.tile[0]) * -(-n // tiles.tile[1])


def likely_microseconds(tiles: TritonTiles, operation: Operation, processors: int) -> float:
    """The time of a kernel on a GPU with so many multiprocessors of an H200, and of the kernel that adds up slices.

    A multiprocessor computes several workgroups at once. A step takes as long as the products and copies, but at least
    until operands have arrived.
    """
    k = tiles.tile[2]
    *_, reduced = tiles.product(operation)
    of_one = math.ceil(_workgroups(tiles, operation) / processors)
    at_once = min(of_one, _resident(tiles, operation))
    gathered = 1.0
    if operation.convolution is not None and product_of(operation) is None:
        gathered = _GATHERED[operation.convolution.mode]
    step = gathered * max(_STEP_US * k / 64, at_once * _busy_us(tiles, operation))
    computing = of_one / at_once * (_START_US + math.ceil(reduced / k) * step)
    result = operation.results[0]
    moved = sum(each.elements * each.type.bytes for each in (*operation.operands, result))
    added = 0.0
    if tiles.split_k > 1:
        added = _ADDING_US + 4 * result.elements * (tiles.split_k + 1) / _ADDED
    moving = moved / _MEMORY
    return max(computing, moving) + _NOT_HIDDEN * min(computing, moving) + added


def _resident(tiles: TritonTiles, operation: Operation) -> int:
    """Workgroups that a multiprocessor computes at once."""
    m, n, k = tiles.tile
    threads = 32 * tiles.warps
    shared = tiles.stages * (m + n) * k * operation.element_type.bytes
    own = _OWN_REGISTERS if tiles.precision == "ieee" else _OWN_REGISTERS_OF_PARTS
    registers = (m * n / threads + own) * threads
    return max(1, int(min(_SHARED / shared, _REGISTERS / registers, _THREADS / threads)))


def _busy_us(tiles: TritonTiles, operation: Operation) -> float:
    """Microseconds of the products, or of the copies, of a step."""
    m, n, k = tiles.tile
    # Tiles of fewer rows than `wgmma` has are exchanged, or padded.
    small, large = (n, m) if m >= _ROWS else (m, max(n, _ROWS))
    efficiency = small / (small + _HALF_SMALL) * large / (large + _HALF_LARGE)
    flop = _FLOP * efficiency * (1.0 if tiles.precision == "ieee" else _SINGLE_FLOP)
    return max(2 * large * small * k / flop, (m + n) * k * operation.element_type.bytes / _COPIED)
