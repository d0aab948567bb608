"""torch's own function for an operation. Of `boo/driver`, only this file needs torch, imported when it is used."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dispatch_profiler.errors import MissingDependency, ToolError, WorkerOutOfMemory, reason_of
from dispatch_profiler.operations import CONV_ROLES, Contraction, ElementType, Operation

Tensor = Any


@dataclass(frozen=True)
class TorchFunction:
    """An operation as torch computes it eagerly.

    `enter` takes the operation's operands, in its shapes, and returns views in torch's order of axes, as a user of
    torch has them. `function` takes these. `leave` returns the operation's results from those of `function`.
    """

    enter: Callable[[Sequence[Tensor]], tuple[Tensor, ...]]
    function: Callable[..., Any]
    leave: Callable[[Any], tuple[Tensor, ...]]

    def __call__(self, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The results for these operands."""
        return self.leave(self.function(*self.enter(tensors)))


def load_torch() -> Any:
    """The module torch. Raises MissingDependency."""
    try:
        import torch
    except ImportError as error:
        raise MissingDependency(
            "torch is not installed", hint="run python -m pip install 'torch>=2.6'"
        ) from error
    return torch


@contextlib.contextmanager
def torch_errors() -> Iterator[None]:
    """Turn what torch raises into a ToolError, and a lack of memory into WorkerOutOfMemory.

    torch's errors have no base class other than RuntimeError.
    """
    try:
        yield
    except MemoryError as error:
        raise WorkerOutOfMemory(f"out of memory: {reason_of(error)[:300]}") from error
    except RuntimeError as error:
        raise ToolError(f"torch: {reason_of(error)[:300]}") from error


def torch_function(operation: Operation, device: Any) -> TorchFunction:
    """torch's function for `operation` on the torch device `device`.

    Raises NotSupported for an operation that torch does not compute as defined, and MissingDependency.
    """
    load_torch()
    if operation.normalization is not None:
        return _norm(operation, device)
    if operation.channel_sum is not None:
        return TorchFunction(tuple, lambda gradient: load_torch().sum(gradient, (0, 2)), lambda sums: (sums,))
    contraction = operation.contraction
    if contraction is None or not _has_at_most_a_bias(contraction):
        from dispatch_profiler.profiler.providers._base import NotSupported

        raise NotSupported(f"torch has no single function for {operation.name}")
    return _convolution(contraction, device) if contraction.convolution else _product(contraction)


def to_torch(array: np.ndarray, type_: ElementType, device: Any) -> Tensor:
    """A copy of `array` on a device; types that numpy lacks are copied as bits."""
    torch = load_torch()
    from dispatch_profiler.profiler.providers.torch_library import TYPES

    bits = np.ascontiguousarray(array).view(f"i{type_.bytes}").reshape(array.shape)
    # torch allocates the copy, so that it is aligned as torch's own tensors are. It warns of arrays that are read-only.
    shared = torch.from_numpy(bits if bits.flags.writeable else bits.copy())
    return shared.view(TYPES[type_.name]).to(device, copy=True)


def to_numpy(tensor: Any, type_: ElementType) -> np.ndarray:
    """A dense copy of a tensor of torch, or of an array, whose elements have the type `type_`."""
    if isinstance(tensor, np.ndarray):
        return np.ascontiguousarray(tensor).reshape(tensor.shape)
    torch = load_torch()
    bits = tensor.detach().contiguous().view(getattr(torch, f"int{type_.bits}")).cpu().numpy()
    return np.array(bits.view(type_.dtype)).reshape(tuple(tensor.shape))


def _has_at_most_a_bias(operation: Contraction) -> bool:
    return operation.epilogue.bias_and_activation in ((False, "none"), (True, "none"))


def _product(operation: Contraction) -> TorchFunction:
    torch, product = load_torch(), operation.product
    assert product is not None

    def enter(tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        lhs, rhs, *bias = tensors
        left = lhs if product.lhs_layout == "t" else lhs.mT
        right = rhs if product.rhs_layout == "t" else rhs.mT
        return (*bias, left, right)

    multiply = torch.addmm if operation.epilogue.starts_with_bias else torch.matmul
    return TorchFunction(enter, multiply, lambda result: (result,))


def _convolution(operation: Contraction, device: Any) -> TorchFunction:
    """Layouts become views. The result is stored in the operation's layout, which torch often has chosen itself."""
    from dispatch_profiler.profiler.providers.torch_convolutions import forward_sums, gradient_sums
    from dispatch_profiler.profiler.providers.torch_library import TYPES
    from dispatch_profiler.profiler.providers.torch_steps import in_order, torch_order

    torch, convolution = load_torch(), operation.convolution
    assert convolution is not None
    lhs_role, rhs_role, role = CONV_ROLES[convolution.mode]
    fuses = convolution.mode == "forward" and operation.epilogue.starts_with_bias
    if convolution.mode == "forward":
        sums = forward_sums(torch, convolution, fuses)
    else:
        options = {"dtype": TYPES[operation.types.lhs], "device": device}
        sums = gradient_sums(torch, convolution, options)
    channels = (-1, *[1] * convolution.spatial_rank)
    order = torch_order(convolution, role)
    places = [order.index(letter) for letter in convolution.layout_of(role)]

    def enter(tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        lhs, rhs, *bias = tensors
        views = in_order(convolution, lhs_role, lhs), in_order(convolution, rhs_role, rhs)
        return (*views, *(each if fuses else each.view(channels) for each in bias))

    def function(lhs: Tensor, rhs: Tensor, *bias: Tensor) -> Tensor:
        found = sums(lhs, rhs, bias)
        return found.add_(bias[0]) if bias and not fuses else found

    return TorchFunction(enter, function, lambda result: (result.permute(places).contiguous(),))


def _norm(operation: Operation, device: Any) -> TorchFunction:
    from dispatch_profiler.profiler.providers.torch_library import TYPES
    from dispatch_profiler.profiler.providers.torch_norms import norm_computation, norm_handles

    torch, dtype = load_torch(), TYPES[operation.element_type.name]

    def enter(tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        return norm_handles(torch, operation, device, dtype, tensors)

    return TorchFunction(enter, norm_computation(torch, operation, device, dtype), tuple)
