"""CPU tiles of operations that sum the rows of a matrix and then compute every element: layer norms.

The compiler adds the elements of a vector tile up in every step of a row, which is slow. Here a row is split
into chunks of as many elements as the vector tile has columns, its lanes:

    x (rows, size)  ->  x (rows, chunks, lanes)  ->  sums over chunks (rows, lanes)  ->  sums (rows)

Everything is one dispatch. Its root sums over chunks; the operations around it have tiles that follow from
the root's.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from dispatch_profiler.configurations.lowering import Levels, Lowering, lowering_config_text
from dispatch_profiler.configurations.space import divisors
from dispatch_profiler.operations import Loop, NormGeometry, Operation


def row_geometry(operation: Operation) -> NormGeometry | None:
    """The geometry of `operation` if it sums rows and then computes every element; else None."""
    norm = operation.normalization
    return None if norm is None or norm.mode == "weight_backward" else norm


@dataclass(frozen=True)
class RowLowering(Lowering):
    """Tiles of the root, whose loops are rows, lanes and chunks, and of the operations around it."""

    @property
    def lanes(self) -> int:
        return self.loops[1].extent

    @property
    def chunks(self) -> int:
        return self.loops[2].extent

    @property
    def others(self) -> tuple[str, ...]:
        return (self.rows_config, self.lanes_config, self.lane_sums_config, self.elements_config)

    @property
    def rows_config(self) -> str:
        """`lowering_config` of an operation on one number per row."""
        return self._config(("vector_common_parallel", (self._rows,)))

    @property
    def lanes_config(self) -> str:
        """`lowering_config` of an operation on (rows, lanes)."""
        return self._config(("vector_common_parallel", (self._rows, self.lanes)))

    @property
    def chunk_sums_config(self) -> str:
        """`lowering_config` of a sum over chunks that is not the root."""
        return self._config(*self.levels[1:])

    @property
    def lane_sums_config(self) -> str:
        """`lowering_config` of a sum over lanes."""
        return self._config(
            ("vector_common_parallel", (self._rows, 0)), ("vector_reduction", (0, self.lanes))
        )

    @property
    def elements_config(self) -> str:
        """`lowering_config` of an operation on (rows, size)."""
        return self._config(
            ("vector_common_parallel", (self._rows, 0)), ("vector_inner_parallel", (0, self.lanes))
        )

    @property
    def _rows(self) -> int:
        return dict(self.levels)["vector_common_parallel"][0]

    def _config(self, *levels: tuple[str, tuple[int, ...]]) -> str:
        return lowering_config_text(self.dialect, levels)


def row_lowering(norm: NormGeometry, distribution: tuple[int, ...], vector: tuple[int, ...]) -> RowLowering:
    """The lowering for `distribution` rows per workgroup and `vector` rows x columns per step."""
    rows, lanes = vector
    levels: Levels = (
        ("distribution", (distribution[0], 0, 0)),
        ("vector_common_parallel", (rows, lanes, 0)),
        ("vector_reduction", (0, 0, 1)),
    )
    loops = (
        Loop("row", norm.rows, "parallel"),
        Loop("lane", lanes, "parallel"),
        Loop("chunk", norm.size // lanes, "reduction"),
    )
    return RowLowering("iree_cpu", "DoubleTilingExpert", loops, levels)


def lanes_of(norm: NormGeometry) -> tuple[int, ...]:
    """Vector tiles along a row: divisors that leave at least two chunks of at least two elements."""
    return divisors(norm.size, norm.size // 2)[1:]


def row_violations(
    norm: NormGeometry, vector: tuple[int, ...], cache: tuple[int, ...], peel: bool
) -> Iterator[str]:
    """Reasons why these tiles cannot be used for rows, besides the reasons that apply to every operation."""
    # The compiler folds loops of extent 1 away, and the tiles with them.
    if norm.rows < 2:
        yield "tiles of rows need at least 2 rows"
    if vector[1] not in lanes_of(norm):
        yield f"a row is split into 2 or more chunks of 2 or more elements: vector tile {vector[1]} does not fit column={norm.size}"
    if cache or peel:
        yield "cache tiles and peel do not apply to rows"
