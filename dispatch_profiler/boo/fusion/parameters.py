"""Operands of a run: those that derive from parameters are found again without a search while these stay as they are."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from torch.utils._python_dispatch import _disable_current_modes

from dispatch_profiler.boo.launching.torch_types import Tensor
from dispatch_profiler.boo.ops.derived import SourceState, derive

#: The inputs of a run -> an operand of a kernel, flat.
Read = Callable[[Sequence[Tensor]], Tensor]


class Operands:
    """The operands that a run reads from its inputs.

    Those that derive from parameters alone are read again only if one of these was replaced or written to, which one check
    of all of them notices as `dispatch_profiler.boo.ops.derived` does. Nothing is kept for inference tensors.
    """

    def __init__(self) -> None:
        self._reads: list[Read] = []
        #: The numbers of the operands that are read in each call.
        self._changing: list[int] = []
        #: The inputs that are parameters, from which the others derive.
        self._parameters: list[int] = []
        #: Replaced as a whole, so that threads see one state or another.
        self._last: tuple[SourceState, list[Any]] | None = None

    def __len__(self) -> int:
        return len(self._reads)

    def add(self, read: Read, parameters: Sequence[int] = ()) -> int:
        """Add an operand and return its number. `parameters` are the inputs that it derives from, if it is kept."""
        number = len(self._reads)
        self._reads.append(read)
        if parameters:
            self._parameters = sorted({*self._parameters, *parameters})
        else:
            self._changing.append(number)
        return number

    @property
    def changing(self) -> tuple[int, ...]:
        """The numbers of the operands that are read in each call."""
        return tuple(self._changing)

    def __call__(self, inputs: Sequence[Tensor]) -> tuple[list[Tensor], object]:
        """The operands for the inputs of a run, by their numbers, and what stands for the state of the parameters.

        While that is the same object, and not None, the operands that are not `changing` are the same tensors, with the
        same shape and memory. Raises what reading them raises.
        """
        sources = [inputs[at] for at in self._parameters]
        last = self._last
        if last is None or not last[0].is_current(sources):
            return self._read(inputs, sources)
        operands = last[1].copy()
        for number in self._changing:
            operands[number] = self._reads[number](inputs)
        return operands, last[0]

    def _read(self, inputs: Sequence[Tensor], sources: Sequence[Tensor]) -> tuple[list[Tensor], object]:
        self._last = None
        # Before the operands: a write while they are read makes the state outdated.
        state = SourceState.of(sources, _dropping(self))
        operands = [read(inputs) for read in self._reads]
        if state is not None:
            kept: list[Any] = operands.copy()
            for number in self._changing:
                kept[number] = None
            self._last = state, kept
        return operands, state


class Derived:
    """What `derive(name, sources, lambda: make(*sources))` returns, faster for the sources of the last call.

    As there, a source that was written to is noticed by its version, its address, and some of its words.
    """

    def __init__(self, name: Hashable, make: Callable[..., Tensor]) -> None:
        self._name = name
        self._make = make
        #: Replaced as a whole, so that threads see one state or another.
        self._last: tuple[SourceState, Tensor] | None = None

    def __call__(self, sources: Sequence[Tensor]) -> Tensor:
        last = self._last
        if last is not None and last[0].is_current(sources):
            return last[1]
        return self._search(sources)

    def _search(self, sources: Sequence[Tensor]) -> Tensor:
        self._last = None
        # Before `derive`: a write while it runs makes the state outdated.
        state = SourceState.of(sources, _dropping(self))
        if state is None:
            return derive(self._name, sources, lambda: self._make(*sources))
        # Modes that watch a model's first call would keep the value from being shared. These are plain tensors.
        with _disable_current_modes():
            value = derive(self._name, sources, lambda: self._make(*sources))
        self._last = state, value
        return value


def _dropping(owner: Derived | Operands) -> Callable[[object], None]:
    """What frees what `owner` keeps: torch keeps compiled models longer than their parameters."""
    weak = weakref.ref(owner)

    def drop(_: object) -> None:
        found = weak()
        if found is not None:
            found._last = None

    return drop
