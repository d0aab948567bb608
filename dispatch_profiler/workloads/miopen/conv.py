"""`conv`, `convfp16` and `convbfp16` of MIOpenDriver. Flags and defaults are MIOpen's, except for -F."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from dispatch_profiler.errors import OperationError, UnsupportedFeature, short_repr
from dispatch_profiler.operations import (
    BiasBackward,
    Conv1d,
    Conv2d,
    Conv3d,
    Convolution,
    ElementTypes,
    Epilogue,
    Operation,
    filter_letters,
    joined_layout,
)
from dispatch_profiler.operations.geometry import Role
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
)

#: Spatial axes -> flags of each.
_AXES = {1: "w", 2: "hw", 3: "dhw"}
_FLAGS = (
    Flag(
        *("forw", "F", "1"),
        "1 forward, 2 input backward, 4 weight backward, and sums of these; 0 all three; 7 bias backward, 8 and 9 with"
        " 2 and 4, 10 all backward",
    ),
    Flag("mode", "m", "conv", "convolution or transposed convolution", allowed=("conv", "trans")),
    Flag("spatial_dim", "_", "2", "number of spatial axes, if no layout is given"),
    Flag("batchsize", "n", "100", "images"),
    Flag("in_channels", "c", "3", "channels of the input"),
    Flag("in_d", "!", "32", "depth of the input"),
    Flag("in_h", "H", "32", "height of the input"),
    Flag("in_w", "W", "32", "width of the input"),
    Flag("out_channels", "k", "32", "channels of the output"),
    Flag("fil_d", "@", "3", "depth of the filter"),
    Flag("fil_h", "y", "3", "height of the filter"),
    Flag("fil_w", "x", "3", "width of the filter"),
    Flag("conv_stride_d", "#", "1", "stride along the depth"),
    Flag("conv_stride_h", "u", "1", "stride along the height", also=("--conv_stride_0",)),
    Flag("conv_stride_w", "v", "1", "stride along the width", also=("--conv_stride_1",)),
    Flag("pad_d", "$", "0", "zeros before and after the depth"),
    Flag("pad_h", "p", "0", "zeros before and after the height"),
    Flag("pad_w", "q", "0", "zeros before and after the width"),
    Flag("dilation_d", "^", "1", "dilation of the filter's depth"),
    Flag("dilation_h", "l", "1", "dilation of the filter's height"),
    Flag("dilation_w", "j", "1", "dilation of the filter's width"),
    Flag("trans_output_pad_d", "%", "0", "output padding of the depth, with -m trans"),
    Flag("trans_output_pad_h", "Y", "0", "output padding of the height, with -m trans"),
    Flag("trans_output_pad_w", "X", "0", "output padding of the width, with -m trans"),
    Flag("group_count", "g", "1", "groups of channels"),
    Flag("bias", "b", "0", "1: the forward adds a bias", allowed=("0", "1")),
    Flag("in_layout", "I", "", "layout of the input, any permutation of NCHW, NCDHW or NCW"),
    Flag("fil_layout", "f", "", "layout of the filter, likewise, with N for its outputs"),
    Flag("out_layout", "O", "", "layout of the output, likewise"),
    Flag(
        *("pad_mode", "z", "default", "how the padding is given", ("default", "conv")),
        why="give the padding with --pad_d, --pad_h and --pad_w",
    ),
    Flag("pad_val", "r", "0", "value of the padding", ("0",), "convolutions are padded with zeros"),
    Flag("tensor_vect", "Z", "0", "vectorized layout", ("0",), "no operation has a vectorized layout"),
    Flag("vector_length", "L", "1", "its vector length", ("1",), "no operation has a vectorized layout"),
    Flag("in_cast_type", "U", "-1", "cast of the input", ("-1",), "no operation casts its operands"),
    Flag("out_cast_type", "T", "-1", "cast of the output", ("-1",), "no operation casts its result"),
    Flag("wei_cast_type", "R", "-1", "cast of the filter", ("-1",), "no operation casts its operands"),
    *COMMON,
    ignored("wall", "w"),
    ignored("verification_cache", "C"),
    ignored("search", "s"),
    ignored("solution", "S"),
    ignored("printconv", "P"),
    ignored("dump_output", "o"),
    ignored("gpualloc", "G"),
    ignored("in_data", "d"),
    ignored("weights", "e"),
    ignored("in_bias", "a"),
    ignored("dout_data", "D"),
)
#: Values of -F. 1 to 6 are MIOpen's; 7 to 10, and the default of 1, are from BOO's driver (MIOpen's default is 0).
_DIRECTIONS = {
    "1": (FORWARD,),
    "2": (INPUT,),
    "3": (FORWARD, INPUT),
    "4": (WEIGHT,),
    "5": (FORWARD, WEIGHT),
    "6": (INPUT, WEIGHT),
    "7": (BIAS,),
    "8": (INPUT, BIAS),
    "9": (WEIGHT, BIAS),
    "10": (INPUT, WEIGHT, BIAS),
}


#: The mode of the mirrored convolution that computes a direction of a transposed one.
_MIRRORED = {FORWARD: INPUT, INPUT: FORWARD, WEIGHT: WEIGHT}
_KINDS: dict[int, type[Convolution]] = {1: Conv1d, 2: Conv2d, 3: Conv3d}
#: Spatial axis -> field of a convolution with the taps along it.
_TAPS = {"d": "t", "h": "r", "w": "s"}


@dataclass(frozen=True)
class ConvProblem:
    """A convolution, or a transposed one. Tuples have a number for each spatial axis, outermost first.

    `layouts` are the layouts of input, filter and output in our letters (`nhwc`, `fhwc`). A transposed convolution has
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
        # In the mirrored convolution, the transposed one's input is the output.
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


def _read(values: Values, type_: str) -> ConvProblem:
    rank = _rank(values)
    axes = _AXES[rank]
    is_transposed = values["mode"] == "trans"
    return ConvProblem(
        images=values.whole("batchsize"),
        channels=values.whole("in_channels"),
        filters=values.whole("out_channels"),
        pixels=tuple(values.whole(f"in_{axis}") for axis in axes),
        window=tuple(values.whole(f"fil_{axis}") for axis in axes),
        layouts=_layouts(values, rank),
        type=type_,
        stride=tuple(values.whole(f"conv_stride_{axis}") for axis in axes),
        padding=tuple(values.whole(f"pad_{axis}") for axis in axes),
        dilation=tuple(values.whole(f"dilation_{axis}") for axis in axes),
        output_padding=tuple(values.whole(f"trans_output_pad_{axis}") for axis in axes)
        if is_transposed
        else (),
        groups=values.whole("group_count"),
        has_bias=values["bias"] == "1",
        is_transposed=is_transposed,
    )


def _write(problem: ConvProblem) -> dict[str, str]:
    axes = _AXES[problem.rank]
    per_axis = {
        "in": problem.pixels,
        "fil": problem.window,
        "conv_stride": problem.stride,
        "pad": problem.padding,
        "dilation": problem.dilation,
        **({"trans_output_pad": problem.output_padding} if problem.is_transposed else {}),
    }
    input_, filter_, output = (each.upper() for each in problem.layouts)
    return {
        "mode": "trans" if problem.is_transposed else "conv",
        "spatial_dim": str(problem.rank),
        "batchsize": str(problem.images),
        "in_channels": str(problem.channels),
        "out_channels": str(problem.filters),
        **{
            f"{name}_{axis}": str(n)
            for name, each in per_axis.items()
            for axis, n in zip(axes, each, strict=True)
        },
        "group_count": str(problem.groups),
        "bias": str(int(problem.has_bias)),
        "in_layout": input_,
        "fil_layout": filter_.replace("F", "N"),
        "out_layout": output,
    }


def _rank(values: Values) -> int:
    """The number of spatial axes, by the layouts if they are given."""
    given = values["in_layout"] or values["fil_layout"] or values["out_layout"]
    rank = len(given) - 2 if given else values.whole("spatial_dim")
    if rank not in _AXES:
        what = f"layout {short_repr(given)}" if given else f"--spatial_dim {rank}"
        raise UnsupportedFeature(f"{what}: a convolution has 1, 2 or 3 spatial axes")
    return rank


def _layouts(values: Values, rank: int) -> tuple[str, str, str]:
    """Layouts of input, filter and output in this package's letters: MIOpen writes N for a filter's first axis too."""
    default = f"nc{_AXES[rank]}"
    input_, filter_, output = ((values[f"{role}_layout"] or default).lower() for role in ("in", "fil", "out"))
    return input_, filter_letters(filter_.replace("n", "f")), output


FAMILY = Family(
    "conv", {"conv": "f32", "convfp16": "f16", "convbfp16": "bf16"}, _FLAGS, _DIRECTIONS, _read, _write
)
