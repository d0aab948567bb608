"""Command-line options that operation kinds declare, and their values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from dispatch_profiler.errors import RangeError
from dispatch_profiler.operations.element_types import ElementTypes
from dispatch_profiler.operations.epilogues import Epilogue
from dispatch_profiler.operations.ranges import parse_range

RANGE = "V | START:END[:STEP],..."

#: Default types of a sweep.
DEFAULT_TYPES = (ElementTypes("f16", "f16", "f16"), ElementTypes("f32", "f32", "f32"))


def numbers(example: str) -> Callable[[str], tuple[float, ...]]:
    """What parses a comma list of numbers, and raises RangeError, whose hint has `example`."""

    def parse(text: str) -> tuple[float, ...]:
        try:
            return tuple(float(part) for part in text.split(","))
        except ValueError as error:
            hint = f"write {example}, or a comma list"
            raise RangeError(f"malformed number in {text!r}", hint=hint) from error

    return parse


@dataclass(frozen=True)
class ShapeOption:
    """A command-line option for the problem shapes of a kind, such as `--problem-m`.

    `parse` turns its text into the values to sweep over; it raises RangeError or OperationError. `name` is
    the key of these values in `SweepOptions.shapes`. `flag` is the text of an option that is given without a
    value; if it is empty, the option needs a value.
    """

    name: str
    spellings: tuple[str, ...]
    help: str = ""
    parse: Callable[[str], tuple[Any, ...]] = parse_range
    metavar: str = RANGE
    flag: str = ""


@dataclass(frozen=True)
class SweepOptions:
    """The values to sweep over: shapes, types, layouts and epilogues.

    `shapes` maps the names of the shape options that were given to their values. `layouts` are (lhs, rhs)
    pairs for matrix products, `conv_layouts` words or triples for convolutions (see `conv_layouts`); a kind without a
    layout in its number of dimensions has its default.
    """

    shapes: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    types: tuple[ElementTypes, ...] = DEFAULT_TYPES
    layouts: tuple[tuple[str, str], ...] = (("t", "t"),)
    conv_layouts: tuple[str, ...] = ()
    epilogues: tuple[Epilogue, ...] = (Epilogue(),)

    def has_shape_of(self, options: tuple[ShapeOption, ...]) -> bool:
        """Whether any of `options` was given."""
        return any(option.name in self.shapes for option in options)
