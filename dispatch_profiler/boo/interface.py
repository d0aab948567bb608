"""The types that the parts of `boo` hand on: a signature describes a launch, and a provider supplies its kernel.

Also the arrays that a launch reads and writes in place.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Protocol, SupportsIndex

import numpy as np
import numpy.typing as npt

from dispatch_profiler.operations import ElementType, Operation, Tensor
from dispatch_profiler.runtime.device_uri import DeviceUri


@dataclass(frozen=True)
class TensorSpec:
    """A tensor that a launch takes or returns, dense and row major.

    The caller sees `shape`; the kernel sees the same memory as `kernel_shape`. `position` is the index among the
    operation's operands or results.
    """

    name: str
    shape: tuple[int, ...]
    type: ElementType
    kernel_shape: tuple[int, ...]
    position: int


@dataclass(frozen=True)
class LaunchSpec:
    """What is computed, and the tensors of a launch in the order in which callers pass and receive them."""

    operation: Operation
    arguments: tuple[TensorSpec, ...]
    results: tuple[TensorSpec, ...]


@dataclass(frozen=True)
class Packing:
    """How a kernel's weight, its second operand, is packed before launches.

    `function` takes the weight, then `tensors`, which it writes to. These replace the weight among the kernel's
    operands. Packings with equal recipes pack equal weights into equal tensors.
    """

    function: str
    tensors: tuple[Tensor, ...]
    recipe: Hashable


@dataclass(frozen=True)
class LaunchKernel:
    """A compiled kernel. `function` takes the operation's operands, then its results, and writes to the results.

    `key` identifies the content: equal keys mean equal kernels. A kernel for CUDA with a `program` (see
    `read_program`) is launched without IREE's runtime. Without a `packing`, the kernel takes the weight as it is.
    `passed_over` lists the failures of the configurations that were tried before. `measured` has the seconds per call of
    each kernel that this one was chosen from, after a name of its configuration. `scale` is what the faster driver of the CPU
    depends on besides the kernel and its threads: the size of a call, for kernels of several sizes.
    """

    vmfb: bytes
    function: str
    key: str
    program: str = ""
    packing: Packing | None = None
    passed_over: tuple[str, ...] = ()
    measured: tuple[tuple[str, float], ...] = ()
    scale: str = ""


class KernelProvider(Protocol):
    """Supplies the kernel of one operation for each device."""

    def kernel(self, device: DeviceUri) -> LaunchKernel:
        """Loads or compiles the kernel for `device`. Raises DispatchProfilerError if that fails."""


@dataclass(frozen=True)
class GivenKernel:
    """The `KernelProvider` of a kernel that is at hand."""

    given: LaunchKernel

    def kernel(self, device: DeviceUri) -> LaunchKernel:
        """See `KernelProvider.kernel`."""
        return self.given


class Signature(Protocol):
    """An operation, its launch, and a name for people. Hashable: equal signatures share a launchable."""

    @property
    def operation(self) -> Operation:
        """The operation that kernels are compiled for."""

    @property
    def launch(self) -> LaunchSpec:
        """The tensors of a launch."""

    @property
    def func_name(self) -> str:
        """A name for messages and lists."""

    def __hash__(self) -> int: ...


# -- arrays that launches do not copy --------------------------------------------------------------

#: Alignment in bytes that IREE requires of memory that it does not copy.
ALIGNMENT = 64


def empty_aligned(shape: SupportsIndex | Sequence[SupportsIndex], dtype: npt.DTypeLike) -> np.ndarray:
    """An uninitialized, row-major array whose memory is aligned to 64 bytes: launches do not copy it.

    `numpy.empty` aligns small arrays by chance, and large ones never.
    """
    extents = (shape,) if hasattr(shape, "__index__") else tuple(shape)
    type_ = np.dtype(dtype)
    size = math.prod(map(int, extents)) * type_.itemsize
    memory = np.empty(size + ALIGNMENT - 1, np.uint8)
    start = -memory.__array_interface__["data"][0] % ALIGNMENT
    return np.ndarray(extents, type_, memory, start)
