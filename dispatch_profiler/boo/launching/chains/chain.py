"""Sequences of launches that are prepared once and run by one call."""

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

#: Number of states whose parameters' addresses are kept: layers of a model that share a chain have a state each.
_KEPT_STATES = 64


class _ChainPlan(Protocol):
    """A chain that was prepared for a device."""

    def run(self, inputs: Sequence[int]) -> tuple[Tensor, ...]:
        """The outputs for inputs at these addresses. Raises RunError."""


class Chain:
    """A sequence of launches on torch tensors, run by one call.

    Returns the same results as calling the launchables one after another. It does call them one after another on the
    first call on a device, and for tensors that kernels cannot use in place.
    """

    def __init__(self, steps: Sequence[ChainStep], inputs: int, outputs: Sequence[int]) -> None:
        """Parameters and errors are as for `ChainLayout`."""
        self._layout = ChainLayout(tuple(steps), inputs, tuple(outputs))
        #: Shape and type of each input; None if no step takes the input.
        self._expected = [
            None if each is None else expected_of([each])[0] for each in self._layout.values[:inputs]
        ]
        self._first = next((at for at, each in enumerate(self._expected) if each is not None), None)
        #: State -> addresses of all inputs in its last checked call.
        self._known: dict[object, list[int]] = {}
        #: Index of a device (-1 for the CPU) -> plan; None if the kernels have to be launched one by one.
        self._plans: dict[int, _ChainPlan | None] = {}
        self._pid = 0

    def __call__(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """The outputs for `inputs`. Raises the errors of `Launchable`."""
        return self.call(range(self._layout.inputs), inputs, None)

    def call(self, changing: Sequence[int], inputs: Sequence[Tensor], state: object) -> tuple[Tensor, ...]:
        """Like a call with `inputs`, but checks only the inputs at `changing` if `state` is known from an earlier call.

        All calls with an equal state, other than None, must have the same tensors in all other places.
        """
        if self._pid != os.getpid():  # a forked process has devices of its own
            self._plans, self._pid = {}, os.getpid()
        if len(inputs) != self._layout.inputs:
            raise UsageError(f"a chain takes {self._layout.inputs} inputs, but got {len(inputs)}")
        index = self._device_of(inputs)
        addresses = None if index is None else self._addresses(index, changing, inputs, state)
        if index is None or addresses is None:
            return self._one_by_one(inputs)
        if index not in self._plans:
            outputs = self._one_by_one(inputs)  # loads each kernel; on the CPU, measures the fastest driver
            self._plans[index] = self._plan(inputs)
            return outputs
        plan = self._plans[index]
        return self._one_by_one(inputs) if plan is None else plan.run(addresses)

    def _device_of(self, inputs: Sequence[Tensor]) -> int | None:
        """The index of the device of the first input that a step takes; None unless that input is a plain tensor."""
        first = None if self._first is None else inputs[self._first]
        return first.get_device() if type(first) in PLAIN and first is not None else None

    def _addresses(
        self, index: int, changing: Sequence[int], inputs: Sequence[Tensor], state: object
    ) -> list[int] | None:
        """The addresses of the inputs, 0 for unused inputs; None if the kernels cannot use an input in place."""
        known = None if state is None else self._known.get(state)
        to_check: Sequence[int]
        if known is not None:
            addresses, to_check = known.copy(), changing
        else:
            addresses, to_check = [0] * self._layout.inputs, range(self._layout.inputs)
        taken = [(at, expected) for at in to_check if (expected := self._expected[at]) is not None]
        if not matches([inputs[at] for at, _ in taken], [expected for _, expected in taken], index):
            return None
        for at, _ in taken:
            addresses[at] = address = inputs[at].data_ptr()
            if not address or address % ALIGNMENT:
                return None
        if state is not None and known is None:
            for old in list(self._known)[: len(self._known) - _KEPT_STATES + 1]:
                self._known.pop(old, None)
            self._known[state] = addresses.copy()
        return addresses

    def _plan(self, inputs: Sequence[Tensor]) -> _ChainPlan | None:
        """The plan for the device of `inputs`, with its loaded kernels; None if they have to be launched one by one."""
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
            returned = step.launchable(*(values[each] for each in step.arguments))
            values += [returned] if len(step.launchable.spec.results) == 1 else returned
        return tuple(values[each] for each in self._layout.outputs)
