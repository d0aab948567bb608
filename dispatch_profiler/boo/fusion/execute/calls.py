"""Runs of regions as functions of torch tensors."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import iree.runtime as rt
import torch

from dispatch_profiler.boo.driver.launch import get_launchable, get_packed_launch
from dispatch_profiler.boo.environment import LOGGER
from dispatch_profiler.boo.fusion.execute.batch_norms import BatchNorm, scales_and_shifts
from dispatch_profiler.boo.fusion.execute.parameters import Derivation, RunOperands, WeightChanges
from dispatch_profiler.boo.fusion.execute.reference import compute
from dispatch_profiler.boo.fusion.spec import (
    ABSENT,
    Holding,
    OperandSource,
    RegionSignature,
    RegionSpec,
    RunSpec,
    strides,
)
from dispatch_profiler.boo.launching import Launchable
from dispatch_profiler.boo.launching.chain import Chain, ChainStep
from dispatch_profiler.boo.launching.packing import PackedLaunch
from dispatch_profiler.boo.launching.torch_types import Tensor
from dispatch_profiler.boo.weights.snapshots import SNAPSHOTS
from dispatch_profiler.errors import DispatchProfilerError

#: torch keeps compiled models until the process ends, and nanobind would report each object of IREE in them as a leak.
rt._binding.disable_leak_checker()
_BelowViews: Any = torch._C._AutoDispatchBelowADInplaceOrView
#: The place of the weight among the operands of a kernel.
WEIGHT = 1


class RunCall:
    """A run of regions on tensors with torch's shapes. Results have the memory format of the spec.

    Inputs that are read as `channels` are used in place if they are in channels_last memory, and copied otherwise. If a
    kernel cannot be used, the error is logged and torch computes the regions from then on; with `strict`, the error is
    raised.
    """

    def __init__(self, spec: RunSpec, *, strict: bool = False) -> None:
        self.spec = spec
        self.strict = strict
        #: Replaced as a whole, so that threads always see a consistent plan.
        self._operands_and_chain = self._plan([_launch(step) for step, _ in spec.steps])
        #: Shape and strides of each output.
        self._leave = [(shape, strides(shape, reading)) for shape, reading, _ in spec.results]
        self._is_broken = False

    def _plan(self, launches: Sequence[PackedLaunch | Launchable]) -> tuple[RunOperands, Callable[..., Any]]:
        """The operands that are read from the run's inputs, and the function that launches all steps with them.

        `launches` has the launch of each step.
        """
        spec = self.spec
        launchables = [each.launchable if isinstance(each, PackedLaunch) else each for each in launches]
        operands, taken = _taken(spec, launches)
        count = len(operands)
        # A chain numbers the operands first, and then what its steps compute.
        numbers = [
            [each.number + count if each.is_computed else each.number for each in step] for step in taken
        ]
        outputs = [each - spec.inputs + count for each in spec.outputs]
        if len(launchables) == 1 and outputs == [count] and len(launchables[0].spec.results) == 1:
            (launchable,), (places,) = launchables, numbers
            return operands, lambda read, _: (launchable(*[read[number] for number in places]),)
        steps = [
            ChainStep(launchable, tuple(places))
            for launchable, places in zip(launchables, numbers, strict=True)
        ]
        return operands, partial(Chain(steps, count, outputs).call, operands.changing)

    def __call__(self, *inputs: Tensor) -> list[Tensor]:
        """The outputs. In strict mode, raises DispatchProfilerError if a kernel cannot be used."""
        if self._is_broken:
            return compute(self.spec, inputs)
        try:
            operands, chain = self._operands_and_chain
            # Otherwise, autograd would treat results as views made without grad, and forbid some in-place operations.
            with _BelowViews():
                results = chain(*operands(inputs))
                return [each.as_strided(*leave) for leave, each in zip(self._leave, results, strict=True)]
        except WeightChanges:
            self._operands_and_chain = self._plan([_unpacked(step) for step, _ in self.spec.steps])
            return self(*inputs)
        except DispatchProfilerError as error:
            if self.strict:
                raise
            self._is_broken = True
            names = ", ".join(step.operation.name for step, _ in self.spec.steps[:3])
            logging.getLogger(LOGGER).warning("%s: %s; torch computes it from now on", names, error)
            return compute(self.spec, inputs)


class _Taken(NamedTuple):
    """A tensor that a kernel takes: by number, an operand of the run, or what a step of the run has computed."""

    number: int
    is_computed: bool


def _taken(
    spec: RunSpec, launches: Sequence[PackedLaunch | Launchable]
) -> tuple[RunOperands, list[list[_Taken]]]:
    """The operands of a run, each once, and what the kernel of each step takes."""
    operands, first_numbers = RunOperands(), dict[Any, int]()
    steps: list[list[_Taken]] = []
    for (region, values), launch in zip(spec.steps, launches, strict=True):
        taken = []
        for at, source in enumerate(region.sources):
            places = tuple(place if place == ABSENT else values[place] for place in source.inputs)
            if places[0] >= spec.inputs:
                taken.append(_Taken(places[0] - spec.inputs, is_computed=True))
                continue
            packing = launch if at == WEIGHT and isinstance(launch, PackedLaunch) else None
            read = OperandSource(source.reading, places, source.eps)
            operand = RunOperand(read, region.holding(source), packing)
            if operand.key not in first_numbers:
                first_numbers[operand.key] = operand.add_to(operands)
            first = first_numbers[operand.key]
            taken += [_Taken(number, is_computed=False) for number in range(first, first + operand.count)]
        steps.append(taken)
    return operands, steps


def _launch(region: RegionSpec) -> PackedLaunch | Launchable:
    """The launch of a region, with a packed weight if possible."""
    if not region.packs_weight:
        return _unpacked(region)
    try:
        return get_packed_launch(RegionSignature(region.operation))
    except DispatchProfilerError:
        return _unpacked(region)  # its first call raises the error


def _unpacked(region: RegionSpec) -> Launchable:
    return get_launchable(RegionSignature(region.operation))


def empty_results(spec: RunSpec, like: Tensor) -> list[Tensor]:
    """Uninitialized tensors like the results of a run, on the device of `like`."""
    from dispatch_profiler.boo.launching.torch_types import TYPES

    return [
        torch.empty_strided(shape, strides(shape, reading), dtype=TYPES[type_], device=like.device)
        for shape, reading, type_ in spec.results
    ]


# -- run operands ----------------------------------------------------------------------------------

# How the operands of a run are made of its inputs: read where they are, or derived from weights and kept.


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
