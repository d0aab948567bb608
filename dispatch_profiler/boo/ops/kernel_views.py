"""How kernels read the tensors of a convolution: where they are, or copies of them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from dispatch_profiler.boo.launching.torch_types import Tensor
from dispatch_profiler.boo.ops.layouts import CHANNELS_LAST, Order, dense_order, to_memory
from dispatch_profiler.boo.weights.snapshots import SNAPSHOTS


class KernelView:
    """The order of a tensor's axes for a kernel, and whether its memory is dense in this order.

    If it is not, the tensor is copied; a weight only after it has changed.
    """

    def __init__(self, order: Order, is_dense: bool, is_weight: bool = False) -> None:
        self.order, self.is_dense, self._is_weight = order, is_dense, is_weight
        # A function, so that nothing is decided in each call.
        copy = partial(copied_in, order=order)
        #: A tensor -> the tensor, or its copy, whose axes are in this order.
        self.in_memory: Callable[[Tensor], Tensor] = (
            _itself if is_dense else partial(_copied_weight, order=order) if is_weight else copy
        )

    def after(self, order: Order) -> KernelView:
        """The view of a tensor that this is the view of once its axes are permuted by `order`."""
        return KernelView(tuple(order[axis] for axis in self.order), self.is_dense, self._is_weight)

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


def _copied_weight(weight: Tensor, order: Order) -> Tensor:
    """The copy that belongs to the weight's snapshot; a copy for this call if it has none."""
    snapshot = SNAPSHOTS.of(weight)
    if snapshot is None:
        return copied_in(weight, order)
    copied: Tensor = snapshot.value(("axes", order), (), lambda: copied_in(snapshot.tensor, order))
    return copied


def copied_in(tensor: Tensor, order: Order) -> Tensor:
    """A copy of `tensor` that is dense in the order of axes `order`."""
    return tensor.permute(order).contiguous()


def _itself(tensor: Tensor) -> Tensor:
    return tensor
