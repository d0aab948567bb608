"""One-dimensional convolution: audio and other sequences. See `convolution`."""

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

#: Fields of Conv1d: both convolutions of Whisper's encoder (base, 30 s), and of wav2vec 2.0 (base, 1 s) two layers of
#: the feature encoder and the positional convolution.
CONV1D_PROBLEMS: tuple[Mapping[str, Any], ...] = (
    {"n": 1, "w": 3000, "c": 80, "k": 512, "s": 3, "padding": (1,)},
    {"n": 1, "w": 3000, "c": 512, "k": 512, "s": 3, "stride": (2,), "padding": (1,)},
    {"n": 1, "w": 3199, "c": 512, "k": 512, "s": 3, "stride": (2,)},
    {"n": 1, "w": 399, "c": 512, "k": 512, "s": 2, "stride": (2,)},
    {"n": 1, "w": 49, "c": 768, "k": 768, "s": 128, "padding": (64,), "groups": 16},
)


@dataclass(frozen=True)
class Conv1d(Convolution):
    """`n` sequences of `c` channels and `w` elements, `k` filters of `s` taps.

    `stride`, `padding` and `dilation` have one number each, such as (2,).
    """

    kind: ClassVar[str] = "conv1d"
    label: ClassVar[str] = "OperationKind.Conv1d"
    rank: ClassVar[int] = 1
    problems: ClassVar[tuple[Mapping[str, Any], ...]] = CONV1D_PROBLEMS
    default_extents: ClassVar[Mapping[str, int]] = {"n": 1, "w": 1500, "c": 512, "k": 512, "s": 3}
    shape_options: ClassVar[tuple[ShapeOption, ...]] = convolution_options(1)

    n: int
    w: int
    c: int
    k: int
    s: int
    stride: tuple[int, ...] = (1,)
    padding: tuple[int, ...] = (0,)
    dilation: tuple[int, ...] = (1,)
    groups: int = 1
    layout: str = "nwc"
    types: ElementTypes = ElementTypes()
    epilogue: Epilogue = Epilogue()
    padding_after: tuple[int, ...] | None = None
    mode: Mode = "forward"
