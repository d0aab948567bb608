"""A vector kernel that the generator writes, for attention of few queries on CPUs (see `kernels/decoding.py`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from dispatch_profiler.configurations._base import Configuration, Limits
from dispatch_profiler.configurations.cpu.heads_microkernel import HeadsMicrokernel, plan_fields
from dispatch_profiler.configurations.cpu.kernels.decoding import (
    MOST_PARTS,
    MOST_ROWS,
    DecodingPlan,
    decoding_text,
    parts_function,
)
from dispatch_profiler.configurations.cpu.kernels.writer import LANES
from dispatch_profiler.configurations.space import Axis, Space
from dispatch_profiler.operations import Operation

#: Numbers of parts of the keys that searches and rules try.
PARTS = (1, 2, 3, 4, 6, 8, 12, 16)
#: Keys of a part at least that a search tries.
_LEAST_KEYS = 32
#: Numbers of keys of a block that a search tries, and the likeliest.
_BLOCKS, _LIKELY_BLOCK = (64, 128, 256, 512, 1024), 256


@dataclass(frozen=True)
class DecodingMicrokernel(HeadsMicrokernel):
    """`DecodingMicrokernel(256, 4, 2)`.

    block  keys whose scores are kept at a time, a multiple of 16
    heads  heads that share their keys and are computed together: each key is read once for all of them
    parts  parts of the keys, which are computed by workgroups of their own, so that few heads keep many threads busy
    """

    kind: ClassVar[str] = "decoding_microkernel"
    yaml_key: ClassVar[str] = "decoding_microkernel"
    yaml_field: ClassVar[str] = "block"

    block: int
    heads: int = 1
    parts: int = 1

    @property
    def name(self) -> str:
        """`tile_config_decoding_microkernel_256[_heads4][_parts2]`"""
        parts = f"_parts{self.parts}" if self.parts > 1 else ""
        return f"tile_config_decoding_microkernel_{self.block}{self.heads_suffix}{parts}"

    def fields(self) -> dict[str, str]:
        parts = f"x{self.parts}" if self.parts > 1 else ""
        return {"vector_tile": f"{self.heads}x{self.block}{parts}"}

    def plan(self, operation: Operation) -> DecodingPlan:
        return DecodingPlan(**plan_fields(operation), block=self.block, merged=self.heads, parts=self.parts)

    def kernel_text(self, operation: Operation, function: str) -> str:
        return decoding_text(function, operation.operands, operation.results, self.plan(operation))

    def kernel_names(self, function: str) -> tuple[str, ...]:
        joined = super().kernel_names(function)
        return joined if self.parts == 1 else (*super().kernel_names(parts_function(function)), *joined)

    # -- rules --------------------------------------------------------------------------------

    def invalid_reason(self, operation: Operation, limits: Limits) -> str | None:
        if reason := self.heads_reason(operation, limits):
            return reason
        if self.parts > MOST_PARTS:
            return f"keys are split into at most {MOST_PARTS} parts, but not into {self.parts}"
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
        parts = tuple(each for each in PARTS if each == 1 or each * _LEAST_KEYS <= attention.keys)
        axes = (("block", _BLOCKS), ("heads", heads), ("parts", parts))
        return Space(cls, tuple(Axis(name, choices) for name, choices in axes if len(choices) > 1))

    @classmethod
    def likely(
        cls, operation: Operation, limits: Limits, *, packed_weights: bool = False
    ) -> tuple[DecodingMicrokernel, ...]:
        space = cls.space(operation, limits)
        if space is None:
            return ()
        heads = next((axis.choices for axis in space.axes if axis.name == "heads"), (1,))
        return tuple(cls(_LIKELY_BLOCK, int(each)) for each in reversed(heads))
