"""Which types and tiles Triton supports on a GPU."""

from __future__ import annotations

from collections.abc import Iterator

from dispatch_profiler.configurations._base import GpuLimits, by
from dispatch_profiler.operations import Operation

#: Names of element types -> Triton's pointer types.
TYPES = {"f32": "fp32", "f16": "fp16", "bf16": "bf16", "f8E4M3FN": "fp8e4nv", "i8": "i8", "i32": "i32"}
#: Threads of a warp.
WARP = 32
#: The smallest tile along m and n.
_SMALLEST = 16
#: Triton rejects blocks with more elements.
_BLOCK = 2**20


def type_violations(precision: str, operation: Operation, gpu: GpuLimits) -> Iterator[str]:
    """Why the kernels do not support the element types of `operation`, or `precision` for them."""
    if gpu.device_capability < 80:
        yield f"the kernels are for sm_80 and newer, but the target is {gpu.device_arch}"
    types = operation.as_contraction().types
    if types.input.name not in TYPES or types.result not in TYPES:
        yield f"the kernels support {', '.join(t for t in TYPES if t != 'i32')}, not {types.input.name}"
    if types.result == "f8E4M3FN":
        yield "Triton saturates f8 results, but the operation overflows"
    if types.input.name == "f8E4M3FN" and gpu.device_capability < 89:
        yield f"f8E4M3FN needs sm_89 or newer, but the target is {gpu.device_arch}"
    if precision != "ieee" and types.input.name != "f32":
        yield f"{precision} applies to f32 inputs, not {types.input.name}"


def tile_violations(
    tile: tuple[int, int, int], warps: int, operation: Operation, gpu: GpuLimits
) -> Iterator[str]:
    """Why Triton or the GPU does not support a tile of m, n and k elements, computed by `warps`."""
    for what, value in (*zip(("tile m", "tile n", "tile k"), tile, strict=True), ("warps", warps)):
        if value & (value - 1):
            yield f"{what} must be a power of two for Triton, but is {value}"
    m, n, k = tile
    min_k = {8: 32, 32: 8}.get(operation.element_type.bits, 16)
    if min(m, n) < _SMALLEST or k < min_k:
        yield f"tiles must be at least 16x16x{min_k} for {operation.element_type.name}, but got {by(tile)}"
    if max(m * n, m * k, n * k) > _BLOCK:
        yield f"a Triton block has at most {_BLOCK} elements, but {by(tile)} has more"
    threads = warps * WARP
    if threads > gpu.threads:
        yield f"{warps} warps are {threads} threads, but {gpu.device_arch} allows {gpu.threads}"
    registers = m * n // threads
    if gpu.registers and registers > gpu.registers:
        yield (
            f"the sums of a {m}x{n} tile need {registers} registers per thread, but {gpu.device_arch} has "
            f"{gpu.registers}: use a smaller tile or more warps"
        )
