"""numpy, which computes what `in_numpy` has a family for. Results go to our own buffers."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np

from dispatch_profiler.operations import Operation
from dispatch_profiler.profiler.measurement.kernels import Operands
from dispatch_profiler.profiler.providers.in_numpy._base import numpy_family
from dispatch_profiler.profiler.verification.inputs import poison
from dispatch_profiler.runtime._base import raw_clock, seconds_of
from dispatch_profiler.runtime.caches import last_level_cache_bytes


class NumpyLibrary:
    """See `Library`."""

    cache_bytes = last_level_cache_bytes()

    @property
    def version(self) -> str:
        """See `Library.version`. Includes the CPU whose kernels OpenBLAS chose."""
        configured = cast("dict[str, Any]", np.show_config(mode="dicts"))
        built = configured.get("Build Dependencies", {}).get("blas", {})
        name = str(built.get("name", "unknown BLAS")).removeprefix("scipy-").replace("openblas", "OpenBLAS")
        parts = [f"{name} {built.get('version', '')}".strip(), _openblas_core()]
        return f"numpy {np.__version__} ({', '.join(filter(None, parts))})"

    #: See `Library.repeats`.
    repeats = False

    def load_repeated(self, count: int) -> NumpyLibrary:
        """See `Library.load_repeated`: one execution per call."""
        return self

    def converts_weights_ahead(self, operation: Operation) -> bool:
        """See `Library.converts_weights_ahead`."""
        return numpy_family(operation).converts_weights_ahead(operation)

    def load(self, vmfb: bytes) -> NumpyLibrary:
        """See `Library.load`."""
        return self

    def put(self, operation: Operation, inputs: Sequence[np.ndarray]) -> Operands:
        """See `Library.put`: operands as views that BLAS reads without a copy, and memory for results."""
        results = (poison(each.type, each.shape) for each in operation.results)
        return Operands(operation, (*numpy_family(operation).operands(operation, inputs), *results))

    def bind(self, function: str, *operands: Operands) -> NumpyCall:
        """See `Library.bind`."""
        return NumpyCall(operands)


class NumpyCall:
    """See `KernelCall`. All output goes to preallocated memory."""

    def __init__(self, operands: Sequence[Operands]) -> None:
        self._first = operands[0]
        self._turns = itertools.cycle([each.handles for each in operands])
        self._compute = numpy_family(self._first.operation).computation(self._first.operation)

    @property
    def now(self) -> Callable[[], float]:
        """See `KernelCall.now`."""
        return raw_clock

    def run(self) -> tuple[np.ndarray, ...]:
        """See `KernelCall.run`."""
        tensors = self._first.operation.results
        results = self._first.handles[-len(tensors) :]
        for result, tensor in zip(results, tensors, strict=True):
            result[...] = poison(tensor.type, tensor.shape)
        with np.errstate(all="ignore"):
            self._compute(*self._first.handles)
        return tuple(result.copy() for result in results)

    def time(self, calls: int) -> float:
        """See `KernelCall.time`."""
        with np.errstate(all="ignore"):
            return seconds_of(self._compute, itertools.islice(self._turns, calls))


def _openblas_core() -> str:
    """The CPU whose kernels OpenBLAS chose (an environment variable can override it); "" if unknown."""
    with contextlib.suppress(OSError, AttributeError, ValueError):
        np.matmul(np.ones((2, 2)), np.ones((2, 2)))
        maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines()
        for path in sorted({line.split(maxsplit=5)[5] for line in maps if "openblas" in line}):
            library = ctypes.CDLL(path)
            for name in (
                "scipy_openblas_get_corename64_",
                "openblas_get_corename64_",
                "openblas_get_corename",
            ):
                if hasattr(library, name):
                    core_name = getattr(library, name)
                    core_name.restype = ctypes.c_char_p
                    return str(core_name().decode())
    return ""
