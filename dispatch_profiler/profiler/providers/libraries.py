"""Libraries that compute the same operations: what IREE's dispatches are compared with.

A library is to the profiler as a device with a loaded vmfb is: it binds calls, and those are timed and
verified as any other. A new one is a file beside `numpy_library.py`, its methods in `LIBRARY_METHODS` and a
line in `open_library`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Protocol

import numpy as np

from dispatch_profiler.cores import usable_cores
from dispatch_profiler.errors import MissingDependency, UsageError
from dispatch_profiler.operations import ContractFunction, Operation
from dispatch_profiler.profiler.measurement.kernels import KernelCall, LoadedKernels, Operands
from dispatch_profiler.runtime import DeviceUri, RunError

#: Library -> kind of operation -> what of the library computes it. What is not named it cannot do.
LIBRARY_METHODS: Mapping[str, Mapping[str, str]] = {
    "numpy": {"matmul": "matmul", "batch_matmul": "matmul", "conv2d": "im2col"},
    "torch": {"matmul": "matmul", "batch_matmul": "matmul", "conv2d": "conv2d"},
}

#: A process sleeps if it uses less than this part of a core for so many steps in a row: threads that
#: spin give way to others, so that on a busy machine they look asleep for a step or two.
_ASLEEP = 0.05
_QUIET_STEPS = 10
_STEP_SECONDS = 5e-3
_LONGEST_WAIT_SECONDS = 2.0


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


def open_library(name: str, device: str, threads: int) -> Library:
    """The library called `name`, on the hardware of the device URI `device`.

    Raises UsageError if it does not run there, MissingDependency if it is not installed.
    """
    if name == "numpy":
        if is_gpu(device):
            raise UsageError(f"numpy runs on the CPU, but the device is {device}")
        from dispatch_profiler.profiler.providers.numpy_library import NumpyLibrary

        return NumpyLibrary()
    from dispatch_profiler.profiler.providers.torch_library import TorchLibrary

    return TorchLibrary(device, threads)


@cache
def open_contraction(device: str) -> ContractFunction | None:
    """What contracts in float64 on the device URI, a GPU; None where torch does not run there."""
    if not device or not is_gpu(device):
        return None
    try:
        from dispatch_profiler.profiler.providers.torch_gpu import GpuContraction

        return GpuContraction(device)
    except (MissingDependency, UsageError):
        return None


def is_gpu(device: str) -> bool:
    """Is the device URI one of a GPU? `local-task` and the null device stand for the CPU."""
    return DeviceUri.parse(device).is_gpu


def environment(threads: int) -> dict[str, str]:
    """What a process that holds a library needs before it starts: as many threads as IREE has."""
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    return dict.fromkeys(names, str(threads))


def iree_threads(device: str) -> int:
    """Cores that IREE's device computes on: one for `local-sync`, else every physical core we may use.

    IREE has one worker for each physical core and none for its other hardware threads.
    """
    return 1 if DeviceUri.parse(device).driver == "local-sync" else len(_physical_cores())


def _physical_cores(system: Path = Path("/sys/devices/system/cpu")) -> set[str]:
    cores = set()
    for number in usable_cores():
        try:
            cores.add((system / f"cpu{number}/topology/thread_siblings_list").read_text().strip())
        except OSError:
            cores.add(str(number))
    return cores


def wait_until_asleep() -> bool:
    """Wait until the threads of this process use no core any more; False if they go on for too long.

    BLAS and OpenMP keep theirs spinning for a while after each product: that is how the next one
    starts sooner, and beside them everything else looks slower than it is.
    """
    quiet = 0
    for _ in range(round(_LONGEST_WAIT_SECONDS / _STEP_SECONDS)):
        used, start = time.process_time(), time.perf_counter()
        time.sleep(_STEP_SECONDS)
        is_quiet = time.process_time() - used < _ASLEEP * (time.perf_counter() - start)
        quiet = quiet + 1 if is_quiet else 0
        if quiet == _QUIET_STEPS:
            return True
    return False
