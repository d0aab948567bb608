"""`layernorm`, `layernormfp16` and `layernormbfp16` of MIOpenDriver, with the flags of all its versions.

A version takes the input's shape as `-X 100x3x32x32` or as a size for each axis, where 0 removes an axis.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import ClassVar

from dispatch_profiler.errors import OperationError, UnsupportedFeature, WorkloadError, short_repr
from dispatch_profiler.operations import (
    BiasBackward,
    LayerNorm,
    LayerNormInputBackward,
    LayerNormWeightBackward,
    Operation,
)
from dispatch_profiler.operations.norm.normalization import Affine, has_bias, has_weight
from dispatch_profiler.workloads.miopen._flags import (
    BIAS,
    COMMON,
    FORWARD,
    INPUT,
    WEIGHT,
    Family,
    Flag,
    Values,
    ignored,
    whole,
)

_FLAGS = (
    Flag(
        *("forw", "F", "1"),
        "1 forward, 2 input backward, 4 weight backward (also of the bias), 8 bias backward, and sums of these; 0 all",
    ),
    Flag("input", "X", "", "shape of the input, such as 100x3x32x32; replaces the sizes of axes"),
    Flag("batchsize", "n", "100", "size of axis N", also=("-N", "--in_n")),
    Flag("in_channels", "c", "3", "size of axis C, 0 for none", also=("-C", "--in_c")),
    Flag("in_d", "D", "0", "size of axis D, 0 for none"),
    Flag("in_h", "H", "32", "size of axis H, 0 for none"),
    Flag("in_w", "W", "32", "size of axis W"),
    Flag("layout", "L", "", "layout of the input: the order of the axes above"),
    Flag("eps", "e", "0.00001", "added to the variance"),
    Flag("normalized_dim", "o", "3", "first of the normalized axes", also=("--nomalized_dim",)),
    Flag("mode", "m", "0", "1: with weight and bias", allowed=("0", "1")),
    *COMMON,
    ignored("wall", "w"),
    ignored("mt", "u"),
)
_SIZES = {"N": "batchsize", "C": "in_channels", "D": "in_d", "H": "in_h", "W": "in_w"}
#: Layouts of MIOpen, without 0-sized axes, in the order in which it tries them.
_LAYOUTS = ("NCDHW", "NCHW", "NCW", "NW")
_BITS = {1: FORWARD, 2: INPUT, 4: WEIGHT, 8: BIAS}
_DIRECTIONS = {
    str(mask): tuple(direction for bit, direction in _BITS.items() if mask & bit) for mask in range(1, 16)
}
_NUMBER = re.compile(r"[0-9]{0,20}\.?[0-9]{1,20}(e[+-]?[0-9]{1,3})?", re.ASCII | re.IGNORECASE)


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


def _read(values: Values, type_: str) -> LayerNormProblem:
    shape = _shape(values)
    first = values.whole("normalized_dim")
    if not 0 <= first < len(shape):
        raise WorkloadError(f"--normalized_dim {first}: the input has the axes 0 to {len(shape) - 1}")
    eps = values["eps"]
    if not _NUMBER.fullmatch(eps):
        raise WorkloadError(f"--eps: expected a number, but got {short_repr(eps)}")
    return LayerNormProblem(shape, len(shape) - first, type_, float(eps), values["mode"] == "1")


def _shape(values: Values) -> tuple[int, ...]:
    if "input" in values.given:
        if given := [flag for flag in (*_SIZES.values(), "layout") if flag in values.given]:
            raise WorkloadError(f"--input replaces --{given[0]}: give only one of them")
        extents, _, order = values["input"].partition(",")
        shape = tuple(whole("input", each) for each in extents.split("x"))
        _check_order(order, shape)
        return shape
    sizes = {axis: values.whole(flag) for axis, flag in _SIZES.items()}
    layout = next((each for each in _LAYOUTS if all(sizes[axis] for axis in each)), None)
    if layout is None:
        raise WorkloadError(
            f"--batchsize {sizes['N']} --in_w {sizes['W']}: the axes N and W are in every input"
        )
    shape = tuple(sizes[axis] for axis in layout)
    _check_order(values["layout"], shape)
    return shape


def _check_order(order: str, shape: tuple[int, ...]) -> None:
    """Raise UnsupportedFeature unless `order`, a layout or strides, describes a dense, row-major tensor."""
    dense = "x".join(str(math.prod(shape[axis + 1 :])) for axis in range(len(shape)))
    usual = [each for each in _LAYOUTS if len(each) == len(shape)]
    if order and order != dense and order.upper() not in usual:
        raise UnsupportedFeature(
            f"layout or strides {short_repr(order)}: a layer norm has a dense, row-major input of shape {'x'.join(map(str, shape))}"
        )


def _write(problem: LayerNormProblem) -> dict[str, str]:
    if isinstance(problem.affine, str):
        raise UnsupportedFeature(
            f"MIOpenDriver has no layer norm with a {problem.affine} alone: -m 1 has a weight and a bias"
        )
    return {
        "input": "x".join(map(str, problem.shape)),
        "eps": repr(problem.eps),
        "normalized_dim": str(len(problem.shape) - problem.normalized),
        "mode": str(int(problem.affine)),
    }


FAMILY = Family(
    "layernorm",
    {"layernorm": "f32", "layernormfp16": "f16", "layernormbfp16": "bf16"},
    _FLAGS,
    _DIRECTIONS,
    _read,
    _write,
)
