"""The Triton kernel of a product or a convolution on NVIDIA GPUs if none was tuned."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from dispatch_profiler.configurations import TritonTiles
from dispatch_profiler.configurations.triton.limits import PROCESSORS
from dispatch_profiler.operations import Operation
from dispatch_profiler.targets._base import Target

#: Multiprocessors of GPUs whose number is not known: those of an A100.
_PROCESSORS = 108
#: m, n, k, warps and stages of tiles of 16-bit types, and of f32, whose products of parts need more registers.
_NARROW = (
    (128, 256, 64, 8, 3), (128, 256, 64, 8, 4), (256, 128, 64, 8, 3), (128, 128, 64, 8, 4), (128, 128, 64, 4, 3),
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


def triton_candidates(operation: Operation, target: Target) -> Iterator[TritonTiles]:
    """The kernels that the rule chooses among."""
    if operation.contraction is None or target.limits.backend != "cuda" or target.limits.gpu is None:
        return
    is_single = operation.element_type.name == "f32"
    processors = PROCESSORS.get(target.limits.gpu.device_capability, _PROCESSORS)
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
    workgroups = math.prod(_tile_counts(tiles, operation))
    return workgroups <= _MOST_WORKGROUPS * processors and tiles.product(operation)[3] >= _SLICE


def _tile_counts(tiles: TritonTiles, operation: Operation) -> tuple[int, int, int]:
    """Parts (batches, groups, slices), and tiles along m and n."""
    parts, m, n, _ = tiles.product(operation)
    return parts, -(-m // tiles.tile[0]), -(-n // tiles.tile[1])
