"""The search space of one operation, and its configurations as numbers for models of their speed.

The space is the union of the spaces of every kind of configuration:

    space = SearchSpace(Matmul(128, 768, 768), target.limits)
    point = space.draw(rng)
    space.configuration(point)

Several points may map to one configuration, and many are invalid: `is_valid` asks the rules of the
configuration kinds, once for each configuration.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from dispatch_profiler.configurations import (
    FLOWS,
    FORMS,
    KINDS,
    Axis,
    Choice,
    Configuration,
    Default,
    Kernel,
    Limits,
    Lowering,
    Reduction,
    Space,
    Tuned,
    rejection_reason,
    spaces,
)
from dispatch_profiler.configurations.forms.builder import Barrier, Reshape
from dispatch_profiler.operations import Matmul, Operation

# -- features --------------------------------------------------------------------------------------

# `features` are the same for every operation, so that a model that learned from one operation applies to others: sizes
# relative to vectors, cores and extents. Sizes are logarithms to base 2. Absent values are `ABSENT`, below all
# others, which suits decision trees.
#
# A kernel has three kinds of loops: the last parallel loop, along which vectors lie (`columns`), the other
# parallel loops (`rows`), and reductions (`terms`). Features use the tiles of three levels: the outermost,
# which becomes a workgroup, the caches, and the innermost step.


ABSENT = -16.0
#: Bytes of a vector register, to which the widths of vectors are compared: AVX-512's, a cache line.
_VECTOR_BYTES = 64


def features(configuration: Configuration, operation: Operation, cores: int) -> dict[str, float]:
    """Name -> value, with the same names for every configuration and operation.

    `cores` execute the workgroups. For many configurations, use `Encoder`.
    """
    return dict(zip(FEATURES, Encoder(operation, cores).vectors([configuration])[0].tolist(), strict=True))


@dataclass(frozen=True)
class _Shared:
    """The largest kernel and the features that configurations with the same kind, form, flow and slices share."""

    kernel: Operation
    names: tuple[str, ...]
    features: tuple[float, ...]

    @classmethod
    def of(cls, configuration: Configuration, operation: Operation) -> _Shared:
        reduction = configuration.reduced(operation)
        kernels = reduction.kernels if reduction else (operation,)
        kernel = max(kernels, key=lambda each: each.flops, default=operation)
        moved = _moved_bytes(reduction)
        features_of_kernel = {
            **_of_choices(configuration),
            **_of_kernel(kernel),
            "kernels": _log(len(kernels)),
            "flops": _log(configuration.flops(operation) / max(1, operation.flops)),
            "slices": _log(configuration.kernel_configuration.split_k),
            "moved": _log(moved / operation.bytes),
            "moved per flop": _log(moved / max(1, operation.flops)),
            "read per flop": _log(kernel.bytes / max(1, kernel.flops)),
        }
        return cls(kernel, tuple(features_of_kernel), tuple(features_of_kernel.values()))


def _of_choices(configuration: Configuration) -> dict[str, float]:
    """1 for the kind, form and flow of the configuration, 0 for the others."""
    inner = configuration.kernel_configuration
    form, flow = getattr(configuration, "form", ""), getattr(inner, "flow", "")
    chosen = {f"kind {inner.kind}", f"form {form}", f"flow {flow}"}
    names = (
        *(f"kind {name}" for name in KINDS),
        *(f"form {name}" for name in FORMS),
        *(f"flow {name}" for name in FLOWS),
    )
    return {name: float(name in chosen) for name in names}


def _moved_bytes(reduction: Reduction | None) -> int:
    """Bytes that a form stores around its kernels, apart from packing: padded, permuted and transformed tensors."""
    steps = reduction.executed if reduction else ()
    return sum(step.result.bytes for step in steps if not isinstance(step, (Kernel, Reshape, Barrier)))


def _of_kernel(kernel: Operation) -> dict[str, float]:
    """Extents, and whether vectors of the operands lie along columns."""
    parallel = [loop.extent for loop in kernel.loops if loop.iterator == "parallel"] or [1]
    product, convolution = kernel.product, kernel.convolution
    return {
        "extent rows": _log(math.prod(parallel[:-1])),
        "extent columns": _log(parallel[-1]),
        "extent terms": _log(kernel.accumulations),
        "lhs transposed": float(product is not None and product.lhs_layout == "n"),
        "rhs transposed": float(product is not None and product.rhs_layout == "n"),
        "taps": _log(math.prod(convolution.filter_size)) if convolution else ABSENT,
    }


@dataclass(frozen=True)
class _Tilings:
    """Tiles of several configurations, a row for each; loops without a tile are not divided.

    Loops are grouped as rows, columns and terms: `workgroup`, `cache` and `vector` have a column for each group.
    `whole` and `inner` have the workgroup's and the innermost tile of each parallel loop, `extents` its extent.
    """

    extents: np.ndarray
    whole: np.ndarray
    inner: np.ndarray
    workgroup: np.ndarray
    cache: np.ndarray
    vector: np.ndarray
    is_cached: bool
    element_bytes: int

    @classmethod
    def of(cls, lowerings: Sequence[Lowering], element_bytes: int) -> _Tilings:
        """The tiles that `lowerings` request. All of them have the same levels and the same iterators of loops."""
        levels = [name for name, _ in lowerings[0].levels]
        is_parallel = np.array([loop.iterator == "parallel" for loop in lowerings[0].loops])
        extents = np.array([[loop.extent for loop in each.loops] for each in lowerings])
        tiles = np.array([[level for _, level in each.levels] for each in lowerings])

        def merged(wanted: Sequence[int]) -> np.ndarray:
            merged_tiles = extents
            for i in wanted:
                merged_tiles = np.where(tiles[:, i] > 0, np.minimum(tiles[:, i], extents), merged_tiles)
            return merged_tiles

        def grouped(tiled: np.ndarray) -> np.ndarray:
            parallel = tiled[:, is_parallel]
            rows, columns, terms = parallel[:, :-1], parallel[:, -1:], tiled[:, ~is_parallel]
            return np.stack([rows.prod(1), columns.prod(1), terms.prod(1)], axis=1)

        cached = [i for i, name in enumerate(levels) if i == 0 or name.startswith("cache")]
        whole, inner = merged([0]), merged(range(len(levels)))
        return cls(
            extents=extents[:, is_parallel],
            whole=whole[:, is_parallel],
            inner=inner[:, is_parallel],
            workgroup=grouped(whole),
            cache=grouped(merged(cached)),
            vector=grouped(inner),
            is_cached=len(cached) > 1,
            element_bytes=element_bytes,
        )


def _tile_features(tilings: _Tilings, cores: int) -> Iterator[tuple[str, np.ndarray]]:
    """Name -> a value for each configuration."""
    for level in ("workgroup", "cache", "vector"):
        rows, columns, terms = getattr(tilings, level).T
        yield f"{level} rows", np.log2(rows)
        yield f"{level} columns", np.log2(columns)
        yield f"{level} terms", np.log2(terms)
        yield (
            f"{level} bytes",
            np.log2(tilings.element_bytes * (rows * columns + rows * terms + columns * terms)),
        )
        # How often an operand's element is used after it was read.
        yield f"{level} reuse", np.log2(rows * columns / (rows + columns))
    rows, columns, terms = tilings.vector.T
    lanes = _VECTOR_BYTES // tilings.element_bytes or 1
    registers = -(-columns // lanes)
    yield "cached", np.full(len(rows), float(tilings.is_cached))
    yield "registers", np.log2(rows * registers)
    yield "idle lanes", np.log2(registers * lanes / columns)
    yield "unrolled", np.log2(rows * registers * terms)
    extents, whole, inner = tilings.extents, tilings.whole, tilings.inner
    parts = -(-extents // whole)
    workgroups = parts.prod(1)
    yield "workgroups", np.log2(workgroups)
    yield "workgroups of a core", np.log2(workgroups / cores)
    yield "idle cores", np.log2(-(-workgroups // cores) * cores / workgroups)
    yield "padding", np.log2(parts * whole / extents).sum(1)
    yield "remainder", (extents % inner / extents).max(1, initial=0.0)
    yield "divided", (extents > whole).sum(1).astype(float)


def _log(value: float) -> float:
    return math.log2(value) if value > 0 else ABSENT


# -- the fields themselves -----------------------------------------------------------------------------


def field_values(configuration: Configuration) -> dict[str, int | float | str | bool]:
    """Field -> value, with a field for each tile: `{"vector.0": 8, "vector.1": 32, "peel": False}`."""
    values = {}
    for name, value in configuration.kernel_configuration.to_dict().items():
        if isinstance(value, (list, tuple)):
            values.update({f"{name}.{i}": each for i, each in enumerate(value)})
        else:
            values[name] = value
    return values


def field_names(space: Space[Configuration]) -> Iterator[tuple[str, Axis]]:
    """The axes of `space`, each with the name of its field in `field_values`."""
    tiles: Counter[str] = Counter()
    for axis in space.axes:
        yield (f"{axis.tile_of}.{tiles[axis.tile_of]}" if axis.tile_of else axis.name), axis
        tiles[axis.tile_of] += 1


class Encoder:
    """Vectors of `features` and of the fields of configurations, for one operation.

    Fields are learned from `samples`: every configuration has a number for each of their fields.
    """

    def __init__(self, operation: Operation, cores: int, samples: Iterable[Configuration] = ()) -> None:
        self._operation = operation
        self._cores = cores
        names: dict[str, None] = {}
        for sample in samples:
            names.update(dict.fromkeys(field_values(sample)))
        self._fields = tuple(name for name in names if name != "kind")
        self._shared: dict[tuple[object, ...], _Shared] = {}

    def vectors(self, configurations: Sequence[Configuration]) -> np.ndarray:
        """A row for each: `features` in the order of their names, then the fields that the samples have."""
        vectors = np.full((len(configurations), len(FEATURES) + len(self._fields)), ABSENT)
        #: Rows with tiles, by the bytes of an element and the structure that their lowerings share.
        tiled: defaultdict[tuple[int, object, object], list[tuple[int, Lowering]]] = defaultdict(list)
        for row, configuration in enumerate(configurations):
            inner = configuration.kernel_configuration
            shared = self._shared_by(configuration, inner)
            vectors[row, : len(shared.features)] = shared.features
            if self._fields:
                values = field_values(inner)
                vectors[row, len(FEATURES) :] = [_number(values.get(name)) for name in self._fields]
            lowering = inner.tiling(shared.kernel)
            if lowering is not None:
                iterators = tuple(loop.iterator for loop in lowering.loops)
                levels = tuple(name for name, _ in lowering.levels)
                tiled[shared.kernel.accumulator.bytes, iterators, levels].append((row, lowering))
        for (element_bytes, *_), group in tiled.items():
            rows, lowerings = zip(*group, strict=True)
            tilings = _Tilings.of(lowerings, element_bytes)
            of_tiles = [values for _, values in _tile_features(tilings, self._cores)]
            vectors[rows, len(FEATURES) - len(of_tiles) : len(FEATURES)] = np.stack(of_tiles, axis=1)
        return vectors

    def _shared_by(self, configuration: Configuration, inner: Configuration) -> _Shared:
        own = configuration.inner if isinstance(configuration, Tuned) else configuration
        form, flow = getattr(own, "form", ""), getattr(inner, "flow", "")
        key = (configuration.kind, form, configuration.packs_weight, inner.kind, flow, inner.split_k)
        if key not in self._shared:
            self._shared[key] = _Shared.of(configuration, self._operation)
        return self._shared[key]


@cache
def _number(value: object) -> float:
    """Texts become arbitrary but fixed numbers, which trees tell apart."""
    if isinstance(value, (bool, int, float)):
        return math.log2(1 + value) if value >= 0 else float(value)
    if isinstance(value, str):
        return float(sum(map(ord, value)) % 251)
    return ABSENT


_ONE = np.ones((1, 3), int)
#: The names in `features`, in order.
FEATURES = (
    *_Shared.of(Default(), Matmul(1, 1, 1)).names,
    *dict(_tile_features(_Tilings(_ONE, _ONE, _ONE, _ONE, _ONE, _ONE, False, 4), 1)),
)


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
    execute workgroups. `likely` are configurations that may be fast and need not be points of the spaces: a strategy with
    a model ranks them, too.
    """

    def __init__(
        self,
        operation: Operation,
        limits: Limits,
        among: Sequence[Space[Configuration]] | None = None,
        only: Iterable[Configuration] | None = None,
        cores: int = 1,
        likely: Sequence[Configuration] = (),
    ) -> None:
        self.operation = operation
        self.limits = limits
        self.spaces = tuple(spaces(operation, limits) if among is None else among)
        self.cores = cores
        self.likely = tuple(likely)
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
    nearest = []
    for field, axis in field_names(space):
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
