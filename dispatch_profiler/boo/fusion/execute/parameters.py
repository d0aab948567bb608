"""Reads the operands of a run. Operands that derive from weights are kept while the weights do not change.

Equal layers of a model share a run, which is then called with the weights of one layer after another.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from dispatch_profiler.boo.fusion.execute.batch_norms import BatchNorm, scales_and_shifts
from dispatch_profiler.boo.launching.torch_types import Tensor
from dispatch_profiler.boo.weights.memory import MemoryComparison, place_of
from dispatch_profiler.boo.weights.snapshots import SNAPSHOTS, WeightSnapshot

#: The inputs of a run -> an operand of a kernel, with one axis.
Read = Callable[[Sequence[Tensor]], Tensor]
#: Number of kept states of weights: one for each layer of a model that shares the run.
_MOST = 64
_ADDRESS: Any = torch.Tensor.data_ptr
_STRIDE: Any = torch.Tensor.stride


class WeightChanges(Exception):
    """A weight changes so often that packing it takes longer than it saves."""


@dataclass(frozen=True, eq=False)
class Derivation:
    """Operands that derive from weights, the run's inputs at `places`: `make(weights)` returns one tensor or several.

    name: identifies the derivation, with all parameters of `make`.
    frozen: whether the weights are frozen.
    is_costly: whether computing the operands for a single call does not pay; WeightChanges is raised instead.
    norm: the batch norm whose scale or shift this is. All scales and shifts of a call are computed together.
    """

    name: Hashable
    places: tuple[int, ...]
    make: Callable[[Sequence[Tensor]], Any]
    frozen: bool = False
    is_costly: bool = False
    norm: Callable[[Sequence[Tensor]], BatchNorm] | None = None


class RunOperands:
    """The operands that a run reads from its inputs.

    Operands that derive from weights are computed again only if a weight was replaced or differs from its snapshot. One
    comparison checks all weights.
    """

    def __init__(self) -> None:
        self._reads: list[Read | None] = []
        #: The numbers of the operands that are read in each call.
        self._changing: list[int] = []
        #: Derivations, each with the number of its first operand; None for one tensor, otherwise the number of tensors.
        self._derivations: list[tuple[Derivation, int, int | None]] = []
        #: The places and kinds of the snapshots that the derivations need.
        self._weights: list[tuple[int, bool]] = []
        self._latest = _Latest()

    def __len__(self) -> int:
        return len(self._reads)

    def add(self, read: Read) -> int:
        """Add an operand that is read in each call, and return its number."""
        self._changing.append(len(self._reads))
        self._reads.append(read)
        return len(self._reads) - 1

    def derive(self, derivation: Derivation, count: int | None = None) -> int:
        """Add an operand, or `count` operands, and return the number of the first one."""
        first = len(self._reads)
        self._reads += [None] * (1 if count is None else count)
        self._derivations.append((derivation, first, count))
        needed = [(at, derivation.frozen) for at in derivation.places]
        self._weights = list(dict.fromkeys([*self._weights, *needed]))
        return first

    @property
    def changing(self) -> tuple[int, ...]:
        """The numbers of the operands that are read in each call."""
        return tuple(self._changing)

    def __call__(self, inputs: Sequence[Tensor]) -> tuple[list[Tensor], object]:
        """The operands for the inputs of a run, by number, and an object that stands for the state of the weights.

        As long as the object is the same, and not None, all operands that are not `changing` are the same tensors, with
        the same shapes and memory. Raises WeightChanges, and errors of reading operands.
        """
        weights = [inputs[at] for at, _ in self._weights]
        state = self._latest.find(weights)
        if state is None:
            operands, state = self._derived(inputs, weights)
        else:
            operands = state.operands.copy()
        for number in self._changing:
            operands[number] = self._reads[number](inputs)  # type: ignore[misc]
        return operands, None if state is None else state.token

    def _derived(
        self, inputs: Sequence[Tensor], weights: Sequence[Tensor]
    ) -> tuple[list[Any], WeightState | None]:
        """The operands that derive from weights, with None in place of other operands, and the state of the weights."""
        snapshots = {
            key: SNAPSHOTS.of(weight, frozen=key[1])
            for key, weight in zip(self._weights, weights, strict=True)
        }
        operands: list[Any] = [None] * len(self._reads)
        alone: list[tuple[Derivation, int, int | None]] = []
        for derivation, first, count in self._derivations:
            sources = [snapshots[at, derivation.frozen] for at in derivation.places]
            if any(each is None for each in sources):
                alone.append((derivation, first, count))
                continue
            _place(operands, first, count, _kept_value(derivation, sources, inputs))
        if alone:
            for (_, first, count), value in zip(alone, _values_of_a_call(alone, inputs), strict=True):
                _place(operands, first, count, value)
            return operands, None
        return operands, self._latest.keep(weights, list(snapshots.values()), operands)


def _place(operands: list[Any], first: int, count: int | None, value: Any) -> None:
    if count is None:
        operands[first] = value
    else:
        operands[first : first + count] = value


def _kept_value(derivation: Derivation, snapshots: Sequence[Any], inputs: Sequence[Tensor]) -> Any:
    """The value that derives from snapshots of the inputs at the derivation's places."""
    first, *others = snapshots
    sources = [
        inputs[at] if each.tensor is None else each.tensor
        for at, each in zip(derivation.places, snapshots, strict=True)
    ]
    name = derivation.name, *(inputs[at].data_ptr() for at in derivation.places[1:])
    return first.value(name, others, lambda: derivation.make(sources))


def _values_of_a_call(
    derivations: Sequence[tuple[Derivation, int, int | None]], inputs: Sequence[Tensor]
) -> list[Any]:
    """The values of derivations from weights without snapshots. Raises WeightChanges if one is costly."""
    if any(each.is_costly for each, _, _ in derivations):
        raise WeightChanges
    values: list[Any] = [None] * len(derivations)
    norms: dict[int, BatchNorm] = {}
    with torch.no_grad():
        for number, (each, _, _) in enumerate(derivations):
            sources = [inputs[at] for at in each.places]
            if each.norm is not None:
                norms[number] = each.norm(sources)
            else:
                values[number] = each.make(sources)
        for number, value in zip(norms, scales_and_shifts(list(norms.values())), strict=True):
            values[number] = value
    return values


class WeightState:
    """The weights of a call, and the operands that derive from them, with None in place of other operands."""

    def __init__(
        self,
        weights: Sequence[Tensor],
        snapshots: Sequence[WeightSnapshot],
        operands: list[Any],
        drop: Callable[[object], None],
    ) -> None:
        """`drop` is called when the memory of a weight is freed."""
        self.operands = operands
        #: Stands for the state in callers that must not keep the operands alive.
        self.token = object()
        self._addresses = list(map(_ADDRESS, weights))
        self._strides = list(map(_STRIDE, weights))
        places, copies = list[Any](), list[Tensor]()
        for weight, snapshot in zip(weights, snapshots, strict=True):
            if snapshot.tensor is not None:
                places.append(place_of(weight))
                copies.append(snapshot.tensor)
        self._comparison = MemoryComparison(places, copies)
        self._generation = SNAPSHOTS.generation if len(copies) < len(weights) else None
        self._references = [weakref.ref(each.untyped_storage(), drop) for each in weights]

    def is_current(self, weights: Sequence[Tensor]) -> bool:
        """Whether the weights have the same memory as before, and unless they are frozen, equal their snapshots."""
        return (
            list(map(_ADDRESS, weights)) == self._addresses
            and list(map(_STRIDE, weights)) == self._strides
            and (self._generation is None or self._generation is SNAPSHOTS.generation)
            and self._comparison.is_equal()
        )


class _Latest:
    """The latest state by the address of the first weight."""

    def __init__(self) -> None:
        self._states: dict[int, WeightState] = {}

    def find(self, weights: Sequence[Tensor]) -> WeightState | None:
        """The state of `weights`; None if they are unknown or have changed."""
        state = self._states.get(_key(weights))
        return state if state is not None and state.is_current(weights) else None

    def keep(self, weights: Sequence[Tensor], snapshots: Sequence[Any], operands: list[Any]) -> WeightState:
        """Keep the state of `weights` for `find`, and return it."""
        owner, key = weakref.ref(self), _key(weights)

        def drop(_: object) -> None:  # torch keeps compiled models longer than their weights
            latest = owner()
            if latest is not None:
                latest._states.pop(key, None)

        for old in list(self._states)[: len(self._states) - _MOST + 1]:
            self._states.pop(old, None)
        state = self._states[key] = WeightState(weights, snapshots, operands, drop)
        return state


def _key(weights: Sequence[Tensor]) -> int:
    return weights[0].data_ptr() if weights else 0
