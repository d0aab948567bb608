"""Calls of a run with the weights of an earlier call, and with inputs that its kernels read in place.

After the kernels of a model, the code of a call is no longer in the caches, so that each Python function and each view of a
tensor takes several microseconds. What is the same in all such calls is therefore found once: a call checks its inputs,
and passes their addresses on.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch

from dispatch_profiler.boo.interface import ALIGNMENT
from dispatch_profiler.boo.launching.chain import Repeatable, View
from dispatch_profiler.boo.launching.torch_types import PLAIN, Tensor
from dispatch_profiler.boo.weights.derivations import WeightState
from dispatch_profiler.errors import DispatchProfilerError

_torch: Any = torch
_modes = _torch._C._len_torch_dispatch_stack


class _Read(NamedTuple):
    """An input that is passed by its address: its place, and the properties that it must have."""

    place: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype


@dataclass(frozen=True)
class RepeatedCall:
    """`call(inputs)`: the outputs, or None if this call is another one.

    state: of the weights. Their memory is freed with the model.
    run: computes the outputs from the addresses of inputs.
    reads: the inputs whose addresses are passed to `run`.
    views: shape and strides of the outputs.
    """

    state: weakref.ref[WeightState]
    run: Repeatable
    reads: Sequence[_Read]
    views: Sequence[View]
    process: int

    @classmethod
    def of(
        cls,
        state: WeightState,
        run: Repeatable,
        inputs: Sequence[Tensor],
        places: Sequence[int],
        views: Sequence[View],
    ) -> RepeatedCall:
        """A call like the one with `inputs`, of which those at `places` are passed to `run`."""
        given = [(at, inputs[at]) for at in places]
        reads = [_Read(at, tuple(each.shape), each.stride(), each.dtype) for at, each in given]
        return cls(weakref.ref(state), run, reads, views, os.getpid())

    def renumbered(self, places: Mapping[int, int]) -> RepeatedCall:
        """The same call of inputs that are at other places."""
        return replace(self, reads=[each._replace(place=places[each.place]) for each in self.reads])

    def __call__(self, inputs: Sequence[Tensor]) -> Sequence[Tensor] | None:
        state = self.state()
        if state is None or not state.is_frozen() or os.getpid() != self.process or _modes():
            return None
        addresses = []
        for at, shape, strides, dtype in self.reads:
            given = inputs[at]
            if (
                type(given) not in PLAIN
                or given.dtype is not dtype
                or given.shape != shape
                or given.stride() != strides
                or not given.is_cpu
                or given.is_neg()
            ):
                return None
            address = given.data_ptr()
            if not address or address % ALIGNMENT:
                return None
            addresses.append(address)
        try:
            return self.run(tuple(addresses), self.views)
        except DispatchProfilerError:  # the usual call handles it
            return None
