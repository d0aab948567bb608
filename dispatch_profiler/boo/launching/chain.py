"""Sequences of launches that are prepared once and run by one call."""

from __future__ import annotations

import ctypes
import math
import os
import sys
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple, Protocol

import torch

from dispatch_profiler.boo.interface import ALIGNMENT, TensorSpec
from dispatch_profiler.boo.launching.array_library import host_views
from dispatch_profiler.boo.launching.arrays import torch_tensors
from dispatch_profiler.boo.launching.arrays.torch_tensors import (
    TorchTensors,
    allocation,
    expected_of,
    index_of,
    matches,
)
from dispatch_profiler.boo.launching.chain_layout import ChainLayout, ChainStep
from dispatch_profiler.boo.launching.loading import TASK, LoadedKernel, launch_error, without_displacing
from dispatch_profiler.boo.launching.torch_threads import release_torch_threads
from dispatch_profiler.boo.launching.torch_types import PLAIN, TYPES, Tensor
from dispatch_profiler.errors import UsageError
from dispatch_profiler.operations import element_type
from dispatch_profiler.runtime.cuda_launch import BufferPlace, CudaProgram, CudaSequence, offsets_of
from dispatch_profiler.runtime.iree import IREE_ERRORS, IreeDevice

# -- on the CPU ------------------------------------------------------------------------------------

# Chains on the CPU as one submission: the launches run one after another, and the caller waits once.
#
# A single launch on several threads wakes up the threads, and then its caller, which takes 50 to 80 us on a virtual
# machine. A chain records the commands of all launches once, for the memory that it was called with. Later calls with the
# same memory execute the recording, in which a launch follows the previous one within a microsecond. Intermediate results
# are in memory that the chain keeps.


#: Number of recordings that are kept for each memory: inputs have the same few addresses again and again, but layers of
#: a model that share a chain have their own parameters.
_KEPT_RECORDINGS = 128
#: Number of sets of output memory that are kept for later calls: callers hold some outputs while others are computed.
_KEPT_OUTPUTS = 3
#: Inputs of at most so many bytes are copied to memory that a chain keeps: small tensors are at other addresses in each
#: call, and a copy takes a microsecond, a recording 30 for each launch.
_MOST_COPIED = 2**16
#: torch's threads are ended before chains that take longer than this many seconds. Ending them takes a fourth of it.
_LONG = 0.5e-3
#: Memory of a chain is there, also where a program has set another default device.
_CPU = torch.device("cpu")
_torch: Any = torch


@dataclass(frozen=True, eq=False)
class _State:
    """The addresses of the inputs of a state, 0 for unused inputs. Equal to itself only, so that it is a cheap key."""

    addresses: Sequence[int]


class _Addresses(NamedTuple):
    """The addresses of the inputs of a call: those of a state, except at `places`."""

    state: _State | None
    places: Sequence[int]
    changing: tuple[int, ...]

    def all(self, count: int) -> list[int]:
        """The addresses of all `count` inputs, 0 for unused inputs."""
        found = [0] * count if self.state is None else list(self.state.addresses)
        for at, address in zip(self.places, self.changing, strict=True):
            found[at] = address
        return found


#: Shape and strides of a tensor, in elements.
View = tuple[Sequence[int], Sequence[int]]
#: Address of a dense tensor -> its buffer view.
_BufferView = Callable[[int], Any]
#: Executes recorded launches, and waits.
_Recording = Callable[[], None]


@dataclass(frozen=True, eq=False)
class _Memory:
    """Memory for the values of one call at a time and for temporary data of its kernels, and recordings that use it."""

    slots: Sequence[Tensor]
    scratch: Tensor
    copies: Tensor
    outputs: _Outputs
    #: State, addresses of the other inputs, and of the outputs -> recording.
    recordings: dict[Hashable, _Recording]


class _Outputs:
    """Memory for outputs. It is used again once the caller's tensors are gone, so that recordings stay valid."""

    def __init__(self, specs: Sequence[TensorSpec]) -> None:
        self._views = [(each.shape, dense_strides(each.shape)) for each in specs]
        self._types = [TYPES[each.type.name] for each in specs]
        self._sizes = [math.prod(each.shape) * each.type.bytes for each in specs]
        self._kept: list[tuple[tuple[int, ...], list[Any]]] = []

    def take(self, views: Sequence[View] | None = None) -> tuple[tuple[int, ...], list[Tensor]]:
        """Addresses, and uninitialized tensors at these addresses: dense ones, unless `views` says otherwise."""
        for addresses, storages in self._kept:
            if _are_unused(storages, addresses, self._sizes):
                break
        else:
            addresses, storages = self._new()
        return addresses, [
            torch.empty(0, dtype=dtype, device=_CPU).set_(storage, 0, *view)
            for storage, dtype, view in zip(storages, self._types, views or self._views, strict=True)
        ]

    def _new(self) -> tuple[tuple[int, ...], list[Any]]:
        storages = [_torch.UntypedStorage(size, device=_CPU) for size in self._sizes]
        if len(self._kept) >= _KEPT_OUTPUTS:
            del self._kept[0]
        self._kept.append((tuple(each.data_ptr() for each in storages), storages))
        return self._kept[-1]


def _are_unused(storages: Sequence[Any], addresses: Sequence[int], sizes: Sequence[int]) -> bool:
    """Whether only a list refers to `storages`, and all are where they were and as large.

    A caller may have moved a storage to shared memory, or made it smaller.
    """
    for at, uses in enumerate(_uses(storages)):
        storage = storages[at]
        if uses != _UNUSED or storage.data_ptr() != addresses[at] or storage.nbytes() != sizes[at]:
            return False
    return True


def _uses(storages: Sequence[Any]) -> list[tuple[int, int]]:
    """References to each storage in a list: from tensors, and from Python. All its tensors share one Python object."""
    return [(_use_count(each._cdata), sys.getrefcount(each)) for each in storages]


_use_count = _torch._C._storage_Use_Count
#: `_uses` of a storage that only the list refers to.
(_UNUSED,) = _uses([_torch.UntypedStorage(1, device=_CPU)])


def dense_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides of a dense tensor, in elements."""
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


def _places_of_copies(layout: ChainLayout) -> tuple[dict[int, tuple[int, int]], int]:
    """Small input that is only read -> its place in the memory of copies, and its bytes; and the bytes of the memory."""
    found, end = dict[int, tuple[int, int]](), 0
    for place, spec in enumerate(layout.values[: layout.inputs]):
        size = 0 if spec is None else math.prod(spec.shape) * spec.type.bytes
        if 0 < size <= _MOST_COPIED and place not in layout.in_place.values():
            found[place] = end, size
            end += -(-size // ALIGNMENT) * ALIGNMENT
    return found, end


class HostPlan:
    """A chain that was prepared for the CPU: kernels on `local-task`, slots of values, and views of arguments."""

    def __init__(self, layout: ChainLayout, kernels: Sequence[LoadedKernel], device: IreeDevice) -> None:
        #: Whether each step can be part of the submission. A command buffer is executed by one device, and kernels with
        #: their own number of threads are on others.
        self.joins = [kernel.appending is not None and kernel.device.hal is device.hal for kernel in kernels]
        self._device = device
        self._names = [kernel.name for kernel in kernels]
        self._calls = [kernel.appending for kernel in kernels if kernel.appending is not None]
        self._inputs, self._outputs, self._specs = layout.inputs, layout.outputs, layout.output_specs
        self._slots, self._bytes = layout.slots()
        self._in_place = layout.in_place
        #: For each step, the value and the view of each argument of its kernel, in the kernel's order.
        self._arguments: list[list[tuple[int, _BufferView]]] = [
            [(value, host_views(device, of.kernel_shape, of.type)) for value, of in each]
            for each in layout.kernel_arguments()
        ]
        #: Input -> its place in the memory of copies, and its bytes.
        self._copied, self._copied_bytes = _places_of_copies(layout)
        #: Memory of finished calls.
        self._memory: list[_Memory] = []
        #: Seconds of the fastest call so far; 0 before the first.
        self._seconds = 0.0

    @classmethod
    def of(cls, layout: ChainLayout) -> HostPlan:
        """A plan for kernels on `local-task`. Raises the errors of a launch."""
        return cls(layout, [step.launchable.on_threads() for step in layout.steps], IreeDevice(TASK))

    @property
    def kept_bytes(self) -> int:
        """The bytes of the memory for values between launches, which later calls use again."""
        return len(self._memory) * sum(self._bytes)

    def release_memory(self) -> None:
        """Free the memory that is kept. A later call allocates it again."""
        self._memory.clear()

    def run(self, inputs: _Addresses, views: Sequence[View] | None = None) -> tuple[Tensor, ...]:
        """The outputs for inputs at these addresses: dense ones, unless `views` says otherwise. Raises RunError.

        Written as one function, as is what it calls: after kernels, code is no longer in the caches, and each Python
        function that a call enters takes some microseconds.
        """
        try:
            memory = self._memory.pop()
        except IndexError:
            sizes = (*self._bytes, max(1, *(each.scratch for each in self._calls)), self._copied_bytes)
            *slots, scratch, copies = (torch.empty(size, dtype=torch.uint8, device=_CPU) for size in sizes)
            memory = _Memory(slots, scratch, copies, _Outputs(self._specs), {})
        if not self._copied.keys().isdisjoint(inputs.places):
            inputs = self._with_copies(inputs, memory.copies.data_ptr())
        addresses, outputs = memory.outputs.take(views)
        recording = memory.recordings.get((inputs.state, inputs.changing, addresses))
        if recording is None:
            recording = self._recorded(memory, inputs, addresses)
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

    def _with_copies(self, inputs: _Addresses, start: int) -> _Addresses:
        """The addresses of inputs, small ones of which are copied to memory that begins at `start`."""
        changing = list(inputs.changing)
        for at, place in enumerate(inputs.places):
            if place in self._copied:
                offset, size = self._copied[place]
                ctypes.memmove(start + offset, changing[at], size)
                changing[at] = start + offset
        return inputs._replace(changing=tuple(changing))

    def _recorded(self, memory: _Memory, inputs: _Addresses, outputs: tuple[int, ...]) -> _Recording:
        """A recording of the launches for inputs and outputs at these addresses, which `memory` keeps."""
        while len(memory.recordings) >= _KEPT_RECORDINGS:
            del memory.recordings[next(iter(memory.recordings))]
        recording = self._record(memory, inputs.all(self._inputs), outputs)
        memory.recordings[inputs.state, inputs.changing, outputs] = recording
        return recording

    def _record(self, memory: _Memory, inputs: Sequence[int], outputs: tuple[int, ...]) -> _Recording:
        """A new recording for inputs and outputs at these addresses. Raises the errors of a launch."""
        at = dict(enumerate(inputs))
        at |= {value: memory.slots[slot].data_ptr() for value, slot in self._slots.items()}
        at |= dict(zip(self._outputs, outputs, strict=True))
        at |= {value: at[place] for value, place in self._in_place.items()}
        view_of = host_views(self._device, (memory.scratch.numel(),), element_type("i8"))
        scratch = view_of(memory.scratch.data_ptr())
        commands = self._calls[0].begin()
        for call, arguments, name in zip(self._calls, self._arguments, self._names, strict=True):
            try:
                call.append([view(at[value]) for value, view in arguments], scratch, commands)
            except IREE_ERRORS as error:
                raise launch_error(name, error) from error
        return without_displacing(self._calls[0].finish(commands))


# -- on a CUDA device ------------------------------------------------------------------------------

# Chains on a CUDA device: one call adds all launches to torch's current stream.
#
# Separate launches would take the host longer than most kernels take the GPU, since each launch checks its tensors and
# allocates its results.


class StreamPlan:
    """A chain that was prepared for a CUDA device: its kernels, and the places of their arguments in memory.

    Intermediate results and temporary memory share one allocation, which the stream uses in order.
    """

    def __init__(self, layout: ChainLayout, programs: Sequence[CudaProgram], device: torch.device) -> None:
        """`programs` has the kernel of each step, on `device`."""
        slots, sizes = layout.slots()
        offsets, end = offsets_of(sizes)
        # A call passes the addresses of the inputs, of the allocation, and of the outputs, in this order.
        inputs = self._inputs = layout.inputs
        places = {value: BufferPlace(value) for value in range(inputs)}
        places |= {value: BufferPlace(inputs, offsets[slot]) for value, slot in slots.items()}
        places |= {value: BufferPlace(inputs + 1 + at) for at, value in enumerate(layout.outputs)}
        places |= {value: places[place] for value, place in layout.in_place.items()}
        arguments = [[places[value] for value, _ in each] for each in layout.kernel_arguments()]
        self._sequence = CudaSequence(list(zip(programs, arguments, strict=True)), BufferPlace(inputs, end))
        size = max(1, end + max(each.transient_bytes for each in programs))
        self._memory = partial(torch.empty, size, dtype=torch.uint8, device=device)
        self._outputs = [allocation(each, device) for each in layout.output_specs]
        self._index = index_of(device)

    def run(self, inputs: _Addresses) -> tuple[Tensor, ...]:
        """The outputs for inputs at these addresses. Raises RunError."""
        memory = self._memory()  # free for the next user of this stream when this function returns
        outputs = [new() for new in self._outputs]
        addresses = [*inputs.all(self._inputs), memory.data_ptr(), *[each.data_ptr() for each in outputs]]
        self._sequence.launch(addresses, torch_tensors.current_stream(self._index))
        return tuple(outputs)


# -- the chain -------------------------------------------------------------------------------------

#: Number of states whose parameters' addresses are kept: layers of a model that share a chain have a state each.
_KEPT_STATES = 64
#: Runs a chain for inputs at these addresses, and returns the outputs with these shapes and strides. Raises RunError.
Repeatable = Callable[[tuple[int, ...], Sequence[View]], tuple[Tensor, ...]]


class _ChainPlan(Protocol):
    """A chain that was prepared for a device."""

    def run(self, inputs: _Addresses) -> tuple[Tensor, ...]:
        """The outputs for inputs at these addresses. Raises RunError."""


class Chain:
    """A sequence of launches on torch tensors, run by one call.

    Returns the same results as calling the launchables one after another. It does call them one after another on the
    first call on a device, and for tensors that kernels cannot use in place. Steps that cannot be part of one submission
    divide the chain into several.
    """

    def __init__(
        self,
        steps: Sequence[ChainStep],
        inputs: int,
        outputs: Sequence[int],
        in_place: Mapping[int, int] | None = None,
    ) -> None:
        """Parameters and errors are as for `ChainLayout`."""
        self._layout = ChainLayout(tuple(steps), inputs, tuple(outputs), in_place or {})
        #: Shape and type of each input; None if no step takes the input.
        self._expected = [
            None if each is None else expected_of([each])[0] for each in self._layout.values[:inputs]
        ]
        self._first = next((at for at, each in enumerate(self._expected) if each is not None), None)
        #: State -> addresses of all inputs in its last checked call.
        self._known: dict[object, _State] = {}
        #: Index of a device (-1 for the CPU) -> plan; None if the kernels have to be launched one by one.
        self._plans: dict[int, _ChainPlan | None] = {}
        self._parts = [_Part(each.launchable, each.arguments, made) for each, made in self._in_order()]
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
        first = None if self._first is None else inputs[self._first]
        index = first.get_device() if first is not None and type(first) in PLAIN else None
        addresses = None if index is None else self._addresses(index, changing, inputs, state)
        if index is None or addresses is None:
            return self._one_by_one(inputs)
        if index not in self._plans:
            outputs = self._one_by_one(inputs)  # loads each kernel; on the CPU, measures the fastest driver
            self._plans[index] = self._plan(inputs)
            return outputs
        plan = self._plans[index]
        return self._one_by_one(inputs) if plan is None else plan.run(addresses)

    @property
    def kept_bytes(self) -> int:
        """The bytes of the CPU's memory for values between launches, which later calls use again."""
        return sum(each.kept_bytes for each in self._with_memory())

    def release_memory(self) -> None:
        """Free this memory. A later call allocates it again."""
        for each in self._with_memory():
            each.release_memory()

    def _with_memory(self) -> list[HostPlan | Chain]:
        plans = [each for each in self._plans.values() if isinstance(each, HostPlan)]
        return [*plans, *(each.call for each in self._parts if isinstance(each.call, Chain))]

    def _addresses(
        self, index: int, changing: Sequence[int], inputs: Sequence[Tensor], state: object
    ) -> _Addresses | None:
        """The addresses of the inputs; None if the kernels cannot use an input in place."""
        known = None if state is None else self._known.get(state)
        to_check = range(self._layout.inputs) if known is None else changing
        taken = [(at, expected) for at in to_check if (expected := self._expected[at]) is not None]
        if not matches([inputs[at] for at, _ in taken], [expected for _, expected in taken], index):
            return None
        places = [at for at, _ in taken]
        addresses = tuple(inputs[at].data_ptr() for at in places)
        if any(not each or each % ALIGNMENT for each in addresses):
            return None
        found = _Addresses(known, places, addresses)
        if state is None or known is not None:
            return found
        for old in list(self._known)[: len(self._known) - _KEPT_STATES + 1]:
            self._known.pop(old, None)
        self._known[state] = _State(found.all(self._layout.inputs))
        return self._addresses(index, changing, inputs, state)

    def repeatable(
        self, changing: Sequence[int], inputs: Sequence[Tensor], state: object
    ) -> tuple[Repeatable, list[int]] | None:
        """What runs the chain again on the CPU in the known `state`, and the places of the inputs whose addresses it takes.

        None if there is no such thing. Parameters are as for `call`.
        """
        plan = self._plans.get(-1) if self._pid == os.getpid() else None
        if not isinstance(plan, HostPlan) or self._known.get(state) is None:
            return None
        found = self._addresses(-1, changing, inputs, state)
        if found is None:
            return None
        return lambda addresses, views: plan.run(found._replace(changing=addresses), views), list(
            found.places
        )

    def _plan(self, inputs: Sequence[Tensor]) -> _ChainPlan | None:
        """The plan for the device of `inputs`, with its loaded kernels; None if they have to be launched one by one."""
        assert self._first is not None
        device = inputs[self._first].device
        uri = TorchTensors(device).uri
        if uri == TASK:
            plan = HostPlan.of(self._layout)
            if plan.joins and all(plan.joins):
                return plan
            self._parts = self._divided(plan.joins)
            return None
        programs = [step.launchable.program_on(uri) for step in self._layout.steps]
        loaded = [each for each in programs if each is not None]
        return StreamPlan(self._layout, loaded, device) if len(loaded) == len(programs) else None

    def _in_order(self) -> Iterator[tuple[ChainStep, range]]:
        """The steps, and the numbers of their results."""
        return zip(self._layout.steps, self._layout.results, strict=True)

    def _divided(self, joins: Sequence[bool]) -> list[_Part]:
        """The steps as few parts: consecutive steps that join are chains of their own."""
        parts: list[_Part] = []
        for does_join, group in groupby(zip(joins, self._in_order(), strict=True), key=itemgetter(0)):
            steps = [each for _, each in group]
            if does_join and len(steps) > 1:
                parts.append(self._joined(steps))
            else:
                parts += [_Part(step.launchable, step.arguments, made) for step, made in steps]
        return parts

    def _joined(self, steps: Sequence[tuple[ChainStep, range]]) -> _Part:
        """Consecutive steps as a chain of their own."""
        made = [number for _, results in steps for number in results]
        inside = {id(step) for step, _ in steps}
        others = (each.arguments for each in self._layout.steps if id(each) not in inside)
        read = {
            *self._layout.outputs,
            *self._layout.in_place,
            *(number for each in others for number in each),
        }
        taken = sorted({number for step, _ in steps for number in step.arguments} - set(made))
        numbers = {number: at for at, number in enumerate((*taken, *made))}
        own = [
            ChainStep(step.launchable, tuple(numbers[each] for each in step.arguments)) for step, _ in steps
        ]
        kept = [number for number in made if number in read]
        return _Part(Chain(own, len(taken), [numbers[each] for each in kept]), taken, kept)

    def _one_by_one(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        values = dict(enumerate(inputs))
        for part in self._parts:
            returned = part.call(*(values[each] for each in part.taken))
            values.update(
                zip(part.made, (returned,) if isinstance(returned, torch.Tensor) else returned, strict=True)
            )
        for value, place in self._layout.in_place.items():
            inputs[place].copy_(values[value])
        return tuple(values[each] for each in self._layout.outputs)


@dataclass(frozen=True)
class _Part:
    """A launch or a chain of launches, the numbers of the values that it takes, and of those that it returns."""

    call: Callable[..., Any]
    taken: Sequence[int]
    made: Sequence[int]
