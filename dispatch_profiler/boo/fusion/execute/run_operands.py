"""How the operands of a run are made of its inputs: read where they are, or derived from weights and kept."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from dispatch_profiler.boo.fusion.execute.batch_norms import BatchNorm, scales_and_shifts
from dispatch_profiler.boo.fusion.execute.parameters import Derivation, RunOperands
from dispatch_profiler.boo.fusion.spec import ABSENT, Holding, OperandSource
from dispatch_profiler.boo.launching.packing import PackedLaunch
from dispatch_profiler.boo.launching.torch_types import Tensor
from dispatch_profiler.boo.weights.snapshots import SNAPSHOTS

_BATCH_NORM = ("scale", "shift")


@dataclass(frozen=True)
class RunOperand:
    """An operand of a kernel. `source` has the places of the run's inputs. `packing` packs the weight that it is."""

    source: OperandSource
    holding: Holding
    packing: PackedLaunch | None = None

    @property
    def key(self) -> Hashable:
        """Equal for operands that are the same tensors."""
        recipe = None if self.packing is None else self.packing.recipe
        return self.source.reading, self.source.inputs, self.source.eps, self.holding, recipe

    @property
    def count(self) -> int:
        """The number of tensors."""
        return 1 if self.packing is None else self.packing.count

    def add_to(self, operands: RunOperands) -> int:
        """Add the operand; the number of its first tensor."""
        source, frozen = self.source, self.holding is Holding.FROZEN
        places = tuple(at for at in source.inputs if at != ABSENT)
        if self.packing is not None:
            flat = _flat_rows if source.reading == "rows" else flat_channels
            # With the steps of packing as the name, kernels of several batch sizes share one packed weight.
            name = "packed", source.reading == "rows", self.packing.recipe
            make = partial(_pack, self.packing, flat)
            return operands.derive(Derivation(name, places, make, frozen, is_costly=True), self.count)
        if source.reading in _BATCH_NORM and self.holding is not Holding.LIVE:
            return operands.derive(_of_batch_norm(source, places, frozen))
        if frozen:
            read = _flat_rows if source.reading == "rows" else flat_channels
            return operands.derive(Derivation(source.reading, places, partial(_copy, read), frozen=True))
        return operands.add(_reader(source, places))


def _pack(packing: PackedLaunch, flat: Callable[[Tensor], Tensor], weights: Sequence[Tensor]) -> Any:
    return packing.pack(flat(weights[0]))


def _copy(read: Callable[[Tensor], Tensor], weights: Sequence[Tensor]) -> Tensor:
    """What is read of a weight, in memory of its own."""
    found = read(weights[0])
    shares = found.untyped_storage().data_ptr() == weights[0].untyped_storage().data_ptr()
    return found.clone() if shares else found


def _reader(source: OperandSource, places: tuple[int, ...]) -> Callable[[Sequence[Tensor]], Tensor]:
    at = places[0]
    if source.reading in _BATCH_NORM:
        norm = partial(_batch_norm, source)
        return lambda inputs: scales_and_shifts([norm([inputs[place] for place in places])])[0]
    if source.reading == "rows":
        return lambda inputs: _flat_rows(inputs[at])
    if source.reading == "filter":
        return lambda inputs: _filter(inputs[at])
    return lambda inputs: flat_channels(inputs[at])


def _filter(weight: Tensor) -> Tensor:
    """The weight of a convolution as kernels store it: where it is, or the copy that belongs to its snapshot."""
    view = _channels_last(weight)
    if view.is_contiguous():
        return view.reshape(-1)
    snapshot = SNAPSHOTS.of(weight)
    if snapshot is None:
        return view.reshape(-1)
    return snapshot.value("filter", (), lambda: flat_channels(snapshot.tensor))


def _of_batch_norm(source: OperandSource, places: tuple[int, ...], frozen: bool) -> Derivation:
    name = source.reading, source.eps, tuple(at == ABSENT for at in source.inputs)
    norm = partial(_batch_norm, source)

    def make(weights: Sequence[Tensor]) -> Tensor:
        return scales_and_shifts([norm(weights)])[0]

    return Derivation(name, places, make, frozen, norm=norm)


def _batch_norm(source: OperandSource, present: Sequence[Tensor]) -> BatchNorm:
    """The batch norm of a scale (weight, variance) or of a shift (weight, variance, bias, mean)."""
    left = list(present)
    given = [None if at == ABSENT else left.pop(0) for at in source.inputs]
    weight, variance, bias, mean = given if len(given) == 4 else (*given, None, None)
    assert variance is not None
    return BatchNorm(weight, variance, bias, mean, source.eps)


def _flat_rows(tensor: Tensor) -> Tensor:
    return tensor.reshape(-1)


def _channels_last(tensor: Tensor) -> Tensor:
    return tensor.permute(0, *range(2, tensor.dim()), 1)


def flat_channels(tensor: Tensor) -> Tensor:
    """(n, c, h, w) -> its elements in the order n, h, w, c: a view if the memory is channels_last."""
    return _channels_last(tensor).reshape(-1)
