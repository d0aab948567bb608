"""The kernels that launches use without an entry of a library, if rules know any: otherwise, forms.

They divide the work for the threads at hand.
"""

from __future__ import annotations

from collections.abc import Iterator

from dispatch_profiler.configurations import Configuration
from dispatch_profiler.operations import Operation
from dispatch_profiler.targets._base import Target
from dispatch_profiler.targets.untuned.amx_microkernels import amx_microkernel
from dispatch_profiler.targets.untuned.attention import ranked_attention
from dispatch_profiler.targets.untuned.depthwise_gradients import ranked_depthwise_gradients
from dispatch_profiler.targets.untuned.int4_products import ranked_int4_microkernels
from dispatch_profiler.targets.untuned.norms import norm_tiles
from dispatch_profiler.targets.untuned.packed_kernels import packed_kernels, unpacked_kernels
from dispatch_profiler.targets.untuned.triton.attention import ranked_triton_attention
from dispatch_profiler.targets.untuned.triton.rows import ranked_triton_rows
from dispatch_profiler.targets.untuned.triton.tiles import ranked_triton_tiles


def untuned_kernels(
    operation: Operation, target: Target, *, packs_weight: bool = False
) -> Iterator[Configuration]:
    """Kernels for a constant weight, or for operands that may change in every call, the likely fastest first."""
    amx = amx_microkernel(operation, target, packs_weight=packs_weight)
    if amx is not None:
        yield amx
    kernels = packed_kernels if packs_weight else unpacked_kernels
    yield from kernels(operation, target)
    yield from ranked_depthwise_gradients(operation, target)
    yield from ranked_attention(operation, target)
    yield from ranked_int4_microkernels(operation, target)
    yield from ranked_triton_attention(operation, target)
    yield from ranked_triton_rows(operation, target)
    yield from ranked_triton_tiles(operation, target)
    norm = norm_tiles(operation, target)
    if norm is not None:
        yield norm
