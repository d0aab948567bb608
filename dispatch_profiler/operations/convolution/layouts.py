"""Layouts of convolutions: words such as `nhwc`, and triples such as `nhwc_fhwc_nhwc`.

A triple has the layouts of input, filter and output, in this order in every mode. Letters are in the order in
which axes are stored: `n` images, `c` channels, `f` filters, `d`, `h` and `w` depth, height and width.
"""

from __future__ import annotations

import math
from typing import Any

from dispatch_profiler.console.plurals import counted
from dispatch_profiler.errors import OperationError, did_you_mean

#: Number of spatial axes -> their letters, outermost first.
SPATIAL = {1: "w", 2: "hw", 3: "dhw"}
#: Number of spatial axes -> letters of the extents of a filter along them.
TAPS = {1: "s", 2: "rs", 3: "trs"}
#: Word -> layouts of input, filter and output. The first word of each rank is the default.
CONV_LAYOUTS = {
    "nhwc": ("nhwc", "hwcf", "nhwc"),
    "nchw": ("nchw", "fchw", "nchw"),
    "nwc": ("nwc", "wcf", "nwc"),
    "ncw": ("ncw", "fcw", "ncw"),
    "ndhwc": ("ndhwc", "dhwcf", "ndhwc"),
    "ncdhw": ("ncdhw", "fcdhw", "ncdhw"),
}
_WORDS = {layouts: word for word, layouts in CONV_LAYOUTS.items()}
#: Letters of a filter in MIOpen's commands -> this package's letters.
_MIOPEN = str.maketrans("kzyx", "fdhw")
_ROLES = ("input", "filter", "output")


def read_layout(text: str) -> str:
    """`text` in this package's letters, as a word if one exists: `NHWC_KYXC_NHWC` -> `nhwc_fhwc_nhwc`.

    Raises OperationError if it is no layout of convolutions of any rank.
    """
    parts = text.lower().split("_")
    if len(parts) == 3:
        parts[1] = filter_letters(parts[1])
    return checked_layout("_".join(parts), layout_rank(text))


def filter_letters(layout: str) -> str:
    """A filter's layout in this package's letters: `kyxc` -> `fhwc`."""
    return layout.translate(_MIOPEN)


def layout_rank(layout: str) -> int:
    """The number of spatial axes of a layout, by its length; 2 for other texts."""
    rank = len(layout.partition("_")[0]) - 2
    return rank if rank in SPATIAL else 2


def words_of(rank: int) -> tuple[str, ...]:
    """The words for layouts of convolutions with `rank` spatial axes, the default first."""
    return tuple(word for word, layouts in CONV_LAYOUTS.items() if len(layouts[0]) == rank + 2)


def layout_triple(layout: str) -> tuple[str, str, str]:
    """Layouts of input, filter and output: `nhwc` -> `("nhwc", "hwcf", "nhwc")`."""
    input_, filter_, output = CONV_LAYOUTS[layout] if layout in CONV_LAYOUTS else layout.split("_")
    return input_, filter_, output


def joined_layout(layouts: tuple[str, str, str]) -> str:
    """The word or triple for the layouts of input, filter and output."""
    return _WORDS.get(layouts, "_".join(layouts))


def checked_layout(layout: str, rank: int) -> str:
    """`layout`, as a word if one exists.

    Raises OperationError unless it is a word of `rank`, or each part of a triple has every letter once.
    """
    words = words_of(rank)
    layout = layout if isinstance(layout, str) else repr(layout)
    parts = layout.split("_")
    if len(parts) != 3:
        if layout in words:
            return layout
        if layout in CONV_LAYOUTS:
            raise OperationError(
                f"the layout {layout} has {counted(len(layout) - 2, 'spatial axis')}, but the convolution has {rank}",
                hint=f"available: {', '.join(words)}",
            )
        raise OperationError(f"unknown convolution layout {layout!r}", hint=did_you_mean(str(layout), words))
    for role, part, letters in zip(
        _ROLES, parts, (f"nc{SPATIAL[rank]}", f"fc{SPATIAL[rank]}") * 2, strict=False
    ):
        _check_letters(role, part, letters, rank)
    input_, filter_, output = parts
    return joined_layout((input_, filter_, output))


def _check_letters(role: str, part: str, letters: str, rank: int) -> None:
    """Raise OperationError unless `part` has each of `letters` once."""
    problems = (
        ("repeats", [letter for letter in letters if part.count(letter) > 1]),
        ("lacks", [letter for letter in letters if letter not in part]),
        ("has an unknown", sorted(set(part) - set(letters))),
    )
    faults = [f"{what} {', '.join(which)}" for what, which in problems if which]
    if faults:
        raise OperationError(
            f"the {role} layout {part!r} {' and '.join(faults)}",
            hint=f"the {role} of a convolution with {counted(rank, 'spatial axis')} has each of {', '.join(letters)} once",
        )


# -- checks ----------------------------------------------------------------------------------------

# Checks of convolutions that several kinds share; each raises OperationError with the rule and the values.


_AXES = {"d": "depth", "h": "height", "w": "width"}
_NUMBERS = {1: "one whole number", 2: "two whole numbers", 3: "three whole numbers"}


def checked_tuple(kind: str, rank: int, name: str, given: Any) -> tuple[int, ...]:
    """`given` as a tuple of `rank` numbers; a single number is a tuple of one."""
    value = tuple(given) if isinstance(given, (tuple, list)) else (given,)
    if len(value) != rank or any(type(each) is not int for each in value):
        axes = ", ".join(_AXES[axis] for axis in SPATIAL[rank])
        raise OperationError(
            f"{kind}: {name} must be {_NUMBERS[rank]} ({axes}), but got {value}",
            hint=f"give one for each axis, such as {'x'.join('2' * rank)}",
        )
    return value


def check_channels(c: int, k: int, groups: int) -> None:
    """Channels and filters must be multiples of the groups."""
    for name, channels in (("input channels c", c), ("filters k", k)):
        if channels % groups:
            raise OperationError(
                f"groups must divide the {name}, but got groups={groups}, {name}={channels}",
                hint=f"valid groups: {_common_divisors(c, k)}",
            )


def check_window(axes: str, window: tuple[int, ...], padded: tuple[int, ...]) -> None:
    """The dilated filter must fit into the padded input along each of `axes`."""
    for axis, size, limit in zip(axes, window, padded, strict=True):
        if size > limit:
            raise OperationError(
                f"the filter is larger than its padded input along {axis}: {size} > {limit}"
                " (filter with dilation, input with padding)",
                hint="use a smaller filter or dilation, or more padding",
            )


def _common_divisors(c: int, k: int) -> str:
    common = math.gcd(c, k)
    divisors = [str(d) for d in range(1, common + 1) if common % d == 0]
    return ", ".join(divisors[:8]) + (", ..." if len(divisors) > 8 else "")
