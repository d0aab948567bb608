"""numpy: products with its BLAS, sums, convolutions in `numpy_convolutions`, layer norms in `numpy_norms`.

Results go to preallocated buffers.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np

from dispatch_profiler.operations import Contraction, Operation, Step
from dispatch_profiler.profiler.measurement.kernels import Operands
from dispatch_profiler.profiler.providers._base import NotSupported
from dispatch_profiler.profiler.providers.numpy_convolutions import (
    convolution_product,
    stored_filters,
)
from dispatch_profiler.profiler.providers.numpy_norms import check_sum_type, norm_computation
from dispatch_profiler.profiler.verification.poison import poison
from dispatch_profiler.runtime._base import raw_clock
from dispatch_profiler.runtime.caches import last_level_cache_bytes

#: Types that numpy passes to BLAS. Its own loops for other types are hundreds of times slower.
_BLAS_TYPES = ("f32", "f64")
#: (sums, operands...) -> None: computes a step of the epilogue in place.
StepCall = Callable[..., object]
#: Steps that need memory for an intermediate value.
_NEEDS_SCRATCH = ("leaky_relu", "gelu", "gelu_tanh", "silu")


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
        """See `Library.converts_weights_ahead`: filters are stored as im2col reads them."""
        return operation.convolution is not None and operation.convolution.mode != "weight_backward"

    def load(self, vmfb: bytes) -> NumpyLibrary:
        """See `Library.load`."""
        return self

    def put(self, operation: Operation, inputs: Sequence[np.ndarray]) -> Operands:
        """See `Library.put`: operands as views that BLAS reads without a copy, and memory for results."""
        results = tuple(poison(each.type, each.shape) for each in operation.results)
        if operation.normalization is not None or operation.channel_sum is not None:
            check_sum_type(operation)
            return Operands(operation, (*(np.array(each, order="C") for each in inputs), *results))
        contraction = _contraction(operation)
        lhs, rhs, *operands = (np.array(array, order="C") for array in inputs)
        product, convolution = operation.product, operation.convolution
        if product is not None:
            lhs = lhs if product.lhs_layout == "t" else lhs.swapaxes(-1, -2)
            rhs = rhs if product.rhs_layout == "t" else rhs.swapaxes(-1, -2)
        elif convolution is not None:
            rhs = rhs if convolution.mode == "weight_backward" else stored_filters(convolution, rhs)
        shaped = [contraction.broadcast_operand(each.astype(lhs.dtype)) for each in operands]
        return Operands(operation, (lhs, rhs, *shaped, *results))

    def bind(self, function: str, *operands: Operands) -> NumpyCall:
        """See `Library.bind`."""
        return NumpyCall(operands)


class NumpyCall:
    """See `KernelCall`. All output goes to preallocated memory."""

    def __init__(self, operands: Sequence[Operands]) -> None:
        self._first = operands[0]
        self._turns = itertools.cycle([each.handles for each in operands])
        self._compute = _computation(self._first.operation)

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
            start = time.perf_counter()
            for _ in range(calls):
                self._compute(*next(self._turns))
            return time.perf_counter() - start


def _contraction(operation: Operation) -> Contraction:
    """The operation as a contraction. Raises NotSupported for other operations, and for types without BLAS."""
    contraction = operation.contraction
    if contraction is None:
        raise NotSupported(f"numpy does not support {operation.kind}")
    if contraction.types.lhs not in _BLAS_TYPES:
        raise NotSupported(
            f"numpy has no BLAS for {contraction.types.lhs}, and its own loops are not a useful reference"
        )
    return contraction


def _computation(operation: Operation) -> Callable[..., None]:
    """(operands, results) -> None: writes the operation's results."""
    if operation.normalization is not None:
        return norm_computation(operation)
    if operation.channel_sum is not None:
        return _channel_sum
    contraction = _contraction(operation)
    types, convolution = contraction.types, operation.convolution
    contract = convolution_product(convolution, types.input.dtype) if convolution else _product
    steps = _steps(contraction)
    # Sums have the type of the inputs; a narrower result is rounded once.
    held = None if types.lhs == types.result else np.empty(contraction.result.shape, types.input.dtype)

    def compute(lhs: np.ndarray, rhs: np.ndarray, *rest: np.ndarray) -> None:
        sums = rest[-1] if held is None else held
        contract(lhs, rhs, sums)
        for step, theirs in steps:
            step(sums, *rest[theirs])
        if held is not None:
            np.copyto(rest[-1], held, casting="unsafe")

    return compute


def _channel_sum(tensor: np.ndarray, sums: np.ndarray) -> None:
    np.sum(tensor, axis=(0, 2), out=sums)


def _product(lhs: np.ndarray, rhs: np.ndarray, sums: np.ndarray) -> None:
    """One call of BLAS per matrix."""
    np.matmul(lhs, rhs, out=sums)


def _steps(contraction: Contraction) -> list[tuple[StepCall, slice]]:
    """The steps of the epilogue, each with the place of its operands."""
    shape, dtype = contraction.result.shape, contraction.types.input.dtype
    places = contraction.epilogue.places()
    return [
        (_step(step, np.empty(shape, dtype) if step.name in _NEEDS_SCRATCH else None), place)
        for step, place in places
    ]


def _step(step: Step, scratch: np.ndarray | None) -> StepCall:
    """A step, applied in place. Raises NotSupported."""
    known: dict[str, StepCall] = {
        "bias": _add,
        "residual": _add,
        "scale_shift": _scale_shift,
        "relu": lambda sums: np.maximum(sums, 0, out=sums),
        "relu6": lambda sums: np.clip(sums, 0, 6, out=sums),
        "clamp": lambda sums: np.clip(sums, *step.parameters, out=sums),
        "leaky_relu": lambda sums: _leaky_relu(sums, step.parameters[0], scratch),
        "gelu": lambda sums: _gelu(sums, scratch),
        "gelu_tanh": lambda sums: _gelu_tanh(sums, scratch),
        "silu": lambda sums: np.multiply(sums, _sigmoid(sums, scratch), out=sums),
        "sigmoid": lambda sums: _sigmoid(sums, sums),
        "tanh": lambda sums: np.tanh(sums, out=sums),
    }
    if step.name not in known:
        raise NotSupported(f"numpy does not support the step {step}")
    return known[step.name]


def _add(sums: np.ndarray, operand: np.ndarray) -> None:
    np.add(sums, operand, out=sums)


def _scale_shift(sums: np.ndarray, scale: np.ndarray, shift: np.ndarray) -> None:
    np.multiply(sums, scale, out=sums)
    np.add(sums, shift, out=sums)


def _leaky_relu(sums: np.ndarray, slope: float, scratch: np.ndarray | None) -> None:
    leaked = np.multiply(sums, slope, out=scratch)
    np.copyto(sums, leaked, where=sums < 0)


def _sigmoid(sums: np.ndarray, out: np.ndarray | None) -> np.ndarray:
    from scipy.special import expit

    return cast("np.ndarray", expit(sums, out=out))


def _gelu(sums: np.ndarray, scratch: np.ndarray | None) -> None:
    from scipy.special import erf

    scaled = np.multiply(sums, 0.5**0.5, out=scratch)
    _times_half_of_one_plus(sums, erf(scaled, out=scaled))


def _gelu_tanh(sums: np.ndarray, scratch: np.ndarray | None) -> None:
    # sqrt(2 / pi) * (x + 0.044715 x^3) = x * sqrt(2 / pi) * (1 + 0.044715 x^2)
    bent = np.multiply(sums, sums, out=scratch)
    np.multiply(bent, 0.044715, out=bent)
    np.add(bent, 1.0, out=bent)
    np.multiply(bent, sums, out=bent)
    np.multiply(bent, math.sqrt(2.0 / math.pi), out=bent)
    _times_half_of_one_plus(sums, np.tanh(bent, out=bent))


def _times_half_of_one_plus(sums: np.ndarray, factor: np.ndarray) -> None:
    np.add(factor, 1.0, out=factor)
    np.multiply(sums, factor, out=sums)
    np.multiply(sums, 0.5, out=sums)


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
