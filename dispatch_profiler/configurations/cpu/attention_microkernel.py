"""A vector kernel that the generator writes, for attention on CPUs: scores are never stored (see `kernels/attention.py`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from dispatch_profiler.configurations._base import (
    Configuration,
    Limits,
    backend_invalid_reason,
    check_whole,
)
from dispatch_profiler.configurations.cpu.kernels.attention import AttentionKernel
from dispatch_profiler.configurations.cpu.kernels.attention_plan import AttentionPlan
from dispatch_profiler.configurations.cpu.kernels.strided import Strided
from dispatch_profiler.configurations.cpu.kernels.writer import LANES
from dispatch_profiler.configurations.cpu.microkernel import vector_lanes
from dispatch_profiler.configurations.space import Axis, Space
from dispatch_profiler.operations import AttentionGeometry, ErrorBound, Operation, Tensor
from dispatch_profiler.operations.attention.reference import OnlineSoftmax

#: Vectors of rows at most: a register tile has a key or an element of a value for each.
_MOST_VECTORS = 4
#: Numbers of keys of a block that a search tries: each is divided by the register tiles of all numbers of vectors.
_BLOCKS = (48, 96, 192, 384, 768)
#: The likeliest of them: queries, scores and sums of a block fit into the first two caches.
_LIKELY_BLOCKS = (96, 192)
#: Bytes of the scratch memory of a workgroup at most.
_MOST_SCRATCH = 2**22
_TYPES = ("f32", "bf16", "f16")


@dataclass(frozen=True)
class AttentionMicrokernel(Configuration):
    """`AttentionMicrokernel(4, 96)`.

    vectors  vectors of 16 rows, queries of heads, that are computed together
    block    keys whose scores are kept at a time; as many as there are, or more: no sum is multiplied again
    heads    heads that share their keys and are computed together, so that few queries fill a vector
    """

    kind: ClassVar[str] = "attention_microkernel"
    yaml_key: ClassVar[str] = "attention_microkernel"
    yaml_field: ClassVar[str] = "vectors"
    template: ClassVar[str] = "attention_microkernel.mlir.j2"
    kernel_suffix: ClassVar[str] = "_kernel"
    can_be_inner: ClassVar[bool] = False
    provider: ClassVar[str] = "Microkernel"
    field_names: ClassVar[tuple[str, ...]] = ("vector_tile",)
    split_k: ClassVar[int] = 1  # type: ignore[misc]

    vectors: int
    block: int
    heads: int = 1

    def __post_init__(self) -> None:
        for name in ("vectors", "block", "heads"):
            check_whole(name, getattr(self, name))

    @property
    def name(self) -> str:
        """`tile_config_attention_microkernel_4x96[_heads4]`"""
        heads = f"_heads{self.heads}" if self.heads != 1 else ""
        return f"tile_config_attention_microkernel_{self.vectors}x{self.block}{heads}"

    def fields(self) -> dict[str, str]:
        return {"vector_tile": f"{self.vectors * LANES}x{self.block}"}

    def plan(self, operation: Operation) -> AttentionPlan:
        """How the kernel computes `operation`, which is an attention."""
        attention = operation.attention
        assert attention is not None
        shared = attention.shared
        mask = _mask_place(operation.operands[3]) if attention.mask else None
        results = len(operation.operands)
        return AttentionPlan(
            attention.batch,
            attention.heads,
            attention.queries,
            attention.keys,
            attention.size,
            attention.value_size,
            attention.scale,
            query=place_of(attention, 0, attention.heads, attention.queries, attention.size),
            key=place_of(attention, 1, attention.key_heads, attention.keys, attention.size, shared),
            value=place_of(attention, 2, attention.key_heads, attention.keys, attention.value_size, shared),
            mask=mask,
            result=place_of(attention, results, attention.heads, attention.queries, attention.value_size),
            vectors=self.vectors,
            block=self.block,
            position=attention.visibility.offset if attention.causal else None,
            window=attention.window,
            hides=attention.mask == "bool",
            is_narrow=operation.element_type.name != "f32",
            merged=self.heads,
        )

    def kernel_text(self, operation: Operation, function: str) -> str:
        """MLIR text with the kernel and the function `function`, which launches it."""
        plan = self.plan(operation)
        scratch = plan.workgroups * plan.scratch
        return AttentionKernel(function, operation.operands, operation.results, scratch).kernel(plan)

    def error_bound(self, operation: Operation) -> ErrorBound | None:
        rescales = self.plan(operation).rescales
        return OnlineSoftmax(rescales) if rescales else None

    # -- rules --------------------------------------------------------------------------------

    def invalid_reason(self, operation: Operation, limits: Limits) -> str | None:
        reason = backend_invalid_reason("attention microkernels are", "llvm-cpu", limits)
        reason = reason or operation_reason(operation)
        if reason:
            return reason
        if vector_lanes(limits) != LANES:
            return f"attention microkernels have vectors of {LANES} elements, which this CPU lacks"
        if not 1 <= self.vectors <= _MOST_VECTORS:
            return f"attention microkernels have at most {_MOST_VECTORS} vectors of rows, but this one has {self.vectors}"
        attention = operation.attention
        assert attention is not None
        shared = attention.shared
        if shared % self.heads:
            return f"{shared} heads share their keys, which cannot be computed {self.heads} at a time"
        plan = self.plan(operation)
        if 4 * plan.scratch > _MOST_SCRATCH:
            return f"a block needs {4 * plan.scratch} B of memory, more than {_MOST_SCRATCH} B"
        return plan.problem()

    @classmethod
    def space(cls, operation: Operation, limits: Limits) -> Space[Configuration] | None:
        if not _fits(operation, limits):
            return None
        attention = operation.attention
        assert attention is not None
        shared = attention.shared
        heads = tuple(each for each in range(1, shared + 1) if shared % each == 0)
        return Space(
            cls,
            (
                Axis("vectors", tuple(range(1, _MOST_VECTORS + 1))),
                Axis("block", _blocks(attention)),
                *((Axis("heads", heads),) if len(heads) > 1 else ()),
            ),
        )

    @classmethod
    def likely(
        cls, operation: Operation, limits: Limits, *, packed_weights: bool = False
    ) -> tuple[Configuration, ...]:
        if not _fits(operation, limits):
            return ()
        attention = operation.attention
        assert attention is not None
        shared = attention.shared
        # Few queries leave lanes empty, unless other heads' queries fill them.
        heads = shared if attention.queries < LANES else 1
        rows = heads * attention.queries
        most = min(_MOST_VECTORS, -(-rows // LANES))
        blocks = [each for each in _blocks(attention) if each in (*_LIKELY_BLOCKS, attention.keys)]
        found = (cls(vectors, block, heads) for vectors in range(most, 0, -1) for block in blocks)
        return tuple(each for each in found if each.invalid_reason(operation, limits) is None)


def _fits(operation: Operation, limits: Limits) -> bool:
    is_here = limits.backend == "llvm-cpu" and vector_lanes(limits) == LANES
    return is_here and operation_reason(operation) is None


def operation_reason(operation: Operation) -> str | None:
    """Why no microkernel of attention computes an operation; None if one may."""
    attention = operation.attention
    if attention is None:
        return f"attention microkernels are for attention, not for {operation.kind}"
    type_ = operation.element_type.name
    if type_ not in _TYPES:
        return f"attention microkernels are for {', '.join(_TYPES)}, not for {type_}"
    if attention.logsumexp:
        return "attention microkernels return no logarithms of sums"
    return None


def _blocks(attention: AttentionGeometry) -> tuple[int, ...]:
    """Numbers of keys of a block: all keys if they are few."""
    fewer = tuple(each for each in _BLOCKS if each < attention.keys)
    return (*fewer, attention.keys) if attention.keys <= 2 * _BLOCKS[-1] else fewer


def place_of(
    attention: AttentionGeometry, source: int, heads: int, positions: int, elements: int, shared: int = 1
) -> Strided:
    """Where an operand or the result is, with the axes batch, head, position, element."""
    if attention.heads_first:
        strides = (heads * positions * elements, positions * elements, elements, 1)
    else:
        strides = (positions * heads * elements, elements, heads * elements, 1)
    return Strided(source, 0, strides, shared)


def _mask_place(mask: Tensor) -> Strided:
    """Where the mask is, with the axes batch, head, query, key; the stride of an axis that it lacks is 0."""
    _, heads, queries, keys = mask.shape
    strides = (heads * queries * keys, queries * keys, keys, 1)
    found = tuple(stride if extent > 1 else 0 for stride, extent in zip(strides, mask.shape, strict=True))
    return Strided(3, 0, (found[0], found[1], found[2], 1))
