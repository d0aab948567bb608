"""Two-dimensional convolution (cross-correlation, as in every framework), grouped and depthwise too.

`out[n, y, x, g*F + f] = sum_{r, s, c} in[n, y*sh + r*dh - ph, x*sw + s*dw - pw, g*C + c] * filter[r, s, c, g*F + f]`
with C channels and F filters a group, and zeros outside the input.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np

from dispatch_profiler.errors import OperationError, did_you_mean
from dispatch_profiler.operations._base import Loop, Tensor, check_positive
from dispatch_profiler.operations.contraction import Contraction
from dispatch_profiler.operations.element_types import ElementTypes
from dispatch_profiler.operations.epilogues import Epilogue
from dispatch_profiler.operations.geometry import ConvolutionGeometry, Variant
from dispatch_profiler.operations.options import ShapeOption, SweepOptions
from dispatch_profiler.operations.ranges import parse_pairs

#: Data layout -> (layout of input and result, layout of the filter).
CONV_LAYOUTS = {"nhwc": ("nhwc", "hwcf"), "nchw": ("nchw", "fchw")}

#: Fields of Conv2d: a 3x3, a strided one, a pointwise one, one image, depthwise, grouped.
CONV2D_PROBLEMS: tuple[dict[str, Any], ...] = (
    {"n": 8, "h": 58, "w": 58, "c": 64, "k": 64, "r": 3, "s": 3},
    {"n": 2, "h": 56, "w": 56, "c": 64, "k": 128, "r": 3, "s": 3, "stride": (2, 2), "padding": (1, 1)},
    {"n": 8, "h": 56, "w": 56, "c": 64, "k": 256, "r": 1, "s": 1},
    {"n": 1, "h": 28, "w": 28, "c": 128, "k": 128, "r": 3, "s": 3, "padding": (1, 1)},
    {"n": 2, "h": 56, "w": 56, "c": 128, "k": 128, "r": 3, "s": 3, "padding": (1, 1), "groups": 128},
    {"n": 2, "h": 28, "w": 28, "c": 128, "k": 128, "r": 3, "s": 3, "padding": (1, 1), "groups": 4},
)
#: Values of shape options that are not given, if at least one is.
_DEFAULT_SHAPE: dict[str, tuple[Any, ...]] = {
    "n": (1,), "h": (56,), "w": (56,), "c": (64,), "k": (64,), "r": (3,), "s": (3,),
    "stride": ((1, 1),), "padding": ((0, 0),), "dilation": ((1, 1),), "groups": (1,),
}  # fmt: skip
_EXTENTS = {
    "n": "images",
    "h": "input height",
    "w": "input width",
    "c": "input channels",
    "k": "filters",
    "r": "filter height",
    "s": "filter width",
}
_PAIR_HELP = "one value for both directions, or HEIGHTxWIDTH such as 2x1"
_SHAPE_OPTIONS = (
    *(ShapeOption(f"conv_{name}", (f"--conv-{name}",), meaning) for name, meaning in _EXTENTS.items()),
    ShapeOption("conv_stride", ("--conv-stride",), _PAIR_HELP, parse_pairs),
    ShapeOption("conv_padding", ("--conv-padding",), _PAIR_HELP, partial(parse_pairs, minimum=0)),
    ShapeOption("conv_dilation", ("--conv-dilation",), _PAIR_HELP, parse_pairs),
    ShapeOption("conv_groups", ("--conv-groups",), "groups of channels"),
)


@dataclass(frozen=True)
class Conv2d(Contraction):
    """`n` images of `c` channels and `h` x `w` pixels, `k` filters of `r` x `s`.

    `stride`, `padding` (on both sides) and `dilation` are (height, width) pairs.
    """

    kind: ClassVar[str] = "conv2d"
    label: ClassVar[str] = "OperationKind.Conv2d"
    parallel_axes: ClassVar[tuple[str, ...]] = ("n", "oh", "ow", "oc")
    reduction_axes: ClassVar[tuple[str, ...]] = ("kh", "kw", "ic")
    shape_options: ClassVar[tuple[ShapeOption, ...]] = _SHAPE_OPTIONS

    n: int
    h: int
    w: int
    c: int
    k: int
    r: int
    s: int
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1
    layout: str = "nhwc"
    types: ElementTypes = ElementTypes()
    epilogue: Epilogue = Epilogue()

    def __post_init__(self) -> None:
        for pair in ("stride", "padding", "dilation"):
            value = tuple(getattr(self, pair))
            if len(value) != 2 or any(type(each) is not int for each in value):
                raise OperationError(
                    f"conv2d: {pair} must be two whole numbers (height, width), but got {value}"
                )
            object.__setattr__(self, pair, value)
        check_positive(
            self.kind,
            **{x: getattr(self, x) for x in "nhwckrs"},
            **dict(zip(("stride_h", "stride_w"), self.stride, strict=True)),
            **dict(zip(("dilation_h", "dilation_w"), self.dilation, strict=True)),
            groups=self.groups,
        )
        if min(self.padding) < 0:
            raise OperationError(f"conv2d: padding must be at least 0, but got {self.padding}")
        if self.layout not in CONV_LAYOUTS:
            raise OperationError(
                f"unknown convolution layout {self.layout!r}", hint=did_you_mean(self.layout, CONV_LAYOUTS)
            )
        for name, channels in (("input channels c", self.c), ("filters k", self.k)):
            if channels % self.groups:
                raise OperationError(
                    f"groups must divide the {name}, but got groups={self.groups}, {name}={channels}",
                    hint=f"valid groups: {_common_divisors(self.c, self.k)}",
                )
        for axis, size, padded in zip("hw", self.window, self.padded, strict=True):
            if size > padded:
                raise OperationError(
                    f"the filter is larger than its padded input along {axis}: {size} > {padded}"
                    " (filter with dilation, input with padding)",
                    hint="use a smaller filter or dilation, or more padding",
                )
        self._check_epilogue()

    # -- geometry -----------------------------------------------------------------------------

    @property
    def window(self) -> tuple[int, int]:
        """Height and width that the dilated filter covers."""
        return ((self.r - 1) * self.dilation[0] + 1, (self.s - 1) * self.dilation[1] + 1)

    @property
    def padded(self) -> tuple[int, int]:
        return (self.h + 2 * self.padding[0], self.w + 2 * self.padding[1])

    @property
    def output_size(self) -> tuple[int, int]:
        """Height and width of the result."""
        oh, ow = (
            (padded - window) // stride + 1
            for padded, window, stride in zip(self.padded, self.window, self.stride, strict=True)
        )
        return oh, ow

    @property
    def variant(self) -> Variant:
        """The linalg form that the convolution takes."""
        return self.convolution.variant

    @property
    def convolution(self) -> ConvolutionGeometry:
        data, filter_, result = self.layouts
        return ConvolutionGeometry(
            batch=self.n,
            channels=self.c,
            filters=self.k,
            size=(self.h, self.w),
            filter_size=(self.r, self.s),
            output_size=self.output_size,
            stride=self.stride,
            padding=self.padding,
            dilation=self.dilation,
            groups=self.groups,
            input_layout=data,
            filter_layout=filter_,
            output_layout=result,
        )

    # -- the contract -------------------------------------------------------------------------

    @property
    def problem(self) -> str:
        shapes = (self.operands[0].shape, self.operands[1].shape, self.result.shape)
        return "_".join("x".join(map(str, shape)) for shape in shapes)

    @property
    def name_suffix(self) -> str:
        pairs = (("s", self.stride), ("p", self.padding), ("d", self.dilation))
        return "".join(f"_{tag}{h}x{w}" for tag, (h, w) in pairs) + f"_g{self.groups}"

    @property
    def layouts(self) -> tuple[str, str, str]:
        data, filter_ = CONV_LAYOUTS[self.layout]
        return data, filter_, data

    @property
    def operands(self) -> tuple[Tensor, ...]:
        per_group = self.c // self.groups
        filter_ = (
            (self.r, self.s, per_group, self.k)
            if self.layout == "nhwc"
            else (self.k, per_group, self.r, self.s)
        )
        return (
            Tensor("lhs", self._image(self.h, self.w, self.c), self.types.input),
            Tensor("rhs", filter_, self.types.input),
            *self._epilogue_operands(self.k),
        )

    def _image(self, h: int, w: int, c: int) -> tuple[int, ...]:
        return (self.n, h, w, c) if self.layout == "nhwc" else (self.n, c, h, w)

    @property
    def results(self) -> tuple[Tensor, ...]:
        return (Tensor("result", self._image(*self.output_size, self.k), self.types.output),)

    @property
    def loops(self) -> tuple[Loop, ...]:
        oh, ow = self.output_size
        extent = {
            "n": self.n, "oh": oh, "ow": ow, "g": self.groups, "kh": self.r, "kw": self.s,
            "oc": self.k if self.variant != "grouped" else self.k // self.groups,
            "ic": self.c // self.groups,
        }  # fmt: skip
        order = {
            ("nhwc", "dense"): ("n oh ow oc", "kh kw ic"),
            ("nhwc", "grouped"): ("n oh ow g oc", "kh kw ic"),
            ("nhwc", "depthwise"): ("n oh ow oc", "kh kw"),
            ("nchw", "dense"): ("n oc oh ow", "ic kh kw"),
            ("nchw", "grouped"): ("n g oc oh ow", "ic kh kw"),
            ("nchw", "depthwise"): ("n oh ow oc", "kh kw"),
        }[self.layout, self.variant]
        parallel, reduction = (names.split() for names in order)
        return (
            *(Loop(name, extent[name], "parallel") for name in parallel),
            *(Loop(name, extent[name], "reduction") for name in reduction),
        )

    @property
    def bias_axis(self) -> int:
        return 3 if self.layout == "nhwc" else 1

    def shape_arguments(self) -> dict[str, str]:
        shape = {f"conv-{x}": str(getattr(self, x)) for x in "nhwckrs"}
        pairs = {f"conv-{x}": "x".join(map(str, getattr(self, x))) for x in ("stride", "padding", "dilation")}
        return {**shape, **pairs, "conv-groups": str(self.groups)}

    @classmethod
    def smallest(cls) -> Conv2d:
        return cls(1, 1, 1, 1, 1, 1, 1, epilogue=Epilogue.parse("bias"))

    @classmethod
    def sweep(cls, options: SweepOptions) -> Iterator[Callable[[], Conv2d]]:
        given = options.has_shape_of(cls.shape_options)
        shapes = _shapes(options) if given else CONV2D_PROBLEMS
        for shape, types, epilogue, layout in itertools.product(
            shapes, options.types, options.epilogues, options.conv_layouts
        ):
            yield partial(cls, **shape, layout=layout, types=types, epilogue=epilogue)

    def contract(self, lhs: np.ndarray, rhs: np.ndarray) -> np.ndarray:
        """One BLAS product for each filter tap and group, summed over the taps."""
        images, filters = (lhs, rhs) if self.layout == "nhwc" else (_to_nhwc(lhs), rhs.transpose(2, 3, 1, 0))
        (ph, pw), groups = self.padding, self.groups
        padded = np.pad(images, ((0, 0), (ph, ph), (pw, pw), (0, 0)))
        oh, ow = self.output_size
        # N, OH, OW, G, C/G  and  R, S, G, C/G, K/G
        filters = filters.reshape(self.r, self.s, self.c // groups, groups, self.k // groups)
        filters = filters.transpose(0, 1, 3, 2, 4)
        total = np.zeros((groups, self.n * oh * ow, self.k // groups), dtype=lhs.dtype)
        for i in range(self.r):
            for j in range(self.s):
                rows = i * self.dilation[0] + self.stride[0] * np.arange(oh)
                columns = j * self.dilation[1] + self.stride[1] * np.arange(ow)
                window = padded[:, rows][:, :, columns].reshape(-1, groups, self.c // groups)
                total += _grouped_product(window.transpose(1, 0, 2), filters[i, j])
        result = total.transpose(1, 0, 2).reshape(self.n, oh, ow, self.k)
        return result if self.layout == "nhwc" else result.transpose(0, 3, 1, 2)


def _shapes(options: SweepOptions) -> Iterable[dict[str, Any]]:
    """Fields of every problem, with defaults for those not given."""
    axes = {name: options.shapes.get(f"conv_{name}", values) for name, values in _DEFAULT_SHAPE.items()}
    return (dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values()))


def _common_divisors(c: int, k: int) -> str:
    common = math.gcd(c, k)
    divisors = [str(d) for d in range(1, common + 1) if common % d == 0]
    return ", ".join(divisors[:8]) + (", ..." if len(divisors) > 8 else "")


def _to_nhwc(array: np.ndarray) -> np.ndarray:
    return array.transpose(0, 2, 3, 1)


def _grouped_product(window: np.ndarray, taps: np.ndarray) -> np.ndarray:
    """(G, P, C) x (G, C, F) -> (G, P, F); broadcasting is faster than BLAS where C is 1."""
    return window * taps if window.shape[2] == 1 else window @ taps
