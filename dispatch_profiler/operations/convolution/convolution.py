"""Convolutions (cross-correlations, as in every framework) with one to three spatial axes, in three modes.

With C channels and F filters a group, and zeros outside the input, in two dimensions:

    forward          out[n, y, x, g*F + f] = sum_{r, s, c} in[n, y*sh + r*dh - ph, x*sw + s*dw - pw, g*C + c]
                                                           * filter[r, s, c, g*F + f]
    input_backward   the gradient of `in`, from the gradient of `out` and the filter
    weight_backward  the gradient of `filter`, from the gradient of `out` and the input

In every mode, the extents describe the forward convolution. A transposed convolution is the input_backward
of the convolution from its output to its input: see `Convolution.transposed`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, ClassVar, TypeVar

import numpy as np

from dispatch_profiler.errors import OperationError
from dispatch_profiler.operations._base import Loop, Tensor, check_positive
from dispatch_profiler.operations.contraction.contraction import SumOfProducts
from dispatch_profiler.operations.convolution import sums as convolution_sums
from dispatch_profiler.operations.convolution.form import DirectForm, direct_form
from dispatch_profiler.operations.convolution.layouts import (
    SPATIAL,
    TAPS,
    check_channels,
    check_window,
    checked_layout,
    checked_tuple,
    layout_rank,
    layout_triple,
    words_of,
)
from dispatch_profiler.operations.convolution.options import (
    check_mode,
    convolution_options,
    given_problems,
    has_problem,
    implied_ranks,
    variants,
)
from dispatch_profiler.operations.convolution.transposed import mirrored
from dispatch_profiler.operations.element_types import ElementTypes
from dispatch_profiler.operations.epilogue_steps import OperandSpan
from dispatch_profiler.operations.epilogues import Epilogue
from dispatch_profiler.operations.geometry import CONV_ROLES, ConvolutionGeometry, Mode, Variant
from dispatch_profiler.operations.options import FUSED_EPILOGUE, ShapeOption, SweepOptions

_C = TypeVar("_C", bound="Convolution")

#: Fields with a number for each spatial axis.
_TUPLES = ("stride", "padding", "dilation")


class Convolution(SumOfProducts):
    """The base class of `Conv1d`, `Conv2d` and `Conv3d`, which are dataclasses with these fields in this order:

    n, d, h, w    images, and pixels along each spatial axis
    c, k          channels, and filters
    t, r, s       taps along each spatial axis
    stride, padding, dilation   a number for each spatial axis
    groups        of channels and filters
    layout        a word, or the layouts of input, filter and output: see `conv_layouts`
    types, epilogue
    padding_after   padding on the high side; None if it equals `padding`
    mode          forward; input_backward (lhs is the output's gradient, rhs the filter); or weight_backward
                  (lhs is the output's gradient, rhs the input), which has no epilogue
    """

    family: ClassVar[str] = "convolution"
    batch_name: ClassVar[str] = "n"
    rank: ClassVar[int]
    #: Fields of the problems of a sweep without shapes, and of those that also have an epilogue.
    problems: ClassVar[tuple[Mapping[str, Any], ...]]
    fused_problems: ClassVar[tuple[Mapping[str, Any], ...]] = ()
    #: Extents that are not given, if another option is.
    default_extents: ClassVar[Mapping[str, int]]

    n: int
    c: int
    k: int
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    layout: str
    types: ElementTypes
    epilogue: Epilogue
    padding_after: tuple[int, ...] | None
    mode: Mode

    def __post_init__(self) -> None:
        for name in _TUPLES:
            object.__setattr__(self, name, checked_tuple(self.kind, self.rank, name, getattr(self, name)))
        self._check_extents(vars(self))
        self._check_padding()
        object.__setattr__(self, "layout", checked_layout(self.layout, self.rank))
        check_mode(self.kind, self.mode)
        check_channels(self.c, self.k, self.groups)
        check_window(SPATIAL[self.rank], self.window, self.padded)
        if self.mode == "weight_backward" and not self.epilogue.is_empty:
            raise OperationError(
                f"{self.kind}: weight_backward has no epilogue, but got {self.epilogue}",
                hint="use --epilogue=none",
            )
        if self.types.is_mixed and self.types.lhs == self.types.rhs:
            raise OperationError(
                f"{self.kind}: {self.types.lhs} inputs need an i32 result, but got result={self.types.result}",
                hint="matmul and batch_matmul of i8 may have a floating-point result",
            )
        if self.types.is_mixed:
            raise OperationError(
                f"{self.kind}: lhs and rhs must have the same element type, but got lhs={self.types.lhs}, "
                f"rhs={self.types.rhs}",
                hint="matmul and batch_matmul multiply operands of different types",
            )
        if any(operand.spans is OperandSpan.ROWS for operand in self.epilogue.operands):
            raise OperationError(
                f"{self.kind}: {self.epilogue} has a scale for each row of a product",
                hint="matmul and batch_matmul have row_scale; use channel_scale",
            )
        self._check_epilogue()

    @classmethod
    def _check_extents(cls, fields: Mapping[str, Any]) -> None:
        extents = {name: fields[name] for name in cls.extent_names()}
        for name in ("stride", "dilation"):
            axes = (f"{name}_{axis}" for axis in SPATIAL[cls.rank])
            extents |= dict(zip(axes, fields.get(name, (1,) * cls.rank), strict=True))
        check_positive(cls.kind, **extents, groups=fields.get("groups", 1))

    def _check_padding(self) -> None:
        if self.padding_after is not None:
            after = checked_tuple(self.kind, self.rank, "padding_after", self.padding_after)
            object.__setattr__(self, "padding_after", None if after == self.padding else after)
        for name, value in (("padding", self.padding), ("padding_after", self.high_padding)):
            if min(value) < 0:
                raise OperationError(f"{self.kind}: {name} must be at least 0, but got {value}")

    @classmethod
    def transposed(cls: type[_C], *, output_padding: tuple[int, ...] = (), **fields: Any) -> _C:
        """The transposed convolution with these fields, as the input_backward of the mirrored convolution.

        `fields` have the names of a convolution's fields: `h` and `w` are the size of the transposed
        convolution's input, `c` its input channels, `k` its output channels. Its input is the operand lhs,
        and the output in `layout`.

            conv_transpose2d: 16 channels of 28x28, 8 filters of 3x3, stride 2, padding 1, output padding 1
            -> input_backward of: 8 channels of 56x56, 16 filters of 3x3, stride 2, padding 1
        """
        given = {"output_padding": output_padding or (0,) * cls.rank, **fields}
        for name in (*_TUPLES, "padding_after", "output_padding"):
            if given.get(name) is not None:
                given[name] = checked_tuple(cls.kind, cls.rank, name, given[name])
        extra = given.pop("output_padding")
        cls._check_extents(given)
        return cls(**mirrored(cls.kind, cls.rank, given, extra))

    # -- geometry -----------------------------------------------------------------------------

    @classmethod
    def extent_names(cls) -> str:
        """Letters of the extents, in the order of the fields: `nhwckrs`."""
        return f"n{SPATIAL[cls.rank]}ck{TAPS[cls.rank]}"

    @property
    def size(self) -> tuple[int, ...]:
        """Pixels of the input along each spatial axis."""
        return tuple(getattr(self, axis) for axis in SPATIAL[self.rank])

    @property
    def filter_size(self) -> tuple[int, ...]:
        """Taps of the filter along each spatial axis."""
        return tuple(getattr(self, taps) for taps in TAPS[self.rank])

    @property
    def window(self) -> tuple[int, ...]:
        """Pixels that the dilated filter covers along each spatial axis."""
        return tuple((n - 1) * step + 1 for n, step in zip(self.filter_size, self.dilation, strict=True))

    @property
    def high_padding(self) -> tuple[int, ...]:
        """Padding on the high side: `padding_after`, or `padding` if that is None."""
        return self.padding if self.padding_after is None else self.padding_after

    @property
    def padded(self) -> tuple[int, ...]:
        """Pixels of the padded input along each spatial axis."""
        return tuple(map(sum, zip(self.size, self.padding, self.high_padding, strict=True)))

    @property
    def output_size(self) -> tuple[int, ...]:
        """Pixels of the forward convolution's output along each spatial axis."""
        extents = zip(self.padded, self.window, self.stride, strict=True)
        return tuple((padded - window) // stride + 1 for padded, window, stride in extents)

    @property
    def variant(self) -> Variant:
        """The linalg form that the convolution takes."""
        return self.convolution.variant

    # Names, loops and templates read these two many times.
    @cached_property
    def convolution(self) -> ConvolutionGeometry:
        input_, filter_, output = layout_triple(self.layout)
        return ConvolutionGeometry(
            batch=self.n,
            channels=self.c,
            filters=self.k,
            size=self.size,
            filter_size=self.filter_size,
            output_size=self.output_size,
            stride=self.stride,
            padding=self.padding,
            dilation=self.dilation,
            groups=self.groups,
            input_layout=input_,
            filter_layout=filter_,
            output_layout=output,
            padding_after=self.high_padding,
            mode=self.mode,
        )

    @cached_property
    def form(self) -> DirectForm:
        """The linalg operation that computes the convolution, as one operation without permutations."""
        return direct_form(self.convolution)

    # -- the contract -------------------------------------------------------------------------

    @property
    def parallel_axes(self) -> tuple[str, ...]:  # type: ignore[override]
        """Loops over the result: `kh`, `kw`, `ic`, `oc` for a filter's gradient."""
        axes = SPATIAL[self.rank]
        if self.mode == "weight_backward":
            return (*(f"k{axis}" for axis in axes), "ic", "oc")
        return ("n", *(f"o{axis}" for axis in axes), "oc")

    @property
    def reduction_axes(self) -> tuple[str, ...]:  # type: ignore[override]
        axes = SPATIAL[self.rank]
        if self.mode == "weight_backward":
            return ("n", *(f"o{axis}" for axis in axes))
        return (*(f"k{axis}" for axis in axes), "ic")

    @property
    def problem(self) -> str:
        shapes = (self.operands[0].shape, self.operands[1].shape, self.result.shape)
        mode = "" if self.mode == "forward" else f"{self.mode}_"
        return mode + "_".join(map(_by, shapes))

    @property
    def name_suffix(self) -> str:
        after = {} if self.padding_after is None else {"q": self.padding_after}
        tuples = {"s": self.stride, "p": self.padding, **after, "d": self.dilation}
        return "".join(f"_{tag}{_by(values)}" for tag, values in tuples.items()) + f"_g{self.groups}"

    @property
    def layouts(self) -> tuple[str, str, str]:
        lhs, rhs, result = (self.convolution.layout_of(role) for role in CONV_ROLES[self.mode])
        return lhs, rhs, result

    @property
    def operands(self) -> tuple[Tensor, ...]:
        geometry, (lhs, rhs, _) = self.convolution, CONV_ROLES[self.mode]
        return (
            Tensor("lhs", geometry.shape_of(lhs), self.types.input),
            Tensor("rhs", geometry.shape_of(rhs), self.types.input),
            *self._epilogue_operands(self.c if self.mode == "input_backward" else self.k),
        )

    @property
    def results(self) -> tuple[Tensor, ...]:
        shape = self.convolution.shape_of(CONV_ROLES[self.mode][2])
        return (Tensor("result", shape, self.types.output),)

    @property
    def reads_weight(self) -> bool:
        return self.mode != "weight_backward"

    def with_batch(self, batch: int) -> Convolution | None:
        """See `Operation.with_batch`."""
        starts_with_images = all(layout.startswith("n") for layout in self.layouts[::2])
        return replace(self, n=batch) if self.mode == "forward" and starts_with_images else None  # type: ignore[type-var]

    @property
    def loops(self) -> tuple[Loop, ...]:
        return self.form.loops

    @property
    def accumulations(self) -> int:
        return convolution_sums.most_terms(self.convolution)

    @property
    def flops(self) -> int:
        """2 per multiply-add of the forward convolution, in every mode; for the epilogue, see `Contraction`."""
        outputs = self.n * math.prod(self.output_size) * self.k
        products = outputs * math.prod(self.filter_size) * (self.c // self.groups)
        return 2 * products + self.epilogue.flops * self.result.elements

    @property
    def bias_axis(self) -> int:
        """The axis of the result's channels; in weight_backward, the axis of its filters."""
        return self.layouts[2].index("f" if self.mode == "weight_backward" else "c")

    def contract(self, lhs: np.ndarray, rhs: np.ndarray) -> np.ndarray:
        """One BLAS product for each filter tap and group."""
        return convolution_sums.contract(self.convolution, lhs, rhs)

    # -- plain data ---------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """Plain data, without `padding_after` and `mode` if they have their defaults."""
        data = super().to_dict()
        if self.padding_after is None:
            del data["padding_after"]
        if self.mode == "forward":
            del data["mode"]
        return data

    def shape_arguments(self) -> dict[str, str]:
        arguments = {f"conv-{name}": str(getattr(self, name)) for name in self.extent_names()}
        arguments |= {f"conv-{name}": _by(getattr(self, name)) for name in _TUPLES}
        arguments["conv-groups"] = str(self.groups)
        if self.padding_after is not None:
            arguments["conv-padding-after"] = _by(self.padding_after)
        if self.mode != "forward":
            arguments["conv-mode"] = self.mode
        return arguments

    @classmethod
    def argument_names(cls) -> tuple[str, ...]:
        return (*super().argument_names(), "conv-padding-after", "conv-mode")

    @classmethod
    def smallest(cls) -> Convolution:
        return cls(**_ones(cls), **{"epilogue": Epilogue.parse("bias")})

    @property
    def smallest_alike(self) -> SumOfProducts:
        fields = {"types": self.types, "epilogue": self.epilogue, "mode": self.mode}
        return type(self)(**_ones(type(self)), **fields)

    # -- sweeps -------------------------------------------------------------------------------

    @classmethod
    def is_implied_by(cls, options: SweepOptions) -> bool:
        return super().is_implied_by(options) and cls.rank in implied_ranks(options)

    @classmethod
    def sweep(cls, options: SweepOptions) -> Iterator[Callable[[], Convolution]]:
        is_given = has_problem(options, cls.shape_options)
        shapes = given_problems(options, cls.default_extents) if is_given else cls.problems
        yield from cls._points(shapes, options)
        if options.has_fused_problems:
            yield from cls._points(cls.fused_problems, replace(options, epilogues=(FUSED_EPILOGUE,)))

    @classmethod
    def _points(
        cls, shapes: Iterable[Mapping[str, Any]], options: SweepOptions
    ) -> Iterator[Callable[[], Convolution]]:
        """`shapes` with every variant, type, epilogue and layout of `options`."""
        layouts = [layout for layout in options.conv_layouts if layout_rank(layout) == cls.rank]
        for shape, variant, types, epilogue, layout in itertools.product(
            shapes,
            variants(options),
            options.types,
            options.swept_epilogues,
            layouts or words_of(cls.rank)[:1],
        ):
            fields = {**shape, "layout": layout, "types": types, "epilogue": epilogue}
            yield partial(cls._point, fields, **variant)

    @classmethod
    def _point(
        cls,
        fields: Mapping[str, Any],
        *,
        mode: Mode,
        transposed: bool,
        output_padding: tuple[int, ...] | None,
    ) -> Convolution:
        """An operation of a sweep. A single stride, padding or dilation applies to every spatial axis."""

        def each(value: Any) -> Any:
            return value * cls.rank if isinstance(value, tuple) and len(value) == 1 else value

        spread = {name: each(value) for name, value in fields.items()}
        if not transposed:
            if output_padding is not None:
                raise OperationError(
                    f"output padding is for transposed convolutions, but got {_by(output_padding)}",
                    hint="add --conv-transposed, or leave out --conv-output-padding",
                )
            return cls(**spread, **{"mode": mode})
        if mode != "forward":
            raise OperationError(
                f"a transposed convolution has the mode forward only, but got {mode}",
                hint="its input_backward is a forward convolution: leave out --conv-transposed",
            )
        return cls.transposed(output_padding=each(output_padding or (0,)), **spread)


def _ones(kind: type[Convolution]) -> dict[str, Any]:
    """Every extent, as 1."""
    return dict.fromkeys(kind.extent_names(), 1)


def _by(values: tuple[int, ...]) -> str:
    return "x".join(map(str, values))


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
    """Audio and other sequences: `n` sequences of `c` channels and `w` elements, `k` filters of `s` taps.

    `stride`, `padding` and `dilation` have one number each, such as (2,).
    """

    kind: ClassVar[str] = "conv1d"
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


#: Fields of Conv2d: 3x3, strided, pointwise, a single image, depthwise, grouped.
CONV2D_PROBLEMS: tuple[Mapping[str, Any], ...] = (
    {"n": 8, "h": 58, "w": 58, "c": 64, "k": 64, "r": 3, "s": 3},
    {"n": 2, "h": 56, "w": 56, "c": 64, "k": 128, "r": 3, "s": 3, "stride": (2, 2), "padding": (1, 1)},
    {"n": 8, "h": 56, "w": 56, "c": 64, "k": 256, "r": 1, "s": 1},
    {"n": 1, "h": 28, "w": 28, "c": 128, "k": 128, "r": 3, "s": 3, "padding": (1, 1)},
    {"n": 2, "h": 56, "w": 56, "c": 128, "k": 128, "r": 3, "s": 3, "padding": (1, 1), "groups": 128},
    {"n": 2, "h": 28, "w": 28, "c": 128, "k": 128, "r": 3, "s": 3, "padding": (1, 1), "groups": 4},
)
#: Fields of a Conv2d with a fused epilogue: 3x3, a single image.
FUSED_CONV2D_PROBLEMS: tuple[Mapping[str, Any], ...] = CONV2D_PROBLEMS[3:4]


@dataclass(frozen=True)
class Conv2d(Convolution):
    """Images: `n` images of `c` channels and `h` x `w` pixels, `k` filters of `r` x `s`.

    `stride`, `padding` and `dilation` are (height, width) pairs.
    """

    kind: ClassVar[str] = "conv2d"
    rank: ClassVar[int] = 2
    problems: ClassVar[tuple[Mapping[str, Any], ...]] = CONV2D_PROBLEMS
    fused_problems: ClassVar[tuple[Mapping[str, Any], ...]] = FUSED_CONV2D_PROBLEMS
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
    """Video and volumes: `n` clips of `c` channels and `d` x `h` x `w` pixels, `k` filters of `t` x `r` x `s`.

    `stride`, `padding` and `dilation` are (depth, height, width).
    """

    kind: ClassVar[str] = "conv3d"
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
