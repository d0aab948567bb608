"""Operations on a device, computed by vmfbs or by a library.

The runtime knows only buffers. This module adds the operands of an operation, and calls that write their
results to memory that held no plausible value before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from dispatch_profiler.operations import Operation, Tensor
from dispatch_profiler.profiler.verification.poison import poison
from dispatch_profiler.runtime import Arguments, Buffer, Call, Device, Program, open_device


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
