"""Checks of convolutions that several kinds share; each raises OperationError with the rule and the values."""

from __future__ import annotations

import math
from typing import Any

from dispatch_profiler.errors import OperationError
from dispatch_profiler.operations.convolution.layouts import SPATIAL

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
