"""Packed weights of regions: once for each version of a parameter, as long as versions last longer than calls."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from dispatch_profiler.boo.fusion.parameters import Derived
from dispatch_profiler.boo.launching.packing import PackedLaunch
from dispatch_profiler.boo.launching.torch_types import Tensor
from dispatch_profiler.boo.ops.derived import dropping

#: So often a weight is packed, whatever happens. Each further time needs as many calls between as it.
_FREE = 4


class WeightChanges(Exception):
    """A weight changes so often that packing it takes longer than it saves."""


class PackedWeight:
    """A weight -> what `launch` takes in its place: one or more flat tensors.

    `flat` arranges the weight as the operation stores it. `calls` counts the calls of the run: if a weight was packed in
    most of them, this raises WeightChanges. Equal layers share a run, so that it may be called with several weights.
    """

    def __init__(
        self, launch: PackedLaunch, flat: Callable[[Tensor], Tensor], calls: Callable[[], int]
    ) -> None:
        self._launch, self._flat, self._calls = launch, flat, calls
        self._packs = 0
        #: The weights that were packed, by the `id` of their memory while that lives.
        self._weights: dict[int, weakref.ref[Any]] = {}
        # With the steps of packing as the name, kernels of several batch sizes share one packed weight.
        self._derived = Derived(("packed", launch.recipe), self._pack)

    def __call__(self, weight: Tensor) -> Any:
        return self._derived((weight,))

    def _pack(self, weight: Tensor) -> Any:
        storage = weight.untyped_storage()
        self._weights[id(storage)] = weakref.ref(storage, dropping(self._weights, id(storage)))
        self._packs += 1
        of_one = self._packs - len(self._weights) + 1  # the others were packed once
        if of_one > _FREE and 2 * of_one > self._calls():
            raise WeightChanges
        return self._launch.pack(self._flat(weight))
