"""Three-dimensional convolution: video and volumes. See `convolution`."""

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

#: Fields of Conv3d: the stem and two blocks of R3D-18 (16 frames of 112x112), and two convolutions of I3D's first
#: mixed block (16 frames of 224x224).
CONV3D_PROBLEMS: tuple[Mapping[str, Any], ...] = (
    {"n": 1, "d": 16, "h": 112, "w": 112, "c": 3, "k": 64, "t": 3, "r": 7, "s": 7,
     "stride": (1, 2, 2), "padding": (1, 3, 3)},
    {"n": 1, "d": 16, "h": 56, "w": 56, "c": 64, "k": 64, "t": 3, "r": 3, "s": 3, "padding": (1, 1, 1)},
    {"n": 1, "d": 16, "h": 56, "w": 56, "c": 64, "k": 128, "t": 3, "r": 3, "s": 3,
     "stride": (2, 2, 2), "padding": (1, 1, 1)},
    {"n": 1, "d": 8, "h": 28, "w": 28, "c": 192, "k": 64, "t": 1, "r": 1, "s": 1},
    {"n": 1, "d": 8, "h": 28, "w": 28, "c": 96, "k": 128, "t": 3, "r": 3, "s": 3, "padding": (1, 1, 1)},
)  # fmt: skip


@dataclass(frozen=True)
class Conv3d(Convolution):
    """`n` clips of `c` channels and `d` x `h` x `w` pixels, `k` filters of `t` x `r` x `s`.

    `stride`, `padding` and `dilation` are (depth, height, width).
    """

    kind: ClassVar[str] = "conv3d"
    label: ClassVar[str] = "OperationKind.Conv3d"
    rank: ClassVar[int] = 3
    problems: ClassVar[tuple[Mapping[str, Any], ...]] = CONV3D_PROBLEMS
    default_extents: ClassVar[Mapping[str, int]] = {
        "n": 1, "d": 8, "h": 28, "w": 28, "c": 64, "k": 64, "t": 3, "r": 3, "s": 3
    }  # fmt: skip
    shape_options: ClassVar[tuple[ShapeOption, ...]] = convolution_options(3)

    n: int
    d: int
    h: int
    w: int
    c: int
    k: int
    t: int
    r: int
    s: int
    stride: tuple[int, ...] = (1, 1, 1)
    padding: tuple[int, ...] = (0, 0, 0)
    dilation: tuple[int, ...] = (1, 1, 1)
    groups: int = 1
    layout: str = "ndhwc"
    types: ElementTypes = ElementTypes()
    epilogue: Epilogue = Epilogue()
    padding_after: tuple[int, ...] | None = None
    mode: Mode = "forward"
