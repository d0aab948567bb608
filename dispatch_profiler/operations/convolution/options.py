"""Command-line options of convolutions, and the points of a sweep that they describe."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from functools import partial
from typing import Any

from dispatch_profiler.errors import OperationError, RangeError, did_you_mean
from dispatch_profiler.operations.convolution.layouts import SPATIAL, TAPS, layout_rank
from dispatch_profiler.operations.geometry import CONV_ROLES
from dispatch_profiler.operations.options import ShapeOption, SweepOptions, parse_tuples


def check_mode(kind: str, mode: str) -> None:
    """Raise OperationError unless `mode` is one of convolutions. `kind` is the message's first word."""
    if mode == "bias_backward":
        raise OperationError(
            f"{kind} has no mode bias_backward",
            hint=f"--op-kind=bias_backward generates the gradient of a bias; available: {', '.join(CONV_ROLES)}",
        )
    if not isinstance(mode, str) or mode not in CONV_ROLES:
        raise OperationError(f"{kind} has no mode {mode!r}", hint=did_you_mean(str(mode), CONV_ROLES))


def _modes(text: str) -> tuple[str, ...]:
    names = tuple(part.strip() for part in text.split(","))
    for name in names:
        check_mode("a convolution", name)
    return tuple(dict.fromkeys(names))


def _true_or_false(text: str) -> tuple[bool, ...]:
    known = {"true": True, "false": False}
    if text.lower() not in known:
        raise RangeError(
            f"expected true or false, but got {text!r}", hint="write --conv-transposed, or leave it out"
        )
    return (known[text.lower()],)


_EXTENTS = {
    "n": "images",
    "d": "input depth; implies conv3d",
    "h": "input height",
    "w": "input width; without a height, it implies conv1d",
    "c": "input channels",
    "k": "filters",
    "t": "filter depth; implies conv3d",
    "r": "filter height",
    "s": "filter width",
}
_STEPS = "one value for all directions, or HEIGHTxWIDTH such as 2x1 (conv3d: DEPTHxHEIGHTxWIDTH)"
_EXTENT_OPTIONS = {
    name: ShapeOption(f"conv_{name}", (f"--conv-{name}",), meaning) for name, meaning in _EXTENTS.items()
}
_not_negative = partial(parse_tuples, minimum=0)
_STEP_OPTIONS = (
    ShapeOption("conv_stride", ("--conv-stride",), _STEPS, parse_tuples),
    ShapeOption("conv_padding", ("--conv-padding",), _STEPS, _not_negative),
    ShapeOption(
        "conv_padding_after",
        ("--conv-padding-after",),
        "padding on the high side; --conv-padding is then the padding on the low side",
        _not_negative,
    ),
    ShapeOption("conv_dilation", ("--conv-dilation",), _STEPS, parse_tuples),
    ShapeOption("conv_groups", ("--conv-groups",), "groups of channels"),
)
_MODE_OPTIONS = (
    ShapeOption(
        "conv_mode",
        ("--conv-mode",),
        f"{', '.join(CONV_ROLES)}; in every mode, shapes describe the forward convolution",
        _modes,
        "MODE,...",
    ),
    ShapeOption(
        "conv_transposed",
        ("--conv-transposed",),
        "shapes describe a transposed convolution, which is generated as the input_backward of the convolution "
        "from its output to its input",
        _true_or_false,
        "true|false",
        flag="true",
    ),
    ShapeOption(
        "conv_output_padding",
        ("--conv-output-padding",),
        "pixels added to the high side of a transposed convolution's output",
        _not_negative,
    ),
)
_MODE_NAMES = tuple(option.name for option in _MODE_OPTIONS)


def convolution_options(rank: int) -> tuple[ShapeOption, ...]:
    """The shape options of convolutions with `rank` spatial axes; all ranks share the objects."""
    extents = (_EXTENT_OPTIONS[name] for name in f"n{SPATIAL[rank]}ck{TAPS[rank]}")
    return (*extents, *_STEP_OPTIONS, *_MODE_OPTIONS)


def has_problem(options: SweepOptions, accepted: tuple[ShapeOption, ...]) -> bool:
    """Whether any of `accepted` was given, apart from modes, which apply to predefined problems too."""
    return options.has_shape_of(tuple(each for each in accepted if each.name not in _MODE_NAMES))


def given_problems(options: SweepOptions, extents: Mapping[str, int]) -> list[dict[str, Any]]:
    """Fields of every problem in `options`; `extents` are the defaults of extents that were not given."""
    defaults: dict[str, tuple[Any, ...]] = {name: (extent,) for name, extent in extents.items()}
    defaults |= {"stride": ((1,),), "padding": ((0,),), "dilation": ((1,),), "groups": (1,)}
    return _crossed(options, {**defaults, "padding_after": (None,)})


def variants(options: SweepOptions) -> list[dict[str, Any]]:
    """`mode`, `transposed` and `output_padding` of every problem."""
    return _crossed(options, {"mode": ("forward",), "transposed": (False,), "output_padding": (None,)})


def _crossed(options: SweepOptions, defaults: Mapping[str, tuple[Any, ...]]) -> list[dict[str, Any]]:
    axes = {name: options.shapes.get(f"conv_{name}", values) for name, values in defaults.items()}
    return [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]


def implied_ranks(options: SweepOptions) -> set[int]:
    """Spatial axes of the convolutions that shapes and layouts imply; two if neither implies a rank."""

    def given(names: str) -> bool:
        return any(f"conv_{name}" in options.shapes for name in names)

    tuples = itertools.chain(*(options.shapes.get(option.name, ()) for option in _STEP_OPTIONS[:4]))
    least = max(3 if given("dt") else 2 if given("hr") else 1, *map(len, tuples), 1)
    of_layouts = {rank for layout in options.conv_layouts if (rank := layout_rank(layout)) >= least}
    return of_layouts or {least if least > 1 or given("w") else 2}
