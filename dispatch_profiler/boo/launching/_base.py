"""The interface that launches need of an array library, such as torch: one object for each library and device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from dispatch_profiler.boo.interface import LaunchSpec, TensorSpec
from dispatch_profiler.boo.launching.loading import LoadedKernel
from dispatch_profiler.errors import UsageError
from dispatch_profiler.runtime.cuda_launch import CudaProgram
from dispatch_profiler.runtime.device_uri import DeviceUri
from dispatch_profiler.runtime.iree import IreeDevice

#: (arguments, `out`) -> the launch's returned value; None if the arguments need a check, a copy or an error message.
FastLaunch = Callable[[tuple[Any, ...], Any], Any]


class ArrayLibrary(Protocol):
    """Arrays of one library on one device."""

    @property
    def uri(self) -> DeviceUri:
        """The device of the arrays; `local-task` for the CPU."""

    @property
    def expects_copies(self) -> bool:
        """Whether most arrays of the library have to be copied: copies are logged at INFO, otherwise at WARNING."""

    def check(self, array: Any, spec: TensorSpec, what: str) -> None:
        """Raise UsageError unless `array`, called `what`, is on this device with the type and shape of `spec`."""

    def check_writable(self, array: Any, what: str) -> None:
        """Raise UsageError if `array` cannot be written to."""

    def obstacle(self, array: Any) -> str:
        """Why the device cannot use the memory of a checked array; empty if it can."""

    def span(self, array: Any) -> tuple[int, int]:
        """The first address of a dense array's memory, and the first address after it."""

    def empty(self, spec: TensorSpec) -> Any:
        """An uninitialized array for `spec` whose memory the device can use."""

    def copy(self, source: Any, target: Any) -> None:
        """Copy the elements of `source` to `target`, an array of the same shape and type."""

    def note_write(self, array: Any) -> None:
        """Tell the library that a kernel wrote to a caller's array."""

    def buffer_view(self, device: IreeDevice, array: Any, spec: TensorSpec) -> Any:
        """A buffer view of an array without obstacles, sharing its memory, in the kernel's shape."""

    def before_launch(self) -> None:
        """Wait until the contents of the arrays are complete."""

    def launch(self, program: CudaProgram, arrays: Sequence[Any]) -> None:
        """Launch on the library's current stream, without waiting. `arrays` are in the order of `program`."""

    def fast_launch(self, kernel: LoadedKernel | CudaProgram, spec: LaunchSpec) -> FastLaunch | None:
        """A faster way to launch `kernel` with arrays of this library and device; None if there is no faster way."""


def check_matches(what: str, spec: TensorSpec, got: str, shape: tuple[int, ...], hint: str) -> None:
    """Raise UsageError unless the type and shape of an array are as in `spec`.

    `got` is IREE's name of the type, or the library's if IREE has none. `hint` says how to convert the type.
    """
    if (got, shape) != (spec.type.name, spec.shape):
        raise UsageError(
            f"{what}: expected {spec.type.name} {spec.shape}, but got {got} {shape}",
            hint=hint if got != spec.type.name else "",
        )
