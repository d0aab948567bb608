"""Definitions of operators for the dispatcher of PyTorch, in the namespace `dispatch_profiler`.

`torch.library.Library` is used instead of `torch.library.custom_op`, whose operators take several times as long to call.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch

from dispatch_profiler.boo.launching.torch_types import OUTSIDE_OF_CUDA_GRAPHS, PLAIN, Tensor

NAMESPACE = "dispatch_profiler"
Value = TypeVar("Value")
#: torch as Any, because parts of it are untyped.
_torch: Any = torch
#: Operators exist as long as their library does.
LIBRARY: Any = _torch.library.Library(NAMESPACE, "FRAGMENT")
_C: Any = _torch._C
_forward_gradients: Any = _torch.autograd.forward_ad


def define(
    schema: str,
    compute: Callable[..., Any],
    fake: Callable[..., Any],
    *,
    tags: Sequence[Any] = OUTSIDE_OF_CUDA_GRAPHS,
) -> Any:
    """An operator with this schema, computed by `compute` on every device; `fake` returns empty results."""
    LIBRARY.define(schema, tags=(torch.Tag.pt2_compliant_tag, *tags))
    name = schema[: schema.index("(")]
    LIBRARY.impl(name, _by_name(compute), "CompositeExplicitAutograd")
    _torch.library.register_fake(f"{NAMESPACE}::{name}", _by_name(fake), lib=LIBRARY)
    return packet(name).default


def packet(name: str) -> Any:
    """The operator `name` of our namespace, with all of its overloads."""
    return getattr(getattr(_torch.ops, NAMESPACE), name)


def register_vmap(operator: Any, batched: Callable[..., Any]) -> None:
    """Let `batched(info, in_dims, *args)` compute `operator` in `torch.vmap`."""
    _torch.library.register_vmap(f"{NAMESPACE}::{operator._opname}", _by_name(batched), lib=LIBRARY)


def autograd_function(
    forward: Callable[..., Any], backward: Callable[..., Any]
) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """The `apply` of an autograd.Function with these methods, whose graphs refer to none of their modules.

    The second one is faster, and only for calls that `is_eager` accepts: it knows nothing of `torch.func`.
    """
    methods = {"forward": staticmethod(_by_name(forward)), "backward": staticmethod(_by_name(backward))}
    name = forward.__name__.strip("_").title().replace("_", "")
    function: Any = type(name, (torch.autograd.Function,), methods)
    return function.apply, super(torch.autograd.Function, function).apply


def _by_name(function: Callable[..., Any]) -> Callable[..., Any]:
    """What calls a function of a module, without a reference to it.

    torch keeps what it is given until the process ends, and with a function its module's globals. Devices of IREE, which
    these reach, have to be gone before.
    """
    module, name = function.__module__, function.__name__

    def call(*args: Any) -> Any:
        return getattr(sys.modules[module], name)(*args)

    return call


def _any_requires_grad(*args: Any) -> bool:
    """As torch's own, which is faster, and which torch 2.6 lacks."""
    lists = [each for each in args if isinstance(each, (tuple, list))]
    tensors = [each for every in (args, *lists) for each in every if isinstance(each, torch.Tensor)]
    return any(each.requires_grad for each in tensors)


_require_gradients: Callable[..., bool] = getattr(_C, "_any_requires_grad", _any_requires_grad)


def register_autograd(operator: Any, differentiable: Callable[..., Any]) -> None:
    """Let `differentiable(run, *args)` compute `operator` where autograd needs it. `run(*args)` is the operator itself."""

    differentiable = _by_name(differentiable)

    def autograd(keys: Any, *args: Any) -> Any:
        def run(*args: Any) -> Any:
            with _C._AutoDispatchBelowAutograd():
                return operator.redispatch(keys & _C._after_autograd_keyset, *args)

        if torch.is_grad_enabled() and _require_gradients(*args):
            return differentiable(run, *args)
        return run(*args)

    LIBRARY.impl(operator._opname, autograd, "Autograd", with_keyset=True)


def register_autocast(
    operator: Any, device_type: str, cast: Callable[[Tensor, torch.dtype, tuple[Any, ...]], Tensor]
) -> None:
    """Apply `cast` to tensors that autocast casts on `device_type`, with its type there.

    `cast` takes a tensor, the type, and all arguments of the call.
    """
    key = f"Autocast{device_type.upper()}"
    cast = _by_name(cast)
    excluded = _C.DispatchKeySet(getattr(_C.DispatchKey, key))

    def autocast(*args: Any) -> Any:
        to = torch.get_autocast_dtype(device_type)
        with _C._ExcludeDispatchKeyGuard(excluded):
            return operator(*(cast(each, to, args) if _is_cast(each, device_type) else each for each in args))

    LIBRARY.impl(operator._opname, autocast, key)


def _is_cast(value: Any, device_type: str) -> bool:
    """Whether autocast on `device_type` casts `value`."""
    return (
        isinstance(value, torch.Tensor)
        and value.device.type == device_type
        and value.is_floating_point()
        and value.dtype is not torch.float64
    )


def is_eager(x: Tensor, w: Tensor | None, b: Tensor | None) -> bool:
    """Whether a call with these tensors needs neither the dispatcher nor Python overrides: they are all plain.

    Nothing observes or transforms operators then: no mode, profiler, tracer, autocast, functorch transformation or
    forward gradient. Reverse-mode autograd may be on.
    """
    return (
        type(x) in PLAIN
        and (w is None or type(w) in PLAIN)
        and (b is None or type(b) in PLAIN)
        and not _C._len_torch_dispatch_stack()
        and not _C._len_torch_function_stack()
        and not _C._is_any_autocast_enabled()
        and not _C._are_functorch_transforms_active()
        and not _C._autograd._profiler_enabled()
        and _forward_gradients._current_level < 0
        and _C._get_tracing_state() is None
    )


def untraced(function: Callable[..., Value], *args: Any) -> Value:
    """`function(*args)`, in which `torch.jit.trace` records nothing, so that shapes of tensors are whole numbers."""
    state = _C._get_tracing_state()
    if state is None:
        return function(*args)
    _C._set_tracing_state(None)
    try:
        return function(*args)
    finally:
        _C._set_tracing_state(state)


def uses_torch(*tensors: Tensor | None) -> bool:
    """Whether torch's own operator has to be called, because ours lacks something.

    That is forward-mode autograd, `torch.func.grad` and the like, and tensors of foreign classes.
    """
    if _forward_gradients._current_level >= 0 or any(map(_is_foreign, tensors)):
        return True
    if not _C._are_functorch_transforms_active():
        return False
    if torch.compiler.is_compiling():
        return True  # torch.compile cannot trace what follows
    transforms = _C._functorch.TransformType
    return any(
        each.key() in (transforms.Grad, transforms.Jvp) for each in _C._functorch.get_interpreter_stack()
    )


def _is_foreign(tensor: Tensor | None) -> bool:
    """Whether a tensor implements operators itself, as a DTensor does, and does not know ours."""
    if tensor is None or type(tensor) in PLAIN:
        return False
    from torch._subclasses.fake_tensor import FakeTensor
    from torch._subclasses.functional_tensor import FunctionalTensor

    own = type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__
    return own and not isinstance(tensor, (FakeTensor, FunctionalTensor))
