"""Steps of epilogues: the function of each step, and the error bound of a correct kernel.

A step maps x to y. A kernel has x with an absolute error of at most e, and computes with a unit roundoff of
u. Its y then has an error of at most:

    bias, residual: x + b      e + u (|y| + e)           one rounding of a value within e of y
    residual(f): x + f b       p + u (|y| + p)           with p = e + 2 u |f b|; f and the product are rounded
    scale(f)                   g + 2 u (|y| + g)         with g = |f| e; f and the product are rounded
    channel_scale,             g + u (|y| + g)           with g = |s| e
    row_scale: x s
    scale_shift: x s + t       p + u (|y| + p)           with p = |s| e + u (|x s| + |s| e), the error of the
                                                         product; a fused multiply-add has only the last rounding
    relu, relu6                e                         slope of at most 1, and no rounding
    clamp(lo,hi)               e + u |y|                 lo and hi are rounded to the type
    leaky_relu(a)              g + 2 u (|y| + g)         with g = max(1, a) e; a and the product are rounded
    hardsigmoid                g + 4 u (|y| + g)         with g = e / 6; x + 3, 1 / 6 and the product are rounded,
                                                         and the fourth u covers the products of these roundings
    hardswish                  g + 5 u (|y| + g)         with g = 1.5 e; as hardsigmoid, with one more product
    gelu, gelu_tanh, silu,     L e + 16 u s              mean value theorem with L = max |f'|, and
    sigmoid, tanh                                        s = max(|y|, min(|x|, 1))

The compiler's approximations of exp, tanh and erf are within 4 u of scipy's values, and within 8 u when they are
composed (measured). s includes the argument, because gelu, and gelu_tanh in other libraries, subtract near-equal numbers
below 0. Microkernels approximate erf and exp themselves, within 5 u, and exp within 24 u of its value for large arguments,
where the result is almost x, 0 or 1.
In f64, u counts twice: the float64 reference has the same error as the kernel.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

import numpy as np

from dispatch_profiler.operations.element_types import ElementType

_APPROXIMATION = 16.0
#: sqrt(2 / pi) and the cubic term of the tanh form of gelu.
_GELU_ROOT, _GELU_CUBIC = math.sqrt(2.0 / math.pi), 0.044715
_SCIPY = ("scipy >=1.12",)


class Roundoffs(NamedTuple):
    """Unit roundoffs of a kernel: of its additions and multiplications, and of its approximated functions."""

    arithmetic: float
    functions: float
    #: Whether tanh is computed as 1 - 2 / (1 + exp(2x)), which loses digits near 0.
    has_tanh_by_exp: bool

    @staticmethod
    def of(accumulator: ElementType, stored: ElementType | None = None) -> Roundoffs:
        """The roundoffs of a kernel that computes in `accumulator`; `stored` is a narrower type of its arithmetic."""
        is_f64 = accumulator.name == "f64"
        unit = accumulator.unit_roundoff * (2.0 if is_f64 else 1.0)
        return Roundoffs(max(unit, stored.unit_roundoff if stored else 0.0), unit, is_f64)


class OperandSpan(Enum):
    """What an operand of a step has a value for: each channel, each row of a product, or each element of the result."""

    CHANNELS = "channels"
    ROWS = "rows"
    ELEMENTS = "elements"


#: (x, arguments...) -> y, in float64 or int64. The arguments are the step's operands or its parameters.
StepFunction = Callable[..., np.ndarray]
#: (x, y, error of x, roundoffs, arguments...) -> bound on the absolute error of y.
ErrorFunction = Callable[..., np.ndarray]
#: (largest |x|, largest magnitude of each argument...) -> largest magnitude of anything computed.
LargestFunction = Callable[..., float]


@dataclass(frozen=True)
class StepKind:
    """A kind of step: its meaning, and the properties that verification needs."""

    name: str
    function: StepFunction
    error: ErrorFunction
    #: Operations per element.
    flops: int
    #: Names of the operands, of the result's type.
    operands: tuple[str, ...] = ()
    #: What an operand has a value for.
    spans: OperandSpan = OperandSpan.CHANNELS
    #: Names of the parameters, which the text gives in parentheses, and their default values.
    parameters: tuple[str, ...] = ()
    defaults: tuple[float, ...] = ()
    #: None for a step that is not exact on integers. Only a step that is exact on them is defined on integer results.
    largest: LargestFunction | None = None
    #: Whether y is x or a constant, so that rounding x before the step or y after it gives the same.
    selects: bool = False
    #: Requirements of `function` besides numpy, in pip's syntax.
    requirements: tuple[str, ...] = ()


# -- operands --------------------------------------------------------------------------------------


def _add(x: np.ndarray, operand: np.ndarray) -> np.ndarray:
    return np.add(x, operand)


def _add_error(
    x: np.ndarray, y: np.ndarray, error: np.ndarray, roundoffs: Roundoffs, operand: np.ndarray
) -> np.ndarray:
    return error + roundoffs.arithmetic * (np.abs(y) + error)


def _factor_of(x: np.ndarray, factor: float) -> float:
    """The factor for `x`: whole numbers stay whole."""
    return int(factor) if x.dtype.kind == "i" else factor


def _add_scaled(x: np.ndarray, operand: np.ndarray, factor: float) -> np.ndarray:
    return np.add(x, operand if factor == 1.0 else operand * _factor_of(operand, factor))


def _add_scaled_error(
    x: np.ndarray, y: np.ndarray, error: np.ndarray, roundoffs: Roundoffs, operand: np.ndarray, factor: float
) -> np.ndarray:
    if factor != 1.0:
        error = error + 2.0 * roundoffs.arithmetic * np.abs(factor * operand)
    return error + roundoffs.arithmetic * (np.abs(y) + error)


def _scale(x: np.ndarray, factor: float) -> np.ndarray:
    return x * _factor_of(x, factor)


def _scale_error(
    x: np.ndarray, y: np.ndarray, error: np.ndarray, roundoffs: Roundoffs, factor: float
) -> np.ndarray:
    grown = abs(factor) * error
    return grown + 2.0 * roundoffs.arithmetic * (np.abs(y) + grown)


def _scaled(x: np.ndarray, scale: np.ndarray) -> np.ndarray:
    return x * scale


def _scaled_error(
    x: np.ndarray, y: np.ndarray, error: np.ndarray, roundoffs: Roundoffs, scale: np.ndarray
) -> np.ndarray:
    grown = np.abs(scale) * error
    return grown + roundoffs.arithmetic * (np.abs(y) + grown)


def _scale_shift(x: np.ndarray, scale: np.ndarray, shift: np.ndarray) -> np.ndarray:
    return x * scale + shift


def _scale_shift_error(
    x: np.ndarray,
    y: np.ndarray,
    error: np.ndarray,
    roundoffs: Roundoffs,
    scale: np.ndarray,
    shift: np.ndarray,
) -> np.ndarray:
    u, product = roundoffs.arithmetic, np.abs(scale) * error
    product = product + u * (np.abs(x * scale) + product)
    return product + u * (np.abs(y) + product)


# -- piecewise linear functions --------------------------------------------------------------------


def _clamp(x: np.ndarray, low: float, high: float) -> np.ndarray:
    return np.minimum(np.maximum(x, low), high)  # NaN stays NaN


def _same_error(
    x: np.ndarray, y: np.ndarray, error: np.ndarray, roundoffs: Roundoffs, *_: object
) -> np.ndarray:
    return error


def _clamp_error(
    x: np.ndarray, y: np.ndarray, error: np.ndarray, roundoffs: Roundoffs, *_: object
) -> np.ndarray:
    return error + roundoffs.arithmetic * np.abs(y)


def _leaky_relu(x: np.ndarray, slope: float) -> np.ndarray:
    return np.where(x >= 0, x, slope * x)


def _leaky_relu_error(
    x: np.ndarray, y: np.ndarray, error: np.ndarray, roundoffs: Roundoffs, slope: float
) -> np.ndarray:
    grown = max(1.0, slope) * error
    return grown + 2.0 * roundoffs.arithmetic * (np.abs(y) + grown)


def _hardsigmoid(x: np.ndarray) -> np.ndarray:
    return _clamp(x + 3.0, 0.0, 6.0) / 6.0


def _hardswish(x: np.ndarray) -> np.ndarray:
    return x * _hardsigmoid(x)


def _rounded_often(slope: float, roundings: int) -> ErrorFunction:
    """The bound for a function with `slope` as its largest |f'|, whose relative error is `roundings` units."""

    def error(x: np.ndarray, y: np.ndarray, error: np.ndarray, roundoffs: Roundoffs) -> np.ndarray:
        grown = slope * error
        return grown + roundings * roundoffs.arithmetic * (np.abs(y) + grown)

    return error


# -- approximated functions ------------------------------------------------------------------------


def _gelu(x: np.ndarray) -> np.ndarray:
    from scipy.special import erf  # takes as long to import as everything else

    # Hendrycks and Gimpel, "Gaussian Error Linear Units", 2016: x * Phi(x), the exact form.
    return 0.5 * x * (1.0 + erf(x / np.sqrt(2.0)))


def _gelu_tanh(x: np.ndarray) -> np.ndarray:
    # The approximation of the same paper, which hipBLASLt computes.
    return 0.5 * x * (1.0 + np.tanh(_GELU_ROOT * (x + _GELU_CUBIC * x * x * x)))


def _silu(x: np.ndarray) -> np.ndarray:
    return x / (1.0 + np.exp(-x))


def _sigmoid(x: np.ndarray) -> np.ndarray:
    from scipy.special import expit

    return expit(x)


def _approximated(slope: float) -> ErrorFunction:
    """The bound for a function with `slope` as its largest |f'|."""

    def error(x: np.ndarray, y: np.ndarray, error: np.ndarray, roundoffs: Roundoffs) -> np.ndarray:
        scale = np.maximum(np.abs(y), np.minimum(np.abs(x), 1.0))
        return slope * error + _APPROXIMATION * roundoffs.functions * scale

    return error


def _tanh_error(x: np.ndarray, y: np.ndarray, error: np.ndarray, roundoffs: Roundoffs) -> np.ndarray:
    if roundoffs.has_tanh_by_exp:
        return error + _APPROXIMATION * roundoffs.functions
    return _approximated(1.0)(x, y, error, roundoffs)


def _sum_of_largest(x: float, operand: float) -> float:
    return x + operand


#: All kinds of steps. The slope of gelu peaks at x = sqrt(2): Phi(x) + x * phi(x) = 1.1290; the peak of its
#: tanh form is within 0.0001 of it. The slope of silu peaks at x = 2.3994 with 1.0998. The slope of hardswish,
#: (2x + 3) / 6 from -3 to 3, peaks below 3 with 1.5. Rounding x + 3 changes min(max(x + 3, 0), 6) by at most u of
#: itself, since 0 and 6 need no rounding.
STEP_KINDS: dict[str, StepKind] = {
    kind.name: kind
    for kind in (
        StepKind("bias", _add, _add_error, 1, ("bias",), largest=_sum_of_largest),
        StepKind(
            "channel_scale",
            _scaled,
            _scaled_error,
            1,
            ("scale",),
            largest=lambda x, scale: x * scale,
        ),
        StepKind(
            "row_scale",
            _scaled,
            _scaled_error,
            1,
            ("scale",),
            spans=OperandSpan.ROWS,
            largest=lambda x, scale: x * scale,
        ),
        StepKind(
            "scale_shift",
            _scale_shift,
            _scale_shift_error,
            2,
            ("scale", "shift"),
            largest=lambda x, scale, shift: x * scale + shift,
        ),
        StepKind(
            "residual",
            _add_scaled,
            _add_scaled_error,
            1,
            ("residual",),
            spans=OperandSpan.ELEMENTS,
            parameters=("factor",),
            defaults=(1.0,),
            largest=lambda x, operand, factor: x + operand * factor,
        ),
        StepKind(
            "scale",
            _scale,
            _scale_error,
            1,
            parameters=("factor",),
            largest=lambda x, factor: x * factor,
        ),
        StepKind(
            "relu", lambda x: np.maximum(x, 0), _same_error, 1, largest=lambda x: float(x), selects=True
        ),
        StepKind(
            "relu6",
            lambda x: _clamp(x, 0, 6),
            _same_error,
            2,
            largest=lambda x: max(float(x), 6.0),
            selects=True,
        ),
        StepKind(
            "clamp",
            _clamp,
            _clamp_error,
            2,
            parameters=("lo", "hi"),
            largest=lambda x, low, high: max(float(x), low, high),
            selects=True,
        ),
        StepKind("leaky_relu", _leaky_relu, _leaky_relu_error, 2, parameters=("slope",), defaults=(0.01,)),
        StepKind("hardswish", _hardswish, _rounded_often(1.5, 5), 5),
        StepKind("hardsigmoid", _hardsigmoid, _rounded_often(1.0 / 6.0, 4), 4),
        StepKind("gelu", _gelu, _approximated(1.13), 5, requirements=_SCIPY),
        StepKind("gelu_tanh", _gelu_tanh, _approximated(1.13), 9),
        StepKind("silu", _silu, _approximated(1.1), 4),
        StepKind("sigmoid", _sigmoid, _approximated(0.25), 4, requirements=_SCIPY),
        StepKind("tanh", np.tanh, _tanh_error, 5),
    )
}
