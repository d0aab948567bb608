"""Two-dimensional convolution: images. See `convolution`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from dispatch_profiler.operations.convolution.convolution import Convolution
from dispatch_profiler.operations.convolution.options import convolution_options
from dispatch_profiler.operations.element_types import ElementTypes
from dispatch_profiler.operations.epilogues import Epilogue
from dispatch_profiler.operations.geometry import Mode
from dispatch_profiler.operations.options import ShapeOption

#: Fields of Conv2d: 3x3, strided, pointwise, a single image, depthwise, grouped.
CONV2D_PROBLEMS: tuple[Mapping[str, Any], ...] = (
    {"n": 8, "h": 58, "w": 58, "c": 64, "k": 64, "r": 3, "s": 3},
    {"n": 2, "h": 56, "w": 56, "c": 64, "k": 128, "r": 3, "s": 3, "stride": (2, 2), "padding": (1, 1)},
    {"n": 8, "h": 56, "w": 56, "c": 64, "k": 256, "r": 1, "s": 1},
    {"n": 1, "h": 28, "w": 28, "c": 128, "k": 128, "r": 3, "s": 3, "padding": (1, 1)},
    {"n": 2, "h": 56, "w": 56, "c": 128, "k": 128, "r": 3, "s": 3, "padding": (1, 1), "groups": 128},
    {"n": 2, "h": 28, "w": 28, "c": 128, "k": 128, "r": 3, "s": 3, "padding": (1, 1), "groups": 4},
)


@dataclass(frozen=True)
class Conv2d(Convolution):
    """`n` images of `c` channels and `h` x `w` pixels, `k` filters of `r` x `s`.

    `stride`, `padding` and `dilation` are (height, width) pairs.
    """

    kind: ClassVar[str] = "conv2d"
    label: ClassVar[str] = "OperationKind.Conv2d"
    rank: ClassVar[int] = 2
    problems: ClassVar[tuple[Mapping[str, Any], ...]] = CONV2D_PROBLEMS
    default_extents: ClassVar[Mapping[str, int]] = {
        "n": 1, "h": 56, "w": 56, "c": 64, "k": 64, "r": 3, "s": 3
    }  # fmt: skip
    shape_options: ClassVar[tuple[ShapeOption, ...]] = convolution_options(2)

    n: int
    h: int
    w: int
    c: int
    k: int
    r: int
    s: int
    stride: tuple[int, ...] = (1, 1)
    padding: tuple[int, ...] = (0, 0)
    dilation: tuple[int, ...] = (1, 1)
    groups: int = 1
    layout: str = "nhwc"
    types: ElementTypes = ElementTypes()
    epilogue: Epilogue = Epilogue()
    padding_after: tuple[int, ...] | None = None
    mode: Mode = "forward"
