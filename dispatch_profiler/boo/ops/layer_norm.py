"""`boo_layer_norm`: layer norms of tensors, computed by kernels of this package."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as functional

from dispatch_profiler.boo.driver.launch import get_launchable
from dispatch_profiler.boo.environment import (
    LOGGER,
    launch_settings,
    settings_state,
    uses_backward_kernels,
)
from dispatch_profiler.boo.launching import Launchable
from dispatch_profiler.boo.launching.torch_types import PLAIN, Tensor
from dispatch_profiler.boo.op_exports import Mode
from dispatch_profiler.boo.op_exports.layer_norm import LayerNormSignature
from dispatch_profiler.boo.ops.library import (
    autograd_function,
    define,
    is_eager,
    register_autograd,
    untraced,
    uses_torch,
)
from dispatch_profiler.boo.session import SESSION
from dispatch_profiler.errors import DispatchProfilerError, OperationError

_log = logging.getLogger(LOGGER)
_aten: Any = torch.ops.aten
_C: Any = torch._C
#: Element types -> the types of mean and rstd.
_STATISTICS = {
    torch.float64: torch.float64,
    torch.float32: torch.float32,
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
}
_LIMIT = 1024
_launchables: dict[Any, Launchable | None] = SESSION.keep("layer_norms", {})

Three = tuple[Tensor, Tensor, Tensor]


def boo_layer_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """`torch.nn.functional.layer_norm`, over the last axes of `input`.

    What kernels do not compute, such as a weight of another type, is computed by torch, also in autocast
    and in transformations of `torch.func`; torch rejects what is invalid. Gradients are computed by torch, or by
    kernels with BOO_USE_BACKWARD_KERNELS=1. Raises UsageError for an invalid environment variable.
    """
    if not isinstance(normalized_shape, (tuple, list)) or not all(map(_is_extent, normalized_shape)):
        return functional.layer_norm(input, normalized_shape, weight, bias, eps)
    shape = tuple(normalized_shape)
    if not untraced(_fits, input, shape, weight, bias, eps) or _C._is_any_autocast_enabled():
        return functional.layer_norm(input, shape, weight, bias, eps)
    if not torch.compiler.is_compiling() and is_eager(input, weight, bias):
        tensors = (input, weight, bias)
        if torch.is_grad_enabled() and any(each is not None and each.requires_grad for each in tensors):
            return _apply_eagerly(_compute, input, shape, weight, bias, eps)[0]
        return _compute(input, shape, weight, bias, eps)[0]
    if _C._are_functorch_transforms_active() or uses_torch(input, weight, bias):
        return functional.layer_norm(input, shape, weight, bias, eps)
    return layer_norm(input, shape, weight, bias, eps)[0]


def _is_extent(value: Any) -> bool:
    return isinstance(value, (int, torch.SymInt)) and not isinstance(value, bool)


def _fits(x: Any, shape: tuple[int, ...], w: Any, b: Any, eps: Any) -> bool:
    """Whether these are arguments of the operator. torch makes something of others, as a rule an error."""
    if not isinstance(x, torch.Tensor) or not shape or tuple(x.shape[-len(shape) :]) != shape:
        return False
    affine = [each for each in (w, b) if each is not None]
    return (
        isinstance(eps, float)
        and 0 < eps < math.inf
        and x.dtype in _STATISTICS
        and all(isinstance(each, torch.Tensor) for each in affine)
        and all(
            tuple(each.shape) == shape and each.dtype is x.dtype and each.device == x.device
            for each in affine
        )
    )


# -- the operators -----------------------------------------------------------------------------------


def _launch(
    mode: Mode, x: Tensor, shape: tuple[int, ...], has: tuple[bool, bool], eps: float, *args: Tensor
) -> Any:
    """What a launch returns, which has weight and bias, or not; None if torch has to compute it."""
    key = mode, x.shape, x.dtype, x.device, shape, has, eps, settings_state()
    if key not in _launchables:
        if len(_launchables) >= _LIMIT:
            _launchables.clear()
        _launchables[key] = _launchable(mode, x, shape, has, eps)
    launchable = _launchables[key]
    if launchable is None or any(type(each) not in PLAIN for each in args):
        return None
    try:
        with _C._AutoDispatchBelowADInplaceOrView():
            return launchable(*(each.contiguous() for each in args))
    except DispatchProfilerError as error:
        launch_settings()  # raises if the environment is invalid
        _log.warning("a layer norm of %s is computed by torch: %s", tuple(x.shape), error)
        _launchables[key] = None
        return None


def _launchable(
    mode: Mode, x: Tensor, shape: tuple[int, ...], has: tuple[bool, bool], eps: float
) -> Launchable | None:
    if x.device.type not in ("cpu", "cuda") or (x.is_cuda and torch.version.hip) or not x.numel():
        return None
    try:
        signature = LayerNormSignature(
            input_shape=x.shape,
            normalized_shape=shape,
            eps=eps,
            elementwise_affine=has[0],
            bias=has[1],
            dtype=x.dtype,
            mode=mode,
        )
        _ = signature.launch  # raises here, not at the first launch
        return get_launchable(signature)
    except OperationError as error:
        _log.info("a layer norm of %s is computed by torch: %s", tuple(x.shape), error)
        return None


def _compute(x: Tensor, shape: Sequence[int], w: Tensor | None, b: Tensor | None, eps: float) -> Three:
    affine = [each for each in (w, b) if each is not None]
    launched = _launch(Mode.FORWARD, x, tuple(shape), (w is not None, b is not None), eps, x, *affine)
    if launched is not None:
        return launched
    y, mean, rstd = torch.native_layer_norm(x, shape, w, b, eps)
    return y, mean.to(_STATISTICS[x.dtype]), rstd.to(_STATISTICS[x.dtype])


def _compute_input_gradient(
    dy: Tensor, x: Tensor, shape: Sequence[int], mean: Tensor, rstd: Tensor, w: Tensor | None, eps: float
) -> Tensor:
    affine = [] if w is None else [w]
    args = (dy, x, *affine, mean, rstd)
    launched = _launch(Mode.INPUT_BACKWARD, x, tuple(shape), (w is not None,) * 2, eps, *args)
    if launched is not None:
        return launched
    gradients = _by_torch(dy, x, shape, (mean, rstd), (w, w), [True, False, False])
    return gradients[0].contiguous()  # type: ignore[union-attr]


def _compute_affine_gradients(
    dy: Tensor, x: Tensor, shape: Sequence[int], mean: Tensor, rstd: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    return _affine_gradients(True, dy, x, tuple(shape), (mean, rstd), eps)


def _compute_weight_gradient(
    dy: Tensor, x: Tensor, shape: Sequence[int], mean: Tensor, rstd: Tensor, eps: float
) -> Tensor:
    return _affine_gradients(False, dy, x, tuple(shape), (mean, rstd), eps)


def _affine_gradients(
    has_bias: bool, dy: Tensor, x: Tensor, shape: tuple[int, ...], statistics: Sequence[Tensor], eps: float
) -> Any:
    """The gradients of weight and bias, or without a bias the gradient of the weight alone."""
    launched = _launch(Mode.WEIGHT_BACKWARD, x, shape, (True, has_bias), eps, dy, x, *statistics)
    if launched is not None:
        return launched
    ones = x.new_ones(shape)  # only its shape counts
    affine, mask = (ones, ones if has_bias else None), [False, True, has_bias]
    _, dw, db = _by_torch(dy, x, shape, statistics, affine, mask)
    return (dw, db) if has_bias else dw


def _by_torch(
    dy: Tensor,
    x: Tensor,
    shape: Sequence[int],
    statistics: Sequence[Tensor],
    affine: Sequence[Any],
    mask: list[bool],
) -> Sequence[Tensor | None]:
    """torch's gradients. On a CPU, it expects statistics in the type of the elements."""
    mean, rstd = (each.to(x.dtype) if x.is_cpu else each for each in statistics)
    return _aten.native_layer_norm_backward.default(dy.contiguous(), x, shape, mean, rstd, *affine, mask)


def _fake(x: Tensor, shape: Sequence[int], w: Tensor | None, b: Tensor | None, eps: float) -> Three:
    rows = [*x.shape[: x.dim() - len(shape)], *(1 for _ in shape)]
    statistics = [x.new_empty(rows, dtype=_STATISTICS[x.dtype]) for _ in range(2)]
    return x.new_empty(x.shape), statistics[0], statistics[1]


def _fake_input_gradient(dy: Tensor, x: Tensor, *_: Any) -> Tensor:
    return x.new_empty(x.shape)


def _fake_affine_gradients(dy: Tensor, x: Tensor, shape: Sequence[int], *_: Any) -> tuple[Tensor, Tensor]:
    return x.new_empty(shape), x.new_empty(shape)


def _fake_weight_gradient(dy: Tensor, x: Tensor, shape: Sequence[int], *_: Any) -> Tensor:
    return x.new_empty(shape)


layer_norm = define(
    "layer_norm(Tensor input, SymInt[] normalized_shape, Tensor? weight, Tensor? bias, float eps)"
    " -> (Tensor, Tensor, Tensor)",
    _compute,
    _fake,
)
input_gradient = define(
    "layer_norm_input_backward(Tensor grad_output, Tensor input, SymInt[] normalized_shape, Tensor mean, Tensor rstd,"
    " Tensor? weight, float eps) -> Tensor",
    _compute_input_gradient,
    _fake_input_gradient,
)
affine_gradients = define(
    "layer_norm_affine_backward(Tensor grad_output, Tensor input, SymInt[] normalized_shape, Tensor mean, Tensor rstd,"
    " float eps) -> (Tensor, Tensor)",
    _compute_affine_gradients,
    _fake_affine_gradients,
)
weight_gradient = define(
    "layer_norm_weight_backward(Tensor grad_output, Tensor input, SymInt[] normalized_shape, Tensor mean, Tensor rstd,"
    " float eps) -> Tensor",
    _compute_weight_gradient,
    _fake_weight_gradient,
)


# -- autograd ----------------------------------------------------------------------------------------


def _layer_norm_forward(
    ctx: Any, run: Callable[..., Three], x: Tensor, shape: Any, w: Tensor | None, b: Tensor | None, eps: float
) -> Three:
    """`run` computes the results."""
    y, mean, rstd = run(x, shape, w, b, eps)
    ctx.save_for_backward(x, mean, rstd, w, b)
    ctx.shape, ctx.eps = shape, eps
    ctx.mark_non_differentiable(mean, rstd)
    return y, mean, rstd


def _layer_norm_backward(ctx: Any, dy: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
    x, mean, rstd, w, b = ctx.saved_tensors
    needs = [bool(ctx.needs_input_grad[at]) for at in (1, 3, 4)]
    # A second derivative needs operators that autograd knows, which are torch's.
    if uses_backward_kernels() and not torch.is_grad_enabled():
        dx = input_gradient(dy, x, ctx.shape, mean, rstd, w, ctx.eps) if needs[0] else None
        dw, db = _affine_by_kernels(dy, x, ctx.shape, (mean, rstd, ctx.eps), needs[1:])
    else:
        dx, dw, db = _by_torch(dy, x, ctx.shape, (mean, rstd), (w, b), needs)
    return None, dx, None, dw, db, None


def _affine_by_kernels(
    dy: Tensor, x: Tensor, shape: Sequence[int], rest: tuple[Tensor, Tensor, float], needs: Sequence[bool]
) -> tuple[Tensor | None, Tensor | None]:
    """The gradients of weight and bias, as far as they are needed; `rest` is mean, rstd and eps."""
    if all(needs):
        return affine_gradients(dy, x, shape, *rest)
    rows = list(range(dy.dim() - len(shape)))
    return (
        weight_gradient(dy, x, shape, *rest) if needs[0] else None,
        (dy.sum(rows) if rows else dy) if needs[1] else None,
    )


_apply, _apply_eagerly = autograd_function(_layer_norm_forward, _layer_norm_backward)


def _differentiable(*args: Any) -> Three:
    return _apply(*args)


register_autograd(layer_norm, _differentiable)
