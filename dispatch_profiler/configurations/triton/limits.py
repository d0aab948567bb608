"""Which types and tiles Triton supports on a GPU."""

from __future__ import annotations

from collections.abc import Iterator

from dispatch_profiler.configurations._base import GpuLimits, by
from dispatch_profiler.operations import Operation

#: Names of element types -> Triton's pointer types.
TYPES = {"f32": "fp32", "f16": "fp16", "bf16": "bf16", "f8E4M3FN": "fp8e4nv", "i8": "i8", "i32": "i32"}
#: Threads of a warp.
WARP = 32
#: How f32 is multiplied: in f32, on tensor cores in products of parts of 11 or 8 bits, or rounded to 11 bits.
PRECISIONS = ("ieee", "tf32x3", "bf16x6", "tf32")
#: Multiprocessors by compute capability: of an H100 (SXM) and an H200. Each holds at least one workgroup.
PROCESSORS = {90: 132}
#: Multiprocessors of GPUs whose number is not known: an A100 has so many.
_USUAL_PROCESSORS = 108
#: Bytes of scratch memory behind each pointer that Triton passes to every kernel after the kernel's own pointers.
SCRATCH = (16, 16)
#: The smallest extent of a block that Triton multiplies.
SMALLEST = 16
#: Triton rejects blocks with more elements.
_BLOCK = 2**20


def power_of_two(size: int) -> int:
    """The smallest power of two that is at least `size`."""
    return 1 << (size - 1).bit_length()


def processors_of(gpu: GpuLimits) -> int:
    """The multiprocessors of a GPU, or a usual number."""
    return PROCESSORS.get(gpu.device_capability, _USUAL_PROCESSORS)


def gpu_violations(precision: str, operation: Operation, gpu: GpuLimits) -> Iterator[str]:
    """Why Triton does not support the GPU, or `precision` for the element type of `operation`."""
    if gpu.device_capability < 80:
        yield f"the kernels are for sm_80 and newer, but the target is {gpu.device_arch}"
    if precision != "ieee" and operation.element_type.name != "f32":
        yield f"{precision} applies to f32 inputs, not {operation.element_type.name}"


def type_violations(precision: str, operation: Operation, gpu: GpuLimits) -> Iterator[str]:
    """Why the kernels do not support the element types of `operation`, or `precision` for them."""
    yield from gpu_violations(precision, operation, gpu)
    types = operation.as_contraction().types
    if types.input.name not in TYPES or types.result not in TYPES:
        yield f"the kernels support {', '.join(t for t in TYPES if t != 'i32')}, not {types.input.name}"
    if types.result == "f8E4M3FN":
        yield "Triton saturates f8 results, but the operation overflows"
    if types.input.name == "f8E4M3FN" and gpu.device_capability < 89:
        yield f"f8E4M3FN needs sm_89 or newer, but the target is {gpu.device_arch}"


def tile_violations(
    tile: tuple[int, int, int], warps: int, operation: Operation, gpu: GpuLimits
) -> Iterator[str]:
    """Why Triton or the GPU does not support a tile of m, n and k elements, computed by `warps`."""
    for what, value in (*zip(("tile m", "tile n", "tile k"), tile, strict=True), ("warps", warps)):
        if value & (value - 1):
            yield f"{what} must be a power of two for Triton, but is {value}"
    m, n, k = tile
    min_k = {8: 32, 32: 8}.get(operation.element_type.bits, 16)
    if min(m, n) < SMALLEST or k < min_k:
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
