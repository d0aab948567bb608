"""`softmax` and `softmaxfp16` of MIOpenDriver, over the last axis: all of an image, or the channels of single pixels."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from dispatch_profiler.errors import OperationError, UnsupportedFeature
from dispatch_profiler.operations import Operation, Softmax
from dispatch_profiler.workloads.miopen._flags import COMMON, FORWARD, Family, Flag, Values, ignored

_NOT_SCALED = "no operation scales or adds to the result"
_FLAGS = (
    Flag("forw", "F", "1", "1 forward", ("1",), "no operation computes the gradient of a softmax"),
    Flag("batchsize", "n", "100", "images"),
    Flag("in_channels", "c", "3", "channels"),
    Flag("in_h", "H", "32", "height"),
    Flag("in_w", "W", "32", "width"),
    Flag("mode", "m", "1", "0 over an image, 1 over the channels of each pixel", allowed=("0", "1")),
    Flag("algorithm", "a", "1", "0 fast, 1 accurate", ("0", "1"), "no operation computes the logarithm"),
    Flag("alpha", "A", "1.0", "factor of the result", ("1.0", "1"), _NOT_SCALED),
    Flag("beta", "B", "0.0", "factor of the former result, which is added", ("0.0", "0"), _NOT_SCALED),
    *COMMON,
    ignored("wall", "w"),
)


@dataclass(frozen=True)
class SoftmaxProblem:
    """The softmax of `scale` times a tensor of `shape`, over its last axis."""

    kind: ClassVar[str] = "softmax"

    shape: tuple[int, ...]
    type: str = "f32"
    scale: float = 1.0

    @property
    def directions(self) -> tuple[str, ...]:
        """See `Problem.directions`."""
        return (FORWARD,)

    def operation(self, direction: str) -> Operation:
        """See `Problem.operation`."""
        if direction != FORWARD:
            raise OperationError(f"a softmax has no {direction}")
        return Softmax(math.prod(self.shape[:-1]), self.shape[-1], self.type, self.scale)


def _read(values: Values, type_: str) -> SoftmaxProblem:
    images, channels, height, width = (
        values.whole(name) for name in ("batchsize", "in_channels", "in_h", "in_w")
    )
    if values["mode"] == "1" and height * width != 1:
        raise UnsupportedFeature(
            f"--mode 1 with {height} x {width} pixels: operations compute a softmax over the last axis, and channels "
            "are the second one (available: --mode 0, or --in_h 1 --in_w 1)"
        )
    return SoftmaxProblem((images, channels * height * width), type_)


def _write(problem: SoftmaxProblem) -> dict[str, str]:
    if problem.scale != 1.0:
        raise UnsupportedFeature("MIOpenDriver has no softmax of scaled elements")
    if len(problem.shape) != 2:
        raise UnsupportedFeature(
            f"MIOpenDriver has no softmax of a tensor with {len(problem.shape)} axes, only of 2"
        )
    rows, size = problem.shape
    return {"batchsize": str(rows), "in_channels": str(size), "in_h": "1", "in_w": "1"}


FAMILY = Family("softmax", {"softmax": "f32", "softmaxfp16": "f16"}, _FLAGS, {"1": (FORWARD,)}, _read, _write)
