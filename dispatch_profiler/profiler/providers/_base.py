"""What every library offers to the worker that measures it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from dispatch_profiler.operations import Operation
from dispatch_profiler.profiler.measurement.kernels import KernelCall, LoadedKernels, Operands
from dispatch_profiler.runtime import RunError


class NotSupported(RunError):
    """The library has nothing that computes this operation as it is defined."""


class Library(Protocol):
    """A library on one device: a `Device` that is a `Program`, too."""

    @property
    def version(self) -> str:
        """What computes: `numpy 2.4.6 (OpenBLAS 0.3.31, Haswell)`."""

    @property
    def cache_bytes(self) -> int:
        """See `Device.cache_bytes`."""

    @property
    def repeats(self) -> bool:
        """Can a call be many executions, as that of a profile vmfb is?"""

    def load_repeated(self, count: int) -> LoadedKernels:
        """Kernels that do `count` executions in a call, if it `repeats`."""

    def load(self, vmfb: bytes) -> Library:
        """Itself: there is nothing to load."""

    def put(self, operation: Operation, inputs: Sequence[np.ndarray]) -> Operands:
        """See `Device.put`; laid out as the library wants constants. Raises NotSupported."""

    def bind(self, function: str, *operands: Operands) -> KernelCall:
        """See `Program.bind`; `function` is of no use. Raises NotSupported."""
