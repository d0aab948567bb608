"""What all kinds of Triton kernels share: where they run, their module, and the precision of their products."""

from __future__ import annotations

import abc
from collections.abc import Iterator
from typing import ClassVar

from dispatch_profiler.configurations._base import (
    Configuration,
    GpuLimits,
    Limits,
    backend_invalid_reason,
)
from dispatch_profiler.operations import ELEMENT_TYPES, ElementType, Operation

#: How many products of parts replace one product of f32.
_PRODUCTS_OF_PARTS = {"tf32x3": 3, "bf16x6": 6}


class TritonKernel(Configuration):
    """Kernels of this package's Triton sources. Subclasses are dataclasses, some of them with the field `precision`."""

    can_be_inner: ClassVar[bool] = False
    provider: ClassVar[str] = "Triton"

    #: How f32 is multiplied.
    precision: str = "ieee"

    @property
    def module(self) -> str:
        # The driver rejects a whole module for one kernel, so IREE's kernels are in another.
        return "triton"

    def flops(self, operation: Operation) -> int:
        """FLOP of all products of parts."""
        return operation.flops * _PRODUCTS_OF_PARTS.get(self.precision, 1)

    def multiplied(self, operation: Operation) -> ElementType:
        """The type of parts; f16 for parts of 11 bits, which tensor cores multiply no faster."""
        if self.precision == "ieee":
            return operation.element_type
        return ELEMENT_TYPES["bf16" if self.precision == "bf16x6" else "f16"]

    def invalid_reason(self, operation: Operation, limits: Limits) -> str | None:
        foreign = backend_invalid_reason("Triton kernels are", "cuda", limits)
        foreign = foreign or self.foreign_reason(operation)
        if foreign or limits.gpu is None:
            return foreign
        return next(self.violations(operation, limits.gpu), None)

    @abc.abstractmethod
    def foreign_reason(self, operation: Operation) -> str | None:
        """Why the kernels are for other operations than `operation`; None if they are for it."""

    @abc.abstractmethod
    def violations(self, operation: Operation, gpu: GpuLimits) -> Iterator[str]:
        """Every rule that an operation of the kernels violates on a GPU, the most informative first."""
