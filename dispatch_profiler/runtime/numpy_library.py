"""numpy: products by its BLAS, convolutions as im2col and a product. Results land in our buffers."""

from __future__ import annotations

import contextlib
import ctypes
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.lib.stride_tricks import as_strided

from dispatch_profiler.operations import Conv2d, Epilogue, Operation
from dispatch_profiler.operations.matmul import BatchMatmul, Matmul
from dispatch_profiler.runtime._base import poison, raw_clock
from dispatch_profiler.runtime.libraries import NotSupported

#: numpy hands these to BLAS; its own loops for other types are hundreds of times slower.
_BLAS_TYPES = ("f32", "f64")
#: One call into numpy; what it returns is of no interest.
Step = Callable[[], object]


class NumpyLibrary:
    """See `Library`."""

    @property
    def version(self) -> str:
        """See `Library.version`, with the kernels that OpenBLAS chose for this CPU."""
        configured = cast("dict[str, Any]", np.show_config(mode="dicts"))
        built = configured.get("Build Dependencies", {}).get("blas", {})
        name = str(built.get("name", "unknown BLAS")).removeprefix("scipy-").replace("openblas", "OpenBLAS")
        parts = [f"{name} {built.get('version', '')}".strip(), _openblas_core()]
        return f"numpy {np.__version__} ({', '.join(filter(None, parts))})"

    def bind(self, function: str, operation: Operation, inputs: Sequence[np.ndarray]) -> NumpyCall:
        """See `Library.bind`."""
        types = operation.types
        if types.lhs not in _BLAS_TYPES:
            raise NotSupported(f"numpy has no BLAS for {types.lhs}: its own loops tell nothing of the CPU")
        return NumpyCall(operation, inputs)


class NumpyCall:
    """See `Call`: a list of steps, each of which writes into memory that is there already."""

    def __init__(self, operation: Operation, inputs: Sequence[np.ndarray]) -> None:
        lhs, rhs, *bias = map(np.ascontiguousarray, inputs)
        self._operation = operation
        self._result = np.empty(operation.result.shape, operation.types.output.dtype)
        # Sums are held in the type of the inputs, and rounded to a narrower result once.
        same = operation.types.lhs == operation.types.result
        sums = self._result if same else np.empty(self._result.shape, lhs.dtype)
        if isinstance(operation, (Matmul, BatchMatmul)):
            contraction = _product(operation, lhs, rhs, sums)
        elif isinstance(operation, Conv2d):
            contraction = _convolution(operation, lhs, rhs, sums)
        else:
            raise NotSupported(f"numpy computes no {operation.kind} here")
        shaped = operation.broadcast_bias(bias[0].astype(lhs.dtype)) if bias else None
        self._steps = [contraction, *_epilogue(operation.epilogue, sums, shaped)]
        if not same:
            self._steps.append(lambda: np.copyto(self._result, sums, casting="unsafe"))

    @property
    def now(self) -> Callable[[], float]:
        """See `Call.now`."""
        return raw_clock

    def run(self) -> np.ndarray:
        """See `Call.run`."""
        self._result[...] = poison(self._operation.types.output, self._result.shape)
        self._once()
        return self._result.copy()

    def time(self, calls: int) -> float:
        """See `Call.time`."""
        with np.errstate(all="ignore"):
            start = time.perf_counter()
            for _ in range(calls):
                for step in self._steps:
                    step()
            return time.perf_counter() - start

    def _once(self) -> None:
        with np.errstate(all="ignore"):
            for step in self._steps:
                step()


def _product(operation: Matmul | BatchMatmul, lhs: np.ndarray, rhs: np.ndarray, sums: np.ndarray) -> Step:
    """One call of BLAS for each matrix; it reads a transposed one as it lies."""
    left = lhs if operation.lhs_layout == "t" else lhs.swapaxes(-1, -2)
    right = rhs if operation.rhs_layout == "t" else rhs.swapaxes(-1, -2)
    return lambda: np.matmul(left, right, out=sums)


def _convolution(operation: Conv2d, images: np.ndarray, filters: np.ndarray, sums: np.ndarray) -> Step:
    """im2col and a product for each image, as Caffe did it: columns of one image fit in memory.

    nhwc: columns (G, OH*OW, R*S*C) x filters (G, R*S*C, F) -> (G, OH*OW, F)
    nchw: filters (G, F, C*R*S) x columns (G, C*R*S, OH*OW) -> (G, F, OH*OW)
    """
    groups, (oh, ow), (ph, pw) = operation.groups, operation.output_size, operation.padding
    channels, count = operation.c // groups, operation.k // groups
    taps = channels * operation.r * operation.s
    last = operation.layout == "nhwc"
    height, width = operation.padded
    padded = np.zeros((height, width, operation.c) if last else (operation.c, height, width), images.dtype)
    inside = (slice(ph, ph + operation.h), slice(pw, pw + operation.w))
    interior = (padded if last else padded.transpose(1, 2, 0))[inside]
    interior = interior if last else interior.transpose(2, 0, 1)
    windows = _windows(operation, padded)
    columns = np.empty(windows.shape, images.dtype)
    if last:
        left = columns.reshape(groups, oh * ow, taps)
        right = np.ascontiguousarray(filters.reshape(taps, groups, count).transpose(1, 0, 2))
        product = np.empty((groups, oh * ow, count), images.dtype)
    else:
        left = filters.reshape(groups, count, taps)
        right = columns.reshape(groups, taps, oh * ow)
        product = np.empty((groups, count, oh * ow), images.dtype)

    def step() -> None:
        for image, result in zip(images, sums, strict=True):
            np.copyto(interior, image)
            np.copyto(columns, windows)
            if last and groups > 1:
                np.matmul(left, right, out=product)
                np.copyto(result.reshape(oh * ow, groups, count), product.transpose(1, 0, 2))
            else:
                np.matmul(left, right, out=result.reshape(product.shape))

    return step


def _windows(operation: Conv2d, padded: np.ndarray) -> np.ndarray:
    """A view of one padded image that repeats what each window sees.

    nhwc: (G, OH, OW, R, S, C/G); nchw: (G, C/G, R, S, OH, OW)
    """
    groups, (oh, ow), channels = operation.groups, operation.output_size, operation.c // operation.groups
    (sh, sw), (dh, dw) = operation.stride, operation.dilation
    if operation.layout == "nhwc":
        h, w, c = padded.strides
        shape = (groups, oh, ow, operation.r, operation.s, channels)
        return as_strided(padded, shape, (channels * c, sh * h, sw * w, dh * h, dw * w, c), writeable=False)
    c, h, w = padded.strides
    shape = (groups, channels, operation.r, operation.s, oh, ow)
    return as_strided(padded, shape, (channels * c, c, dh * h, dw * w, sh * h, sw * w), writeable=False)


def _epilogue(epilogue: Epilogue, sums: np.ndarray, bias: np.ndarray | None) -> list[Step]:
    """What is done to `sums` in place."""
    steps: list[Step] = []
    if bias is not None:
        steps.append(lambda: np.add(sums, bias, out=sums))
    if epilogue.activation == "none":
        return steps
    if epilogue.activation == "relu":
        return [*steps, lambda: np.maximum(sums, 0, out=sums)]
    if epilogue.activation == "tanh":
        return [*steps, lambda: np.tanh(sums, out=sums)]
    from scipy.special import erf, expit

    if epilogue.activation == "sigmoid":
        return [*steps, lambda: expit(sums, out=sums)]
    if epilogue.activation != "gelu":
        raise NotSupported(f"numpy computes no {epilogue.activation} here")
    scratch = np.empty_like(sums)

    def gelu() -> None:
        np.multiply(sums, 0.5**0.5, out=scratch)
        erf(scratch, out=scratch)
        np.add(scratch, 1.0, out=scratch)
        np.multiply(sums, scratch, out=sums)
        np.multiply(sums, 0.5, out=sums)

    return [*steps, gelu]


def _openblas_core() -> str:
    """For which CPU the kernels are that OpenBLAS chose, which a variable may overrule; "" if unknown."""
    with contextlib.suppress(OSError, AttributeError, ValueError):
        np.matmul(np.ones((2, 2)), np.ones((2, 2)))
        maps = Path("/proc/self/maps").read_text().splitlines()
        for path in sorted({line.split(maxsplit=5)[5] for line in maps if "openblas" in line}):
            library = ctypes.CDLL(path)
            for name in (
                "scipy_openblas_get_corename64_",
                "openblas_get_corename64_",
                "openblas_get_corename",
            ):
                if hasattr(library, name):
                    told = getattr(library, name)
                    told.restype = ctypes.c_char_p
                    return str(told().decode())
    return ""
