"""The search space of one operation: the union of the spaces of every kind of configuration.

    space = SearchSpace(Matmul(128, 768, 768), target.limits)
    point = space.draw(rng)
    space.configuration(point)

Several points may map to one configuration, and many are invalid: `is_valid` asks the rules of the
configuration kinds, once for each configuration.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dispatch_profiler.configurations import (
    Choice,
    Configuration,
    Limits,
    Space,
    rejection_reason,
    spaces,
)
from dispatch_profiler.operations import Operation
from dispatch_profiler.tuner.spaces.features import Encoder, field_values

#: A space with at most this many points is enumerated when draws find nothing new.
_ENUMERABLE = 100_000
#: Distance between values that are not numbers, in doublings of a number.
_OTHER_VALUE = 4.0


@dataclass(frozen=True)
class Point:
    """A choice for each axis of `SearchSpace.spaces[space]`, in the order of its axes."""

    space: int
    choices: tuple[Choice, ...]


class SearchSpace:
    """Every configuration that a search may propose for `operation` on a target with `limits`.

    `among` replaces `configurations.spaces(operation, limits)`. With `only`, no other configurations are
    valid, for example only the configurations of a recorded sweep. `cores` is how many cores of the target
    execute workgroups.
    """

    def __init__(
        self,
        operation: Operation,
        limits: Limits,
        among: Sequence[Space[Configuration]] | None = None,
        only: Iterable[Configuration] | None = None,
        cores: int = 1,
    ) -> None:
        self.operation = operation
        self.limits = limits
        self.spaces = tuple(spaces(operation, limits) if among is None else among)
        self.cores = cores
        self._only = None if only is None else frozenset(only)
        self._validity: dict[Configuration, bool] = {}
        self._enumerated: dict[int, dict[Configuration, Point]] = {}
        samples = [
            space.to_configuration(tuple(axis.choices[-1] for axis in space.axes)) for space in self.spaces
        ]
        self._encoder = Encoder(operation, cores, samples)

    @property
    def size(self) -> int:
        """The number of points, of which several may map to one configuration, and many may be invalid."""
        return sum(space.size for space in self.spaces)

    # -- points and configurations ------------------------------------------------------------

    def configuration(self, point: Point) -> Configuration:
        """The configuration that `point` maps to."""
        return self.spaces[point.space].to_configuration(point.choices)

    def is_valid(self, configuration: Configuration) -> bool:
        """Whether the compiler may be given `configuration`. It need not belong to any of `spaces`."""
        known = self._validity.get(configuration)
        if known is None:
            known = self.is_admitted(configuration) and (
                rejection_reason(configuration, self.operation, self.limits) is None
            )
            self._validity[configuration] = known
        return known

    def is_admitted(self, configuration: Configuration) -> bool:
        """Whether `only` admits `configuration`, which may be invalid.

        Unlike `is_valid`, it evaluates no rules, which are slow, and does not depend on earlier calls.
        """
        return self._only is None or configuration in self._only

    def nearest_point(self, configuration: Configuration) -> Point | None:
        """The point that maps to `configuration`, or to one that differs little.

        None if `configuration` is of no kind or form in `spaces`. Gives a configuration from a file or a
        library a point in this space, so that its neighbours can be proposed.
        """
        values = field_values(configuration)
        near: list[tuple[float, int, Point]] = []
        for index, space in enumerate(self.spaces):
            start = Point(index, _choices(space, values))
            if family(self.configuration(start)) == family(configuration):
                distance, point = self._approach(start, values)
                near.append((distance, index, point))
        return min(near, key=lambda each: each[:2])[2] if near else None

    def _approach(self, point: Point, values: dict[str, Any]) -> tuple[float, Point]:
        """Move along one axis at a time for as long as the configuration comes nearer to `values`."""

        def distance_of(point: Point) -> float:
            return _distance(field_values(self.configuration(point)), values)

        distance = distance_of(point)
        while distance > 0:
            nearest = min(self.neighbours(point), key=distance_of, default=point)
            if distance_of(nearest) >= distance:
                break
            distance, point = distance_of(nearest), nearest
        return distance, point

    def vectors(self, configurations: Iterable[Configuration]) -> np.ndarray:
        """A row of numbers for each of `configurations`, at least one: features, then fields (see `features`)."""
        return self._encoder.vectors(tuple(configurations))

    # -- exploring ----------------------------------------------------------------------------

    def draw(self, rng: np.random.Generator, space: int) -> Point:
        """A uniformly random point of `spaces[space]`; it may be invalid."""
        return Point(space, self.spaces[space].draw(rng))

    def neighbours(self, point: Point) -> Iterator[Point]:
        """Points that differ in one axis, the nearest choices of each axis first; they may be invalid."""
        for choices in self.spaces[point.space].neighbours(point.choices):
            yield Point(point.space, choices)

    def points(self, most: float = math.inf) -> Iterator[Point]:
        """Iterate over all points of the spaces with at most `most`, including invalid ones.

        There may be more than fit into memory.
        """
        for index, space in enumerate(self.spaces):
            for choices in space.points() if space.size <= most else ():
                yield Point(index, choices)

    def is_enumerable(self, space: int) -> bool:
        """Whether `spaces[space]` is small enough for `enumerate_valid`."""
        return self.spaces[space].size <= _ENUMERABLE

    def enumerate_valid(self, space: int) -> dict[Configuration, Point]:
        """The distinct valid configurations of `spaces[space]`, each with its first point."""
        if space not in self._enumerated:
            valid: dict[Configuration, Point] = {}
            for choices in self.spaces[space].points():
                configuration = self.spaces[space].to_configuration(choices)
                if configuration not in valid and self.is_valid(configuration):
                    valid[configuration] = Point(space, choices)
            self._enumerated[space] = valid
        return self._enumerated[space]


# -- distance between configurations -------------------------------------------------------------------


def family(configuration: Configuration) -> tuple[str, str, str, bool]:
    """Kind, form, the kind that configures the form's kernels, and whether the weight is packed.

    Configurations of one family have the same axes.
    """
    form, inner = getattr(configuration, "form", ""), configuration.kernel_configuration.kind
    return configuration.kind, form, inner, configuration.packs_weight


def _choices(space: Space[Configuration], values: dict[str, Any]) -> tuple[Choice, ...]:
    """For each axis the choice nearest to the field of its name or tile; the first choice without such a field."""
    tiles: Counter[str] = Counter()
    nearest = []
    for axis in space.axes:
        field = axis.name
        if axis.tile_of:
            field = f"{axis.tile_of}.{tiles[axis.tile_of]}"
            tiles[axis.tile_of] += 1
        nearest.append(min(axis.choices, key=lambda choice: _distance({field: choice}, values, [field])))
    return tuple(nearest)


def _distance(one: dict[str, Any], other: dict[str, Any], names: Iterable[str] = ()) -> float:
    """Doublings between numbers, summed, and a constant for every differing value that is not a number.

    Compares the fields `names`; without them, all fields.
    """
    total = 0.0
    for name in names or sorted(one.keys() | other.keys()):
        a, b = one.get(name), other.get(name)
        if a == b:
            continue
        if type(a) is type(b) is int and min(a, b) > 0:
            total += abs(math.log2(a / b))
        else:
            total += _OTHER_VALUE
    return total
