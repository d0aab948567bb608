"""Chains of launches on the CPU as one submission: each runs after the previous one, and the caller waits once.

A launch on several threads wakes them up and is woken up itself, which takes 50 to 80 us on a virtual machine. A chain
records the commands of its launches once, for the memory that it was called with; later calls with that memory only
execute the recording, in which a launch follows another within a microsecond. What one launch leaves for others is in
memory that the chain keeps.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

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
from dispatch_profiler.operations import element_type
from dispatch_profiler.runtime.iree import IreeDevice
from dispatch_profiler.runtime.iree_buffers import IREE_ERRORS

#: Recordings that are kept for each memory: inputs have the same few addresses again and again.
_KEPT_RECORDINGS = 32
#: Memory for outputs that is kept for later calls, as often as this: callers hold some outputs while others are computed.
_KEPT_OUTPUTS = 3
_torch: Any = torch

#: Seconds from which a chain is long enough that torch's threads are ended for it, which costs a fourth of this.
_LONG = 0.5e-3

#: Address of a dense tensor -> its buffer view.
_View = Callable[[int], Any]
#: Executes recorded launches, and waits.
_Recording = Callable[[], None]


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
        #: What each input has to be; None if no step takes it.
        self._expected = [None if each is None else expected_of([each])[0] for each in self._values[:inputs]]
        #: A state, and the addresses of the inputs that depend on it. Replaced as a whole, because of threads.
        self._last: tuple[object, list[int]] | None = None
        self._plan: _Plan | None = None
        self._pid = 0

    def __call__(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """The outputs for `inputs`. Raises what the launches raise."""
        return self.call(range(self.inputs), inputs, None)

    def call(self, changing: Sequence[int], inputs: Sequence[Tensor], state: object) -> tuple[Tensor, ...]:
        """As a call with `inputs`. If `state` is that of the last call, and not None, only those in `changing` differ."""
        if self._pid != os.getpid():  # a forked process has devices of its own
            self._plan, self._pid = None, os.getpid()
        if len(inputs) != self.inputs:
            raise UsageError(f"a chain takes {self.inputs} inputs, but got {len(inputs)}")
        addresses = self._addresses(changing, inputs, state)
        if addresses is None:
            return self._one_by_one(inputs)
        if self._plan is None:
            found = self._one_by_one(inputs)  # loads each kernel, and measures the fastest driver
            self._plan = _Plan.of(self)
            return found
        return self._plan.run(addresses) if self._plan.is_usable else self._one_by_one(inputs)

    def _addresses(
        self, changing: Sequence[int], inputs: Sequence[Tensor], state: object
    ) -> list[int] | None:
        """Where the inputs are, 0 for those that no step takes; None unless the kernels can use the others in place."""
        last = self._last
        if state is not None and last is not None and last[0] is state:
            found, to_check = last[1].copy(), changing
        else:
            found, to_check = [0] * self.inputs, range(self.inputs)
        taken = [(at, expected) for at in to_check if (expected := self._expected[at]) is not None]
        if not matches([inputs[at] for at, _ in taken], [expected for _, expected in taken], -1):
            return None
        for at, _ in taken:
            found[at] = address = inputs[at].data_ptr()
            if not address or address % ALIGNMENT:
                return None
        if state is not None and to_check is not changing:
            self._last = state, found.copy()
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


@dataclass(frozen=True, eq=False)
class _Memory:
    """What the values of one call at a time are in, the temporary memory of its kernels, and what was recorded for it."""

    slots: Sequence[Tensor]
    scratch: Tensor
    outputs: _Outputs
    #: By the addresses of inputs and outputs.
    recordings: dict[tuple[int, ...], _Recording]


class _Outputs:
    """Memory for the outputs of calls, which is used again once no tensor is in it: then recordings stay valid."""

    def __init__(self, specs: Sequence[TensorSpec]) -> None:
        self._specs = [
            (each.shape, TYPES[each.type.name], math.prod(each.shape) * each.type.bytes) for each in specs
        ]
        self._kept: list[tuple[tuple[int, ...], list[Any]]] = []

    def take(self) -> tuple[tuple[int, ...], list[Tensor]]:
        """Addresses, and uninitialized tensors there."""
        for addresses, storages in self._kept:
            # What else a caller may have done to one that is free: moved it to shared memory, or made it smaller.
            if all(
                _torch._C._storage_Use_Count(each._cdata) == 1
                and (each.data_ptr(), each.nbytes()) == (address, size)
                for each, address, (_, _, size) in zip(storages, addresses, self._specs, strict=True)
            ):
                return addresses, [
                    _tensor(each, shape, dtype)
                    for each, (shape, dtype, _) in zip(storages, self._specs, strict=True)
                ]
        tensors = [torch.empty(shape, dtype=dtype) for shape, dtype, _ in self._specs]
        found = tuple(each.data_ptr() for each in tensors)
        if len(self._kept) >= _KEPT_OUTPUTS:
            del self._kept[0]
        self._kept.append((found, [each.untyped_storage() for each in tensors]))
        return found, tensors


def _tensor(storage: Any, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """A dense tensor from the beginning of a storage."""
    strides = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    return torch.empty(0, dtype=dtype).set_(storage, 0, shape, strides)


class _Plan:
    """What a chain prepares: kernels on the device with threads, the slot of each value, and how to view arguments."""

    def __init__(self, chain: Chain, kernels: Sequence[LoadedKernel], device: IreeDevice) -> None:
        # A command buffer is executed by one device, and kernels with their own number of threads are on others.
        self.is_usable = bool(kernels) and all(
            kernel.appending is not None and kernel.device.hal is device.hal for kernel in kernels
        )
        self._device = device
        self._names = [kernel.name for kernel in kernels]
        self._calls = [kernel.appending for kernel in kernels if kernel.appending is not None]
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
        self._memory: list[_Memory] = []
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
            memory = self._new_memory()
        addresses, outputs = memory.outputs.take()
        recording = self._recording(memory, (*inputs, *addresses))
        if self._seconds > _LONG:
            release_torch_threads()
        start = time.perf_counter()
        try:
            recording()
        except IREE_ERRORS as error:
            raise launch_error(f"a chain of {len(self._calls)} launches", error) from error
        taken = time.perf_counter() - start
        self._seconds = min(taken, self._seconds or taken)
        self._memory.append(memory)
        return tuple(outputs)

    def _new_memory(self) -> _Memory:
        scratch = max(1, *(each.scratch for each in self._calls))
        sizes = (*self._bytes, scratch)
        *slots, last = (torch.empty(size, dtype=torch.uint8) for size in sizes)
        specs = [spec for value in self._outputs if (spec := self._values[value]) is not None]
        return _Memory(slots, last, _Outputs(specs), {})

    def _recording(self, memory: _Memory, addresses: tuple[int, ...]) -> _Recording:
        """The launches with inputs and outputs at these addresses."""
        found = memory.recordings.get(addresses)
        if found is None:
            while len(memory.recordings) >= _KEPT_RECORDINGS:
                del memory.recordings[next(iter(memory.recordings))]
            found = memory.recordings[addresses] = self._record(memory, addresses)
        return found

    def _record(self, memory: _Memory, addresses: tuple[int, ...]) -> _Recording:
        """As `_recording`, anew. Raises what a launch raises."""
        inputs = len(addresses) - len(self._outputs)
        at = dict(enumerate(addresses[:inputs]))
        at |= {value: memory.slots[slot].data_ptr() for value, slot in self._slots.items()}
        at |= dict(zip(self._outputs, addresses[inputs:], strict=True))
        scratch = host_views(self._device, (memory.scratch.numel(),), element_type("i8"))
        scratch_view = scratch(memory.scratch.data_ptr())
        commands = self._calls[0].begin()
        for call, arguments, name in zip(self._calls, self._arguments, self._names, strict=True):
            try:
                call.append([view(at[value]) for value, view in arguments], scratch_view, commands)
            except IREE_ERRORS as error:
                raise launch_error(name, error) from error
        return self._calls[0].finish(commands)


def _in_kernel_order(step: ChainStep, made: Sequence[int], device: IreeDevice) -> list[tuple[int, _View]]:
    """Value and view of each argument of the kernel: operands, then results."""
    spec = step.launchable.spec
    operands = sorted(zip(spec.arguments, step.arguments, strict=True), key=lambda each: each[0].position)
    results = sorted(zip(spec.results, made, strict=True), key=lambda each: each[0].position)
    return [(value, host_views(device, of.kernel_shape, of.type)) for of, value in (*operands, *results)]
