"""`boo_attention`: attention of tensors, computed by kernels of this package."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as functional

from dispatch_profiler.boo.driver.launch import get_launchable
from dispatch_profiler.boo.environment import LOGGER, launch_settings, settings_state
from dispatch_profiler.boo.kernels.targets import CPU, target_of
from dispatch_profiler.boo.kernels.variants import has_rule
from dispatch_profiler.boo.launching import Launchable
from dispatch_profiler.boo.launching.torch_types import EXACT_STRIDES, NAMES, PLAIN, Tensor
from dispatch_profiler.boo.op_exports.attention import AttentionSignature
from dispatch_profiler.boo.ops.flops import Shape, count_flops
from dispatch_profiler.boo.ops.library import autograd_function, define, is_eager
from dispatch_profiler.boo.session import SESSION
from dispatch_profiler.errors import DispatchProfilerError
from dispatch_profiler.runtime.device_uri import DeviceUri

_log = logging.getLogger(LOGGER)
_C: Any = torch._C
_attend: Callable[..., Tensor] = functional.scaled_dot_product_attention
_LIMIT = 1024
_launchables: dict[Any, Launchable | None] = SESSION.keep("attentions", {})


def boo_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """`torch.nn.functional.scaled_dot_product_attention` of tensors (batch, heads, positions, elements).

    torch computes what kernels do not: dropout, types other than f32, bf16 and f16, CPUs without AVX-512, and GPUs for which
    Triton compiles no kernel. It also computes gradients, autocast, transformations of `torch.func` and graphs of `torch.compile`, whose backends find
    attention themselves; and it rejects what is invalid. Raises UsageError for an invalid environment variable.
    """
    given = query, key, value, attn_mask
    named = {"scale": scale, "enable_gqa": enable_gqa}
    if (
        dropout_p == 0.0
        and not torch.compiler.is_compiling()
        and all(isinstance(each, torch.Tensor) for each in given[:3])
        and (attn_mask is None or type(attn_mask) in PLAIN)
        and is_eager(query, key, value)
        and _fits(query, key, value, attn_mask, is_causal, enable_gqa)
    ):
        needs_gradient = torch.is_grad_enabled() and any(
            each is not None and each.requires_grad for each in given
        )
        run = _apply if needs_gradient else _compute
        return run(query, key, value, attn_mask, is_causal, scale, enable_gqa)
    return _attend(query, key, value, attn_mask, dropout_p, is_causal, **named)


def _fits(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, is_causal: bool, enable_gqa: bool
) -> bool:
    """Whether kernels compute it. torch makes something of other arguments, as a rule an error."""
    device, given = query.device, (query, key, value)
    alike = all(each.dtype is query.dtype and each.device == device and each.dim() == 4 for each in given)
    if not alike or query.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        return False
    if device.type not in ("cpu", "cuda") or (device.type == "cuda" and torch.version.hip):
        return False
    batch, heads, queries, size = query.shape
    _, key_heads, keys, _ = key.shape
    shares = heads == key_heads or (enable_gqa and key_heads and heads % key_heads == 0)
    fits = key.shape == (batch, key_heads, keys, size) and value.shape[:3] == key.shape[:3]
    if not (shares and fits and query.numel() and value.numel()):
        return False
    if mask is None:
        return True
    scores = (batch, heads, queries, keys)
    return (
        not is_causal
        and mask.device == device
        and mask.dtype in (torch.bool, query.dtype)
        and mask.dim() <= 4
        and mask.shape[-1:] == scores[-1:]
        and all(extent in (1, whole) for extent, whole in zip(_of_four(mask).shape, scores, strict=True))
    )


def _of_four(mask: Tensor) -> Tensor:
    """A mask with ones before its extents if it has fewer than four."""
    return mask.reshape((1,) * (4 - mask.dim()) + tuple(mask.shape))


# -- launches ----------------------------------------------------------------------------------------


def _compute(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
) -> Tensor:
    layout = _layout(query, key, value)
    shape = None if mask is None else tuple(_of_four(mask).shape)
    types = query.dtype, None if mask is None else mask.dtype
    shapes = query.shape, key.shape, value.shape
    place = query.device, *shapes, shape, types, is_causal, scale, layout, settings_state()
    if place not in _launchables:
        if len(_launchables) >= _LIMIT:
            _launchables.clear()
        _launchables[place] = _launchable(query, key, value, mask, is_causal, scale)
    launchable = _launchables[place]
    if launchable is not None:
        operands = [each.transpose(1, 2) if layout == "bshd" else each for each in (query, key, value)]
        if mask is not None:
            operands.append(_of_four(mask.view(torch.int8) if mask.dtype is torch.bool else mask))
        try:
            with _C._AutoDispatchBelowADInplaceOrView():
                result = launchable(*(each.contiguous() for each in operands))
                return result.transpose(1, 2) if layout == "bshd" else result
        except DispatchProfilerError as error:
            launch_settings()  # raises if the environment is invalid
            _log.warning("an attention of %s is computed by torch: %s", tuple(query.shape), error)
            _launchables[place] = None
    return _attend(query, key, value, mask, 0.0, is_causal, scale=scale, enable_gqa=enable_gqa)


def _layout(*tensors: Tensor) -> str:
    """Whether positions are before heads in memory, without gaps: transposed views of what linear layers made."""
    has_positions_first = all(each.transpose(1, 2).is_contiguous() for each in tensors)
    return "bshd" if has_positions_first else "bhsd"


def _launchable(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, is_causal: bool, scale: float | None
) -> Launchable | None:
    """None if torch is to compute it."""
    try:
        signature = attention_signature(query, key, value, mask, is_causal, scale)
        return None if signature is None else get_launchable(signature)
    except DispatchProfilerError as error:
        launch_settings()  # raises if the environment is invalid
        _log.info("an attention of %s is computed by torch: %s", tuple(query.shape), error)
        return None


def attention_signature(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, is_causal: bool, scale: float | None
) -> AttentionSignature | None:
    """The signature of an attention of tensors, which may be fake; None if torch is to compute it.

    Without a kernel of this package, the compiler's is slower than torch's. Raises DispatchProfilerError for what the operation
    does not express.
    """
    if not _fits(query, key, value, mask, is_causal, enable_gqa=True):
        return None
    signature = AttentionSignature(
        query_shape=query.shape,
        key_shape=key.shape,
        value_shape=value.shape,
        mask_shape=None if mask is None else tuple(_of_four(mask).shape),
        mask_dtype="bool" if mask is None or mask.dtype is torch.bool else NAMES[mask.dtype],
        is_causal=is_causal,
        scale=scale,
        dtype=query.dtype,
        layout=_layout(query, key, value),
    )
    return signature if has_rule(signature.operation, target_of(attention_device(query))) else None


def attention_device(query: Tensor) -> DeviceUri:
    """The device whose kernels attend to these queries."""
    return DeviceUri(CPU) if query.device.type == "cpu" else DeviceUri("cuda", str(query.device.index or 0))


# -- operator ----------------------------------------------------------------------------------------


def _attended(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, is_causal: bool, scale: float | None
) -> Tensor:
    """The operator of graphs, with fewer heads of keys than of queries, too."""
    result = _compute(query, key, value, mask, is_causal, scale, query.shape[1] != key.shape[1])
    stored = result.transpose(1, 2) if _layout(query, key, value) == "bshd" else result
    # torch's results, if it computes after all, may be in another order.
    return result if stored.is_contiguous() else _empty_result(query, key, value).copy_(result)


def _empty_result(query: Tensor, key: Tensor, value: Tensor, *_: Any) -> Tensor:
    batch, heads, positions, _size = query.shape
    if _layout(query, key, value) == "bshd":
        return query.new_empty(batch, positions, heads, value.shape[3]).transpose(1, 2)
    return query.new_empty(batch, heads, positions, value.shape[3])


#: `dispatch_profiler::attention`. It keeps no tensors: CUDA graphs may have it.
ATTENTION = define(
    "attention(Tensor query, Tensor key, Tensor value, Tensor? mask, bool is_causal, float? scale) -> Tensor",
    _attended,
    _empty_result,
    tags=(EXACT_STRIDES,),
)


def _flops(query: Shape, key: Shape, value: Shape, *_: Any, **__: Any) -> int:
    """As torch counts: two products."""
    batch, heads, positions, size = query
    return 2 * batch * heads * positions * key[2] * (size + value[3])


count_flops("attention", _flops)


# -- autograd ----------------------------------------------------------------------------------------


def _attention_forward(ctx: Any, *args: Any) -> Tensor:
    query, key, value, mask, *ctx.rest = args
    ctx.save_for_backward(query, key, value, mask)
    return _compute(query, key, value, mask, *ctx.rest)


def _attention_backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    """torch's gradients. torch's own forward is computed again: its gradients need what only that knows."""
    is_causal, scale, enable_gqa = ctx.rest
    tensors = ctx.saved_tensors
    is_differentiated = torch.is_grad_enabled()
    with torch.enable_grad():
        if not is_differentiated:
            tensors = [
                each if each is None else each.detach().requires_grad_(needed)
                for each, needed in zip(tensors, ctx.needs_input_grad, strict=False)
            ]
        result = _attend(*tensors, 0.0, is_causal, scale=scale, enable_gqa=enable_gqa)
    needed = [at for at in range(len(tensors)) if ctx.needs_input_grad[at]]
    found = torch.autograd.grad(
        result, [tensors[at] for at in needed], gradient, create_graph=is_differentiated
    )
    by_place = dict(zip(needed, found, strict=True))
    return *(by_place.get(at) for at in range(len(tensors))), None, None, None


_, _apply = autograd_function(_attention_forward, _attention_backward)
