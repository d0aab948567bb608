"""What a launch needs of the library whose arrays it takes: one object for each library and device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from dispatch_profiler.boo.interface import LaunchSpec, TensorSpec
from dispatch_profiler.boo.launching.loaded import LoadedKernel
from dispatch_profiler.errors import UsageError
from dispatch_profiler.runtime.cuda_launch import CudaProgram
from dispatch_profiler.runtime.device_uri import DeviceUri
from dispatch_profiler.runtime.iree import IreeDevice

#: (arguments, `out`) -> what the launch returns, or None if these arguments need a check, a copy or an error message.
FastLaunch = Callable[[tuple[Any, ...], Any], Any]


class ArrayLibrary(Protocol):
    """Arrays of one library on one device."""

    @property
    def uri(self) -> DeviceUri:
        """Where the arrays are; `local-task` for the CPU."""

    @property
    def expects_copies(self) -> bool:
        """Whether most arrays of the library have to be copied, so that a copy is nothing to warn of."""

    def check(self, array: Any, spec: TensorSpec, what: str) -> None:
        """Raise UsageError unless `array` has the type, the shape and the device of `spec`. `what` is its name."""

    def check_writable(self, array: Any, what: str) -> None:
        """Raise UsageError if nothing can be written to `array`."""

    def obstacle(self, array: Any) -> str:
        """Why the device cannot use the memory of a checked array; empty if it can."""

    def span(self, array: Any) -> tuple[int, int]:
        """First address of a dense array's memory, and the one behind it."""

    def empty(self, spec: TensorSpec) -> Any:
        """An uninitialized array that a device can use."""

    def copy(self, source: Any, target: Any) -> None:
        """Copy elements to an array of the same shape and type."""

    def note_write(self, array: Any) -> None:
        """Tell the library that a kernel wrote to a caller's array."""

    def buffer_view(self, device: IreeDevice, array: Any, spec: TensorSpec) -> Any:
        """A buffer view that shares the memory of an array without obstacles, in the kernel's shape."""

    def before_launch(self) -> None:
        """Wait until the contents of the arrays are complete."""

    def launch(self, program: CudaProgram, arrays: Sequence[Any]) -> None:
        """Launch on the library's current stream, without waiting. `arrays` are in the order of the program."""

    def fast_launch(self, kernel: LoadedKernel | CudaProgram, spec: LaunchSpec) -> FastLaunch | None:
        """The shortest way to launch `kernel` with arrays of this library and device, if a shorter one exists."""


def check_matches(what: str, spec: TensorSpec, got: str, shape: tuple[int, ...], hint: str) -> None:
    """Raise UsageError unless an array of the type `got`, as IREE names it if it has a name for it, fits `spec`."""
    if (got, shape) != (spec.type.name, spec.shape):
        raise UsageError(
            f"{what}: expected {spec.type.name} {spec.shape}, but got {got} {shape}",
            hint=hint if got != spec.type.name else "",
        )
