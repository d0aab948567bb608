"""The protocol of libraries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from dispatch_profiler.operations import Operation
from dispatch_profiler.profiler.measurement.kernels import KernelCall, LoadedKernels, Operands
from dispatch_profiler.runtime import RunError


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
