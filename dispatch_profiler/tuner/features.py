"""Configurations as numbers, for models of their speed.

`features` are the same for every operation, so that what was learned from one applies to others: sizes
relative to vectors, cores and extents. Sizes are logarithms to base 2. Absent values are `ABSENT`, below all
others, which suits decision trees.

A kernel has three kinds of loops: the last parallel loop, along which vectors lie (`columns`), the other
parallel loops (`rows`), and reductions (`terms`). Tiles are those of the outermost level, which becomes a
workgroup, of the caches, and of the innermost step.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

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
)
from dispatch_profiler.configurations.forms.steps import Barrier, Reshape
from dispatch_profiler.operations import Matmul, Operation

ABSENT = -16.0
#: Bytes of a vector register, to which the widths of vectors are compared: AVX-512's, a cache line.
_VECTOR_BYTES = 64
#: Tiles of one level: rows, columns and terms.
_Tiles = tuple[int, int, int]


def features(configuration: Configuration, operation: Operation, cores: int) -> dict[str, float]:
    """Name -> value, with the same names for every configuration and operation.

    `cores` execute the workgroups.
    """
    inner = configuration.kernel_configuration
    reduction = configuration.reduced(operation)
    kernels = reduction.kernels if reduction else (operation,)
    kernel = max(kernels, key=lambda each: each.flops, default=operation)
    lowering = inner.lowering(kernel)
    return {
        **_choices(configuration),
        **_of_kernel(kernel),
        "kernels": _log(len(kernels)),
        "flops": _log(configuration.flops(operation) / max(1, operation.flops)),
        "slices": _log(inner.split_k),
        "moved": _log(_moved_bytes(reduction) / operation.bytes),
        "moved per flop": _log(_moved_bytes(reduction) / max(1, operation.flops)),
        "read per flop": _log(kernel.bytes / max(1, kernel.flops)),
        **(_NO_TILES if lowering is None else _of_tiles(_Tiling.of(lowering, kernel), cores)),
    }


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
    """Bytes that a form stores around its kernels: padded, permuted and transformed tensors."""
    steps = reduction.steps if reduction else ()
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
class _Tiling:
    """Tiles of a kernel. `axes` has (extent, workgroup's tile, innermost tile) of each parallel loop."""

    axes: tuple[tuple[int, int, int], ...]
    workgroup: _Tiles
    cache: _Tiles
    vector: _Tiles
    is_cached: bool
    element_bytes: int

    @classmethod
    def of(cls, lowering: Lowering, kernel: Operation) -> _Tiling:
        """The tiles that `lowering` requests. Loops without a tile are not divided."""
        loops = lowering.loops
        parallel = [i for i, loop in enumerate(loops) if loop.iterator == "parallel"]
        terms = [i for i, loop in enumerate(loops) if loop.iterator != "parallel"]
        extents = [loop.extent for loop in loops]

        def merged(wanted: Mapping[str, tuple[int, ...]]) -> list[int]:
            tiles = list(extents)
            for level in wanted.values():
                tiles = [
                    min(new, extent) if new else old
                    for old, new, extent in zip(tiles, level, extents, strict=True)
                ]
            return tiles

        def grouped(tiles: list[int]) -> _Tiles:
            of_parallel = [tiles[i] for i in parallel] or [1]
            return math.prod(of_parallel[:-1]), of_parallel[-1], math.prod(tiles[i] for i in terms)

        levels = dict(lowering.levels)
        outermost = dict(lowering.levels[:1])
        cached = {**outermost, **{k: v for k, v in levels.items() if k.startswith("cache")}}
        whole, inner = merged(outermost), merged(levels)
        return cls(
            axes=tuple((extents[i], whole[i], inner[i]) for i in parallel),
            workgroup=grouped(whole),
            cache=grouped(merged(cached)),
            vector=grouped(inner),
            is_cached=len(cached) > 1,
            element_bytes=kernel.accumulator.bytes,
        )

    @property
    def workgroups(self) -> int:
        return math.prod(-(-extent // tile) for extent, tile, _ in self.axes)


def _of_tiles(tiling: _Tiling, cores: int) -> dict[str, float]:
    return dict(_tile_features(tiling, cores))


def _tile_features(tiling: _Tiling, cores: int) -> Iterator[tuple[str, float]]:
    for level in ("workgroup", "cache", "vector"):
        rows, columns, terms = getattr(tiling, level)
        yield f"{level} rows", _log(rows)
        yield f"{level} columns", _log(columns)
        yield f"{level} terms", _log(terms)
        yield f"{level} bytes", _log(tiling.element_bytes * (rows * columns + rows * terms + columns * terms))
        # How often an operand's element is used once it was read.
        yield f"{level} reuse", _log(rows * columns / (rows + columns))
    rows, columns, terms = tiling.vector
    lanes = _VECTOR_BYTES // tiling.element_bytes or 1
    registers = -(-columns // lanes)
    yield "cached", float(tiling.is_cached)
    yield "registers", _log(rows * registers)
    yield "idle lanes", _log(registers * lanes / columns)
    yield "unrolled", _log(rows * registers * terms)
    workgroups = tiling.workgroups
    yield "workgroups", _log(workgroups)
    yield "workgroups of a core", _log(workgroups / cores)
    yield "idle cores", _log(-(-workgroups // cores) * cores / workgroups)
    yield "padding", sum(_log(-(-extent // tile) * tile / extent) for extent, tile, _ in tiling.axes)
    yield "remainder", max(extent % tile / extent for extent, _, tile in tiling.axes)
    yield "divided", float(sum(extent > tile for extent, tile, _ in tiling.axes))


def _log(value: float) -> float:
    return math.log2(value) if value > 0 else ABSENT


_NO_TILES = dict.fromkeys(
    (name for name, _ in _tile_features(_Tiling(((1, 1, 1),), (1, 1, 1), (1, 1, 1), (1, 1, 1), False, 4), 1)),
    ABSENT,
)


# -- the fields themselves -----------------------------------------------------------------------------


def field_values(configuration: Configuration) -> dict[str, int | float | str | bool]:
    """Field -> value, with a field for each tile: `{"vector.0": 8, "vector.1": 32, "peel": False}`."""
    found = {}
    for name, value in configuration.kernel_configuration.to_dict().items():
        if isinstance(value, (list, tuple)):
            found.update({f"{name}.{i}": each for i, each in enumerate(value)})
        else:
            found[name] = value
    return found


class Encoder:
    """Vectors of `features` and of the fields of configurations, for one operation.

    Fields are learned from `samples`: every configuration has a number for each of their fields.
    """

    def __init__(self, operation: Operation, cores: int, samples: Iterable[Configuration]) -> None:
        self._operation = operation
        self._cores = cores
        names: dict[str, None] = {}
        for sample in samples:
            names.update(dict.fromkeys(field_values(sample)))
        self._fields = tuple(name for name in names if name != "kind")
        self._known: dict[Configuration, np.ndarray] = {}

    def vector(self, configuration: Configuration) -> np.ndarray:
        """`features` in the order of their names, then the fields that the samples have."""
        known = self._known.get(configuration)
        if known is None:
            values = field_values(configuration)
            known = np.array(
                [
                    *features(configuration, self._operation, self._cores).values(),
                    *(_number(values.get(name)) for name in self._fields),
                ]
            )
            self._known[configuration] = known
        return known


def _number(value: object) -> float:
    """Texts become arbitrary but fixed numbers, which trees tell apart."""
    if isinstance(value, (bool, int, float)):
        return math.log2(1 + value) if value >= 0 else float(value)
    if isinstance(value, str):
        return float(sum(map(ord, value)) % 251)
    return ABSENT


#: The names in `features`, in order.
FEATURES = tuple(features(Default(), Matmul(1, 1, 1), 1))
