"""Problems of commands and signatures, in the terms of MIOpen and torch, and the operation of each direction.

A problem has its forward's sizes in every direction. Directions are named like the modes of an operation.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol

from dispatch_profiler.errors import OperationError
from dispatch_profiler.operations import (
    BiasBackward,
    Conv1d,
    Conv2d,
    Conv3d,
    Convolution,
    ElementTypes,
    Epilogue,
    LayerNorm,
    LayerNormInputBackward,
    LayerNormWeightBackward,
    Matmul,
    Operation,
    joined_layout,
)
from dispatch_profiler.operations.geometry import Role
from dispatch_profiler.operations.norm.normalization import Affine, has_bias, has_weight

FORWARD, INPUT, WEIGHT, BIAS = "forward", "input_backward", "weight_backward", "bias_backward"


class Problem(Protocol):
    """A problem of one kind, of one element type."""

    #: The word that commands of the kind begin with.
    kind: ClassVar[str]

    @property
    def type(self) -> str:
        """Name of the element type."""

    @property
    def directions(self) -> tuple[str, ...]:
        """The forward and the gradients of all operands that are not computed with another."""

    def operation(self, direction: str) -> Operation:
        """The operation of one direction. Raises OperationError."""


#: The mode of the mirrored convolution that computes a direction of a transposed one.
_MIRRORED = {FORWARD: INPUT, INPUT: FORWARD, WEIGHT: WEIGHT}
_KINDS: dict[int, type[Convolution]] = {1: Conv1d, 2: Conv2d, 3: Conv3d}
#: Spatial axes, and fields of a convolution with the taps along each.
_AXES = {1: "w", 2: "hw", 3: "dhw"}
_TAPS = {"d": "t", "h": "r", "w": "s"}


@dataclass(frozen=True)
class ConvProblem:
    """A convolution, or a transposed one. Tuples have a number for each spatial axis, outermost first.

    `layouts` are the layouts of input, filter and output, such as `nhwc` and `fhwc`. A transposed convolution has
    `channels` inputs and `filters` outputs, and its filter has `channels` along `f` and `filters / groups` along `c`.
    """

    kind: ClassVar[str] = "conv"

    images: int
    channels: int
    filters: int
    pixels: tuple[int, ...]
    window: tuple[int, ...]
    layouts: tuple[str, str, str]
    type: str = "f32"
    stride: tuple[int, ...] = ()
    padding: tuple[int, ...] = ()
    dilation: tuple[int, ...] = ()
    output_padding: tuple[int, ...] = ()
    groups: int = 1
    has_bias: bool = False
    is_transposed: bool = False

    def __post_init__(self) -> None:
        if self.rank not in _KINDS:
            raise OperationError(f"a convolution has 1, 2 or 3 spatial axes, but got {self.rank}")
        for name, default in (("stride", 1), ("padding", 0), ("dilation", 1), ("output_padding", 0)):
            value = getattr(self, name) or (default,) * self.rank
            if len(value) != self.rank or len(self.window) != self.rank:
                raise OperationError(
                    f"a convolution with {self.rank} spatial axes needs {self.rank} numbers each for its window and "
                    f"{name}, but got {self.window} and {value}"
                )
            object.__setattr__(self, name, value)
        if any(self.output_padding) and not self.is_transposed:
            raise OperationError("only a transposed convolution has an output padding")

    @property
    def rank(self) -> int:
        """Number of spatial axes."""
        return len(self.pixels)

    @property
    def directions(self) -> tuple[str, ...]:
        """See `Problem.directions`."""
        return (FORWARD, INPUT, WEIGHT)

    def operation(self, direction: str) -> Operation:
        """See `Problem.operation`. The bias is part of the forward's operation only."""
        fields, kind = self._fields(direction), _KINDS[self.rank]
        input_, filter_, output = self.layouts
        if not self.is_transposed:
            conv = kind(**{**fields, "layout": joined_layout(self.layouts)})
            if direction == BIAS:
                return _bias_backward(conv, "output")
            return replace(conv, mode=direction)  # type: ignore[type-var]
        # The output of the mirrored convolution is the input of the transposed convolution.
        layout = joined_layout((output, filter_, input_))
        conv = kind.transposed(output_padding=self.output_padding, layout=layout, **fields)
        if direction == BIAS:
            return _bias_backward(conv, "input")
        return replace(conv, mode=_MIRRORED[direction])  # type: ignore[type-var]

    def _fields(self, direction: str) -> dict[str, Any]:
        """Fields of the convolution, except for the layout."""
        axes = _AXES[self.rank]
        return {
            "n": self.images,
            "c": self.channels,
            "k": self.filters,
            **dict(zip(axes, self.pixels, strict=True)),
            **{_TAPS[axis]: taps for axis, taps in zip(axes, self.window, strict=True)},
            "stride": self.stride,
            "padding": self.padding,
            "dilation": self.dilation,
            "groups": self.groups,
            "types": ElementTypes(*(self.type,) * 3),
            "epilogue": Epilogue.parse("bias" if self.has_bias and direction == FORWARD else "none"),
        }


def _bias_backward(conv: Convolution, role: Role) -> Operation:
    """The gradient of a bias from the gradient of the tensor `role` of `conv`."""
    shape, layout = conv.convolution.shape_of(role), conv.convolution.layout_of(role)
    at = layout.index("c")
    return BiasBackward(math.prod(shape[:at]), shape[at], math.prod(shape[at + 1 :]), conv.types.lhs)


@dataclass(frozen=True)
class LayerNormProblem:
    """A layer norm of the last `normalized` axes of `shape`; `affine` as of `LayerNorm`."""

    kind: ClassVar[str] = "layernorm"

    shape: tuple[int, ...]
    normalized: int
    type: str = "f32"
    eps: float = 1e-5
    affine: Affine = True

    def __post_init__(self) -> None:
        if not 1 <= self.normalized <= len(self.shape):
            raise OperationError(
                f"layer_norm: a tensor with {len(self.shape)} axes cannot be normalized over {self.normalized} of them"
            )
        if not 0.0 < self.eps < math.inf:
            raise OperationError(f"layer_norm: eps must be a number above 0, but got {self.eps!r}")

    @property
    def rows(self) -> int:
        """How many rows are normalized."""
        return math.prod(self.shape[: -self.normalized])

    @property
    def size(self) -> int:
        """Elements of each row."""
        return math.prod(self.shape[-self.normalized :])

    @property
    def directions(self) -> tuple[str, ...]:
        """See `Problem.directions`: the bias's gradient is computed with the weight's."""
        gradients = {False: (), "bias": (BIAS,)}.get(self.affine, (WEIGHT,))
        return (FORWARD, INPUT, *gradients)

    def operation(self, direction: str) -> Operation:
        """See `Problem.operation`."""
        if direction == FORWARD:
            return LayerNorm(self.rows, self.size, self.type, self.eps, self.affine)
        if direction == INPUT:
            return LayerNormInputBackward(self.rows, self.size, self.type, has_weight(self.affine))
        if not (has_weight(self.affine) if direction == WEIGHT else has_bias(self.affine)):
            # MIOpenDriver computes these gradients in every mode, without a use for them.
            needed = "a weight" if direction == WEIGHT else "a bias"
            raise OperationError(
                f"layer_norm: {direction} needs {needed} (MIOpenDriver computes the same with -m 0 as with -m 1)"
            )
        if direction == WEIGHT:
            return LayerNormWeightBackward(self.rows, self.size, self.type, self.affine)
        return BiasBackward(self.rows, self.size, 1, self.type)


@dataclass(frozen=True)
class GemmProblem:
    """`C = op(A) op(B)` of m x k and k x n; a transposed operand is stored as its transpose."""

    kind: ClassVar[str] = "gemm"

    m: int
    n: int
    k: int
    type: str = "f32"
    transposes_a: bool = False
    transposes_b: bool = False

    @property
    def directions(self) -> tuple[str, ...]:
        """See `Problem.directions`."""
        return (FORWARD, INPUT, WEIGHT)

    def operation(self, direction: str) -> Operation:
        """See `Problem.operation`: `input_backward` is the gradient of A, `weight_backward` the gradient of B.

        dA = dC op(B)^T and dB = op(A)^T dC, each stored as its operand is.
        """
        types = ElementTypes(*(self.type,) * 3)
        a, b = ("n" if each else "t" for each in (self.transposes_a, self.transposes_b))
        if direction == FORWARD:
            return Matmul(self.m, self.n, self.k, types, a, b)
        if direction == INPUT:
            # A^T = op(B) dC^T, if A is stored transposed.
            if self.transposes_a:
                return Matmul(self.k, self.m, self.n, types, b, "n")
            return Matmul(self.m, self.k, self.n, types, "t", "n" if b == "t" else "t")
        if direction == WEIGHT:
            # B^T = dC^T op(A), if B is stored transposed.
            if self.transposes_b:
                return Matmul(self.n, self.k, self.m, types, "n", a)
            return Matmul(self.k, self.n, self.m, types, "n" if a == "t" else "t", "t")
        raise OperationError(f"a matrix product has no {direction}")
