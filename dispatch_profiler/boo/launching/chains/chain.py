"""Launches of several kernels in a row, prepared once and called as one."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Protocol

from dispatch_profiler.boo.aligned import ALIGNMENT
from dispatch_profiler.boo.launching.arrays.torch_fast import expected_of, matches
from dispatch_profiler.boo.launching.arrays.torch_tensors import TorchTensors
from dispatch_profiler.boo.launching.chains.chain_layout import ChainLayout, ChainStep
from dispatch_profiler.boo.launching.chains.host_chain import HostPlan
from dispatch_profiler.boo.launching.chains.stream_chain import StreamPlan
from dispatch_profiler.boo.launching.drivers import TASK
from dispatch_profiler.boo.launching.torch_types import PLAIN, Tensor
from dispatch_profiler.errors import UsageError

#: States of parameters whose addresses are kept: layers of a model that share a chain have one each.
_KEPT_STATES = 64


class _ChainPlan(Protocol):
    """What a chain prepares for a device."""

    def run(self, inputs: Sequence[int]) -> tuple[Tensor, ...]:
        """A call with inputs at these addresses. Raises RunError."""


class Chain:
    """Launches of several kernels in a row, called with the torch tensors that the first ones take.

    It computes what calling the launchables one after another computes, and does that for tensors that cannot be used
    in place, and before the first launch of each.
    """

    def __init__(self, steps: Sequence[ChainStep], inputs: int, outputs: Sequence[int]) -> None:
        """See `ChainLayout`, which also raises what this does."""
        self._layout = ChainLayout(tuple(steps), inputs, tuple(outputs))
        #: What each input has to be; None if no step takes it.
        self._expected = [
            None if each is None else expected_of([each])[0] for each in self._layout.values[:inputs]
        ]
        self._first = next((at for at, each in enumerate(self._expected) if each is not None), None)
        #: By states, the addresses of the inputs that depend on it.
        self._known: dict[object, list[int]] = {}
        #: By the index of a device, -1 for the CPU; None where launches are separate.
        self._plans: dict[int, _ChainPlan | None] = {}
        self._pid = 0

    def __call__(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """The outputs for `inputs`. Raises what the launches raise."""
        return self.call(range(self._layout.inputs), inputs, None)

    def call(self, changing: Sequence[int], inputs: Sequence[Tensor], state: object) -> tuple[Tensor, ...]:
        """As a call with `inputs`. Those of calls with equal states that are not None differ in `changing` only."""
        if self._pid != os.getpid():  # a forked process has devices of its own
            self._plans, self._pid = {}, os.getpid()
        if len(inputs) != self._layout.inputs:
            raise UsageError(f"a chain takes {self._layout.inputs} inputs, but got {len(inputs)}")
        index = self._device_of(inputs)
        addresses = None if index is None else self._addresses(index, changing, inputs, state)
        if index is None or addresses is None:
            return self._one_by_one(inputs)
        if index not in self._plans:
            found = self._one_by_one(inputs)  # loads each kernel; on the CPU, measures the fastest driver
            self._plans[index] = self._plan(inputs)
            return found
        plan = self._plans[index]
        return self._one_by_one(inputs) if plan is None else plan.run(addresses)

    def _device_of(self, inputs: Sequence[Tensor]) -> int | None:
        """The index of the device of the first input that a step takes; None for what has no memory there."""
        first = None if self._first is None else inputs[self._first]
        return first.get_device() if type(first) in PLAIN and first is not None else None

    def _addresses(
        self, index: int, changing: Sequence[int], inputs: Sequence[Tensor], state: object
    ) -> list[int] | None:
        """Where the inputs are, 0 for those that no step takes; None unless the kernels can use the others in place."""
        known = None if state is None else self._known.get(state)
        to_check: Sequence[int]
        if known is not None:
            found, to_check = known.copy(), changing
        else:
            found, to_check = [0] * self._layout.inputs, range(self._layout.inputs)
        taken = [(at, expected) for at in to_check if (expected := self._expected[at]) is not None]
        if not matches([inputs[at] for at, _ in taken], [expected for _, expected in taken], index):
            return None
        for at, _ in taken:
            found[at] = address = inputs[at].data_ptr()
            if not address or address % ALIGNMENT:
                return None
        if state is not None and known is None:
            for old in list(self._known)[: len(self._known) - _KEPT_STATES + 1]:
                self._known.pop(old, None)
            self._known[state] = found.copy()
        return found

    def _plan(self, inputs: Sequence[Tensor]) -> _ChainPlan | None:
        """The plan for the device of `inputs`, whose kernels are loaded; None if its kernels have to be launched one by one."""
        assert self._first is not None
        device = inputs[self._first].device
        uri = TorchTensors(device).uri
        if uri == TASK:
            plan = HostPlan.of(self._layout)
            return plan if plan.is_usable else None
        programs = [step.launchable.program_on(uri) for step in self._layout.steps]
        loaded = [each for each in programs if each is not None]
        return StreamPlan(self._layout, loaded, device) if len(loaded) == len(programs) else None

    def _one_by_one(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        values = list(inputs)
        for step in self._layout.steps:
            found = step.launchable(*(values[each] for each in step.arguments))
            values += [found] if len(step.launchable.spec.results) == 1 else found
        return tuple(values[each] for each in self._layout.outputs)
