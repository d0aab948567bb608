"""The Triton kernel of an attention on NVIDIA GPUs if none was tuned.

Microseconds on an H200, f16, in a CUDA graph: of the fastest of 8 to 20 kernels, of the first kernel here, and of the fastest
of torch's kernels (flash, cuDNN, memory-efficient):

    heads of keys x queries x keys x elements    fastest    here    torch
    16 x 4096 x 4096 x 128                           269     269      212
    16 x 4096 x 4096 x 128, causal                   161     161      153
    16 x 4096 x 4096 x 64, causal                     82      82      103
    12 x 512 x 512 x 64                              6.3     6.3      9.0
    8, of 4 heads each, x 1 x 8192 x 128             9.9    10.9     10.7
    8, of 4 heads each, x 1 x 1024 x 128             5.0     5.0      6.5
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from dispatch_profiler.configurations import GpuLimits, TritonAttention
from dispatch_profiler.configurations.triton.limits import SMALLEST, power_of_two, processors_of
from dispatch_profiler.operations import AttentionGeometry, Operation
from dispatch_profiler.targets._base import Target

#: Keys of a part at least, if keys are split.
_LEAST_KEYS = 64
#: Elements of a query from which on a tile of more rows needs more warps.
_LARGE = 64


def ranked_triton_attention(operation: Operation, target: Target) -> tuple[TritonAttention, ...]:
    """The kernels of an attention, the likely fastest first; empty for other operations and targets."""
    attention, gpu = operation.attention, target.limits.gpu
    if attention is None or gpu is None or target.limits.backend != "cuda":
        return ()
    precision = "tf32x3" if operation.element_type.name == "f32" else "ieee"
    ranked = (replace(each, precision=precision) for each in _ranked(attention, gpu))
    fitting = dict.fromkeys(_fitting(each, operation, gpu) for each in ranked)
    return tuple(each for each in fitting if each.invalid_reason(operation, target.limits) is None)


def _ranked(attention: AttentionGeometry, gpu: GpuLimits) -> Iterator[TritonAttention]:
    processors = processors_of(gpu)
    # Few queries leave rows of a tile empty, unless other heads' queries fill them.
    fitting = range(1, max(1, SMALLEST // attention.queries) + 1)
    heads = max(each for each in fitting if attention.shared % each == 0)
    if heads * attention.queries <= SMALLEST:
        few = TritonAttention(tile=(SMALLEST, 64), heads=heads)
        yield _divided(few, attention, processors)
        yield _divided(replace(few, stages=2), attention, processors)
    else:
        # Large tiles read keys less often, but leave multiprocessors idle if they are few.
        large = TritonAttention(tile=(128, 64))
        if attention.size > _LARGE:
            large = TritonAttention(tile=(128, 128), warps=8)
        is_large = large.workgroups(attention) >= 2 * processors
        if is_large and not (attention.causal and attention.size > _LARGE):
            yield large
        yield TritonAttention(tile=(64, 64))
    yield TritonAttention(tile=(SMALLEST, SMALLEST), stages=1)


def _divided(kernel: TritonAttention, attention: AttentionGeometry, processors: int) -> TritonAttention:
    """With as many parts of the keys as keep all multiprocessors busy."""
    wanted = processors / kernel.workgroups(attention)
    most = max(1, attention.keys // _LEAST_KEYS)
    parts = 1 << max(0, min(math.floor(math.log2(most)), math.floor(math.log2(max(wanted, 1.0)))))
    return replace(kernel, parts=parts if attention.keys > 2 * _LEAST_KEYS else 1)


def _fitting(kernel: TritonAttention, operation: Operation, gpu: GpuLimits) -> TritonAttention:
    """With a tile that is no larger than necessary, and so few stages that they fit into shared memory with the queries."""
    attention = operation.attention
    assert attention is not None
    m = min(kernel.tile[0], max(SMALLEST, power_of_two(kernel.heads * attention.queries)))
    n = min(kernel.tile[1], max(SMALLEST, power_of_two(attention.keys)))
    kernel = replace(kernel, tile=(m, n))
    fits = (
        stages
        for stages in range(kernel.stages, 1, -1)
        if kernel.shared_bytes(operation, stages) <= gpu.device_shared_bytes
    )
    return replace(kernel, stages=next(fits, 1))
