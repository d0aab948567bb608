"""Attention in programs: one attention and views, which reads queries, keys and values where they are.

    softmax(scale * query @ key.T + mask) @ value        of each head

Such a program has the geometry of an attention, so that the microkernels of attention and their rules serve it, and a library's
entries of the attention without views.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import torch

from dispatch_profiler.boo.fusion.nodes import NotFusible
from dispatch_profiler.boo.fusion.programs.operators import ATTENTION
from dispatch_profiler.boo.fusion.programs.strided import places, result_places, strided
from dispatch_profiler.boo.fusion.programs.values import Calls
from dispatch_profiler.configurations import AttentionMicrokernel
from dispatch_profiler.configurations.cpu.kernels.writer import LANES
from dispatch_profiler.errors import OperationError
from dispatch_profiler.operations import Attention, AttentionGeometry, AttentionPlaces, Operation
from dispatch_profiler.operations.attention import reference as attention_reference
from dispatch_profiler.operations.attention.reference import OnlineSoftmax
from dispatch_profiler.operations.strided import Strided
from dispatch_profiler.targets.untuned.attention import many_queries

#: Threads that blocks of queries are divided for where no rule chooses a kernel.
_THREADS = 16


def attention_text(program: Operation, function: str) -> str:
    """MLIR text with the function `function`, as `linalg_text` has it, and a kernel for CPUs whose kernels no rule chooses."""
    return _usual(program).kernel_text(program, function)


def check_attention(program: Operation) -> None:
    """Raise NotFusible if a program is more than one attention with views, or if its operands cannot be read."""
    if reason := _usual(program).plan_reason(program):
        raise NotFusible(reason)


def _usual(program: Operation) -> AttentionMicrokernel:
    """The kernel of a program for which no rule chooses one."""
    attention = program.attention
    assert attention is not None
    return replace(many_queries(attention, _THREADS)[0], heads=1)


@lru_cache(maxsize=64)
def attention_geometry(program: Calls) -> AttentionGeometry:
    """The attention of a program. Raises NotFusible if it has something else besides one attention and views."""
    from torch._subclasses.fake_tensor import unset_fake_temporarily

    unset: Any = unset_fake_temporarily
    with unset(), torch.no_grad():
        try:
            return _geometry(program)
        except (RuntimeError, TypeError, ValueError, IndexError) as error:
            raise NotFusible(f"an attention: {error}"[:200]) from error


def plain_attention(attention: AttentionGeometry, type_: str) -> Attention | None:
    """The attention without views, of dense operands; None if its mask is none that operands have."""
    mask, axes = attention.places.mask, ""
    if mask is not None:
        if mask.strides[1] and mask.shared > 1:
            return None
        axes = "".join(letter for letter, stride in zip("bhq", mask.strides, strict=False) if stride)
    try:
        return Attention(
            attention.batch,
            attention.heads,
            attention.queries,
            attention.keys,
            attention.size,
            attention.key_heads,
            attention.value_size,
            type_,
            attention.scale,
            attention.causal,
            mask=attention.mask,
            mask_axes=axes,
            layout=attention.layout,
        )
    except OperationError:
        return None


def attention_tolerance(program: Operation, operands: Sequence[np.ndarray]) -> np.ndarray:
    """A bound on the error of each element of a program's result in memory: see `operations/attention/reference.py`."""
    attention, result = program.attention, program.results[0]
    assert attention is not None
    of, memory = attention.places, [each.reshape(-1) for each in operands]

    def read(place: Strided, positions: int, elements: int) -> np.ndarray:
        return memory[place.source][_elements(attention, place, positions, elements)]

    given = [
        read(of.query, attention.queries, attention.size),
        read(of.key, attention.keys, attention.size),
        read(of.value, attention.keys, attention.value_size),
    ]
    if of.mask is not None:
        given.append(read(of.mask, attention.queries, attention.keys))
    dense = replace(attention, key_heads=attention.heads, layout="bhsd")
    bound = OnlineSoftmax(-(-attention.keys // LANES) + 1)
    (found,) = attention_reference.reference(dense, program.element_type, given, error_bound=bound)
    assert found.tolerance is not None
    tolerance = np.empty(result.elements)
    tolerance[_elements(attention, of.result, attention.queries, attention.value_size)] = found.tolerance
    return tolerance.reshape(result.shape)


def _elements(attention: AttentionGeometry, place: Strided, positions: int, elements: int) -> np.ndarray:
    """(batch, heads, positions, elements) -> the number of the element in memory."""
    extents = (attention.batch, attention.heads, positions, elements)
    batch, head, position, element = np.ogrid[tuple(map(slice, extents))]
    index = (batch, head // place.shared, position, element)
    total = sum(at * stride for at, stride in zip(index, place.strides, strict=True))
    return np.broadcast_to(place.offset + total, extents)


def _geometry(program: Calls) -> AttentionGeometry:
    """Computes the views of a program on tensors whose elements are their own places in memory."""
    if len(program.returned) != 1:
        raise NotFusible("it has several results")
    calls: list[_Call] = []

    def attend(*arguments: Any, **named: Any) -> list[Any]:
        calls.append(_Call(*arguments, **named))
        return [calls[-1].result]

    returned, starts = places(program, {ATTENTION: attend})
    (call,) = calls
    return _of_call(call, starts, result_places(program, returned, call.result.shape))


@dataclass(frozen=True)
class _Call:
    """The call of attention in a program: its operands, and the numbers of the elements of its result."""

    query: Any
    key: Any
    value: Any
    dropout_p: float = 0.0
    is_causal: bool = False
    attn_mask: Any = None
    scale: float | None = None

    @cached_property
    def result(self) -> Any:
        return torch.arange(self.query.numel(), device="cpu").reshape(self.query.shape)


def _of_call(call: _Call, starts: Sequence[int], result: Strided) -> AttentionGeometry:
    query, key, value, mask = call.query, call.key, call.value, call.attn_mask
    if query.dim() == 4 == key.dim() and key.shape[1] and query.shape[1] % key.shape[1] == 0:
        key, value = (each.repeat_interleave(query.shape[1] // key.shape[1], 1) for each in (key, value))
    if call.dropout_p or query.shape[:2] != key.shape[:2] or key.shape != value.shape:
        raise NotFusible("it has dropout, or other numbers of heads or elements of keys than of queries")
    batch, heads, queries, size = query.shape
    keys = key.shape[2]
    found = AttentionPlaces(
        query=strided(query, starts),
        key=strided(key, starts),
        value=strided(value, starts),
        result=result,
        mask=None if mask is None else strided(mask.expand(batch, heads, queries, keys), starts),
    )
    is_shared = found.key.shared == found.value.shared
    return AttentionGeometry(
        batch=batch,
        heads=heads,
        queries=queries,
        keys=keys,
        size=size,
        key_heads=heads // found.key.shared if is_shared else heads,
        value_size=size,
        scale=1.0 / math.sqrt(size) if call.scale is None else float(call.scale),
        causal="upper_left" if call.is_causal else "",
        window=0,
        mask="" if mask is None else "add",
        logsumexp=False,
        layout=_layout(found),
        places=found,
    )


def _layout(places: AttentionPlaces) -> str:
    """Whether heads of queries, or of keys if there is one query, are before or behind the positions in memory."""
    _, head, position, _ = places.query.strides if places.query.strides[2] else places.key.strides
    return "bshd" if 0 < head < position else "bhsd"
