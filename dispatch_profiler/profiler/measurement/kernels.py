"""Operations on a device, computed by vmfbs or by a library.

The runtime knows only buffers. This module adds the operands of an operation, and calls that write their
results to memory that held no plausible value before.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from dispatch_profiler.operations import Operation, Tensor
from dispatch_profiler.profiler.verification.inputs import poison
from dispatch_profiler.runtime import Arguments, Buffer, Call, Device, Program, RunError, open_device


@dataclass(frozen=True, eq=False)
class Operands:
    """The operands of an operation and the memory of its results, on a device.

    `handles` belong to the device, in the order of `operation.operands`, then `operation.results`. All calls
    bound to them read and write the same memory. Its place makes a kernel up to 10 % faster or slower, so
    calls that are compared share it.
    """

    operation: Operation
    handles: tuple[Any, ...]


class KernelCall(Protocol):
    """One kernel with its operands on the device, ready to be run repeatedly."""

    @property
    def now(self) -> Callable[[], float] | None:
        """See `runtime.Call.now`."""

    def run(self) -> tuple[np.ndarray, ...]:
        """Run once, into memory that held no plausible value before; returns the results."""

    def time(self, calls: int) -> float:
        """See `runtime.Call.time`."""


class LoadedKernels(Protocol):
    """Kernels by the names of their functions."""

    def bind(self, function: str, *operands: Operands) -> KernelCall:
        """The call of `function` on these operands, in turn if several. RunError if it does not exist."""


class Kernels(Protocol):
    """A device, or a library on one, that computes operations."""

    @property
    def cache_bytes(self) -> int:
        """See `runtime.Device.cache_bytes`."""

    def load(self, vmfb: bytes) -> LoadedKernels:
        """See `runtime.Device.load`."""

    def put(self, operation: Operation, inputs: Sequence[np.ndarray]) -> Operands:
        """Copy `inputs` (shapes and types of `operation.operands`) to the device. RunError if it fails."""


def open_kernels(uri: str, build_dir: Path | None = None) -> DeviceKernels:
    """The kernels of vmfbs on the device `uri`. Raises TargetError if the device does not exist."""
    return DeviceKernels(open_device(uri, build_dir))


class DeviceKernels:
    """See `Kernels`: kernels of vmfbs, on a device of the runtime."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._poisons: tuple[tuple[Tensor, ...], tuple[Buffer, ...]] = (), ()

    @property
    def cache_bytes(self) -> int:
        """See `Kernels.cache_bytes`."""
        return self._device.cache_bytes

    def load(self, vmfb: bytes) -> DeviceProgram:
        """See `Kernels.load`."""
        return DeviceProgram(self, self._device.load(vmfb))

    def put(self, operation: Operation, inputs: Sequence[np.ndarray]) -> Operands:
        """See `Kernels.put`."""
        arrays = zip(operation.operands, inputs, strict=True)
        operands = [self._device.put(array, tensor.type) for tensor, array in arrays]
        results = [self._device.put(poison(each.type, each.shape), each.type) for each in operation.results]
        return Operands(operation, (*operands, *results))

    def poisons(self, results: tuple[Tensor, ...]) -> tuple[Buffer, ...]:
        """Poison for each of `results`, on the device; kept for the last operation."""
        if self._poisons[0] != results:
            made = tuple(self._device.put(poison(each.type, each.shape), each.type) for each in results)
            self._poisons = results, made
        return self._poisons[1]


class DeviceProgram:
    """See `LoadedKernels`."""

    def __init__(self, kernels: DeviceKernels, program: Program) -> None:
        self._kernels = kernels
        self._program = program

    def bind(self, function: str, *operands: Operands) -> DeviceCall:
        """See `LoadedKernels.bind`."""
        return DeviceCall(
            self._kernels, self._program.bind(function, *map(_arguments, operands)), operands[0]
        )


class DeviceCall:
    """See `KernelCall`."""

    def __init__(self, kernels: DeviceKernels, call: Call, operands: Operands) -> None:
        self._kernels = kernels
        self._call = call
        self._operands = operands

    @property
    def now(self) -> Callable[[], float] | None:
        """See `KernelCall.now`."""
        return self._call.now

    def run(self) -> tuple[np.ndarray, ...]:
        """See `KernelCall.run`."""
        results = _arguments(self._operands).results
        poisons = self._kernels.poisons(self._operands.operation.results)
        for result, clean in zip(results, poisons, strict=True):
            result.copy_from(clean)
        self._call.invoke()
        return tuple(result.read() for result in results)

    def time(self, calls: int) -> float:
        """See `KernelCall.time`."""
        return self._call.time(calls)


def _arguments(operands: Operands) -> Arguments:
    count = len(operands.operation.operands)
    return Arguments(operands.handles[:count], operands.handles[count:])


# -- placement -------------------------------------------------------------------------------------

# Where operands lie in memory, which makes a kernel up to 10 % faster or slower.
#
# The pages of an array determine which sets of the caches it uses. So that a result does not depend on one
# lucky or unlucky place, samples rotate over several places, and everything that is compared shares them.
# Large operands need only one place: they have pages of every kind.


#: Places of one operation in warm mode, and bytes of all of them together.
_PLACES = 64
_PLACES_BYTES = 256 * 2**20
#: Factor by which operands in cold mode exceed the caches.
_TIMES_CACHE = 3


def warm_places(operation: Operation) -> int:
    """Number of places at which an operation is measured: 64, fewer if they are large."""
    return max(1, min(_PLACES, _PLACES_BYTES // operation.bytes))


def cold_places(operation: Operation, cache_bytes: int) -> int:
    """Number of places so that, in rotation, no cache holds the next one's operands.

    Raises RunError if the cache sizes are unknown (`cache_bytes` is 0).
    """
    if not cache_bytes:
        raise RunError("the cache sizes of this device are unknown: measure with --mode=warm")
    return math.ceil(_TIMES_CACHE * cache_bytes / operation.bytes) + 1


class Places:
    """The same operands at several places of a device's memory, allocated on demand."""

    def __init__(self, device: Kernels, operation: Operation, inputs: Sequence[np.ndarray]) -> None:
        self.operation = operation
        self.device = device
        self._inputs = inputs
        self._made: list[Operands] = []

    @property
    def bytes(self) -> int:
        """Bytes of the places allocated so far."""
        return len(self._made) * self.operation.bytes

    def at(self, place: int) -> Operands:
        """The operands at number `place`, from 0. Raises RunError and WorkerOutOfMemory."""
        return self.first(place + 1)[place]

    def first(self, count: int) -> tuple[Operands, ...]:
        """The operands at the first `count` places. Raises RunError and WorkerOutOfMemory."""
        while len(self._made) < count:
            self._made.append(self.device.put(self.operation, self._inputs))
        return tuple(self._made[:count])


class Stage(NamedTuple):
    """A call at one place, and a single execution there, which brings the operands into the caches."""

    call: KernelCall
    warm_up: KernelCall


class Rotation:
    """Calls that rotate over `places` places, from number `begin` on; `stage` makes each.

    `advance` moves to the next place and returns its number, `time` stays there.
    """

    def __init__(self, stage: Callable[[int], Stage], places: int, begin: int = 0) -> None:
        self._make = stage
        self._places = places
        self._next = begin
        self._stage: Stage | None = None

    def advance(self) -> int:
        """Move to the next place and warm up the operands there."""
        is_warm = self._places == 1 and self._stage is not None
        number, self._next = self._next, self._next + 1
        self._stage = self._make(number)
        if not is_warm:
            self._stage.warm_up.time(1)
        return number % self._places

    def time(self, calls: int) -> float:
        """See `Call.time`."""
        assert self._stage is not None
        return self._stage.call.time(calls)


# -- protocol --------------------------------------------------------------------------------------

# The protocol of libraries.


class NotSupported(RunError):
    """The library has no function that computes this operation as defined."""


class Library(Protocol):
    """A library on one device: both a `Device` and a `Program`."""

    @property
    def version(self) -> str:
        """The library with its backends: `numpy 2.4.6 (OpenBLAS 0.3.31, Haswell)`."""

    @property
    def cache_bytes(self) -> int:
        """See `Device.cache_bytes`."""

    @property
    def repeats(self) -> bool:
        """True if one call can run many executions, like a profile vmfb."""

    def load_repeated(self, count: int) -> LoadedKernels:
        """Kernels that run `count` executions per call. Only if `repeats`."""

    def converts_weights_ahead(self, operation: Operation) -> bool:
        """Whether `put` stores a filter or weight in a layout or type of the library's choice, which is not timed."""

    def load(self, vmfb: bytes) -> Library:
        """Returns the library itself: there is nothing to load."""

    def put(self, operation: Operation, inputs: Sequence[np.ndarray]) -> Operands:
        """See `Device.put`; constants are stored in the library's preferred layout. Raises NotSupported."""

    def bind(self, function: str, *operands: Operands) -> KernelCall:
        """See `Program.bind`; `function` is ignored. Raises NotSupported."""
