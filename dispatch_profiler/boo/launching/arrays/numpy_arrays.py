"""Launches on numpy arrays. Results are in aligned arrays."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from dispatch_profiler.boo.interface import ALIGNMENT, LaunchSpec, TensorSpec, empty_aligned
from dispatch_profiler.boo.launching.array_library import (
    FastLaunch,
    HostArrays,
    check_matches,
    host_views,
    launch_by_address,
)
from dispatch_profiler.boo.launching.loading import TASK, LoadedKernel
from dispatch_profiler.errors import UsageError
from dispatch_profiler.operations.element_types import ELEMENT_TYPES
from dispatch_profiler.runtime.cuda_launch import CudaProgram
from dispatch_profiler.runtime.iree import IreeDevice

_NAMES = {type_.dtype: name for name, type_ in ELEMENT_TYPES.items()}


class NumpyArrays:
    """See `ArrayLibrary`."""

    uri = TASK
    expects_copies = True

    def check(self, array: np.ndarray, spec: TensorSpec, what: str) -> None:
        """See `ArrayLibrary.check`."""
        if array.dtype == spec.type.dtype and array.shape == spec.shape:
            return
        got = _NAMES.get(array.dtype, str(array.dtype))
        check_matches(what, spec, got, array.shape, f"convert it: array.astype({spec.type.dtype.name!r})")

    def check_writable(self, array: np.ndarray, what: str) -> None:
        """See `ArrayLibrary.check_writable`."""
        if not array.flags.writeable:
            raise UsageError(f"{what} is read-only", hint="pass a writable array")

    def obstacle(self, array: np.ndarray) -> str:
        """See `ArrayLibrary.obstacle`."""
        if not array.flags.c_contiguous:
            return "it is not dense and row major"
        if not array.flags.writeable:
            return "it is read-only"
        return "" if self.span(array)[0] % ALIGNMENT == 0 else f"it is not aligned to {ALIGNMENT} bytes"

    def span(self, array: np.ndarray) -> tuple[int, int]:
        """See `ArrayLibrary.span`."""
        start = _address(array)
        return start, start + array.nbytes

    def empty(self, spec: TensorSpec) -> np.ndarray:
        """See `ArrayLibrary.empty`."""
        return empty_aligned(spec.shape, spec.type.dtype)

    def copy(self, source: np.ndarray, target: np.ndarray) -> None:
        """See `ArrayLibrary.copy`."""
        target[...] = source

    def note_write(self, array: np.ndarray) -> None:
        """See `ArrayLibrary.note_write`: numpy records no writes."""

    def buffer_view(self, device: IreeDevice, array: np.ndarray, spec: TensorSpec) -> Any:
        """See `ArrayLibrary.buffer_view`."""
        return host_views(device, spec.kernel_shape, spec.type)(self.span(array)[0])

    def before_launch(self) -> None:
        """See `ArrayLibrary.before_launch`: numpy computes nothing in the background."""

    def launch(self, program: CudaProgram, arrays: Sequence[np.ndarray]) -> None:
        """See `ArrayLibrary.launch`: numpy's arrays are not on a GPU."""
        raise NotImplementedError

    def fast_launch(self, kernel: LoadedKernel | CudaProgram, spec: LaunchSpec) -> FastLaunch | None:
        """See `ArrayLibrary.fast_launch`."""
        return None if isinstance(kernel, CudaProgram) else _host_launch(kernel, spec)


def _host_launch(kernel: LoadedKernel, spec: LaunchSpec) -> FastLaunch:
    expected = [(each.shape, each.type.dtype) for each in spec.arguments]
    written = [(each.shape, each.type.dtype) for each in spec.results]

    def addresses_of(arrays: Sequence[Any], of: Sequence[tuple[Any, Any]] = expected) -> list[int] | None:
        if len(arrays) != len(of):
            return None
        addresses = []
        for array, (shape, dtype) in zip(arrays, of, strict=True):
            # `carray` is row major and writable.
            if (
                type(array) is not np.ndarray
                or array.dtype != dtype
                or array.shape != shape
                or not array.flags.carray
            ):
                return None
            addresses.append(_address(array))
        return addresses

    def outs_of(out: Any) -> list[Any] | None:
        outs = [out] if len(written) == 1 else list(out)
        return None if addresses_of(outs, written) is None else outs

    allocate = [partial(empty_aligned, shape, dtype) for shape, dtype in written]
    return launch_by_address(
        kernel, spec, HostArrays(addresses_of, allocate, outs_of, _address, lambda array: None)
    )


def _address(array: np.ndarray) -> int:
    start: int = array.__array_interface__["data"][0]
    return start
