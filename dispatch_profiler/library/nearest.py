"""The tuned operations that are the most similar to another operation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from dispatch_profiler.library.entry import Entry
from dispatch_profiler.operations import Operation

#: The fields that similar operations share, and the numbers by which they may differ.
_Described = tuple[tuple[object, ...], tuple[int, ...]]


class SimilarEntries:
    """Finds the entries of similar shapes.

    Operations are similar if they have the same kind, element types, layouts, mode and epilogue; convolutions are both
    dense, both depthwise or both grouped. Their distance is the sum of |log2| of the ratios of all extents, strides and
    paddings (each plus 1).
    """

    def __init__(self, entries: Iterable[Entry]) -> None:
        groups: dict[tuple[object, ...], list[tuple[tuple[int, ...], Entry]]] = {}
        # In order of names, so that the order of equally distant entries is defined; packed weights first.
        for entry in sorted(entries, key=lambda each: (each.operation.name, not each.packs_weight)):
            common, extents = _described(entry.operation)
            groups.setdefault(common, []).append((extents, entry))
        self._entries = {common: [entry for _, entry in group] for common, group in groups.items()}
        self._points = {common: _logarithms([e for e, _ in group]) for common, group in groups.items()}

    def of(self, operation: Operation) -> Iterator[Entry]:
        """The entries of similar operations, without `operation` itself, the nearest first."""
        common, extents = _described(operation)
        if common in self._entries:
            entries = self._entries[common]
            distances = np.abs(self._points[common] - _logarithms([extents])).sum(axis=1)
            for at in np.argsort(distances, kind="stable"):
                if entries[at].operation != operation:
                    yield entries[at]


def _logarithms(rows: list[tuple[int, ...]]) -> np.ndarray:
    logarithms: np.ndarray = np.log2(np.array(rows, dtype=float) + 1.0)
    return logarithms


def _described(operation: Operation) -> _Described:
    """(fields that similar operations share, numbers by which they differ)."""
    parts = list(_parts("", operation.to_dict()))
    # Extents differ in value only: their names and number are shared.
    common = [(name, "extent" if _is_extent(value) else value) for name, value in parts]
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
