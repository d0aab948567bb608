"""Plans of convolutions that are launches: of a kernel that takes the weight as it is stored, or packed."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import torch

from dispatch_profiler.boo.driver.launch import get_launchable, get_packed_launch
from dispatch_profiler.boo.interface import Signature
from dispatch_profiler.boo.launching import Launchable
from dispatch_profiler.boo.launching.host_launch import LaunchAt
from dispatch_profiler.boo.launching.packing import PackedLaunch
from dispatch_profiler.boo.launching.torch_fast import allocation
from dispatch_profiler.boo.launching.torch_types import PLAIN, Tensor
from dispatch_profiler.boo.ops.kernel_views import KernelView
from dispatch_profiler.boo.ops.layouts import Order
from dispatch_profiler.boo.ops.weights import WeightValues
from dispatch_profiler.errors import DispatchProfilerError

_C: Any = torch._C
_BelowViews = _C._AutoDispatchBelowADInplaceOrView
_ADDRESS: Any = torch.Tensor.data_ptr
#: Calls in which a weight that was packed before stays as it is, until it is packed again.
_PATIENCE = 3


@cache
def _keep_quiet_about_leaks() -> None:
    """torch.jit keeps the classes of modules until a process ends, which nanobind would report as leaks of IREE."""
    import iree.runtime as rt

    rt._binding.disable_leak_checker()


class ByKernel:
    """The plan for a launch. `result` permutes what it returns; `like` is a tensor of its device."""

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
        # Copies are made here, whichever way the launch is: a weight that has no version is permuted once in a call.
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

        Shapes, strides, types and devices are those of the plan. What else a launch checks is left.
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


class ByPackedKernel:
    """The plan for launches on the CPU without gradients: weights of modules are packed, where the kernel packs them.

    A weight is packed in the first call with it, and, after it has changed, once it has stayed as it is for some calls:
    during a training, packing would take longer than it saves. Until then, `plain` computes.
    """

    def __init__(self, plain: ByKernel) -> None:
        self._plain = plain
        #: What computes with packed weights, and these; None before the first call.
        self._packed: tuple[Launchable, WeightValues] | None = None
        self._packs = True

    def __call__(self, x: Tensor, w: Tensor, bias: Tensor | None) -> Tensor:
        if not self._packs or type(w) is not torch.nn.Parameter:
            return self._plain(x, w, bias)
        if self._packed is None and not self._prepare():
            return self._plain(x, w, bias)
        assert self._packed is not None
        launchable, weights = self._packed
        packed = weights(w)
        if packed is None:
            return self._plain(x, w, bias)
        x = self._plain.first.in_memory(x)
        tensors = (x, *packed) if bias is None else (x, *packed, bias)
        return self._plain.launch(launchable, tensors, (self._plain.first,))

    def _prepare(self) -> bool:
        """Load the kernel that takes packed weights, unless the fastest one packs none."""
        try:
            found = get_packed_launch(self._plain.signature)
        except DispatchProfilerError:
            found = None  # a launch of the plain kernel raises the reason if there is none
        if isinstance(found, PackedLaunch):
            view = self._plain.second
            pack = partial(_pack, found, view)
            weights = WeightValues(("packed", view.order, found.recipe), pack, patience=_PATIENCE)
            self._packed = found.launchable, weights
            return True
        if found is not None:
            self._plain.launchable = found
        self._packs = False
        return False


def _pack(launch: PackedLaunch, view: KernelView, weight: Tensor) -> tuple[Tensor, ...]:
    return launch.pack(weight.permute(view.order).contiguous())
