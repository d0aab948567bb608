"""Plans of convolutions that are launches: of a kernel that takes the weight as it is stored, or packed once.

A kernel reads a tensor where it is, or a copy of it: see `KernelView`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch

from dispatch_profiler.boo.driver.launch import get_launchable, get_packed_launch
from dispatch_profiler.boo.interface import Signature
from dispatch_profiler.boo.launching import Launchable
from dispatch_profiler.boo.launching.array_library import LaunchAt
from dispatch_profiler.boo.launching.arrays.torch_tensors import allocation
from dispatch_profiler.boo.launching.packing import PackedLaunch
from dispatch_profiler.boo.launching.torch_types import PLAIN, Tensor
from dispatch_profiler.boo.ops.layouts import CHANNELS_LAST, Order, dense_order, to_memory
from dispatch_profiler.boo.weights.derivations import derived
from dispatch_profiler.boo.weights.snapshots import SNAPSHOTS
from dispatch_profiler.errors import DispatchProfilerError

_C: Any = torch._C
_BelowViews = _C._AutoDispatchBelowADInplaceOrView
_ADDRESS: Any = torch.Tensor.data_ptr


@cache
def _keep_quiet_about_leaks() -> None:
    """torch.jit keeps the classes of modules until a process ends, which nanobind would report as leaks of IREE."""
    import iree.runtime as rt

    rt._binding.disable_leak_checker()


class KernelPlan:
    """The plan for a launch. `result` permutes the launch's result; `like` is a tensor of its device."""

    def __init__(
        self,
        signature: Signature,
        views: tuple[KernelView, KernelView],
        result: Order,
        like: Tensor,
        bias: Tensor | None = None,
    ) -> None:
        _keep_quiet_about_leaks()
        self.signature = signature
        self.launchable = get_launchable(signature)
        (self.first, self.second), self._views, self._result = views, views, result
        self._is_by_address = like.is_cpu and (bias is None or bias.is_contiguous())
        self._new = allocation(signature.launch.results[0], like.device, result)

    def __call__(self, first: Tensor, second: Tensor, bias: Tensor | None) -> Tensor:
        # Copies are made here, whichever way the launch is.
        first, second = self.first.in_memory(first), self.second.in_memory(second)
        tensors = (first, second) if bias is None else (first, second, bias)
        return self.launch(self.launchable, tensors, self._views)

    def launch(
        self, launchable: Launchable, tensors: tuple[Tensor, ...], views: tuple[KernelView, ...]
    ) -> Tensor:
        """The result of a launch with what these views of the first tensors have in memory, and the other tensors."""
        if self._is_by_address and (launch_at := launchable.launch_at) is not None:
            y = self._launched(launch_at, tensors)
            if y is not None:
                return y
        # Autograd knows nothing of these permutations. It would take the result for a view, and forbid some operations
        # in place on it.
        with _BelowViews():
            ordered = [view.in_order(each) for view, each in zip(views, tensors, strict=False)]
            return launchable(*ordered, *tensors[len(views) :]).permute(self._result)

    def _launched(self, launch_at: LaunchAt, tensors: tuple[Tensor, ...]) -> Tensor | None:
        """The result of a launch by addresses; None if a tensor needs a copy or an error message.

        Shapes, strides, types and devices are the plan's. What else a launch checks is left.
        """
        for each in tensors:
            if type(each) not in PLAIN or each.is_neg():
                return None
        try:
            y = self._new()
            addresses = (*map(_ADDRESS, tensors), y.data_ptr())
        except RuntimeError:  # no memory
            return None
        return y if launch_at(addresses) else None


class FrozenKernelPlan:
    """The plan for launches without gradients whose weight and bias are frozen: packed, where a kernel packs weights.

    What has no snapshot, because the frozen weights take too much memory, is computed by `plain`.
    """

    def __init__(self, plain: KernelPlan) -> None:
        self._plain = plain
        #: The launch: with a packed weight if the fastest kernel packs it. None before the first call. Calls read it once,
        #: since several threads may make the first call.
        self._launch: PackedLaunch | Launchable | None = None
        #: How what derives from the weight is read: as it is.
        self._stored = KernelView(plain.second.order, is_dense=False)

    def __call__(self, x: Tensor, w: Tensor, bias: Tensor | None) -> Tensor:
        weights = [SNAPSHOTS.of(each, frozen=True) for each in (w, bias) if each is not None]
        if any(each is None for each in weights):
            return self._plain(x, w, bias)
        launch = self._launch
        if launch is None:
            launch = self._launch = self._prepared(x)
        parts = self._parts(launch, weights[0], w)
        biases = [each.value("copy", (), bias.detach().clone) for each in weights[1:]]  # type: ignore[union-attr]
        launchable = launch.launchable if isinstance(launch, PackedLaunch) else launch
        views = self._plain.first, *[self._stored for _ in parts]
        return self._plain.launch(launchable, (self._plain.first.in_memory(x), *parts, *biases), views)

    def _parts(self, launch: PackedLaunch | Launchable, snapshot: Any, w: Tensor) -> tuple[Tensor, ...]:
        """The tensors of the packed weight, or the weight in the order that the kernel reads."""
        order = self._plain.second.order
        if not isinstance(launch, PackedLaunch):
            return snapshot.value(("axes", order), (), lambda: (_in_order(w, order),))
        return snapshot.value(("packed", order, launch.recipe), (), lambda: launch.pack(_in_order(w, order)))

    def _prepared(self, x: Tensor) -> PackedLaunch | Launchable:
        """The launch with a packed weight, unless the fastest kernel packs none."""
        if not x.is_cpu:
            return self._plain.launchable
        try:
            return get_packed_launch(self._plain.signature)
        except DispatchProfilerError:
            # A launch of the plain kernel raises the reason if it has no kernel either.
            return self._plain.launchable


def _in_order(weight: Tensor, order: Order) -> Tensor:
    """A copy of a weight with its axes in this order, also in memory."""
    return weight.detach().permute(order).clone(memory_format=torch.contiguous_format)


# -- views -------------------------------------------------------------------------------------------


class KernelView:
    """The order of a tensor's axes for a kernel, and whether its memory is dense in this order.

    If it is not, the tensor is copied; a weight only after it has changed.
    """

    def __init__(self, order: Order, is_dense: bool, is_weight: bool = False) -> None:
        self.order, self.is_dense, self._is_weight = order, is_dense, is_weight
        # A function, so that nothing is decided in each call.
        copy = partial(copied_in, order=order)
        #: A tensor -> the tensor, or its copy, whose axes are in this order. The copy of a weight is kept.
        self.in_memory: Callable[[Tensor], Tensor] = (
            (lambda tensor: tensor)
            if is_dense
            else partial(derived, ("axes", order), copy)
            if is_weight
            else copy
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


def copied_in(tensor: Tensor, order: Order) -> Tensor:
    """A copy of `tensor` that is dense in the order of axes `order`."""
    return tensor.permute(order).contiguous()
