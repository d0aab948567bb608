"""Attention as one kernel: programs of one attention and views, which read queries, keys and values where they are.

    softmax(scale * query @ key.T + mask) @ value        of each head

See `configurations/cpu/kernels/attention.py` for the kernel.

Microseconds on 16 threads, launches included, by vectors of queries of a block, and of torch's kernel, with all keys in a
block; in a chain, a launch takes 30 to 60 us less:

    batch, heads, length, size         1       2       3       4    torch
    1, 12, 128, 64                   171     123     137     132       93
    1, 12, 197, 64                   276     227     251     239      254
    4, 4, 196, 36                    225     159     207     230      216
    64, 3, 49, 32, with a mask       260     199     263     176      164
    1, 12, 512, 64, causal           949     679     608     525     1012
    1, 8, 1024, 64                  3661    2782    2494    2279     2686
    1, 16, 2048, 128, causal               27402           25278    25965
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

import torch

from dispatch_profiler.boo.fusion.nodes import NotFusible
from dispatch_profiler.boo.fusion.programs.operators import ATTENTION
from dispatch_profiler.boo.fusion.programs.strided import places, result_places, strided
from dispatch_profiler.boo.fusion.programs.values import Calls
from dispatch_profiler.configurations.cpu.kernels.attention import attention_text as attention_kernel
from dispatch_profiler.configurations.cpu.kernels.attention_plan import AttentionPlan
from dispatch_profiler.configurations.cpu.kernels.strided import Strided
from dispatch_profiler.configurations.cpu.kernels.writer import LANES

#: Numbers of vectors of queries of a block, and the time of a block relative to its number of vectors.
_BLOCKS = {1: 1.5, 2: 1.12, 3: 1.08, 4: 1.0}
#: Threads that blocks are divided for.
_THREADS = 16
#: Keys of a block, unless all keys are few.
_KEYS, _FEW_KEYS = 192, 384
#: Bytes of the scratch memory of a workgroup at most.
_MOST_SCRATCH = 2**22


def attention_text(program: Calls, function: str) -> str:
    """MLIR text with the function `function`, as `linalg_text` has it, and its kernel. Raises NotFusible."""
    return attention_kernel(function, program.operands, program.results, attention_plan(program))


@lru_cache(maxsize=64)
def attention_plan(program: Calls) -> AttentionPlan:
    """The plan of a program. Raises NotFusible if it has more than one attention and views."""
    from torch._subclasses.fake_tensor import unset_fake_temporarily

    unset: Any = unset_fake_temporarily
    with unset(), torch.no_grad():
        try:
            return _plan(program)
        except (RuntimeError, TypeError, ValueError, IndexError) as error:
            raise NotFusible(f"an attention: {error}"[:200]) from error


def _plan(program: Calls) -> AttentionPlan:
    """Computes the views of a program on tensors whose elements are their own places in memory."""
    if len(program.returned) != 1:
        raise NotFusible("it has several results")
    calls: list[_Call] = []

    def attend(*arguments: Any, **named: Any) -> list[Any]:
        calls.append(_Call(*arguments, **named))
        return [calls[-1].result]

    returned, starts = places(program, {ATTENTION: attend})
    (call,) = calls
    result = result_places(program, returned, call.result.shape)
    plan = _planned(call, starts, result)
    types = {program.inputs[each.source].type for each in (plan.key, plan.value)}
    plan = replace(plan, is_narrow=types != {"f32"})
    _check(plan)
    return plan


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


def _planned(call: _Call, starts: Sequence[int], result: Strided) -> AttentionPlan:
    query, key, value, mask = call.query, call.key, call.value, call.attn_mask
    if query.dim() == 4 == key.dim() and key.shape[1] and query.shape[1] % key.shape[1] == 0:
        key, value = (each.repeat_interleave(query.shape[1] // key.shape[1], 1) for each in (key, value))
    if call.dropout_p or query.shape[:2] != key.shape[:2] or key.shape != value.shape:
        raise NotFusible("it has dropout, or other numbers of heads or elements of keys than of queries")
    batch, heads, queries, size = query.shape
    scale = 1.0 / math.sqrt(size) if call.scale is None else float(call.scale)
    keys = key.shape[2]
    return AttentionPlan(
        batch=batch,
        heads=heads,
        queries=queries,
        keys=keys,
        size=size,
        value_size=size,
        scale=scale,
        query=strided(query, starts),
        key=strided(key, starts),
        value=strided(value, starts),
        mask=None if mask is None else strided(mask.expand(batch, heads, queries, keys), starts),
        result=result,
        vectors=_vectors(batch * heads, queries),
        block=keys if keys <= _FEW_KEYS else _KEYS,
        position=0 if call.is_causal else None,
    )


def _vectors(heads: int, queries: int) -> int:
    """Vectors of queries of a block: as many as keep the threads busy with few queries that do not exist."""

    def rounds(vectors: int) -> float:
        units = heads * -(-queries // (vectors * LANES))
        return -(-units // _THREADS) * vectors * _BLOCKS[vectors]

    return min(_BLOCKS, key=rounds)


def _check(plan: AttentionPlan) -> None:
    """Raise NotFusible if the kernel cannot compute the plan."""
    if reason := plan.problem():
        raise NotFusible(reason)
    if 4 * plan.scratch > _MOST_SCRATCH:
        raise NotFusible(f"it has {plan.keys} keys")
