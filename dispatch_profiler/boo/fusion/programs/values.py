"""What of a program its operators and the importer see: tensors, and calls of operators between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from dispatch_profiler.operations import Tensor, element_type

#: The operator's name in `operators.OPERATORS`, its arguments, its named arguments.
Call = tuple[str, list[Any], dict[str, Any]]


@dataclass(frozen=True)
class Value:
    """A tensor of torch: its shape, and how its memory is read (`rows` or `channels`, see `spec.READINGS`)."""

    shape: tuple[int, ...]
    type: str
    reading: str

    @property
    def stored(self) -> tuple[int, ...]:
        """The row-major shape of its memory."""
        return self.shape if self.reading == "rows" else (self.shape[0], *self.shape[2:], self.shape[1])

    def tensor(self, name: str) -> Tensor:
        """The same as an operand or a result of the kernel."""
        return Tensor(name, self.stored, element_type(self.type))


class Calls(Protocol):
    """Calls of operators of torch, from `inputs` to `outputs`: what `OperatorProgram` checks and names."""

    @property
    def name(self) -> str:
        """For messages."""

    @property
    def inputs(self) -> tuple[Value, ...]:
        """The operands of the kernel."""

    @property
    def parsed_calls(self) -> Sequence[Call]:
        """In their order. `{"value": n}` in arguments is an input or, counted from there, an earlier call's result."""

    @property
    def returned(self) -> tuple[int, ...]:
        """The numbers of the values that are outputs."""

    @property
    def outputs(self) -> tuple[Value, ...]:
        """The results of the kernel."""
