"""A vector kernel that the generator writes, for attention of few queries on CPUs (see `kernels/decoding.py`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from dispatch_profiler.configurations._base import Configuration, Limits
from dispatch_profiler.configurations.cpu.heads_microkernel import HeadsMicrokernel, geometry_of, plan_fields
from dispatch_profiler.configurations.cpu.kernels.decoding import MOST_ROWS, DecodingKernel, DecodingPlan
from dispatch_profiler.configurations.cpu.kernels.writer import LANES
from dispatch_profiler.configurations.space import Axis, Space
from dispatch_profiler.operations import Operation

#: Numbers of keys of a block that a search tries, and the likeliest.
_BLOCKS, _LIKELY_BLOCK = (64, 128, 256, 512, 1024), 256


@dataclass(frozen=True)
class DecodingMicrokernel(HeadsMicrokernel):
    """`DecodingMicrokernel(256, 4)`.

    block  keys whose scores are kept at a time, a multiple of 16
    heads  heads that share their keys and are computed together: each key is read once for all of them
    """

    kind: ClassVar[str] = "decoding_microkernel"
    yaml_key: ClassVar[str] = "decoding_microkernel"
    yaml_field: ClassVar[str] = "block"
    writer: ClassVar[type[DecodingKernel]] = DecodingKernel

    block: int
    heads: int = 1

    @property
    def name(self) -> str:
        """`tile_config_decoding_microkernel_256[_heads4]`"""
        return f"tile_config_decoding_microkernel_{self.block}{self.heads_suffix}"

    def fields(self) -> dict[str, str]:
        return {"vector_tile": f"{self.heads}x{self.block}"}

    def plan(self, operation: Operation) -> DecodingPlan:
        return DecodingPlan(**plan_fields(operation), block=self.block, merged=self.heads)

    # -- rules --------------------------------------------------------------------------------

    def invalid_reason(self, operation: Operation, limits: Limits) -> str | None:
        if reason := self.heads_reason(operation, limits):
            return reason
        if geometry_of(operation).mask:
            return "decoding microkernels read no mask"
        if self.block % LANES:
            return f"a block of {self.block} keys is no multiple of {LANES}"
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
