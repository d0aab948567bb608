"""How kernels read and write the tensors of a convolution: where they are, or copies of them."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from dispatch_profiler.boo.launching import Launchable
from dispatch_profiler.boo.launching.host_launch import LaunchAt
from dispatch_profiler.boo.launching.torch_fast import allocation
from dispatch_profiler.boo.launching.torch_types import PLAIN, Tensor
from dispatch_profiler.boo.ops.derived import derive
from dispatch_profiler.boo.ops.layouts import CHANNELS_LAST, Order, dense_order, to_memory

_C: Any = torch._C
_BelowViews = _C._AutoDispatchBelowADInplaceOrView


class KernelView(NamedTuple):
    """The order of a tensor's axes for a kernel, and whether its memory is dense in this order.

    If it is not, the tensor is copied: a weight once for each of its versions.
    """

    order: Order
    is_dense: bool
    is_weight: bool = False

    def after(self, order: Order) -> KernelView:
        """The view of a tensor that this is the view of once its axes are permuted by `order`."""
        return self._replace(order=tuple(order[axis] for axis in self.order))

    def in_memory(self, tensor: Tensor) -> Tensor:
        """`tensor`, or its copy, whose axes are in this order."""
        if self.is_dense:
            return tensor
        if self.is_weight:
            return derive(("axes", self.order), [tensor], lambda: _copy(tensor, self.order))
        return _copy(tensor, self.order)

    def in_order(self, stored: Tensor) -> Tensor:
        """What `in_memory` returned, with its axes in this order."""
        return stored.permute(self.order) if self.is_dense else stored


def kernel_view(tensor: Tensor, preferred: str) -> KernelView:
    """How a kernel reads `tensor`: in its own order of axes if it is dense, otherwise copied to `preferred`."""
    order = dense_order(tuple(tensor.shape), tensor.stride(), preferred)
    return KernelView(to_memory(preferred), False) if order is None else KernelView(order, True)


def weight_view(w: Tensor, image_order: Order) -> KernelView:
    """How a kernel reads a weight. With images in channels-last format, known fast kernels read FHWC."""
    last = CHANNELS_LAST[w.dim() - 2]
    own = kernel_view(w, last)
    if image_order == to_memory(last) and own.order != to_memory(last):
        return KernelView(to_memory(last), False, True)
    return KernelView(own.order, own.is_dense, True)


def _copy(tensor: Tensor, order: Order) -> Tensor:
    return tensor.permute(order).contiguous()


class ByKernel:
    """The plan for a launch. `result` permutes what it returns; `like` is a tensor of its device."""

    def __init__(
        self,
        launchable: Launchable,
        views: tuple[KernelView, KernelView],
        result: Order,
        like: Tensor,
        bias: Tensor | None = None,
    ) -> None:
        self._launchable = launchable
        (self._first, self._second), self._result = views, result
        self._is_by_address = like.is_cpu and (bias is None or bias.is_contiguous())
        self._new = allocation(launchable.spec.results[0], like.device, result)

    def __call__(self, first: Tensor, second: Tensor, bias: Tensor | None) -> Tensor:
        # Copies are made here, whichever way the launch is: a weight that has no version is permuted once in a call.
        first, second = self._first.in_memory(first), self._second.in_memory(second)
        if self._is_by_address and (launch_at := self._launchable.launch_at) is not None:
            y = self._launched(launch_at, first, second, bias)
            if y is not None:
                return y
        # Autograd knows nothing of these permutations. It would take the result for a view, and forbid some operations
        # in place on it.
        with _BelowViews():
            first, second = self._first.in_order(first), self._second.in_order(second)
            if bias is None:
                return self._launchable(first, second).permute(self._result)
            return self._launchable(first, second, bias).permute(self._result)

    def _launched(
        self, launch_at: LaunchAt, first: Tensor, second: Tensor, bias: Tensor | None
    ) -> Tensor | None:
        """The result of a launch by addresses; None if a tensor needs a copy or an error message.

        Shapes, strides, types and devices are those of the plan. What else a launch checks is left.
        """
        if type(first) not in PLAIN or type(second) not in PLAIN or first.is_neg() or second.is_neg():
            return None
        try:
            y = self._new()
            addresses: tuple[int, ...]
            if bias is None:
                addresses = first.data_ptr(), second.data_ptr(), y.data_ptr()
            elif type(bias) not in PLAIN or bias.is_neg():
                return None
            else:
                addresses = first.data_ptr(), second.data_ptr(), bias.data_ptr(), y.data_ptr()
        except RuntimeError:  # no memory
            return None
        return y if launch_at(addresses) else None
