"""Command-line options that kinds of operations declare, and their values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from dispatch_profiler.operations.element_types import ElementTypes
from dispatch_profiler.operations.epilogues import Epilogue
from dispatch_profiler.operations.ranges import parse_range

RANGE = "V | START:END[:STEP],..."

#: Default types of a sweep.
DEFAULT_TYPES = (ElementTypes("f16", "f16", "f16"), ElementTypes("f32", "f32", "f32"))


@dataclass(frozen=True)
class ShapeOption:
    """One option that narrows the problems of a kind, such as `--problem-m`.

    `parse` turns its text into the values to sweep over and raises RangeError or OperationError. `name` is
    the key of these values in `SweepOptions.shapes`.
    """

    name: str
    spellings: tuple[str, ...]
    help: str = ""
    parse: Callable[[str], tuple[Any, ...]] = parse_range
    metavar: str = RANGE


@dataclass(frozen=True)
class SweepOptions:
    """What to sweep over: values of shape options by their names, and types, layouts and epilogues.

    A shape option that was not given is absent from `shapes`. `layouts` are (lhs, rhs) of matrix products,
    `conv_layouts` data layouts of convolutions.
    """

    shapes: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    types: tuple[ElementTypes, ...] = DEFAULT_TYPES
    layouts: tuple[tuple[str, str], ...] = (("t", "t"),)
    conv_layouts: tuple[str, ...] = ("nhwc",)
    epilogues: tuple[Epilogue, ...] = (Epilogue(),)

    def has_shape_of(self, options: tuple[ShapeOption, ...]) -> bool:
        """Was any of `options` given?"""
        return any(option.name in self.shapes for option in options)
