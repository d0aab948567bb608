"""A dispatch: one operation done with one configuration."""

from __future__ import annotations

from dataclasses import dataclass

from dispatch_profiler.configurations import Configuration
from dispatch_profiler.operations import Operation


@dataclass(frozen=True)
class Dispatch:
    """Its name is the MLIR function, the runtime entry point and what `--dispatches` matches."""

    operation: Operation
    configuration: Configuration

    @property
    def name(self) -> str:
        return f"{self.operation.name}_{self.configuration.name}"

    @property
    def effective_operation(self) -> Operation:
        """What its kernel computes: the operation, with the sums that the configuration holds them in."""
        return self.configuration.effective_operation(self.operation)

    def arguments(self) -> dict[str, str]:
        """The operation's command-line arguments, with the split where the kind has one."""
        arguments = self.operation.arguments()
        if self.operation.product is not None:
            slices = self.configuration.split_k
            arguments["split_k_mode"] = "parallel" if slices > 1 else "N/A"
            arguments["split_k_slices"] = str(slices) if slices > 1 else "N/A"
        return arguments
