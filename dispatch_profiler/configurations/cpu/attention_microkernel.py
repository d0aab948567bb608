"""A vector kernel that the generator writes, for attention on CPUs: scores are never stored (see `kernels/attention.py`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from dispatch_profiler.configurations._base import Configuration, Limits
from dispatch_profiler.configurations.cpu.heads_microkernel import HeadsMicrokernel, geometry_of, plan_fields
from dispatch_profiler.configurations.cpu.kernels.attention import attention_text
from dispatch_profiler.configurations.cpu.kernels.attention_plan import AttentionPlan
from dispatch_profiler.configurations.cpu.kernels.writer import LANES
from dispatch_profiler.configurations.space import Axis, Space
from dispatch_profiler.operations import AttentionGeometry, Operation

#: Vectors of rows at most: a register tile has a key or an element of a value for each.
_MOST_VECTORS = 4
#: Numbers of keys of a block that a search tries: each is divided by the register tiles of all numbers of vectors.
_BLOCKS = (48, 96, 192, 384, 768)
#: The likeliest of them: queries, scores and sums of a block fit into the first two caches.
_LIKELY_BLOCKS = (96, 192)
#: Bytes of the scratch memory of a workgroup at most.
_MOST_SCRATCH = 2**22


@dataclass(frozen=True)
class AttentionMicrokernel(HeadsMicrokernel):
    """`AttentionMicrokernel(4, 96)`.

    vectors  vectors of 16 rows, queries of heads, that are computed together
    block    keys whose scores are kept at a time; as many as there are, or more: no sum is multiplied again
    heads    heads that share their keys and are computed together, so that few queries fill a vector
    """

    kind: ClassVar[str] = "attention_microkernel"
    yaml_key: ClassVar[str] = "attention_microkernel"
    yaml_field: ClassVar[str] = "vectors"

    vectors: int
    block: int
    heads: int = 1

    @property
    def name(self) -> str:
        """`tile_config_attention_microkernel_4x96[_heads4]`"""
        return f"tile_config_attention_microkernel_{self.vectors}x{self.block}{self.heads_suffix}"

    def fields(self) -> dict[str, str]:
        return {"vector_tile": f"{self.vectors * LANES}x{self.block}"}

    def plan(self, operation: Operation) -> AttentionPlan:
        return AttentionPlan(
            **plan_fields(operation),
            vectors=self.vectors,
            block=self.block,
            is_narrow=operation.element_type.name != "f32",
            merged=self.heads,
        )

    def kernel_text(self, operation: Operation, function: str) -> str:
        return attention_text(function, operation.operands, operation.results, self.plan(operation))

    # -- rules --------------------------------------------------------------------------------

    def invalid_reason(self, operation: Operation, limits: Limits) -> str | None:
        if reason := self.heads_reason(operation, limits):
            return reason
        if self.vectors > _MOST_VECTORS:
            return f"attention microkernels have at most {_MOST_VECTORS} vectors of rows, but this one has {self.vectors}"
        return self.plan_reason(operation)

    def plan_reason(self, operation: Operation) -> str | None:
        """Why the kernel cannot compute an attention on any CPU; None if it can."""
        plan = self.plan(operation)
        if 4 * plan.scratch > _MOST_SCRATCH:
            return f"a block needs {4 * plan.scratch} B of memory, more than {_MOST_SCRATCH} B"
        return plan.problem()

    @classmethod
    def space(cls, operation: Operation, limits: Limits) -> Space[Configuration] | None:
        if not _fits(operation, limits):
            return None
        attention = geometry_of(operation)
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
        attention = geometry_of(operation)
        # Few queries leave lanes empty, unless other heads' queries fill them.
        heads = attention.shared if attention.queries < LANES else 1
        rows = heads * attention.queries
        most = min(_MOST_VECTORS, -(-rows // LANES))
        blocks = [each for each in _blocks(attention) if each in (*_LIKELY_BLOCKS, attention.keys)]
        found = (cls(vectors, block, heads) for vectors in range(most, 0, -1) for block in blocks)
        return tuple(each for each in found if each.invalid_reason(operation, limits) is None)


def _fits(operation: Operation, limits: Limits) -> bool:
    return (
        limits.backend == "llvm-cpu"
        and AttentionMicrokernel(1, LANES).heads_reason(operation, limits) is None
    )


def _blocks(attention: AttentionGeometry) -> tuple[int, ...]:
    """Numbers of keys of a block: all keys if they are few."""
    fewer = tuple(each for each in _BLOCKS if each < attention.keys)
    return (*fewer, attention.keys) if attention.keys <= 2 * _BLOCKS[-1] else fewer
