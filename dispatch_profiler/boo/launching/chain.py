"""Chains of launches on the CPU: each waits for the previous one, and the caller waits once, for the last.

A launch on several threads wakes them up and is woken up itself, which takes 50 to 80 us on a virtual machine. In a
chain, the threads find the next launch as soon as they finish one, and the caller prepares it meanwhile. What one
launch leaves for others is in memory that the chain keeps.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import iree.runtime as rt
import torch

from dispatch_profiler.boo.aligned import ALIGNMENT
from dispatch_profiler.boo.interface import TensorSpec
from dispatch_profiler.boo.launching.drivers import TASK
from dispatch_profiler.boo.launching.host_memory import host_views
from dispatch_profiler.boo.launching.launchable import Launchable
from dispatch_profiler.boo.launching.loaded import LoadedKernel, launch_error
from dispatch_profiler.boo.launching.torch_fast import expected_of, matches
from dispatch_profiler.boo.launching.torch_threads import release_torch_threads
from dispatch_profiler.boo.launching.torch_types import TYPES, Tensor
from dispatch_profiler.errors import UsageError
from dispatch_profiler.runtime.iree import IreeDevice
from dispatch_profiler.runtime.iree_buffers import IREE_ERRORS

#: Buffer views that are kept for one argument: parameters have the same few addresses again and again.
_KEPT_VIEWS = 64

#: Seconds from which a chain is long enough that torch's threads are ended for it, which costs a fourth of this.
_LONG = 0.5e-3

#: Address of a dense tensor -> its buffer view.
_View = Callable[[int], Any]


@dataclass(frozen=True)
class ChainStep:
    """A launch of a chain. `arguments` are numbers of values: first the chain's inputs, then the results of each step."""

    launchable: Launchable
    arguments: tuple[int, ...]


class Chain:
    """Launches of several kernels in a row, called with the torch tensors that the first ones take.

    It computes what calling the launchables one after another computes, and does that for tensors that cannot be used
    in place, that are not on the CPU, and before the first launch of each.
    """

    def __init__(self, steps: Sequence[ChainStep], inputs: int, outputs: Sequence[int]) -> None:
        """`inputs` is the number of inputs, `outputs` has the values that a call returns: results of steps.

        Raises UsageError if a step takes a value that does not precede it, or one of another shape or type.
        """
        self.steps = tuple(steps)
        self.inputs = inputs
        self.outputs = tuple(outputs)
        self._values = _values(self.steps, inputs)
        _check_outputs(self.outputs, inputs, len(self._values))
        #: The inputs that steps take, and what they have to be.
        self._taken = [at for at in range(inputs) if self._values[at] is not None]
        self._expected = expected_of(each for each in self._values[:inputs] if each is not None)
        self._plan: _Plan | None = None
        self._pid = 0

    def __call__(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """The outputs for `inputs`. Raises what the launches raise."""
        if self._pid != os.getpid():  # a forked process has devices of its own
            self._plan, self._pid = None, os.getpid()
        if len(inputs) != self.inputs:
            raise UsageError(f"a chain takes {self.inputs} inputs, but got {len(inputs)}")
        addresses = self._addresses(inputs)
        if addresses is None:
            return self._one_by_one(inputs)
        if self._plan is None:
            found = self._one_by_one(inputs)  # loads each kernel, and measures the fastest driver
            self._plan = _Plan.of(self)
            return found
        return self._plan.run(addresses) if self._plan.is_usable else self._one_by_one(inputs)

    def _addresses(self, inputs: Sequence[Tensor]) -> list[int] | None:
        """Where the inputs are, 0 for those that no step takes; None unless the kernels can use the others in place."""
        if not matches([inputs[at] for at in self._taken], self._expected, -1):
            return None
        found = [0] * self.inputs
        for at in self._taken:
            found[at] = address = inputs[at].data_ptr()
            if not address or address % ALIGNMENT:
                return None
        return found

    def _one_by_one(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        values = list(inputs)
        for step in self.steps:
            found = step.launchable(*(values[each] for each in step.arguments))
            values += [found] if len(step.launchable.spec.results) == 1 else found
        return tuple(values[each] for each in self.outputs)


def _values(steps: Sequence[ChainStep], inputs: int) -> list[TensorSpec | None]:
    """The tensor that each value is, None for an input that no step takes. Raises UsageError."""
    values: list[TensorSpec | None] = [None] * inputs
    for step in steps:
        spec = step.launchable.spec
        if len(step.arguments) != len(spec.arguments):
            raise UsageError(
                f"{spec.operation.name} takes {len(spec.arguments)} arguments, but got {len(step.arguments)}"
            )
        for number, argument in zip(step.arguments, spec.arguments, strict=True):
            if not 0 <= number < len(values):
                raise UsageError(f"{spec.operation.name} takes value {number} of {len(values)}")
            known = values[number]
            if known is None:
                values[number] = argument
            elif (known.shape, known.type) != (argument.shape, argument.type):
                raise UsageError(
                    f"{argument.name} of {spec.operation.name} is {argument.type.name} {argument.shape}, but value "
                    f"{number} is {known.type.name} {known.shape}"
                )
        values += spec.results
    return values


def _check_outputs(outputs: Sequence[int], inputs: int, values: int) -> None:
    bad = [each for each in outputs if not inputs <= each < values]
    if bad or len(set(outputs)) != len(outputs):
        raise UsageError(f"outputs of a chain are different results of its steps, but got {tuple(outputs)}")


def assign_slots(
    sizes: Sequence[int], arguments: Sequence[Sequence[int]], results: Sequence[Sequence[int]], kept: set[int]
) -> tuple[dict[int, int], list[int]]:
    """The slot of each value that is a result and not in `kept`, and the bytes of each slot.

    `sizes` has the bytes of each value, `arguments` and `results` the values of each step. A slot is used again as soon
    as the last step that takes its value has been placed: steps run in order.
    """
    last = {value: at for at, taken in enumerate(arguments) for value in taken}
    slots: dict[int, int] = {}
    bytes_: list[int] = []
    free: list[int] = []
    for at, (taken, made) in enumerate(zip(arguments, results, strict=True)):
        for value in made:
            if value in kept:
                continue
            if free:
                # The smallest that is large enough, otherwise the largest, which grows.
                free.sort(key=lambda slot: (bytes_[slot] < sizes[value], abs(bytes_[slot] - sizes[value])))
                slot = free.pop(0)
                bytes_[slot] = max(bytes_[slot], sizes[value])
            else:
                slot = len(bytes_)
                bytes_.append(sizes[value])
            slots[value] = slot
        ended = {value for value in (*taken, *made) if value in slots and last.get(value, at) == at}
        free += [slots[value] for value in sorted(ended)]
    return slots, bytes_


class _Plan:
    """What a chain prepares: kernels on the device with threads, the slot of each value, and how to view arguments."""

    def __init__(self, chain: Chain, kernels: Sequence[LoadedKernel], device: IreeDevice) -> None:
        # Fences of one device cannot order work on another, as kernels with their own number of threads have.
        self.is_usable = bool(kernels) and all(
            kernel.enqueue_entry is not None and kernel.device.hal is device.hal for kernel in kernels
        )
        self._kernels = kernels
        self._hal = device.hal
        self._values = chain._values
        self._outputs = chain.outputs
        results, number = [], chain.inputs
        for step in chain.steps:
            count = len(step.launchable.spec.results)
            results.append(range(number, number + count))
            number += count
        sizes = [0 if each is None else math.prod(each.shape) * each.type.bytes for each in self._values]
        taken = [step.arguments for step in chain.steps]
        self._slots, self._bytes = assign_slots(sizes, taken, results, set(chain.outputs))
        #: For each step: value and view of each argument of its kernel, in its order.
        self._arguments = [
            _in_kernel_order(step, made, device) for step, made in zip(chain.steps, results, strict=True)
        ]
        #: Memory of calls that have ended.
        self._memory: list[list[Tensor]] = []
        #: Seconds of the fastest call so far; 0 before the first.
        self._seconds = 0.0

    @classmethod
    def of(cls, chain: Chain) -> _Plan:
        return cls(chain, [step.launchable.on_threads() for step in chain.steps], IreeDevice(TASK))

    def run(self, inputs: list[int]) -> tuple[Tensor, ...]:
        """A call with inputs at these addresses."""
        try:
            memory = self._memory.pop()
        except IndexError:
            memory = [torch.empty(size, dtype=torch.uint8) for size in self._bytes]
        addresses = dict(enumerate(inputs))
        for value, slot in self._slots.items():
            addresses[value] = memory[slot].data_ptr()
        outputs = []
        for value in self._outputs:
            spec = self._values[value]
            assert spec is not None
            output = torch.empty(spec.shape, dtype=TYPES[spec.type.name])
            addresses[value] = output.data_ptr()
            outputs.append(output)
        if self._seconds > _LONG:
            release_torch_threads()
        start = time.perf_counter()
        self._enqueue(addresses)
        taken = time.perf_counter() - start
        self._seconds = min(taken, self._seconds or taken)
        self._memory.append(memory)
        return tuple(outputs)

    def _enqueue(self, addresses: dict[int, int]) -> None:
        """Enqueue all steps and wait: whatever happens, nothing runs when this returns."""
        semaphore = self._hal.create_semaphore(0)
        fence_at, enqueued = rt.HalFence.create_at, 0
        wait = fence_at(semaphore, 0)
        try:
            for kernel, arguments in zip(self._kernels, self._arguments, strict=True):
                signal = fence_at(semaphore, enqueued + 1)
                kernel.enqueue([view(addresses[value]) for value, view in arguments], wait, signal)
                wait, enqueued = signal, enqueued + 1
        finally:
            try:
                semaphore.wait(enqueued)
            except IREE_ERRORS as error:
                raise launch_error(f"a chain of {len(self._kernels)} launches", error) from error


def _in_kernel_order(step: ChainStep, made: Sequence[int], device: IreeDevice) -> list[tuple[int, _View]]:
    """Value and view of each argument of the kernel: operands, then results."""
    spec = step.launchable.spec
    operands = sorted(zip(spec.arguments, step.arguments, strict=True), key=lambda each: each[0].position)
    results = sorted(zip(spec.results, made, strict=True), key=lambda each: each[0].position)
    return [(value, _kept_views(device, of)) for of, value in (*operands, *results)]


def _kept_views(device: IreeDevice, spec: TensorSpec) -> _View:
    """`host_views`, which keeps the last ones: they refer to memory by its address, and own none."""
    views: dict[int, Any] = {}
    new_view = host_views(device, spec.kernel_shape, spec.type)

    def view(address: int) -> Any:
        found = views.get(address)
        if found is None:
            if len(views) >= _KEPT_VIEWS:
                views.clear()
            found = views[address] = new_view(address)
        return found

    return view
