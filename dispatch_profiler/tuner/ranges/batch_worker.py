"""The code of the process that runs kernels for any number of rows or images: at one size at a time, in turn.

Results are checked in another process, `profiler.evaluation.device_worker`, because numpy's threads would disturb the times.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from dispatch_profiler.operations import Distribution, Operation, Tensor
from dispatch_profiler.profiler.measurement.cpu_idle import yield_to_workers
from dispatch_profiler.profiler.verification.inputs import draw, poison
from dispatch_profiler.runtime import Arguments, Buffer, Call, Device, Program, open_device

#: The weight's position among the operands.
_WEIGHT = 1


@dataclass(frozen=True)
class BatchKernel:
    """A kernel that takes the number of rows or images from its operands, and its weight packed.

    `function` takes the operands, then the results; `packing_function` the weight, then the `packed` tensors, which take its
    place. Kernels with equal `layout` pack equal weights into equal tensors.
    """

    function: str
    packing_function: str
    packed: tuple[Tensor, ...]
    layout: str


@dataclass
class _Running:
    """What the process keeps: its device, the kernels by name, and the operands of the size at hand."""

    device: Device
    kernels: dict[str, tuple[BatchKernel, Program]] = field(default_factory=dict)
    operation: Operation | None = None
    operands: tuple[Buffer, ...] = ()
    results: tuple[Buffer, ...] = ()
    #: Layout -> packed weight.
    packed: dict[str, tuple[Buffer, ...]] = field(default_factory=dict)
    calls: dict[str, Call] = field(default_factory=dict)


_states: list[_Running] = []


def start(uri: str) -> None:
    """Open the device of this process. Raises TargetError if it does not exist."""
    _states[:] = [_Running(open_device(uri))]
    yield_to_workers()


def load(kernel: BatchKernel, vmfb: bytes) -> None:
    """Load a kernel. Raises RunError."""
    state = _states[0]
    state.kernels[kernel.function] = kernel, state.device.load(vmfb)


def begin(operation: Operation, seed: int) -> None:
    """Draw the operands of `operation`, which has the size that is run next. Raises RunError and WorkerOutOfMemory."""
    state = _states[0]
    state.operation, state.calls, state.packed = operation, {}, {}
    arrays = zip(operation.operands, draw(operation, Distribution.REALS, seed), strict=True)
    state.operands = tuple(state.device.put(array, each.type) for each, array in arrays)
    state.results = tuple(_poisoned(state.device, operation))


def _poisoned(device: Device, operation: Operation) -> Sequence[Buffer]:
    return [device.put(poison(each.type, each.shape), each.type) for each in operation.results]


def run_once(name: str) -> tuple[np.ndarray, ...]:
    """The results of the kernel `name` at the size at hand, in memory that held no plausible value before."""
    state = _states[0]
    assert state.operation is not None
    for result, clean in zip(state.results, _poisoned(state.device, state.operation), strict=True):
        result.copy_from(clean)
    _call(name).invoke()
    return tuple(each.read() for each in state.results)


def times(calls: Mapping[str, int]) -> dict[str, float]:
    """Seconds of a call of each kernel, one kernel after another, each called so often.

    Several calls follow one that is not timed, which brings the operands into the caches; a single call takes long.
    """
    found = {}
    for name, count in calls.items():
        call = _call(name)
        if count > 1:
            call.time(1)
        found[name] = call.time(count) / count
    return found


def _call(name: str) -> Call:
    state = _states[0]
    if name not in state.calls:
        kernel, program = state.kernels[name]
        if kernel.layout not in state.packed:
            state.packed[kernel.layout] = _pack(state, kernel, program)
        before, after = state.operands[:_WEIGHT], state.operands[_WEIGHT + 1 :]
        arguments = Arguments((*before, *state.packed[kernel.layout], *after), state.results)
        state.calls[name] = program.bind(kernel.function, arguments)
    return state.calls[name]


def _pack(state: _Running, kernel: BatchKernel, program: Program) -> tuple[Buffer, ...]:
    packed = tuple(state.device.allocate(each.shape, each.type) for each in kernel.packed)
    program.bind(kernel.packing_function, Arguments((state.operands[_WEIGHT],), packed)).invoke()
    return packed
