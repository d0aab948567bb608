"""The parts of programs that operators and the importer use: tensors, and calls of operators."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from dispatch_profiler.operations import Tensor, element_type

#: Types of the tensors of programs. All are computed in f32, and results are rounded once.
TYPES = ("f32", "bf16", "f16")
#: The type of positions along an axis, which only updates of caches read.
POSITIONS = "i32"
#: Types of results: whole numbers may be stored as i8.
RESULTS = (*TYPES, "i8")
#: The operator's name in `operators.OPERATORS`, the arguments, and the named arguments.
Call = tuple[str, list[Any], dict[str, Any]]


@dataclass(frozen=True)
class Value:
    """A tensor of torch: its shape, and how its memory is read (`rows` or `channels`, see `spec.READINGS`)."""

    shape: tuple[int, ...]
    type: str
    reading: str

    @property
    def stored(self) -> tuple[int, ...]:
        """The row-major shape of the tensor's memory."""
        return self.shape if self.reading == "rows" else (self.shape[0], *self.shape[2:], self.shape[1])

    def tensor(self, name: str) -> Tensor:
        """The tensor as an operand or a result of the kernel, called `name`."""
        return Tensor(name, self.stored, element_type(self.type))


@dataclass(frozen=True)
class CacheUpdate:
    """`cache[..., positions, ...] = rows` along `axis`.

    cache, positions: the numbers of these inputs of the program.
    shape: of the cache.
    count: of the positions.
    wraps: whether negative positions count from the end.
    """

    cache: int
    positions: int
    axis: int
    shape: tuple[int, ...]
    count: int
    wraps: bool

    @property
    def extent(self) -> int:
        """The number of rows along the axis of the cache."""
        return self.shape[self.axis]

    @property
    def outer(self) -> int:
        """How often the cache has each row."""
        return math.prod(self.shape[: self.axis])

    @property
    def row(self) -> int:
        """The elements of a row."""
        return math.prod(self.shape[self.axis + 1 :])


class Calls(Protocol):
    """Calls of operators of torch, from `inputs` to `outputs`. `OperatorProgram` implements it."""

    def __hash__(self) -> int:
        """Equal programs have equal hashes."""

    @property
    def name(self) -> str:
        """The program's name, for messages."""

    @property
    def inputs(self) -> tuple[Value, ...]:
        """The tensors that it reads."""

    @property
    def operands(self) -> Sequence[Tensor]:
        """The inputs as operands of the kernel."""

    @property
    def results(self) -> Sequence[Tensor]:
        """The outputs as results of the kernel."""

    @property
    def parsed_calls(self) -> Sequence[Call]:
        """The calls in order. `{"value": n}` in arguments is a value: first the inputs, then the results of calls."""

    @property
    def returned(self) -> tuple[int, ...]:
        """The numbers of the values that are outputs."""

    @property
    def outputs(self) -> tuple[Value, ...]:
        """The tensors that it returns."""
