"""What the vector kernels of attention share that the generator writes: which attentions they compute, and their plans' extents."""

from __future__ import annotations

import abc
from typing import Any, ClassVar

from dispatch_profiler.configurations._base import Configuration, Limits, backend_invalid_reason, check_whole
from dispatch_profiler.configurations.cpu.kernels.heads import HeadsPlan
from dispatch_profiler.configurations.cpu.kernels.writer import LANES
from dispatch_profiler.configurations.cpu.microkernel import vector_lanes
from dispatch_profiler.operations import AttentionGeometry, ErrorBound, Operation
from dispatch_profiler.operations.attention.reference import OnlineSoftmax

_TYPES = ("f32", "bf16", "f16")


class HeadsMicrokernel(Configuration):
    """A kernel of attention for CPUs with AVX-512.

    Subclasses are dataclasses of whole numbers, with the fields `block`, keys whose scores are kept at a time, and `heads`,
    which share their keys and are computed together.
    """

    template: ClassVar[str] = "written.mlir.j2"
    kernel_suffix: ClassVar[str] = "_kernel"
    can_be_inner: ClassVar[bool] = False
    provider: ClassVar[str] = "Microkernel"
    field_names: ClassVar[tuple[str, ...]] = ("vector_tile",)
    split_k: ClassVar[int] = 1  # type: ignore[misc]

    block: int
    heads: int

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            check_whole(name, value)

    @property
    def heads_suffix(self) -> str:
        """The end of the name: `_heads4`; empty if heads are computed alone."""
        return f"_heads{self.heads}" if self.heads != 1 else ""

    @abc.abstractmethod
    def plan(self, operation: Operation) -> HeadsPlan:
        """How the kernel computes `operation`, which is an attention."""

    @abc.abstractmethod
    def kernel_text(self, operation: Operation, function: str) -> str:
        """MLIR text with the kernel and the function `function`, which launches it."""

    def error_bound(self, operation: Operation) -> ErrorBound | None:
        rescales = self.plan(operation).rescales
        return OnlineSoftmax(rescales) if rescales else None

    def heads_reason(self, operation: Operation, limits: Limits) -> str | None:
        """Why `operation` is no attention that the kernel computes on a target with `limits`; None if it may be."""
        attention, type_ = operation.attention, operation.element_type.name
        if reason := backend_invalid_reason("attention microkernels are", "llvm-cpu", limits):
            return reason
        if attention is None:
            return f"attention microkernels are for attention, not for {operation.kind}"
        if type_ not in _TYPES:
            return f"attention microkernels are for {', '.join(_TYPES)}, not for {type_}"
        if attention.logsumexp:
            return "attention microkernels return no logarithms of sums"
        if vector_lanes(limits) != LANES:
            return f"attention microkernels have vectors of {LANES} elements, which this CPU lacks"
        if attention.shared % self.heads:
            whose = (
                "heads share no keys"
                if attention.shared == 1
                else f"only {attention.shared} heads share their keys"
            )
            return f"{self.heads} heads cannot be computed together: {whose}"
        return None


def geometry_of(operation: Operation) -> AttentionGeometry:
    """The geometry of an attention."""
    assert operation.attention is not None
    return operation.attention


def plan_fields(operation: Operation) -> dict[str, Any]:
    """The fields of a plan that the operation determines."""
    of = geometry_of(operation)
    return {
        **{
            name: getattr(of, name)
            for name in ("batch", "heads", "queries", "keys", "size", "value_size", "scale")
        },
        **{name: getattr(of.places, name) for name in ("query", "key", "value", "result", "mask")},
        "position": of.visibility.offset if of.causal else None,
        "window": of.window,
        "hides": of.mask == "bool",
    }
