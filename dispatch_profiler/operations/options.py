"""Command-line options that operation kinds declare, and their values."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from dispatch_profiler.errors import RangeError
from dispatch_profiler.operations.element_types import ElementTypes
from dispatch_profiler.operations.epilogues import Epilogue

# -- ranges ----------------------------------------------------------------------------------------

# Numeric arguments: `v`, `start:end`, `start:end:step`, and comma lists of these. Ends are inclusive.


_HINT = "write a value (64), a range with its end included (64:1024 or 64:1024:128), or a comma list of these"
#: Longer ranges are assumed to be typing errors; they would not fit into memory.
_MAX_VALUES = 1_000_000
_TUPLE_HINT = _HINT.replace("a value (64)", "a value (2), a pair (2x1), a triple (1x2x2)")


def parse_range(text: str, *, minimum: int = 1) -> tuple[int, ...]:
    """All values in `text`, in order and without duplicates.

    `parse_range("64:1024:128,1000")` -> (64, 192, 320, ..., 960, 1000)

    Raises RangeError for anything else: an empty part, a sign, a fraction, a value below
    `minimum`, an end before its start, a step of 0.
    """
    values: dict[int, None] = {}
    for part in text.split(","):
        values.update(dict.fromkeys(_parse_part(part.strip(), text, minimum)))
    return tuple(values)


def _parse_part(part: str, text: str, minimum: int, hint: str = _HINT) -> range:
    where = f" in {text!r}" if part != text else ""
    numbers = part.split(":")
    if len(numbers) > 3 or not all(re.fullmatch(r"[0-9]{1,18}", number) for number in numbers):
        raise RangeError(f"malformed range {part!r}{where}", hint=hint)
    start, end, step = (*map(int, numbers), *(None, None))[:3]
    if start is None or start < minimum:
        raise RangeError(f"values must be at least {minimum}, but got {part!r}{where}", hint=hint)
    if end is None:
        return range(start, start + 1)
    if end < start:
        raise RangeError(f"a range must not end before it starts, but got {part!r}{where}", hint=hint)
    if step == 0:
        raise RangeError(f"a step must be at least 1, but got {part!r}{where}", hint=hint)
    values = range(start, end + 1, step or 1)
    if len(values) > _MAX_VALUES:
        raise RangeError(f"{part!r}{where} has {len(values)} values, more than {_MAX_VALUES}", hint=hint)
    return values


def unreached_ends(text: str) -> tuple[tuple[str, int], ...]:
    """Ranges of `text`, a valid list, whose steps do not reach their end, each with its last value.

    `unreached_ends("64:1024:128,8:16:8")` -> (("64:1024:128", 960),)
    """
    unreached: list[tuple[str, int]] = []
    for part in map(str.strip, re.split("[,x]", text)):
        if re.fullmatch(r"[0-9]+:[0-9]+:[0-9]+", part):
            start, end, step = map(int, part.split(":"))
            if left_over := (end - start) % step:
                unreached.append((part, end - left_over))
    return tuple(unreached)


def parse_tuples(text: str, *, minimum: int = 1) -> tuple[tuple[int, ...], ...]:
    """Values for one to three directions: a range gives single values, `2x1` a pair; both in comma lists.

    `parse_tuples("1:2,2x1")` -> ((1,), (2,), (2, 1))
    """
    tuples: dict[tuple[int, ...], None] = {}
    for part in text.split(","):
        values = part.strip().split("x", 2)
        ranges = [_parse_part(value, text, minimum, _TUPLE_HINT) for value in values]
        if math.prod(map(len, ranges)) > _MAX_VALUES:
            raise RangeError(f"{part.strip()!r} has more than {_MAX_VALUES} values", hint=_TUPLE_HINT)
        tuples.update(dict.fromkeys(itertools.product(*ranges)))
    return tuple(tuples)


RANGE = "V | START:END[:STEP],..."

#: The epilogue of predefined problems that have one.
FUSED_EPILOGUE = Epilogue.parse("bias+relu")
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
    layout in its number of dimensions has its default. Without `epilogues`, operations have none, apart from a few of the
    predefined ones.
    """

    shapes: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    types: tuple[ElementTypes, ...] = DEFAULT_TYPES
    layouts: tuple[tuple[str, str], ...] = (("t", "t"),)
    conv_layouts: tuple[str, ...] = ()
    epilogues: tuple[Epilogue, ...] | None = None

    @property
    def swept_epilogues(self) -> tuple[Epilogue, ...]:
        """The epilogues of each shape."""
        return (Epilogue(),) if self.epilogues is None else self.epilogues

    @property
    def has_fused_problems(self) -> bool:
        """Whether predefined problems with an epilogue are among the operations: if nothing else was asked for."""
        return not self.shapes and self.epilogues is None

    def has_shape_of(self, options: tuple[ShapeOption, ...]) -> bool:
        """Whether any of `options` was given."""
        return any(option.name in self.shapes for option in options)
