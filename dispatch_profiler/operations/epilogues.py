"""Epilogues: functions applied to each element of a result before it is stored."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dispatch_profiler.errors import OperationError, did_you_mean


@dataclass(frozen=True)
class Activation:
    """An elementwise function and the properties that verification needs."""

    name: str
    #: float64 -> float64
    function: Callable[[np.ndarray], np.ndarray]
    #: Whether the result is exact if the argument is.
    is_exact: bool
    #: max |f'|: the largest factor by which an error of the argument grows.
    slope: float
    #: Operations per element.
    flops: int
    #: Whether it is defined on integers.
    on_integers: bool
    #: Requirements of `function` besides numpy, in pip's syntax.
    requirements: tuple[str, ...] = ()


def _gelu(x: np.ndarray) -> np.ndarray:
    from scipy.special import erf  # takes as long to import as everything else

    # Hendrycks and Gimpel, "Gaussian Error Linear Units", 2016: x * Phi(x), the exact form.
    return 0.5 * x * (1.0 + erf(x / np.sqrt(2.0)))


def _sigmoid(x: np.ndarray) -> np.ndarray:
    from scipy.special import expit

    return expit(x)


#: The slope of gelu peaks at x = sqrt(2): Phi(x) + x * phi(x) = 1.1290.
ACTIVATIONS: dict[str, Activation] = {
    a.name: a
    for a in (
        Activation("none", lambda x: x, True, 1.0, 0, True),
        Activation("relu", lambda x: np.maximum(x, 0), True, 1.0, 1, True),
        Activation("gelu", _gelu, False, 1.13, 5, False, ("scipy >=1.12",)),
        Activation("sigmoid", _sigmoid, False, 0.25, 4, False, ("scipy >=1.12",)),
        Activation("tanh", np.tanh, False, 1.0, 5, False),
    )
}


@dataclass(frozen=True)
class Epilogue:
    """An optional bias (one value per column or output channel), then an activation.

    `Epilogue.parse("bias+relu")` -> Epilogue(bias=True, activation="relu")
    """

    bias: bool = False
    activation: str = "none"

    def __post_init__(self) -> None:
        if self.activation not in ACTIVATIONS:
            raise OperationError(
                f"unknown activation {self.activation!r}", hint=did_you_mean(self.activation, ACTIVATIONS)
            )

    @staticmethod
    def parse(text: str) -> Epilogue:
        """Parse `none`, `bias`, an activation, or `bias+<activation>`. Raises OperationError."""
        parts = text.strip().lower().split("+")
        bias = parts[0] == "bias"
        rest = parts[1:] if bias else parts
        if len(rest) > 1 or "" in parts:
            raise OperationError(f"malformed epilogue {text!r}", hint="write none, bias, relu or bias+relu")
        activation = rest[0] if rest else "none"
        if activation not in ACTIVATIONS and not bias:
            raise OperationError(
                f"unknown activation {activation!r}", hint=did_you_mean(activation, [*ACTIVATIONS, "bias"])
            )
        return Epilogue(bias, activation)

    @property
    def is_empty(self) -> bool:
        return not self.bias and self.activation == "none"

    @property
    def function(self) -> Activation:
        return ACTIVATIONS[self.activation]

    def __str__(self) -> str:
        parts = (["bias"] if self.bias else []) + ([self.activation] if self.activation != "none" else [])
        return "+".join(parts) or "none"
