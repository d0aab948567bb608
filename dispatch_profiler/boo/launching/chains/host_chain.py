"""Chains on the CPU as one submission: the launches run one after another, and the caller waits once.

A single launch on several threads wakes up the threads, and then its caller, which takes 50 to 80 us on a virtual
machine. A chain records the commands of all launches once, for the memory that it was called with. Later calls with the
same memory execute the recording, in which a launch follows the previous one within a microsecond. Intermediate results
are in memory that the chain keeps.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from dispatch_profiler.boo.interface import TensorSpec
from dispatch_profiler.boo.launching.chains.chain_layout import ChainLayout
from dispatch_profiler.boo.launching.drivers import TASK
from dispatch_profiler.boo.launching.host.host_memory import host_views
from dispatch_profiler.boo.launching.host.torch_threads import release_torch_threads
from dispatch_profiler.boo.launching.loaded import LoadedKernel, launch_error
from dispatch_profiler.boo.launching.torch_types import TYPES, Tensor
from dispatch_profiler.boo.launching.waiting import without_displacing
from dispatch_profiler.operations import element_type
from dispatch_profiler.runtime.iree import IreeDevice
from dispatch_profiler.runtime.iree_buffers import IREE_ERRORS

#: Number of recordings that are kept for each memory: inputs have the same few addresses again and again, but layers of
#: a model that share a chain have their own parameters.
_KEPT_RECORDINGS = 128
#: Number of sets of output memory that are kept for later calls: callers hold some outputs while others are computed.
_KEPT_OUTPUTS = 3
#: torch's threads are ended before chains that take longer than this many seconds. Ending them takes a fourth of it.
_LONG = 0.5e-3
_torch: Any = torch

#: Address of a dense tensor -> its buffer view.
_View = Callable[[int], Any]
#: Executes recorded launches, and waits.
_Recording = Callable[[], None]


@dataclass(frozen=True, eq=False)
class _Memory:
    """Memory for the values of one call at a time and for temporary data of its kernels, and recordings that use it."""

    slots: Sequence[Tensor]
    scratch: Tensor
    outputs: _Outputs
    #: Addresses of inputs and outputs -> recording.
    recordings: dict[tuple[int, ...], _Recording]


class _Outputs:
    """Memory for outputs. It is used again once the caller's tensors are gone, so that recordings stay valid."""

    def __init__(self, specs: Sequence[TensorSpec]) -> None:
        self._specs = [
            (each.shape, TYPES[each.type.name], math.prod(each.shape) * each.type.bytes) for each in specs
        ]
        self._kept: list[tuple[tuple[int, ...], list[Any]]] = []

    def take(self) -> tuple[tuple[int, ...], list[Tensor]]:
        """Addresses, and uninitialized tensors at these addresses."""
        for addresses, storages in self._kept:
            # A caller may have moved a free storage to shared memory, or made it smaller.
            if all(uses == _UNUSED for uses in map(_uses, storages)) and all(
                (each.data_ptr(), each.nbytes()) == (address, size)
                for each, address, (_, _, size) in zip(storages, addresses, self._specs, strict=True)
            ):
                return addresses, [
                    _tensor(each, shape, dtype)
                    for each, (shape, dtype, _) in zip(storages, self._specs, strict=True)
                ]
        tensors = [torch.empty(shape, dtype=dtype) for shape, dtype, _ in self._specs]
        new = tuple(each.data_ptr() for each in tensors)
        if len(self._kept) >= _KEPT_OUTPUTS:
            del self._kept[0]
        self._kept.append((new, [each.untyped_storage() for each in tensors]))
        return new, tensors


def _uses(storage: Any) -> tuple[int, int]:
    """References to a storage in a list: from tensors, and from Python. All its tensors share one Python object."""
    return _torch._C._storage_Use_Count(storage._cdata), sys.getrefcount(storage)


#: `_uses` of a storage that only the list refers to.
_UNUSED = next(map(_uses, [torch.empty(1).untyped_storage()]))


def _tensor(storage: Any, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """A dense tensor at the beginning of a storage."""
    strides = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    return torch.empty(0, dtype=dtype).set_(storage, 0, shape, strides)


class HostPlan:
    """A chain that was prepared for the CPU: kernels on `local-task`, slots of values, and views of arguments."""

    def __init__(self, layout: ChainLayout, kernels: Sequence[LoadedKernel], device: IreeDevice) -> None:
        # A command buffer is executed by one device, and kernels with their own number of threads are on others.
        self.is_usable = bool(kernels) and all(
            kernel.appending is not None and kernel.device.hal is device.hal for kernel in kernels
        )
        self._device = device
        self._names = [kernel.name for kernel in kernels]
        self._calls = [kernel.appending for kernel in kernels if kernel.appending is not None]
        self._outputs, self._specs = layout.outputs, layout.output_specs
        self._slots, self._bytes = layout.slots()
        #: For each step, the value and the view of each argument of its kernel, in the kernel's order.
        self._arguments: list[list[tuple[int, _View]]] = [
            [(value, host_views(device, of.kernel_shape, of.type)) for value, of in each]
            for each in layout.kernel_arguments()
        ]
        #: Memory of finished calls.
        self._memory: list[_Memory] = []
        #: Seconds of the fastest call so far; 0 before the first.
        self._seconds = 0.0

    @classmethod
    def of(cls, layout: ChainLayout) -> HostPlan:
        """A plan for kernels on `local-task`. Raises the errors of a launch."""
        return cls(layout, [step.launchable.on_threads() for step in layout.steps], IreeDevice(TASK))

    def run(self, inputs: Sequence[int]) -> tuple[Tensor, ...]:
        """The outputs for inputs at these addresses. Raises RunError."""
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
        return _Memory(slots, last, _Outputs(self._specs), {})

    def _recording(self, memory: _Memory, addresses: tuple[int, ...]) -> _Recording:
        """The recording of the launches for inputs and outputs at these addresses."""
        recording = memory.recordings.get(addresses)
        if recording is None:
            while len(memory.recordings) >= _KEPT_RECORDINGS:
                del memory.recordings[next(iter(memory.recordings))]
            recording = memory.recordings[addresses] = self._record(memory, addresses)
        return recording

    def _record(self, memory: _Memory, addresses: tuple[int, ...]) -> _Recording:
        """A new recording for inputs and outputs at these addresses. Raises the errors of a launch."""
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
        return without_displacing(self._calls[0].finish(commands))
