"""The values that a chain's launches read and write, and which of them share memory."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, pairwise

from dispatch_profiler.boo.interface import TensorSpec
from dispatch_profiler.boo.launching.array_library import argument_order
from dispatch_profiler.boo.launching.launchable import Launchable
from dispatch_profiler.errors import UsageError


@dataclass(frozen=True)
class ChainStep:
    """A launch of a chain. `arguments` number the values: first the chain's inputs, then the results of each step."""

    launchable: Launchable
    arguments: tuple[int, ...]


@dataclass(frozen=True)
class ChainLayout:
    """The steps of a chain, the number of its inputs, and the results of steps that a call returns.

    `in_place` has results that have the memory of an input: their kernels write to the input. Raises UsageError if a step takes a value that does not precede it, or a value of another shape or type.
    """

    steps: tuple[ChainStep, ...]
    inputs: int
    outputs: tuple[int, ...]
    in_place: Mapping[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        bad = [each for each in self.outputs if not self.inputs <= each < len(self.values)]
        if bad or len(set(self.outputs)) != len(self.outputs):
            raise UsageError(
                f"outputs of a chain must be different results of its steps, but got {self.outputs}"
            )

    @cached_property
    def values(self) -> list[TensorSpec | None]:
        """The tensor of each value; None for an input that no step takes."""
        values: list[TensorSpec | None] = [None] * self.inputs
        for step in self.steps:
            spec = step.launchable.spec
            if len(step.arguments) != len(spec.arguments):
                raise UsageError(
                    f"{spec.operation.name} takes {len(spec.arguments)} arguments, but got {len(step.arguments)}"
                )
            for number, argument in zip(step.arguments, spec.arguments, strict=True):
                if not 0 <= number < len(values):
                    raise UsageError(f"{spec.operation.name} takes value {number} of {len(values)}")
                known = values[number]
                if known is None:
                    values[number] = argument
                elif (known.shape, known.type) != (argument.shape, argument.type):
                    raise UsageError(
                        f"{argument.name} of {spec.operation.name} is {argument.type.name} {argument.shape}, but value "
                        f"{number} is {known.type.name} {known.shape}"
                    )
            values += spec.results
        return values

    @cached_property
    def results(self) -> list[range]:
        """The numbers of each step's results."""
        counts = (len(step.launchable.spec.results) for step in self.steps)
        return [range(start, end) for start, end in pairwise(accumulate(counts, initial=self.inputs))]

    @property
    def output_specs(self) -> list[TensorSpec]:
        """The tensors that a call returns."""
        return [spec for value in self.outputs if (spec := self.values[value]) is not None]

    def kernel_arguments(self) -> list[list[tuple[int, TensorSpec]]]:
        """For each step, its kernel's arguments in the kernel's order: operands, then results."""
        ordered = []
        for step, made in zip(self.steps, self.results, strict=True):
            spec = step.launchable.spec
            tensors = list(zip((*step.arguments, *made), (*spec.arguments, *spec.results), strict=True))
            ordered.append([tensors[number] for number in argument_order(spec)])
        return ordered

    def slots(self) -> tuple[dict[int, int], list[int]]:
        """`assign_slots` for all results that a call does not return, and that have memory of their own."""
        sizes = [0 if each is None else math.prod(each.shape) * each.type.bytes for each in self.values]
        kept = {*self.outputs, *self.in_place}
        return assign_slots(sizes, [each.arguments for each in self.steps], self.results, kept)


def assign_slots(
    sizes: Sequence[int], arguments: Sequence[Sequence[int]], results: Sequence[Sequence[int]], kept: set[int]
) -> tuple[dict[int, int], list[int]]:
    """Assign memory slots to results, except those in `kept`: (value -> slot, bytes of each slot).

    `sizes` has the bytes of each value, `arguments` and `results` the values of each step. Since steps run in order, a
    slot is used again after the last step that takes its value.
    """
    last = {value: at for at, taken in enumerate(arguments) for value in taken}
    slots: dict[int, int] = {}
    bytes_: list[int] = []
    free: list[int] = []
    for at, (taken, made) in enumerate(zip(arguments, results, strict=True)):
        for value in made:
            if value in kept:
                continue
            if free:
                # The smallest free slot that is large enough, otherwise the largest, which grows.
                free.sort(key=lambda slot: (bytes_[slot] < sizes[value], abs(bytes_[slot] - sizes[value])))
                slot = free.pop(0)
                bytes_[slot] = max(bytes_[slot], sizes[value])
            else:
                slot = len(bytes_)
                bytes_.append(sizes[value])
            slots[value] = slot
        ended = {value for value in (*taken, *made) if value in slots and last.get(value, at) == at}
        free += [slots[value] for value in sorted(ended)]
    return slots, bytes_
