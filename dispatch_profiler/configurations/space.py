"""Search spaces: named axes with their choices, for enumeration, random draws and local search.

A point is one choice for each axis. A space maps points to configurations; `rejection_reason` decides
whether these are valid for an operation and a target, so that no rule is written twice.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Generic, TypeVar

import numpy as np

from dispatch_profiler.operations import Operation

T = TypeVar("T")
#: A value along an axis.
Choice = int | str | bool
#: A choice for each axis of a space, in the order of its axes.
Point = tuple[Choice, ...]

#: A result with more elements has enough workgroups for every core without splitting the reduction.
_FEW_ELEMENTS = 2**20
_MAX_SLICES = 16


@dataclass(frozen=True)
class Axis:
    """One parameter: a name that is unique in its space, and at least one choice.

    `tile_of` names the configuration's field of which the choice is one tile (`workgroup`); if empty, the
    choice is the value of the field `name`.
    """

    name: str
    choices: tuple[Choice, ...]
    tile_of: str = ""


@dataclass(frozen=True)
class Space(Generic[T]):
    """Every configuration of one kind that a search should consider for one operation.

    `Space(kind, axes)`: a point gives the fields of `kind` by the names of the axes.
    """

    kind: type[T]
    axes: tuple[Axis, ...]

    @property
    def size(self) -> int:
        """The number of points. Several points may map to one configuration."""
        return math.prod(len(axis.choices) for axis in self.axes)

    def points(self) -> Iterator[Point]:
        """Iterate over all points; a space may have more points than fit into memory."""
        return itertools.product(*(axis.choices for axis in self.axes))

    def draw(self, rng: np.random.Generator) -> Point:
        """A uniformly random point. The same state of `rng` gives the same point."""
        return tuple(axis.choices[int(rng.integers(len(axis.choices)))] for axis in self.axes)

    def neighbours(self, point: Point) -> Iterator[Point]:
        """Every point that differs from `point` in one axis; along each axis the nearest choices first."""
        for i, axis in enumerate(self.axes):
            at = axis.choices.index(point[i])
            others = sorted((j for j in range(len(axis.choices)) if j != at), key=lambda j: abs(j - at))
            yield from ((*point[:i], axis.choices[j], *point[i + 1 :]) for j in others)

    def to_configuration(self, point: Point) -> T:
        """The configuration that `point` maps to."""
        return self.kind(**self.fields(point))

    def fields(self, point: Point) -> dict[str, Any]:
        """Arguments of the configuration: choices by name, and the tiles of one field as a tuple."""
        fields: dict[str, Any] = {}
        for axis, choice in zip(self.axes, point, strict=True):
            if axis.tile_of:
                fields[axis.tile_of] = (*fields.get(axis.tile_of, ()), choice)
            else:
                fields[axis.name] = choice
        return fields

    def with_choices(self, name: str, *choices: Choice) -> Space[T]:
        """This space with other choices along the axis `name`."""
        axes = tuple(replace(axis, choices=choices) if axis.name == name else axis for axis in self.axes)
        return replace(self, axes=axes)


def tile_axes(field: str, choices: dict[str, tuple[int, ...]]) -> tuple[Axis, ...]:
    """An axis for each tile of `field`: `{"m": (1, 2)}` -> `workgroup_m`."""
    return tuple(Axis(f"{field}_{name}", tiles, field) for name, tiles in choices.items())


@lru_cache(maxsize=4096)
def divisors(extent: int, most: int) -> tuple[int, ...]:
    """Divisors of `extent` up to `most`, in ascending order."""
    return tuple(d for d in range(1, min(extent, most) + 1) if extent % d == 0)


def powers_of_two(least: int, most: int) -> tuple[int, ...]:
    """`powers_of_two(4, 32)` -> (4, 8, 16, 32)"""
    return tuple(2**i for i in range(most.bit_length()) if least <= 2**i <= most)


def tiles_of(extent: int, most: int) -> tuple[int, ...]:
    """Tiles of an extent, up to `most`: its divisors, and powers of two, which suit vectors.

    `tiles_of(100, 16)` -> (1, 2, 4, 5, 8, 10, 16)
    """
    return tuple(sorted({*divisors(extent, most), *powers_of_two(1, min(extent, most))}))


def slices_of(operation: Operation) -> tuple[int, ...]:
    """Slice counts of the reduction: several for a matmul with a small result, otherwise only 1."""
    product = operation.product
    if product is None or product.is_batched or operation.results[0].elements > _FEW_ELEMENTS:
        return (1,)
    return divisors(operation.accumulations, _MAX_SLICES)
