"""Numeric arguments: `v`, `start:end`, `start:end:step`, and comma lists of these. Ends are inclusive."""

from __future__ import annotations

import itertools
import math
import re

from dispatch_profiler.errors import RangeError

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
    found: list[tuple[str, int]] = []
    for part in map(str.strip, re.split("[,x]", text)):
        if re.fullmatch(r"[0-9]+:[0-9]+:[0-9]+", part):
            start, end, step = map(int, part.split(":"))
            if left_over := (end - start) % step:
                found.append((part, end - left_over))
    return tuple(found)


def parse_tuples(text: str, *, minimum: int = 1) -> tuple[tuple[int, ...], ...]:
    """Values for one to three directions: a range gives single values, `2x1` a pair; both in comma lists.

    `parse_tuples("1:2,2x1")` -> ((1,), (2,), (2, 1))
    """
    found: dict[tuple[int, ...], None] = {}
    for part in text.split(","):
        values = part.strip().split("x", 2)
        ranges = [_parse_part(value, text, minimum, _TUPLE_HINT) for value in values]
        if math.prod(map(len, ranges)) > _MAX_VALUES:
            raise RangeError(f"{part.strip()!r} has more than {_MAX_VALUES} values", hint=_TUPLE_HINT)
        found.update(dict.fromkeys(itertools.product(*ranges)))
    return tuple(found)
