"""What commands and signatures describe, in the words of MIOpen and torch, and the operation of each direction.

A problem has its forward's sizes in every direction. Directions are named like the modes of an operation.
"""

from __future__ import annotations

from typing import ClassVar, Protocol

from dispatch_profiler.operations import Operation

FORWARD, INPUT, WEIGHT, BIAS = "forward", "input_backward", "weight_backward", "bias_backward"


class Problem(Protocol):
    """A problem of one kind, of one element type."""

    #: The word that commands of the kind begin with.
    kind: ClassVar[str]

    @property
    def type(self) -> str:
        """Name of the element type."""

    @property
    def directions(self) -> tuple[str, ...]:
        """The forward and the gradients of all operands that are not computed with another."""

    def operation(self, direction: str) -> Operation:
        """The operation of one direction. Raises OperationError."""
