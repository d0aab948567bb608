"""Which tuned operation is the most similar to another one."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

from dispatch_profiler.library.entry import Entry
from dispatch_profiler.operations import Operation

#: What two operations must share, and the numbers by which they may differ.
_Described = tuple[tuple[object, ...], tuple[int, ...]]


def by_distance(operation: Operation, entries: Iterable[Entry]) -> list[Entry]:
    """The entries of other shapes of the same kind, the nearest first.

    They have the kind, the element types, the layouts, the mode and the epilogue of `operation`; convolutions are both
    dense, both depthwise or both grouped. The distance is the sum of |log2| of the ratios of all extents, strides and
    paddings (each plus 1).
    """
    common, extents = described(operation)
    found = []
    for entry in entries:
        its_common, its_extents = described(entry.operation)
        if its_common == common and its_extents != extents:
            found.append((distance(extents, its_extents), entry.operation.name, entry))
    return [entry for _, _, entry in sorted(found, key=lambda each: each[:2])]


def distance(one: tuple[int, ...], other: tuple[int, ...]) -> float:
    """The sum of |log2| of ratios: 1 for an extent that is twice as large, roughly."""
    return sum(abs(math.log2((a + 1) / (b + 1))) for a, b in zip(one, other, strict=True))


def described(operation: Operation) -> _Described:
    """(what similar operations share, numbers by which they differ)."""
    parts = list(_parts("", operation.to_dict()))
    common = [(name, value) for name, value in parts if not _is_extent(value)]
    # Extents differ in value only: their names and number are shared.
    common += [(name, "extent") for name, value in parts if _is_extent(value)]
    geometry = operation.convolution
    variant = "" if geometry is None else geometry.variant
    return (variant, *common), tuple(value for _, value in parts if _is_extent(value))


def _is_extent(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _parts(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """The scalars in plain data, with their places: `("stride.0", 2)`."""
    if isinstance(value, dict):
        for key in sorted(value):
            yield from _parts(f"{name}.{key}", value[key])
    elif isinstance(value, (list, tuple)):
        for at, each in enumerate(value):
            yield from _parts(f"{name}.{at}", each)
    else:
        yield name, value
