"""What numpy needs to know of a family of operations."""

from __future__ import annotations

import abc
import math
from collections.abc import Callable, Sequence
from typing import cast

import numpy as np

from dispatch_profiler.families import find_family
from dispatch_profiler.operations import Contraction, Operation, Step
from dispatch_profiler.profiler.measurement.kernels import NotSupported

#: (operands, results) -> None: writes the results.
NumpyComputation = Callable[..., None]


class NumpyFamily(abc.ABC):
    """How numpy computes a family of operations. Raises NotSupported if numpy computes something else."""

    @abc.abstractmethod
    def method(self, kind: str) -> str:
        """The method that computes a kind of the family, as tables name it: `im2col`."""

    @abc.abstractmethod
    def operands(self, operation: Operation, arrays: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
        """The operands as `computation` reads them, in memory of their own."""

    @abc.abstractmethod
    def computation(self, operation: Operation) -> NumpyComputation:
        """A function of `operands` and results; other memory that it needs is allocated once."""

    def converts_weights_ahead(self, operation: Operation) -> bool:
        """See `Library.converts_weights_ahead`."""
        return False


class NumpyReduction(NumpyFamily):
    """A family that numpy computes in a few passes over its operands, which stay as they are."""

    def operands(self, operation: Operation, arrays: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
        """See `NumpyFamily.operands`. numpy converts other types element by element, and sums in themselves."""
        if operation.element_type != operation.accumulator:
            raise NotSupported(
                f"numpy computes {operation.element_type.name} one element at a time, and sums in that type"
            )
        return [np.array(each, order="C") for each in arrays]


def numpy_family(operation: Operation) -> NumpyFamily:
    """How numpy computes the family of `operation`. Raises NotSupported."""
    found = find_family(__package__, operation.family, NumpyFamily)  # type: ignore[type-abstract]
    if found is None:
        raise NotSupported(f"numpy does not support {operation.kind}")
    return found


# -- contractions ----------------------------------------------------------------------------------

# Sums of products in numpy, in types that its BLAS has, and the steps of their epilogues.


#: Types that numpy passes to BLAS. Its own loops for other types are hundreds of times slower.
_BLAS_TYPES = ("f32", "f64")
#: (lhs, rhs, sums) -> None: writes the sums of products to `sums`.
ProductCall = Callable[[np.ndarray, np.ndarray, np.ndarray], object]
#: (sums, operands...) -> None: computes a step of the epilogue in place.
StepCall = Callable[..., object]
#: Steps that need memory for an intermediate value.
_NEEDS_SCRATCH = ("leaky_relu", "hardswish", "gelu", "gelu_tanh", "silu")


def blas_contraction(operation: Operation) -> Contraction:
    """The operation as a contraction. Raises NotSupported if numpy has no BLAS for its types."""
    contraction = operation.as_contraction()
    if contraction.types.input.name not in _BLAS_TYPES:
        raise NotSupported(
            f"numpy has no BLAS for {contraction.types.input.name}, and its own loops are not a useful reference"
        )
    return contraction


def epilogue_operands(
    contraction: Contraction, operands: Sequence[np.ndarray], dtype: np.dtype
) -> list[np.ndarray]:
    """The operands of the epilogue in `dtype`, the type of the sums, in shapes that broadcast against them."""
    return [contraction.broadcast_operand(each.astype(dtype)) for each in operands]


def contraction_computation(contraction: Contraction, contract: ProductCall) -> NumpyComputation:
    """(lhs, rhs, operands of the epilogue, result) -> None, with the sums that `contract` writes."""
    types, steps = contraction.types, _steps(contraction)
    # Sums have the type of the inputs; a narrower result is rounded once.
    held = None if types.input == types.output else np.empty(contraction.result.shape, types.input.dtype)

    def compute(lhs: np.ndarray, rhs: np.ndarray, *rest: np.ndarray) -> None:
        sums = rest[-1] if held is None else held
        contract(lhs, rhs, sums)
        for step, theirs in steps:
            step(sums, *rest[theirs])
        if held is not None:
            np.copyto(rest[-1], held, casting="unsafe")

    return compute


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
        "residual": lambda sums, operand: _add_scaled(sums, operand, step.parameters[0]),
        "scale": lambda sums: np.multiply(sums, sums.dtype.type(step.parameters[0]), out=sums),
        **dict.fromkeys(("channel_scale", "row_scale"), _scale),
        "scale_shift": _scale_shift,
        "relu": lambda sums: np.maximum(sums, 0, out=sums),
        "relu6": lambda sums: np.clip(sums, 0, 6, out=sums),
        "clamp": lambda sums: np.clip(sums, *step.parameters, out=sums),
        "leaky_relu": lambda sums: _leaky_relu(sums, step.parameters[0], scratch),
        "hardswish": lambda sums: np.multiply(sums, _hardsigmoid(sums, scratch), out=sums),
        "hardsigmoid": lambda sums: _hardsigmoid(sums, sums),
        "gelu": lambda sums: _gelu(sums, scratch),
        "gelu_tanh": lambda sums: _gelu_tanh(sums, scratch),
        "silu": lambda sums: np.multiply(sums, _sigmoid(sums, scratch), out=sums),
        "sigmoid": lambda sums: _sigmoid(sums, sums),
        "tanh": lambda sums: np.tanh(sums, out=sums),
    }
    if step.name not in known:
        raise NotSupported(f"numpy does not support the step {step}")
    return known[step.name]


def _scale(sums: np.ndarray, scale: np.ndarray) -> None:
    np.multiply(sums, scale, out=sums)


def _add(sums: np.ndarray, operand: np.ndarray) -> None:
    np.add(sums, operand, out=sums)


def _add_scaled(sums: np.ndarray, operand: np.ndarray, factor: float) -> None:
    np.add(sums, operand if factor == 1.0 else operand * operand.dtype.type(factor), out=sums)


def _scale_shift(sums: np.ndarray, scale: np.ndarray, shift: np.ndarray) -> None:
    np.multiply(sums, scale, out=sums)
    np.add(sums, shift, out=sums)


def _leaky_relu(sums: np.ndarray, slope: float, scratch: np.ndarray | None) -> None:
    leaked = np.multiply(sums, slope, out=scratch)
    np.copyto(sums, leaked, where=sums < 0)


def _hardsigmoid(sums: np.ndarray, out: np.ndarray | None) -> np.ndarray:
    ahead = np.add(sums, 3.0, out=out)
    return np.multiply(np.clip(ahead, 0, 6, out=ahead), 1.0 / 6.0, out=ahead)


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
