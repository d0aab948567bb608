"""Runs of regions as functions of torch tensors."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import iree.runtime as rt
import torch
from torch.autograd.graph import increment_version

from dispatch_profiler.boo.driver.launch import get_batch_launch, get_launchable, get_packed_launch
from dispatch_profiler.boo.environment import LOGGER
from dispatch_profiler.boo.fusion.execute.reference import compute
from dispatch_profiler.boo.fusion.execute.repeated_calls import RepeatedCall
from dispatch_profiler.boo.fusion.programs.updates import checked_positions
from dispatch_profiler.boo.fusion.programs.values import CacheUpdate
from dispatch_profiler.boo.fusion.spec import (
    ABSENT,
    OperandSource,
    RegionSignature,
    RegionSpec,
    Retention,
    RunSpec,
    strides,
)
from dispatch_profiler.boo.launching import Launchable
from dispatch_profiler.boo.launching.chain import Chain
from dispatch_profiler.boo.launching.chain_layout import ChainStep
from dispatch_profiler.boo.launching.packing import PackedLaunch
from dispatch_profiler.boo.launching.torch_threads import release_torch_threads
from dispatch_profiler.boo.launching.torch_types import TYPES, Tensor
from dispatch_profiler.boo.weights.derivations import (
    BatchNorm,
    Derivation,
    RunOperands,
    WeightChanges,
    check_given,
    derived,
)
from dispatch_profiler.errors import DispatchProfilerError

#: torch keeps compiled models until the process ends, and nanobind would report each object of IREE in them as a leak.
rt._binding.disable_leak_checker()
_BelowViews: Any = torch._C._AutoDispatchBelowADInplaceOrView
#: A kernel with so many FLOP is a chain even if it is alone, which keeps its temporary memory, and has torch's threads ended
#: before it. Others take less time than that.
_LONG_FLOPS = 10**8
#: The place of the weight among the operands of a kernel.
WEIGHT = 1


class RunCall:
    """A run of regions on tensors with torch's shapes. Results have the memory format of the spec.

    Inputs that the run updates are written to. Inputs that are read as `channels` are used in place if they are in channels_last memory, and copied otherwise. If a
    kernel cannot be used, the error is logged and torch computes the regions from then on; with `strict`, the error is
    raised. `launches` has the launch of each step, by default of the kernel that launches usually take.
    """

    def __init__(
        self,
        spec: RunSpec,
        *,
        strict: bool = False,
        launches: Sequence[PackedLaunch | Launchable] | None = None,
    ) -> None:
        self.spec = spec
        self.strict = strict
        #: Replaced as a whole, so that threads always see a consistent plan.
        self._operands_and_calls = self._plan(launches or [_launch(step) for step, _ in spec.steps])
        #: Shape and strides of each output.
        self._leave = [(shape, strides(shape, reading)) for shape, reading, _ in spec.results]
        self._is_broken = False

    def _plan(
        self, launches: Sequence[PackedLaunch | Launchable]
    ) -> tuple[RunOperands, Callable[..., Any], Chain | None]:
        """The operands that are read from the run's inputs, the function that launches all steps with them, and its chain.

        `launches` has the launch of each step.
        """
        spec = self.spec
        launchables = [each.launchable if isinstance(each, PackedLaunch) else each for each in launches]
        operands, taken = _taken(spec, launches)
        count = len(operands)
        # A chain numbers the operands first, and then what its steps compute.
        numbers = [
            [number + count if is_computed else number for number, is_computed in step] for step in taken
        ]
        outputs = [each - spec.inputs + count for each in spec.outputs]
        is_single = len(launchables) == 1 and outputs == [count] and len(launchables[0].spec.results) == 1
        is_long = launchables[0].spec.operation.flops >= _LONG_FLOPS
        if is_single and (not is_long or spec.steps[0][0].any_batch):
            return operands, _alone(launchables[0], numbers[0], releases_threads=is_long), None
        steps = [
            ChainStep(launchable, tuple(places))
            for launchable, places in zip(launchables, numbers, strict=True)
        ]
        chain = Chain(steps, count, outputs, _in_place(spec, numbers, count))
        return operands, partial(chain.call, operands.changing), chain

    def __call__(self, *inputs: Tensor) -> list[Tensor]:
        """The outputs. In strict mode, raises DispatchProfilerError if a kernel cannot be used.

        Weights that were frozen in the last call may be None. Raises WeightsNeeded if they cannot.
        """
        if self._is_broken or not all(inputs[at].is_contiguous() for at in self.spec.updated_inputs):
            return self._by_torch(inputs)
        try:
            operands, launch, _ = self._operands_and_calls
            # Otherwise, autograd would treat results as views made without grad, and forbid some in-place operations.
            with _BelowViews():
                results = launch(*operands(inputs))
                for at in self.spec.updated_inputs:
                    increment_version(inputs[at])
                return [each.as_strided(*leave) for leave, each in zip(self._leave, results, strict=True)]
        except WeightChanges:
            if any(step.any_batch for step, _ in self.spec.steps):  # their kernels only take packed weights
                self._is_broken = True
                return self._by_torch(inputs)
            self._operands_and_calls = self._plan([_unpacked(step) for step, _ in self.spec.steps])
            return self(*inputs)
        except DispatchProfilerError as error:
            if self.strict:
                raise
            self._is_broken = True
            names = ", ".join(step.operation.name for step, _ in self.spec.steps[:3])
            logging.getLogger(LOGGER).warning("%s: %s; torch computes it from now on", names, error)
            return self._by_torch(inputs)

    @property
    def kept_bytes(self) -> int:
        """The bytes of memory for values between kernels, on the CPU, which later calls use again."""
        _, _, chain = self._operands_and_calls
        return 0 if chain is None else chain.kept_bytes

    def release_memory(self) -> None:
        """Free this memory. A later call allocates it again."""
        _, _, chain = self._operands_and_calls
        if chain is not None:
            chain.release_memory()

    def repeated(self, inputs: Sequence[Tensor]) -> RepeatedCall | None:
        """What calls the run again as in the last call, which had `inputs`.

        None unless all weights are frozen, and kernels read the other inputs in place, in one chain on the CPU. Positions of
        updates are checked in each call.
        """
        if self.spec.in_place:
            return None
        operands, _, chain = self._operands_and_calls
        state = operands.frozen_state
        if chain is None or state is None or self._is_broken:
            return None
        read, token = operands(inputs)
        found = chain.repeatable(operands.changing, read, token)
        if found is None:
            return None
        run, numbers = found
        places = [operands.read_in_place(number, inputs) for number in numbers]
        known = [at for at in places if at is not None]
        return RepeatedCall.of(state, run, inputs, known, self._leave) if len(known) == len(places) else None

    def _by_torch(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        check_given(inputs)
        return compute(self.spec, inputs)


def _alone(
    launchable: Launchable, places: Sequence[int], *, releases_threads: bool
) -> Callable[..., tuple[Tensor]]:
    """The call of one launch without a chain. Chains keep memory for their results, for each number of rows."""

    def call(read: Sequence[Tensor], _: object) -> tuple[Tensor]:
        if releases_threads:
            release_torch_threads()
        return (launchable(*[read[number] for number in places]),)

    return call


def _taken(
    spec: RunSpec, launches: Sequence[PackedLaunch | Launchable]
) -> tuple[RunOperands, list[list[tuple[int, bool]]]]:
    """The operands of a run, each once, and what the kernel of each step takes.

    Taken tensors are given by number: of an operand of the run, or, with True, of what a step of the run has computed.
    """
    operands, first_numbers = RunOperands(), dict[Any, int]()
    steps: list[list[tuple[int, bool]]] = []
    for (region, values), launch in zip(spec.steps, launches, strict=True):
        taken = []
        for at, source in enumerate(region.sources):
            places = tuple(place if place == ABSENT else values[place] for place in source.inputs)
            if places[0] >= spec.inputs:
                taken.append((places[0] - spec.inputs, True))
                continue
            packing = launch if at == WEIGHT and isinstance(launch, PackedLaunch) else None
            recipe, count = (None, 1) if packing is None else (packing.recipe, packing.count)
            retention = region.retention(source)
            update = region.update if source.reading == "positions" else None
            limits = None if update is None else (update.axis, update.extent, update.wraps)
            key = source.reading, places, source.eps, retention, recipe, limits
            if key not in first_numbers:
                read = replace(source, inputs=places)
                first_numbers[key] = (
                    _add(operands, read, retention, packing)
                    if update is None
                    else _add_positions(operands, read, update)
                )
            first = first_numbers[key]
            taken += [(number, False) for number in range(first, first + count)]
        steps.append(taken)
    return operands, steps


def _in_place(spec: RunSpec, taken: Sequence[Sequence[int]], count: int) -> dict[int, int]:
    """Results that have the memory of an operand: the number in a chain -> the operand.

    `taken` numbers what each step takes, and `count` is the number of operands.
    """
    found, made = {}, count
    for (region, _), numbers in zip(spec.steps, taken, strict=True):
        if region.update is not None:
            found[made] = numbers[region.update.cache]
        made += len(region.results)
    return found


def _launch(region: RegionSpec) -> PackedLaunch | Launchable:
    """The launch of a region, with a packed weight if possible. Raises the errors of a kernel for any number of rows."""
    if region.any_batch:
        return get_batch_launch(RegionSignature(region.operation))
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
    return [
        torch.empty_strided(shape, strides(shape, reading), dtype=TYPES[type_], device=like.device)
        for shape, reading, type_ in spec.results
    ]


# -- run operands ----------------------------------------------------------------------------------

# How the operands of a run are made of its inputs: read where they are, or derived from weights and kept.


_BATCH_NORM = ("scale", "shift")


def _add(
    operands: RunOperands, source: OperandSource, retention: Retention, packing: PackedLaunch | None
) -> int:
    """Add an operand of a kernel; return the number of its first tensor.

    `source` has the places of the run's inputs. `packing` packs the weight that the operand is.
    """
    frozen, places = retention is Retention.FROZEN, tuple(at for at in source.inputs if at != ABSENT)
    flat = _FLAT.get(source.reading, flat_channels)
    if packing is not None:
        # With the steps of packing as the name, kernels of several batch sizes share one packed weight.
        packed_as = "packed", source.reading == "rows", packing.recipe
        packed = Derivation(
            packed_as, places, lambda weights: packing.pack(flat(weights[0])), frozen, is_costly=True
        )
        return operands.derive(packed, packing.count)
    if source.reading in _BATCH_NORM:
        norm = partial(_batch_norm, source)
        if retention is Retention.LIVE:
            return operands.add(lambda inputs: norm([inputs[at] for at in places]).vector, places)
        name = source.reading, source.eps, tuple(at == ABSENT for at in source.inputs)
        return operands.derive(
            Derivation(name, places, lambda vectors: norm(vectors).vector, frozen, norm=norm)
        )
    if frozen:
        return operands.derive(Derivation(source.reading, places, partial(_copy, flat), frozen=True))
    (at,) = places
    if source.reading == "filter":
        return operands.add(lambda inputs: _filter(inputs[at]), places)
    return operands.add(lambda inputs: flat(inputs[at]), places)


def _add_positions(operands: RunOperands, source: OperandSource, update: CacheUpdate) -> int:
    """Add the positions of an update; return their number."""
    (at,) = source.inputs
    return operands.add(lambda inputs: checked_positions(update, inputs[at]), [at])


def _copy(read: Callable[[Tensor], Tensor], weights: Sequence[Tensor]) -> Tensor:
    """What is read of a weight, in memory of its own."""
    made = read(weights[0])
    shares = made.untyped_storage().data_ptr() == weights[0].untyped_storage().data_ptr()
    return made.clone() if shares else made


def _filter(weight: Tensor) -> Tensor:
    """The weight of a convolution as kernels store it: where it is, or the copy that belongs to its snapshot."""
    view = _channels_last(weight)
    return view.reshape(-1) if view.is_contiguous() else derived("filter", flat_channels, weight)


def _batch_norm(source: OperandSource, present: Sequence[Tensor]) -> BatchNorm:
    """The batch norm of a scale (weight, variance) or of a shift (weight, variance, bias, mean)."""
    left = iter(present)
    return BatchNorm.of([None if at == ABSENT else next(left) for at in source.inputs], source.eps)


def _flat_rows(tensor: Tensor) -> Tensor:
    return tensor.reshape(-1)


def _flat_bytes(tensor: Tensor) -> Tensor:
    return tensor.reshape(-1).view(torch.int8)


def _channels_last(tensor: Tensor) -> Tensor:
    return tensor.permute(0, *range(2, tensor.dim()), 1)


def flat_channels(tensor: Tensor) -> Tensor:
    """(n, c, h, w) -> its elements in the order n, h, w, c: a view if the memory is channels_last."""
    return _channels_last(tensor).reshape(-1)


#: Readings -> an operand in the order of the kernel's memory.
_FLAT = {"rows": _flat_rows, "bytes": _flat_bytes}
