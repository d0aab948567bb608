"""Whole-flow configurations: compiler flags that change how a whole module is compiled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from dispatch_profiler.configurations._base import (
    Configuration,
    Evidence,
    Limits,
    backend_invalid_reason,
    check_choice,
)
from dispatch_profiler.configurations.space import Axis, Space
from dispatch_profiler.configurations.splits import slices_of_long_sum
from dispatch_profiler.operations import Operation


@dataclass(frozen=True)
class FlowRow:
    """One flow: its flags, the kinds and input types that it affects, and evidence that it took effect."""

    flags: tuple[str, ...]
    kinds: tuple[str, ...]
    types: tuple[str, ...]
    evidence: Evidence
    #: Why an operation of these kinds and types is not affected; None if it is.
    rejects: Callable[[Operation], str | None] = lambda operation: None


def _without_padded_channels(operation: Operation) -> str | None:
    geometry = operation.convolution
    if geometry is None or geometry.variant != "depthwise" or not geometry.is_nhwc:
        return "is for depthwise convolutions, forward and in nhwc"
    return None if any((*geometry.padding, *geometry.padding_after)) else "needs padding"


_DATA_TILING = "--iree-opt-data-tiling"

FLOWS: dict[str, FlowRow] = {
    # Packs operands so that each register tile is contiguous (mmt4d).
    "data_tiling": FlowRow(
        (_DATA_TILING,),
        ("matmul", "batch_matmul"),
        ("f32", "f16", "bf16", "f8E4M3FN", "i8"),
        Evidence("executable-configurations", "Mmt4dTilingExpert"),
    ),
    # Computes the packed product with IREE's hand-written microkernels.
    "ukernels": FlowRow(
        (_DATA_TILING, "--iree-llvmcpu-enable-ukernels=all"),
        ("matmul", "batch_matmul"),
        ("f32", "f16", "bf16", "i8"),
        Evidence("executable-targets", "iree_uk_mmt4d"),
    ),
    # A workgroup pads its own part of the image; otherwise, a padded image is stored first. In dense convolutions,
    # that part is too large for the stack or slower than all the padding together.
    "fused_padding": FlowRow(
        ("--iree-dispatch-creation-enable-fuse-padding-into-linalg-consumer-ops",),
        ("conv2d",),
        ("f32", "f64", "f16", "bf16", "i8"),
        Evidence("executable-configurations", "tensor.pad"),
        _without_padded_channels,
    ),
}


@dataclass(frozen=True)
class Flow(Configuration):
    """A flow of `FLOWS`, by name."""

    kind: ClassVar[str] = "flow"
    yaml_key: ClassVar[str] = "flow"

    flow: str

    def __post_init__(self) -> None:
        check_choice("flow", self.flow, tuple(FLOWS))

    @classmethod
    def space(cls, operation: Operation, limits: Limits) -> Space[Configuration] | None:
        flows = tuple(flow for flow in FLOWS if cls(flow).invalid_reason(operation, limits) is None)
        return Space(cls, (Axis("flow", flows),)) if flows else None

    @property
    def split_k(self) -> int:  # type: ignore[override]
        return 1

    def slices(self, operation: Operation) -> int:
        return slices_of_long_sum(operation)

    @property
    def name(self) -> str:
        return f"flow_config_{self.flow}"

    @property
    def flags(self) -> tuple[str, ...]:
        return FLOWS[self.flow].flags

    @property
    def module(self) -> str:
        return self.flow

    @property
    def evidence(self) -> Evidence:
        return FLOWS[self.flow].evidence

    def invalid_reason(self, operation: Operation, limits: Limits) -> str | None:
        foreign = backend_invalid_reason(f"the flow {self.flow} is", "llvm-cpu", limits)
        if foreign:
            return foreign
        row, given = FLOWS[self.flow], operation.element_type.name
        for value, known in ((operation.kind, row.kinds), (given, row.types)):
            if value not in known:
                return f"the flow {self.flow} affects {', '.join(known)}, not {value}"
        reason = row.rejects(operation)
        return reason and f"the flow {self.flow} {reason}"
