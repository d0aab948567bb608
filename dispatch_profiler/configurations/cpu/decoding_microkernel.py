"""A vector kernel that the generator writes, for attention of few queries on CPUs (see `kernels/decoding.py`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from dispatch_profiler.configurations._base import (
    Configuration,
    Limits,
    backend_invalid_reason,
    check_whole,
)
from dispatch_profiler.configurations.cpu.attention_microkernel import operation_reason, place_of
from dispatch_profiler.configurations.cpu.kernels.decoding import MOST_ROWS, DecodingKernel, DecodingPlan
from dispatch_profiler.configurations.cpu.kernels.writer import LANES
from dispatch_profiler.configurations.cpu.microkernel import vector_lanes
from dispatch_profiler.configurations.space import Axis, Space
from dispatch_profiler.operations import ErrorBound, Operation
from dispatch_profiler.operations.attention.reference import OnlineSoftmax

#: Numbers of keys of a block that a search tries, and the likeliest.
_BLOCKS, _LIKELY_BLOCK = (64, 128, 256, 512, 1024), 256


@dataclass(frozen=True)
class DecodingMicrokernel(Configuration):
    """`DecodingMicrokernel(256, 4)`.

    block  keys whose scores are kept at a time, a multiple of 16
    heads  heads that share their keys and are computed together: each key is read once for all of them
    """

    kind: ClassVar[str] = "decoding_microkernel"
    yaml_key: ClassVar[str] = "decoding_microkernel"
    yaml_field: ClassVar[str] = "block"
    template: ClassVar[str] = "attention_microkernel.mlir.j2"
    kernel_suffix: ClassVar[str] = "_kernel"
    can_be_inner: ClassVar[bool] = False
    provider: ClassVar[str] = "Microkernel"
    field_names: ClassVar[tuple[str, ...]] = ("vector_tile",)
    split_k: ClassVar[int] = 1  # type: ignore[misc]

    block: int
    heads: int = 1

    def __post_init__(self) -> None:
        for name in ("block", "heads"):
            check_whole(name, getattr(self, name))

    @property
    def name(self) -> str:
        """`tile_config_decoding_microkernel_256[_heads4]`"""
        heads = f"_heads{self.heads}" if self.heads != 1 else ""
        return f"tile_config_decoding_microkernel_{self.block}{heads}"

    def fields(self) -> dict[str, str]:
        return {"vector_tile": f"{self.heads}x{self.block}"}

    def plan(self, operation: Operation) -> DecodingPlan:
        """How the kernel computes `operation`, which is an attention."""
        attention = operation.attention
        assert attention is not None
        heads, key_heads = attention.heads, attention.key_heads
        return DecodingPlan(
            attention.batch,
            heads,
            attention.queries,
            attention.keys,
            attention.size,
            attention.value_size,
            attention.scale,
            query=place_of(attention, 0, heads, attention.queries, attention.size),
            key=place_of(attention, 1, key_heads, attention.keys, attention.size, attention.shared),
            value=place_of(attention, 2, key_heads, attention.keys, attention.value_size, attention.shared),
            result=place_of(
                attention, len(operation.operands), heads, attention.queries, attention.value_size
            ),
            block=self.block,
            position=attention.visibility.offset if attention.causal else None,
            window=attention.window,
            merged=self.heads,
        )

    def kernel_text(self, operation: Operation, function: str) -> str:
        """MLIR text with the kernel and the function `function`, which launches it."""
        plan = self.plan(operation)
        scratch = plan.workgroups * plan.scratch
        return DecodingKernel(function, operation.operands, operation.results, scratch).kernel(plan)

    def error_bound(self, operation: Operation) -> ErrorBound | None:
        return OnlineSoftmax(self.plan(operation).rescales)

    # -- rules --------------------------------------------------------------------------------

    def invalid_reason(self, operation: Operation, limits: Limits) -> str | None:
        reason = backend_invalid_reason("decoding microkernels are", "llvm-cpu", limits)
        reason = reason or operation_reason(operation)
        if reason:
            return reason
        attention = operation.attention
        assert attention is not None
        if vector_lanes(limits) != LANES:
            return f"decoding microkernels have vectors of {LANES} elements, which this CPU lacks"
        if attention.mask:
            return "decoding microkernels read no mask"
        if self.block % LANES:
            return f"a block of {self.block} keys is no multiple of {LANES}"
        if attention.shared % self.heads:
            return (
                f"{attention.shared} heads share their keys, which cannot be computed {self.heads} at a time"
            )
        return self.plan(operation).problem()

    @classmethod
    def space(cls, operation: Operation, limits: Limits) -> Space[Configuration] | None:
        attention = operation.attention
        if attention is None or cls(LANES).invalid_reason(operation, limits) is not None:
            return None
        heads = tuple(
            each
            for each in range(1, attention.shared + 1)
            if attention.shared % each == 0 and each * attention.queries <= MOST_ROWS
        )
        return Space(cls, (Axis("block", _BLOCKS), *((Axis("heads", heads),) if len(heads) > 1 else ())))

    @classmethod
    def likely(
        cls, operation: Operation, limits: Limits, *, packed_weights: bool = False
    ) -> tuple[Configuration, ...]:
        space = cls.space(operation, limits)
        if space is None:
            return ()
        heads = next((axis.choices for axis in space.axes if axis.name == "heads"), (1,))
        return tuple(cls(_LIKELY_BLOCK, int(each)) for each in reversed(heads))
