"""Configurations as numbers, for models of their speed.

`features` are the same for every operation, so that a model that learned from one operation applies to others: sizes
relative to vectors, cores and extents. Sizes are logarithms to base 2. Absent values are `ABSENT`, below all
others, which suits decision trees.

A kernel has three kinds of loops: the last parallel loop, along which vectors lie (`columns`), the other
parallel loops (`rows`), and reductions (`terms`). Features use the tiles of three levels: the outermost,
which becomes a workgroup, the caches, and the innermost step.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from dispatch_profiler.configurations import (
    FLOWS,
    FORMS,
    KINDS,
    Configuration,
    Default,
    Kernel,
    Lowering,
    Reduction,
    Tuned,
)
from dispatch_profiler.configurations.forms.steps import Barrier, Reshape
from dispatch_profiler.operations import Matmul, Operation

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
            **_choices(configuration),
            **_of_kernel(kernel),
            "kernels": _log(len(kernels)),
            "flops": _log(configuration.flops(operation) / max(1, operation.flops)),
            "slices": _log(configuration.kernel_configuration.split_k),
            "moved": _log(moved / operation.bytes),
            "moved per flop": _log(moved / max(1, operation.flops)),
            "read per flop": _log(kernel.bytes / max(1, kernel.flops)),
        }
        return cls(kernel, tuple(features_of_kernel), tuple(features_of_kernel.values()))


def _choices(configuration: Configuration) -> dict[str, float]:
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
