"""A dispatch: one operation with one configuration."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from dispatch_profiler.configurations import Configuration
from dispatch_profiler.operations import ElementType, ErrorBound, Operation
from dispatch_profiler.targets import Target


@dataclass(frozen=True)
class Dispatch:
    """One operation with one configuration.

    Its name is the MLIR function, the runtime entry point and the text that `--dispatches` matches.
    """

    operation: Operation
    configuration: Configuration

    # Cached: generating, compiling and reporting read the name several times.
    @cached_property
    def name(self) -> str:
        return f"{self.operation.name}_{self.configuration.name}"

    @property
    def packing_function(self) -> str:
        """The function that packs the weight, for programs that pack it in a separate call."""
        return f"{self.name}$pack"

    @property
    def effective_operation(self) -> Operation:
        """The operation that its kernel computes: `operation` with the accumulator of the configuration."""
        return self.configuration.effective_operation(self.operation)

    @property
    def error_bound(self) -> ErrorBound | None:
        """The error bound of the configuration; None if the operation's own bound applies."""
        return self.configuration.error_bound(self.operation)

    def error_bound_on(self, target: Target) -> ErrorBound | None:
        """`error_bound`, or else the bound of the compiler's own code on `target`; None if the operation's bound applies."""
        return self.error_bound or target.error_bound(self.operation)

    @property
    def flops(self) -> int:
        """FLOP that its kernel computes at least; speeds are stated for the operation's FLOP."""
        return self.configuration.flops(self.operation)

    @property
    def multiplied(self) -> ElementType:
        """Type of the factors in its kernel: `flops` are of this type."""
        return self.configuration.multiplied(self.operation)

    def arguments(self) -> dict[str, str]:
        """The operation's command-line arguments, with split-K where the kind supports it."""
        arguments = self.operation.arguments()
        if self.operation.product is not None:
            slices = self.configuration.split_k
            arguments["split_k_mode"] = "parallel" if slices > 1 else "N/A"
            arguments["split_k_slices"] = str(slices) if slices > 1 else "N/A"
        return arguments
