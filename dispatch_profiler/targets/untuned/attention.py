"""The microkernel of an attention if none was tuned: as many queries, or parts of the keys, as keep the threads busy."""

from __future__ import annotations

from dataclasses import replace

from dispatch_profiler.configurations import AttentionMicrokernel, Configuration, DecodingMicrokernel
from dispatch_profiler.configurations.cpu.decoding_microkernel import PARTS
from dispatch_profiler.configurations.cpu.kernels.writer import LANES
from dispatch_profiler.cores import usable_threads
from dispatch_profiler.operations import AttentionGeometry, Operation
from dispatch_profiler.targets._base import Target
from dispatch_profiler.targets.untuned.packed_microkernels import has_known_vectors

#: Vectors of queries that are computed together, and the time of each, relative to the fastest.
_VECTORS = {1: 1.5, 2: 1.1, 3: 1.0, 4: 1.0}
#: Keys of a block, unless there are few.
_BLOCK, _FEW_KEYS = 96, 192
#: Keys and values that a thread reads in a microsecond, in bytes, and microseconds of a second kernel, which adds up the parts.
_BYTES_PER_US, _SECOND_KERNEL_US = 15_000.0, 10.0


def ranked_attention(
    operation: Operation, target: Target, threads: int | None = None
) -> tuple[Configuration, ...]:
    """The microkernels of an attention, the likely fastest on `threads` first (default: those at hand).

    Of few queries, kernels that read each key once come first. Empty for other operations, and if the vectors of `target`
    have another or an unknown width.
    """
    attention = operation.attention
    if attention is None or not has_known_vectors(target):
        return ()
    threads = threads or usable_threads()
    few = _of_few_queries(operation, attention, target, threads)
    return (*few, *_of_many_queries(operation, attention, target, threads))


def _of_few_queries(
    operation: Operation, attention: AttentionGeometry, target: Target, threads: int
) -> tuple[Configuration, ...]:
    kernels = DecodingMicrokernel.likely(operation, target.limits)
    element = operation.element_type.bytes
    return tuple(replace(each, parts=_parts(attention, each.heads, element, threads)) for each in kernels)


def _parts(attention: AttentionGeometry, heads: int, element: float, threads: int) -> int:
    """Parts of the keys: the number with which the busiest thread is likely done first."""
    units = attention.batch * attention.heads // heads
    of_unit = attention.keys * (attention.size + attention.value_size) * element / _BYTES_PER_US

    def time(parts: int) -> float:
        return -(-units * parts // threads) * of_unit / parts + _SECOND_KERNEL_US * (parts > 1)

    return min(PARTS, key=lambda parts: (time(parts), parts))


def _of_many_queries(
    operation: Operation, attention: AttentionGeometry, target: Target, threads: int
) -> tuple[Configuration, ...]:
    ranked = many_queries(attention, threads)
    return tuple(each for each in ranked if each.invalid_reason(operation, target.limits) is None)


def many_queries(attention: AttentionGeometry, threads: int) -> tuple[AttentionMicrokernel, ...]:
    """The kernels that compute several queries at a time, the likely fastest first, for any target."""
    # Few queries leave lanes empty, unless other heads' queries fill them.
    heads = attention.shared if attention.queries < LANES else 1
    block = attention.keys if attention.keys <= _FEW_KEYS else _BLOCK
    order = sorted(_VECTORS, key=lambda vectors: (_time(attention, vectors, heads, threads), vectors))
    return tuple(AttentionMicrokernel(vectors, block, heads) for vectors in order)


def _time(attention: AttentionGeometry, vectors: int, heads: int, threads: int) -> float:
    """Vectors that the busiest thread computes."""
    blocks = -(-heads * attention.queries // (vectors * LANES))
    units = attention.batch * attention.heads // heads * blocks
    return -(-units // threads) * vectors * _VECTORS[vectors]
