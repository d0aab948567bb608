"""Values that derive from weights: kept with the snapshots of the weights, or computed for one call.

`derived` is for a value of one weight. `RunOperands` reads the operands of a run of regions, and compares all weights of
the run at once. Equal layers of a model share a run, which is then called with the weights of one layer after another.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from dispatch_profiler.boo.launching.torch_types import Tensor
from dispatch_profiler.boo.weights.memory import MemoryComparison, place_of
from dispatch_profiler.boo.weights.snapshots import SNAPSHOTS, WeightSnapshot

#: The inputs of a run -> an operand of a kernel, with one axis.
Read = Callable[[Sequence[Tensor]], Tensor]
#: Number of kept states of weights: one for each layer of a model that shares the run.
_MOST = 64
_ADDRESS: Any = torch.Tensor.data_ptr
_STRIDE: Any = torch.Tensor.stride
#: Vectors that are computed together start at multiples of this many elements, since kernels read aligned memory.
_ALIGNED_ELEMENTS = 64
#: Devices on which many small operators take no longer than a few large ones.
ONE_BY_ONE = frozenset(("cpu",))


def derived(name: Hashable, make: Callable[[Tensor], Any], weight: Tensor, *, frozen: bool = False) -> Any:
    """`make(weight)`: kept with the snapshot of the weight, or computed for this call if the weight has no snapshot."""
    snapshot = SNAPSHOTS.of(weight, frozen=frozen)
    if snapshot is None:
        return make(weight)
    return snapshot.value(name, (), lambda: make(snapshot.elements(weight)))


class WeightChanges(Exception):
    """A weight changes so often that packing it takes longer than it saves."""


class WeightsNeeded(Exception):
    """A call without weights needs them: they were not frozen yet, were thawed, or are read in each call."""


def check_given(inputs: Sequence[Any]) -> None:
    """Raises WeightsNeeded if one of `inputs` is None, in place of a frozen weight."""
    if any(each is None for each in inputs):
        raise WeightsNeeded


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
        self._count = 0
        #: The numbers of the operands that are read in each call, and the inputs that these are read from.
        self._reads: dict[int, Read] = {}
        self._sources: dict[int, tuple[int, ...]] = {}
        #: Derivations, each with the number of its operand, or the numbers of its operands if it has several.
        self._derivations: list[tuple[Derivation, int | slice]] = []
        #: The places and kinds of the snapshots that the derivations need.
        self._weights: list[tuple[int, bool]] = []
        self._states = _WeightStates()

    def __len__(self) -> int:
        return self._count

    def add(self, read: Read, places: Iterable[int]) -> int:
        """Add an operand that is read in each call from the inputs at `places`, and return its number."""
        self._reads[self._count] = read
        self._sources[self._count] = tuple(places)
        self._count += 1
        return self._count - 1

    def derive(self, derivation: Derivation, count: int | None = None) -> int:
        """Add an operand, or `count` operands, and return the number of the first one."""
        first = self._count
        self._count += 1 if count is None else count
        self._derivations.append((derivation, first if count is None else slice(first, self._count)))
        needed = [(at, derivation.frozen) for at in derivation.places]
        self._weights = list(dict.fromkeys([*self._weights, *needed]))
        return first

    @property
    def changing(self) -> tuple[int, ...]:
        """The numbers of the operands that are read in each call."""
        return tuple(self._reads)

    @property
    def frozen_state(self) -> WeightState | None:
        """The state that was kept last, if all its weights are frozen."""
        state = self._states.latest
        return state if state is not None and state.is_frozen() else None

    def read_in_place(self, number: int, inputs: Sequence[Tensor]) -> int | None:
        """The place of the input that is operand `number` where it is in memory, from its first element on.

        `number` is one of `changing`. None for operands that are copied, or read from several inputs.
        """
        at, *others = self._sources[number]
        if others:
            return None
        like = [
            torch.empty_strided(each.shape, each.stride(), device="meta") if place == at else each
            for place, each in enumerate(inputs)
        ]
        made = self._reads[number](like)
        shares = made.untyped_storage()._cdata == like[at].untyped_storage()._cdata
        return at if shares and made.storage_offset() == 0 else None

    def __call__(self, inputs: Sequence[Tensor]) -> tuple[Sequence[Tensor], object]:
        """The operands for the inputs of a run, by number, and an object that stands for the state of the weights.

        As long as the object is the same, and not None, all operands that are not `changing` are the same tensors, with
        the same shapes and memory. Weights that were frozen in the last call may be None. Raises WeightChanges,
        WeightsNeeded, and errors of reading operands.
        """
        is_without = bool(self._weights) and inputs[self._weights[0][0]] is None
        state = self._states.latest if is_without else self._found(inputs)
        if is_without:
            check_given([inputs[at] for places in self._sources.values() for at in places])
            if state is None or not state.is_frozen():
                raise WeightsNeeded
        if state is None:
            derived, state = self._derived(inputs, [inputs[at] for at, _ in self._weights])
        else:
            derived = state.operands
        read = {number: read(inputs) for number, read in self._reads.items()}
        return _Operands(derived, read), None if state is None else state.token

    def _found(self, inputs: Sequence[Tensor]) -> WeightState | None:
        return self._states.find([inputs[at] for at, _ in self._weights])

    def _derived(
        self, inputs: Sequence[Tensor], weights: Sequence[Tensor]
    ) -> tuple[list[Any], WeightState | None]:
        """The operands that derive from weights, with None in place of other operands, and the state of the weights."""
        snapshots = {
            key: SNAPSHOTS.of(weight, frozen=key[1])
            for key, weight in zip(self._weights, weights, strict=True)
        }
        operands: list[Any] = [None] * self._count
        alone: list[tuple[Derivation, int | slice]] = []
        for derivation, numbers in self._derivations:
            wanted = [snapshots[at, derivation.frozen] for at in derivation.places]
            known = [each for each in wanted if each is not None]
            if len(known) < len(wanted):
                alone.append((derivation, numbers))
                continue
            operands[numbers] = _kept_value(derivation, known, inputs)
        if not alone:
            return operands, self._states.keep(weights, list(snapshots.values()), operands)
        values = _values_of_a_call([derivation for derivation, _ in alone], inputs)
        for (_, numbers), value in zip(alone, values, strict=True):
            operands[numbers] = value
        return operands, None


class _Operands(Sequence[Any]):
    """Derived operands, with others in some places. Nothing is copied: even counting references to 300 tensors takes time."""

    def __init__(self, derived: Sequence[Any], read: Mapping[int, Tensor]) -> None:
        self._derived, self._read = derived, read

    def __len__(self) -> int:
        return len(self._derived)

    def __getitem__(self, at: Any) -> Any:
        return self._read[at] if at in self._read else self._derived[at]


def _kept_value(derivation: Derivation, snapshots: Sequence[WeightSnapshot], inputs: Sequence[Tensor]) -> Any:
    """The value that derives from snapshots of the inputs at the derivation's places."""
    weights = [inputs[at] for at in derivation.places]
    name = derivation.name, *(each.data_ptr() for each in weights[1:])
    sources = [snapshot.elements(weight) for snapshot, weight in zip(snapshots, weights, strict=True)]
    return snapshots[0].value(name, snapshots[1:], lambda: derivation.make(sources))


def _values_of_a_call(derivations: Sequence[Derivation], inputs: Sequence[Tensor]) -> list[Any]:
    """The values of derivations from weights without snapshots. Raises WeightChanges if one is costly."""
    if any(each.is_costly for each in derivations):
        raise WeightChanges
    sources = [[inputs[at] for at in each.places] for each in derivations]
    pairs = list(zip(derivations, sources, strict=True))
    with torch.no_grad():
        vectors = iter(
            scales_and_shifts([each.norm(taken) for each, taken in pairs if each.norm is not None])
        )
        return [next(vectors) if each.norm is not None else each.make(taken) for each, taken in pairs]


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
        self._are_frozen = not copies
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

    def is_frozen(self) -> bool:
        """Whether all weights are frozen, and none was thawed or freed since then."""
        return self._are_frozen and self._generation is SNAPSHOTS.generation


class _WeightStates:
    """The latest state by the address of the first weight."""

    def __init__(self) -> None:
        self._states: dict[int, WeightState] = {}

    @property
    def latest(self) -> WeightState | None:
        """The state that was kept last; None without states."""
        return next(reversed(self._states.values()), None)

    def find(self, weights: Sequence[Tensor]) -> WeightState | None:
        """The state of `weights`; None if the weights are unknown or have changed."""
        state = self._states.get(_key(weights))
        return state if state is not None and state.is_current(weights) else None

    def keep(self, weights: Sequence[Tensor], snapshots: Sequence[Any], operands: list[Any]) -> WeightState:
        """Keep the state of `weights` for `find`, and return it."""
        owner, key = weakref.ref(self), _key(weights)

        def drop(_: object) -> None:  # torch keeps compiled models longer than their weights
            states = owner()
            if states is not None:
                states._states.pop(key, None)

        for old in list(self._states)[: len(self._states) - _MOST + 1]:
            self._states.pop(old, None)
        self._states.pop(key, None)  # `latest` goes by the order
        state = self._states[key] = WeightState(weights, snapshots, operands, drop)
        return state


def _key(weights: Sequence[Tensor]) -> int:
    return weights[0].data_ptr() if weights else 0


# -- batch norms -----------------------------------------------------------------------------------

# Scale and shift of batch norms in inference: batch_norm(x) = x * scale + shift, per channel.


class BatchNorm(NamedTuple):
    """The vectors of a batch norm, with one element per channel. A missing `weight` is 1, a missing `bias` is 0."""

    weight: Tensor | None
    variance: Tensor
    bias: Tensor | None
    mean: Tensor | None
    eps: float

    @classmethod
    def of(cls, vectors: Sequence[Tensor | None], eps: float) -> BatchNorm:
        """The batch norm of a scale, from (weight, variance), or of a shift, from (weight, variance, bias, mean)."""
        weight, variance, bias, mean = (*vectors, None, None)[:4]
        assert variance is not None
        return cls(weight, variance, bias, mean, eps)

    @property
    def vector(self) -> Tensor:
        """The scale, weight / sqrt(variance + eps), or with a mean the shift, bias - mean * scale; rounded once."""
        vector = torch.rsqrt(self.variance.double() + self.eps)
        if self.weight is not None:
            vector = vector * self.weight.double()
        if self.mean is not None:
            vector = -self.mean.double() * vector
            vector = vector if self.bias is None else vector + self.bias.double()
        return vector.to(self.variance.dtype)


def scales_and_shifts(norms: Sequence[BatchNorm], one_by_one: Collection[str] = ONE_BY_ONE) -> list[Tensor]:
    """The shift of each batch norm, or its scale if it has no mean.

    Except on the devices `one_by_one`, a few kernels compute all vectors of a model, instead of several for each vector.
    """
    vectors: list[Tensor | None] = [None] * len(norms)
    alike: dict[object, list[int]] = {}
    for number, norm in enumerate(norms):
        key = norm.variance.device, norm.variance.dtype, norm.eps, norm.mean is None
        alike.setdefault(key, []).append(number)
    for numbers in alike.values():
        alike_vectors = _vectors([norms[each] for each in numbers], one_by_one)
        for number, vector in zip(numbers, alike_vectors, strict=True):
            vectors[number] = vector
    return [each for each in vectors if each is not None]


def _vectors(norms: Sequence[BatchNorm], one_by_one: Collection[str]) -> list[Tensor]:
    """As `scales_and_shifts`, of batch norms that have the same device, type and epsilon, all with a mean or all without."""
    if len(norms) == 1 or norms[0].variance.device.type in one_by_one:
        return [each.vector for each in norms]
    sizes = [each.variance.numel() for each in norms]
    padded = [-(-size // _ALIGNED_ELEMENTS) * _ALIGNED_ELEMENTS for size in sizes]
    ones, zeros = (norms[0].variance.new_full((max(padded),), number) for number in (1, 0))

    def joined(vectors: Sequence[Tensor | None], absent: Tensor) -> Tensor:
        parts = list[Tensor]()
        for vector, size, whole in zip(vectors, sizes, padded, strict=True):
            parts += [absent[:size] if vector is None else vector.reshape(-1), ones[: whole - size]]
        return torch.cat(parts)

    vectors = [joined([each.weight for each in norms], ones), joined([each.variance for each in norms], ones)]
    if norms[0].mean is not None:
        vectors += [
            joined([each.bias for each in norms], zeros),
            joined([each.mean for each in norms], zeros),
        ]
    together = BatchNorm.of(vectors, norms[0].eps).vector
    return [part[:size] for part, size in zip(together.split(padded), sizes, strict=True)]
