"""Triton kernels of attention in IREE dispatches: tiles of queries and keys, parts of the keys, launches and constants."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from dispatch_profiler.configurations._base import (
    Configuration,
    GpuLimits,
    KernelSource,
    Launch,
    Limits,
    by,
    check_choice,
    check_tiles,
    check_whole,
)
from dispatch_profiler.configurations.space import Axis, Space, powers_of_two, tile_axes
from dispatch_profiler.configurations.triton._base import TritonKernel
from dispatch_profiler.configurations.triton.limits import (
    PRECISIONS,
    SCRATCH,
    SMALLEST,
    TYPES,
    WARP,
    gpu_violations,
    power_of_two,
    tile_violations,
)
from dispatch_profiler.errors import ConfigurationError
from dispatch_profiler.operations import AttentionGeometry, ErrorBound, Operation, Tensor
from dispatch_profiler.operations.attention.reference import OnlineSoftmax

#: Bytes of keys and values that are read together, so that they stay in half of the L2 cache of an H100.
_KEPT = 24 * 2**20
#: The types of elements that the kernels support.
_TYPES = ("f32", "f16", "bf16")
#: Parts of the keys at most: one program joins all parts of a query.
_MOST_PARTS = 128
#: Numbers of parts that a search tries.
_PARTS = (1, 2, 4, 8, 16, 32, 64)
#: Warps of the kernel that joins parts.
_JOINING_WARPS = 4


@dataclass(frozen=True, kw_only=True)
class TritonAttention(TritonKernel):
    """tile       queries of a workgroup, and keys whose scores it keeps at a time; powers of two
    warps      warps per workgroup
    stages     depth of software pipelining
    parts      parts of the keys, which are computed by workgroups of their own, for few queries
    heads      heads that share their keys and are computed together: each key is read once for all of them
    precision  how f32 is multiplied; must be "ieee" for other types
    """

    kind: ClassVar[str] = "triton_attention"
    yaml_key: ClassVar[str] = "triton_attention"
    yaml_field: ClassVar[str] = "tile"
    template: ClassVar[str] = "triton_attention.mlir.j2"
    field_names: ClassVar[tuple[str, ...]] = ("workgroup_tile", "stages", "core", "options")
    split_k: ClassVar[int] = 1  # type: ignore[misc]

    tile: tuple[int, int]
    warps: int = 4
    stages: int = 3
    parts: int = 1
    heads: int = 1
    precision: str = "ieee"

    def __post_init__(self) -> None:
        object.__setattr__(self, "tile", check_tiles("triton_attention", self.tile))
        if len(self.tile) != 2:
            raise ConfigurationError(f"triton_attention must be queries and keys, but got {list(self.tile)}")
        for name in ("warps", "stages", "parts", "heads"):
            check_whole(name, getattr(self, name))
        check_choice("precision", self.precision, PRECISIONS)

    @classmethod
    def space(cls, operation: Operation, limits: Limits) -> Space[Configuration] | None:
        attention = operation.attention
        if attention is None or limits.gpu is None or limits.backend != "cuda":
            return None
        heads = tuple(each for each in range(1, attention.shared + 1) if attention.shared % each == 0)
        parts = tuple(each for each in _PARTS if each * SMALLEST <= attention.keys or each == 1)
        axes = (
            *tile_axes("tile", {"m": powers_of_two(16, 128), "n": powers_of_two(16, 128)}),
            Axis("warps", (1, 2, 4, 8)),
            Axis("stages", (1, 2, 3, 4)),
            Axis("parts", parts),
            Axis("heads", heads),
            Axis("precision", PRECISIONS[:3] if operation.element_type.name == "f32" else PRECISIONS[:1]),
        )
        return Space(cls, axes)

    @property
    def name(self) -> str:
        """`triton_attention_64x64_4w_3s[_parts8][_heads4][_tf32x3]`"""
        return "_".join(
            [f"triton_attention_{by(self.tile)}", f"{self.warps}w", f"{self.stages}s", *self._options()]
        )

    def _options(self) -> list[str]:
        return [
            *([f"parts{self.parts}"] if self.parts > 1 else []),
            *([f"heads{self.heads}"] if self.heads > 1 else []),
            *([self.precision] if self.precision != "ieee" else []),
        ]

    def fields(self) -> dict[str, str]:
        options = " ".join([f"{self.warps}w", *self._options()])
        return dict(zip(self.field_names, (by(self.tile), str(self.stages), "triton", options), strict=True))

    def error_bound(self, operation: Operation) -> ErrorBound | None:
        """See `OnlineSoftmax`: sums are multiplied for each tile of keys, and once more when parts are joined."""
        return OnlineSoftmax(-(-_geometry(operation).keys // self.tile[1]) + 1)

    # -- launch -------------------------------------------------------------------------------------

    def launch(self, operation: Operation) -> Launch:
        """The launch of the kernel that multiplies: its results are the operation's, or those of parts."""
        attention, accumulator = _geometry(operation), operation.accumulator
        first, *others = operation.results
        shape, type_ = first.shape, first.type
        if self.parts > 1:
            rows = (self.parts, attention.batch, attention.heads, attention.queries)
            shape, type_ = (*rows, attention.value_size), accumulator
            others = [Tensor("logarithms", rows, accumulator)]
        return Launch(
            entry="attention",
            workgroups=(self.workgroups(attention), 1, 1),
            workgroup_size=(WARP * self.warps, 1, 1),
            shape=shape,
            type=type_,
            scratch=SCRATCH,
            more=tuple(others),
        )

    def launches(self, operation: Operation) -> tuple[Launch, ...]:
        return (self.launch(operation), *((self._joining(operation),) if self.parts > 1 else ()))

    def _joining(self, operation: Operation) -> Launch:
        attention = _geometry(operation)
        first, *others = operation.results
        return Launch(
            entry="attention_of_parts",
            workgroups=(attention.batch * attention.heads * attention.queries, 1, 1),
            workgroup_size=(WARP * _JOINING_WARPS, 1, 1),
            shape=first.shape,
            type=first.type,
            scratch=SCRATCH,
            more=tuple(others),
        )

    def workgroups(self, attention: AttentionGeometry) -> int:
        """Workgroups of the kernel that multiplies."""
        tiles = -(-self.heads * attention.queries // self.tile[0])
        return self.parts * attention.batch * attention.heads // self.heads * tiles

    # -- kernels ------------------------------------------------------------------------------------

    def kernel(self, operation: Operation) -> KernelSource:
        """The source of the kernel that multiplies, with the constants of this dispatch."""
        attention, launch = _geometry(operation), self.launch(operation)
        results = ("result", "logsumexp")
        stored = (launch.type, *(each.type for each in launch.more))
        pointers = {each.name: TYPES[each.type.name] for each in operation.operands}
        pointers |= {name: TYPES[type_.name] for name, type_ in zip(results, stored, strict=False)}
        constants: dict[str, Any] = {
            **dict.fromkeys(name for name in ("mask", "logsumexp") if name not in pointers),
            **_extents(attention),
            **self._strides(attention),
            "LOGARITHMS": len(stored) > 1,
            "MERGED": self.heads,
            "PARTS": self.parts,
            "LENGTH": self._part_length(attention.keys),
            "GROUP": self._group(attention, operation.element_type.bytes),
            "PRECISION": self.precision,
            "ACCUMULATOR": TYPES[operation.accumulator.name],
            "TILE_M": self.tile[0],
            "TILE_N": self.tile[1],
            **_columns(attention),
        }
        return KernelSource(
            "attention", tuple(pointers.items()), tuple(constants.items()), self.warps, self.stages
        )

    def kernels(self, operation: Operation) -> tuple[KernelSource, ...]:
        return (self.kernel(operation), *((self._joining_kernel(operation),) if self.parts > 1 else ()))

    def _joining_kernel(self, operation: Operation) -> KernelSource:
        attention = _geometry(operation)
        accumulator = TYPES[operation.accumulator.name]
        pointers = {"partial": accumulator, "logarithms": accumulator}
        pointers |= {each.name: TYPES[each.type.name] for each in operation.results}
        constants: dict[str, Any] = {
            **({} if attention.logsumexp else {"logsumexp": None}),
            "COUNT": attention.batch * attention.heads * attention.queries,
            "HEADS": attention.heads,
            "QUERIES": attention.queries,
            "VALUE_SIZE": attention.value_size,
            "PARTS": self.parts,
            **_named("RESULT", "BHS", attention.places.result.strides),
            "LOGARITHMS": attention.logsumexp,
            "ACCUMULATOR": accumulator,
            "ROWS": power_of_two(self.parts),
            "VALUE_COLUMNS": _columns(attention)["VALUE_COLUMNS"],
        }
        return KernelSource(
            "attention_of_parts", tuple(pointers.items()), tuple(constants.items()), _JOINING_WARPS, 1
        )

    def _strides(self, attention: AttentionGeometry) -> dict[str, int]:
        """Distances in elements along the axes of operands and of the result, or of a part of the results."""
        places, mask = attention.places, attention.places.mask
        result = tuple(places.result.strides)
        if self.parts > 1:
            head = attention.queries * attention.value_size
            result = (attention.heads * head, head, attention.value_size)
        return {
            **_named("QUERY", "BHS", places.query.strides),
            **_named("KEY", "BHS", places.key.strides),
            **_named("VALUE", "BHS", places.value.strides),
            **_named("RESULT", "BHS", result),
            **_named("MASK", "BHQ", (0, 0, 0) if mask is None else mask.strides),
        }

    def _part_length(self, keys: int) -> int:
        """Keys of a part: tiles, of which the last part may have fewer."""
        tiles = -(-keys // self.tile[1])
        return -(-tiles // self.parts) * self.tile[1]

    def _group(self, attention: AttentionGeometry, element_bytes: float) -> int:
        """Heads, or sets of `heads`, whose keys and values stay in L2."""
        of_key_head = attention.keys * (attention.size + attention.value_size) * element_bytes
        sets = attention.shared // self.heads
        units = attention.batch * attention.heads // self.heads
        return max(1, min(units, int(_KEPT / of_key_head) * sets))

    # -- validity -------------------------------------------------------------------------------------

    def foreign_reason(self, operation: Operation) -> str | None:
        if operation.attention is None:
            return f"triton_attention is for attention, not {operation.kind}"
        return None

    def violations(self, operation: Operation, gpu: GpuLimits) -> Iterator[str]:
        attention, columns = _geometry(operation), _columns(_geometry(operation))
        m, n = self.tile
        if not attention.is_dense:
            yield "the kernels read operands without gaps, but these are views"
        yield from gpu_violations(self.precision, operation, gpu)
        if operation.element_type.name not in _TYPES:
            yield f"the kernels support {', '.join(_TYPES)}, not {operation.element_type.name}"
        for tile in ((m, n, columns["COLUMNS"]), (m, columns["VALUE_COLUMNS"], n)):
            yield from tile_violations(tile, self.warps, operation, gpu)
        if attention.shared % self.heads:
            yield f"{self.heads} heads cannot be computed together: {attention.shared} heads share their keys"
        rows = self.heads * attention.queries
        if m > max(SMALLEST, power_of_two(rows)):
            yield f"a tile of {m} rows is larger than necessary for {rows}"
        if n > max(SMALLEST, power_of_two(attention.keys)):
            yield f"a tile of {n} keys is larger than necessary for {attention.keys}"
        if self.parts > _MOST_PARTS:
            yield f"keys are split into at most {_MOST_PARTS} parts, but not into {self.parts}"
        if self.parts > -(-attention.keys // n):
            yield f"{attention.keys} keys are too few for {self.parts} parts of {n} keys or more"
        needed = self.shared_bytes(operation, self.stages - 1)
        if needed > gpu.device_shared_bytes:
            yield (
                f"{self.stages} stages of {by(self.tile)} need {needed} B of shared memory, but {gpu.device_arch} "
                f"has {gpu.device_shared_bytes}: use fewer stages or a smaller tile"
            )
        partial_results = self.parts * operation.results[0].elements if self.parts > 1 else 0
        largest = max(partial_results, *(tensor.elements for tensor in operation.operands))
        if largest >= 2**31:
            yield f"the kernels use 32-bit indices, but a tensor has {largest} elements"

    def shared_bytes(self, operation: Operation, buffers: int) -> int:
        """Shared memory in bytes of a tile of queries and so many tiles of keys and values."""
        columns = _columns(_geometry(operation))
        elements = self.tile[0] * columns["COLUMNS"] + buffers * self.tile[1] * sum(columns.values())
        return int(elements * operation.element_type.bytes)


# -- constants -------------------------------------------------------------------------------------


def _geometry(operation: Operation) -> AttentionGeometry:
    assert operation.attention is not None
    return operation.attention


def _extents(attention: AttentionGeometry) -> dict[str, Any]:
    return {
        "BATCH": attention.batch, "HEADS": attention.heads, "QUERIES": attention.queries, "KEYS": attention.keys,
        "SIZE": attention.size, "VALUE_SIZE": attention.value_size, "SHARED": attention.shared, "SCALE": attention.scale,
        "CAUSAL": bool(attention.causal), "SHIFT": attention.visibility.offset, "WINDOW": attention.window,
        "MASK": attention.mask,
    }  # fmt: skip


def _columns(attention: AttentionGeometry) -> dict[str, int]:
    """Elements of the blocks that hold a query or a value."""
    return {
        "COLUMNS": max(SMALLEST, power_of_two(attention.size)),
        "VALUE_COLUMNS": max(SMALLEST, power_of_two(attention.value_size)),
    }


def _named(tensor: str, axes: str, strides: Sequence[int]) -> dict[str, int]:
    """`_named("KEY", "BHS", (64, 8, 4, 1))` -> {"KEY_B": 64, "KEY_H": 8, "KEY_S": 4}"""
    return {f"{tensor}_{axis}": stride for axis, stride in zip(axes, strides, strict=False)}
