"""Operands of a run: those that derive from parameters are found again without a search while these stay as they are.

Equal layers of a model share a run, which is then called with the parameters of one layer after another.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from torch.utils._python_dispatch import _disable_current_modes

from dispatch_profiler.boo.launching.torch_types import Tensor
from dispatch_profiler.boo.ops.derived import SourceState, derive

#: The inputs of a run -> an operand of a kernel, flat.
Read = Callable[[Sequence[Tensor]], Tensor]


#: Sets of sources whose values are kept: the layers of a model that share a run.
_MOST = 64


class _Latest:
    """What derived from tensors that are as they were then: the latest value for each first one of them."""

    def __init__(self) -> None:
        self._values: dict[int, tuple[SourceState, Any]] = {}

    def find(self, sources: Sequence[Tensor]) -> tuple[SourceState, Any] | None:
        """The state of `sources` and what derived from them; None if nothing did, or if they have changed."""
        found = self._values.get(_key(sources))
        return found if found is not None and found[0].is_current(sources) else None

    def begin(self, sources: Sequence[Tensor]) -> SourceState | None:
        """Drop what derived from `sources`. Returns their state; None if nothing is to be kept."""
        key = _key(sources)
        self._values.pop(key, None)
        weak = weakref.ref(self)

        def drop(_: object) -> None:  # torch keeps compiled models longer than their parameters
            found = weak()
            if found is not None:
                found._values.pop(key, None)

        return SourceState.of(sources, drop)

    def keep(self, sources: Sequence[Tensor], state: SourceState, value: Any) -> None:
        """Let `find` return this."""
        for key in list(self._values)[: len(self._values) - _MOST + 1]:
            self._values.pop(key, None)
        self._values[_key(sources)] = state, value


def _key(sources: Sequence[Tensor]) -> int:
    return id(sources[0]) if sources else 0


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
        #: Lists of operands, None for those that are read in each call.
        self._latest = _Latest()

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
        found = self._latest.find(sources)
        if found is None:
            return self._read(inputs, sources)
        state, kept = found
        operands = kept.copy()
        for number in self._changing:
            operands[number] = self._reads[number](inputs)
        return operands, state

    def _read(self, inputs: Sequence[Tensor], sources: Sequence[Tensor]) -> tuple[list[Tensor], object]:
        # Before the operands: a write while they are read makes the state outdated.
        state = self._latest.begin(sources)
        operands = [read(inputs) for read in self._reads]
        if state is not None:
            kept: list[Any] = operands.copy()
            for number in self._changing:
                kept[number] = None
            self._latest.keep(sources, state, kept)
        return operands, state


class Derived:
    """What `derive(name, sources, lambda: make(*sources))` returns, faster for the sources of the last calls.

    As there, a source that was written to is noticed by its version, its address, and some of its words.
    """

    def __init__(self, name: Hashable, make: Callable[..., Tensor]) -> None:
        self._name = name
        self._make = make
        self._latest = _Latest()

    def __call__(self, sources: Sequence[Tensor]) -> Tensor:
        found = self._latest.find(sources)
        return self._search(sources) if found is None else found[1]

    def _search(self, sources: Sequence[Tensor]) -> Tensor:
        # Before `derive`: a write while it runs makes the state outdated.
        state = self._latest.begin(sources)
        if state is None:
            return derive(self._name, sources, lambda: self._make(*sources))
        # Modes that watch a model's first call would keep the value from being shared. These are plain tensors.
        with _disable_current_modes():
            value = derive(self._name, sources, lambda: self._make(*sources))
        self._latest.keep(sources, state, value)
        return value
