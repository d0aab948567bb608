"""The matrix products that the benchmarks of GPUs share, and Triton configurations worth trying for each."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import product
from typing import Any

from dispatch_profiler.configurations import TritonTiles
from dispatch_profiler.operations import BatchMatmul, ElementTypes, Matmul, Operation

F16, BF16 = ElementTypes("f16", "f16", "f16"), ElementTypes("bf16", "bf16", "bf16")
#: The IREE dispatch profiler's documentation has a result for it on an A100.
DOCUMENT = Matmul(3456, 1024, 2048, F16)
#: Small, wide, square and deep; batches as in attention.
PRODUCTS: tuple[Operation, ...] = (
    DOCUMENT,
    Matmul(512, 512, 512, F16),
    Matmul(4096, 4096, 4096, F16),
    Matmul(4096, 4096, 4096, BF16),
    Matmul(128, 8192, 4096, BF16),
    Matmul(512, 512, 8192, F16),
    BatchMatmul(32, 512, 512, 64, F16),
    BatchMatmul(32, 512, 64, 512, BF16),
)
#: Tokens, outputs and inputs of projections of Llama 3 8B (qkv, output, gate and up, down), which store weights as
#: outputs x inputs: decoding of 1 and 16 sequences, and prefill.
_PROJECTIONS = (
    (1, 28672, 4096),
    (1, 4096, 14336),
    (16, 6144, 4096),
    (16, 4096, 4096),
    (16, 28672, 4096),
    (128, 4096, 4096),
    (128, 4096, 14336),
    (2048, 6144, 4096),
    (2048, 4096, 14336),
    (4096, 28672, 4096),
)
LLAMA: tuple[Operation, ...] = tuple(Matmul(m, n, k, BF16, rhs_layout="n") for m, n, k in _PROJECTIONS)
#: Without tensor cores.
SINGLE: tuple[Operation, ...] = (Matmul(2048, 2048, 2048),)

#: Multiprocessors of an H100 and an H200, and for each: FLOP and bytes from the L2 cache per microsecond.
PROCESSORS = 132
_FLOP, _BYTES = 6.5e6, 7.6e4
#: Bytes of shared memory of a workgroup, and how many of the best tiles are tried.
_SHARED, _TILES = 225 * 1024, 6


def explored(operation: Operation) -> Iterator[TritonTiles]:
    """Configurations with the tiles and slices that should be fastest, the best ones first."""
    if operation.element_type.name == "f32":
        yield from _explored_single()
        return
    geometry = operation.product
    assert geometry is not None
    candidates = [
        (_estimate(operation, m, n, s), m, n, s)
        for m, n, s in product((16, 32, 64, 128, 256), (16, 32, 64, 128, 256), (1, 2, 4, 8, 16))
        if m <= max(16, 2 * geometry.m - 1) and n <= geometry.n and m * n <= 32768 and s <= m
        and (s == 1 or not geometry.is_batched) and geometry.k % s == 0 and _is_useful(operation, m, n, s)
    ]  # fmt: skip
    for _, m, n, s in sorted(candidates)[:_TILES]:
        yield from _variants(operation, m, n, s)


def _is_useful(operation: Operation, m: int, n: int, slices: int) -> bool:
    """Slices help where tiles are fewer than the multiprocessors, if each is long enough."""
    geometry = operation.product
    assert geometry is not None
    tiles = math.ceil(geometry.m / m) * math.ceil(geometry.n / n)
    return slices == 1 or (tiles * slices <= 2.2 * PROCESSORS and geometry.k // slices >= 256)


def _estimate(operation: Operation, m: int, n: int, slices: int) -> float:
    """Microseconds, roughly: rounds of tiles, limited by arithmetic or by reads, and the partial sums."""
    geometry = operation.product
    assert geometry is not None
    tiles = geometry.batch * math.ceil(geometry.m / m) * math.ceil(geometry.n / n) * slices
    # wgmma computes 64 rows; for fewer, operands are exchanged.
    flop = 2.0 * max(m, 64 if n < 64 else m) * n * geometry.k / slices
    reads = (m + n) * geometry.k / slices * 2
    one = max(flop / _FLOP, reads / _BYTES)
    resident = max(1, min(4, 16384 // (m * n)))
    rounds = math.ceil(tiles / PROCESSORS / resident) * resident if tiles > PROCESSORS else 1
    joined = geometry.m * geometry.n * 4 * 2 * slices / (PROCESSORS * _BYTES) + 1.5 if slices > 1 else 0
    return rounds * one + joined


def _variants(operation: Operation, m: int, n: int, slices: int) -> Iterator[TritonTiles]:
    """Each way to load operands, with pipelines that fill all or half of the shared memory."""
    geometry = operation.product
    assert geometry is not None
    length, tiles = (
        geometry.k // slices,
        math.ceil(geometry.m / m) * math.ceil(geometry.n / n) * geometry.batch,
    )

    def made(k: int, share: int = 1, **fields: Any) -> TritonTiles:
        stages = max(2, min(8, _SHARED // share // ((m + n) * k * 2), length // k + 1))
        common = {"warps": 8 if m * n > 128 * 128 else 4, "split_k": slices, "joined": slices > 1}
        return TritonTiles(
            tile=(m, n, min(k, length)), **common | {"stages": stages, "descriptors": True} | fields
        )

    if min(m, n) < 64:
        swapped = {"swapped": True} if m < 64 <= n else {}
        yield from (made(128, **swapped), made(128, 2, **swapped), made(64, **swapped), made(256, **swapped))
        yield from (made(128, descriptors=False, **swapped), made(128, 2, descriptors=False, **swapped))
        if swapped:
            yield from (made(128), made(128, descriptors=False), made(128, 2, descriptors=False))
        return
    yield from (made(64), made(64, 2), made(64, descriptors=False), made(128), made(64, group=1))
    yield made(64, warps=8 if m * n <= 128 * 128 else 4)
    if slices == 1 and tiles > PROCESSORS:
        yield from (made(64, persistent=PROCESSORS), made(64, 2, persistent=2 * PROCESSORS))


def _explored_single() -> Iterator[TritonTiles]:
    """Without tensor cores, and on them in parts of 11 or 8 bits, which keep the accuracy."""
    sides = ((128, 128), (128, 64), (64, 128), (64, 64), (256, 64), (64, 256), (256, 128), (128, 256))
    for (m, n), warps, stages in product(sides, (4, 8), (2, 3)):
        values = m * n // (warps * 32)
        if 32 <= values <= 128:
            yield TritonTiles(tile=(m, n, 16), warps=warps, stages=stages)
        for precision, k in product(("tf32x3", "bf16x6"), (16, 32)):
            if values <= 64:
                yield TritonTiles(tile=(m, n, k), warps=warps, stages=stages, precision=precision)
