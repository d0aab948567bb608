"""Runs of regions as functions of torch tensors."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import iree.runtime as rt
import torch

from dispatch_profiler.boo.driver.launch import get_launchable, get_packed_launch
from dispatch_profiler.boo.environment import LOGGER
from dispatch_profiler.boo.fusion.execute.parameters import RunOperands, WeightChanges
from dispatch_profiler.boo.fusion.execute.reference import compute
from dispatch_profiler.boo.fusion.execute.run_operands import RunOperand
from dispatch_profiler.boo.fusion.spec import (
    ABSENT,
    OperandSource,
    RegionSignature,
    RegionSpec,
    RunSpec,
    strides,
)
from dispatch_profiler.boo.launching import Launchable
from dispatch_profiler.boo.launching.chains.chain import Chain
from dispatch_profiler.boo.launching.chains.chain_layout import ChainStep
from dispatch_profiler.boo.launching.packing import PackedLaunch
from dispatch_profiler.boo.launching.torch_types import Tensor
from dispatch_profiler.errors import DispatchProfilerError

#: torch keeps compiled models until a process ends, which nanobind would report, line by line, as leaks of IREE.
rt._binding.disable_leak_checker()
_BelowViews: Any = torch._C._AutoDispatchBelowADInplaceOrView
#: The place of the weight among the operands of a kernel.
WEIGHT = 1


class RunCall:
    """A run of regions on tensors in torch's shapes. Results have the memory that the spec says.

    Inputs that are read as `channels` are used in place if they are in channels_last memory, and copied otherwise. If
    a kernel cannot be used, torch computes the regions from then on, which is logged; with `strict`, the error is raised.
    """

    def __init__(self, spec: RunSpec, *, strict: bool = False) -> None:
        self.spec = spec
        self.strict = strict
        #: Replaced as a whole, so that threads see one plan or another.
        self._operands_and_chain = self._plan([_launch(step) for step, _ in spec.steps])
        #: Shape and strides of each output.
        self._leave = [(shape, strides(shape, reading)) for shape, reading, _ in spec.results]
        self._is_broken = False

    def _plan(self, launches: Sequence[PackedLaunch | Launchable]) -> tuple[RunOperands, Callable[..., Any]]:
        """The operands that are read from the run's inputs, and what takes what they return.

        `launches` has the launch of each step.
        """
        spec, found = self.spec, dict[Any, int]()
        launchables = [each.launchable if isinstance(each, PackedLaunch) else each for each in launches]
        operands = RunOperands()
        steps: list[list[tuple[bool, int]]] = []
        for (region, values), launch in zip(spec.steps, launches, strict=True):
            taken = []
            for at, source in enumerate(region.sources):
                places = tuple(at if at == ABSENT else values[at] for at in source.inputs)
                if places[0] >= spec.inputs:
                    taken.append((True, places[0] - spec.inputs))
                    continue
                packing = launch if at == WEIGHT and isinstance(launch, PackedLaunch) else None
                operand = RunOperand(
                    OperandSource(source.reading, places, source.eps), region.holding(source), packing
                )
                if operand.key not in found:
                    found[operand.key] = operand.add_to(operands)
                taken += [(False, found[operand.key] + part) for part in range(operand.count)]
            steps.append(taken)
        count = len(operands)
        outputs = [each - spec.inputs + count for each in spec.outputs]
        if len(steps) == 1 and outputs == [count]:
            launchable = launchables[0]
            numbers = [number for _, number in steps[0]]
            if len(launchable.spec.results) == 1:
                return operands, lambda read, _: (launchable(*[read[number] for number in numbers]),)
        chain = Chain(
            [
                ChainStep(
                    launchable, tuple(number + count if is_value else number for is_value, number in taken)
                )
                for launchable, taken in zip(launchables, steps, strict=True)
            ],
            count,
            outputs,
        )
        return operands, partial(chain.call, operands.changing)

    def __call__(self, *inputs: Tensor) -> list[Tensor]:
        """The outputs. In strict mode, raises DispatchProfilerError if a kernel cannot be used."""
        if self._is_broken:
            return compute(self.spec, inputs)
        try:
            operands, chain = self._operands_and_chain
            # Autograd would take the results for views that are made without grad, and forbid some operations in place.
            with _BelowViews():
                found = chain(*operands(inputs))
                return [each.as_strided(*leave) for leave, each in zip(self._leave, found, strict=True)]
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


def _launch(region: RegionSpec) -> PackedLaunch | Launchable:
    """The launch of a region, with a packed weight if it can be."""
    if not region.packs_weight:
        return _unpacked(region)
    try:
        return get_packed_launch(RegionSignature(region.operation))
    except DispatchProfilerError:
        return _unpacked(region)  # its first call raises why there is no kernel


def _unpacked(region: RegionSpec) -> Launchable:
    return get_launchable(RegionSignature(region.operation))


def empty_results(spec: RunSpec, like: Tensor) -> list[Tensor]:
    """Uninitialized tensors as the run returns them, on the device of `like`."""
    from dispatch_profiler.boo.launching.torch_types import TYPES

    return [
        torch.empty_strided(shape, strides(shape, reading), dtype=TYPES[type_], device=like.device)
        for shape, reading, type_ in spec.results
    ]
