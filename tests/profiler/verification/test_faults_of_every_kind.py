"""Kernels of every mode of every kind that read, drop or exchange the wrong elements: each fails on drawn inputs."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest
from every_kind import EVERY_MODE, IDS

from dispatch_profiler.operations import Distribution, ElementTypes, Operation, Tensor
from dispatch_profiler.profiler.verification.inputs import draw
from dispatch_profiler.profiler.verification.poison import poison
from dispatch_profiler.profiler.verification.verify import Comparison, compare

Arrays = Sequence[np.ndarray]
Change = Callable[[np.ndarray], np.ndarray]

#: (kind, operand, axis) of sums whose terms are added up in any order.
UNORDERED = {("bias_backward", "dy", 0), ("bias_backward", "dy", 2)}

every_mode = pytest.mark.parametrize("operation", EVERY_MODE, ids=IDS)
both_types = pytest.mark.parametrize("type_", ["f32", "bf16"])


def of_type(operation: Operation, type_: str) -> Operation:
    field = {"types": ElementTypes(type_, type_, type_)} if operation.contraction else {"type": type_}
    return replace(operation, **field)


def kernel(operation: Operation, inputs: Arrays) -> list[np.ndarray]:
    """What a right kernel writes, to the last bit of each type."""
    return [
        reference.expected.astype(result.type.dtype)
        for reference, result in zip(operation.reference(inputs), operation.results, strict=True)
    ]


def verified(operation: Operation, inputs: Arrays, results: Arrays) -> Comparison:
    return compare(operation, results, operation.reference(inputs))


def last_dropped(axis: int) -> Change:
    """The last index along `axis` counts as zero."""

    def change(array: np.ndarray) -> np.ndarray:
        kept = np.moveaxis(array.copy(), axis, 0)
        kept[-1] = 0
        return np.moveaxis(kept, 0, axis)

    return change


def misread(operation: Operation) -> Iterator[tuple[str, int, Change]]:
    """(fault, operand, change) of every operand: along each axis that has more than one index, and of its sign."""
    for number, operand in enumerate(operation.operands):
        yield f"{operand.name} negated", number, lambda array: -array
        for axis, extent in enumerate(operand.shape):
            if extent == 1:
                continue
            yield f"{operand.name} without its last index along axis {axis}", number, last_dropped(axis)
            if (operation.kind, operand.name, axis) not in UNORDERED:
                yield (
                    f"{operand.name} shifted along axis {axis}",
                    number,
                    lambda a, axis=axis: np.roll(a, 1, axis),
                )
                yield (
                    f"{operand.name} reversed along axis {axis}",
                    number,
                    lambda a, axis=axis: np.flip(a, axis),
                )


def general(operation: Operation) -> list[Distribution]:
    """All but the one whose numbers are almost equal, so that which is read for which hardly matters."""
    return [each for each in operation.distributions if each is not Distribution.OFFSET]


@both_types
@every_mode
def test_the_right_kernel_passes(operation, type_):
    """The kernel that all faults below are made from is right."""
    operation = of_type(operation, type_)
    for distribution in operation.distributions:
        inputs = draw(operation, distribution, 3)
        assert verified(operation, inputs, kernel(operation, inputs)).passed


@both_types
@every_mode
def test_an_operand_that_is_misread_fails(operation, type_):
    """Shifted, reversed, negated, or without the last elements of an axis."""
    operation = of_type(operation, type_)
    for distribution in general(operation):
        inputs = draw(operation, distribution, 3)
        for fault, number, change in misread(operation):
            changed = [change(each) if i == number else each for i, each in enumerate(inputs)]
            if np.array_equal(changed[number], inputs[number]):
                continue  # integers that read the same from both ends
            assert not verified(operation, inputs, kernel(operation, changed)).passed, fault


@both_types
@every_mode
def test_exchanged_operands_of_the_same_type_fail(operation, type_):
    operation = of_type(operation, type_)
    for distribution in general(operation):
        inputs = draw(operation, distribution, 3)
        for i, j in itertools.combinations(range(len(inputs)), 2):
            if operation.operands[i].mlir != operation.operands[j].mlir:
                continue
            swapped = list(inputs)
            swapped[i], swapped[j] = inputs[j], inputs[i]
            pair = f"{operation.operands[i].name} and {operation.operands[j].name}"
            assert not verified(operation, inputs, kernel(operation, swapped)).passed, pair


def test_the_order_of_a_sum_does_not_matter():
    """The exceptions above are no faults."""
    for operation, distribution in itertools.product(EVERY_MODE, Distribution):
        for kind, name, axis in UNORDERED:
            if operation.kind != kind:
                continue
            inputs = draw(operation, distribution, 3)
            flipped = [
                np.flip(array, axis) if operand.name == name else array
                for operand, array in zip(operation.operands, inputs, strict=True)
            ]
            assert verified(operation, inputs, kernel(operation, flipped)).passed


FAULTS: dict[str, Callable[[float, float, Tensor], object]] = {
    "wrong": lambda value, largest, result: value + 0.5 * largest,
    "negated": lambda value, largest, result: -value,
    "nan": lambda value, largest, result: np.nan,
    "inf": lambda value, largest, result: np.inf,
    "unwritten": lambda value, largest, result: poison(result.type, (1,))[0],
}


@pytest.mark.parametrize("fault", FAULTS)
@both_types
@every_mode
def test_a_fault_in_any_element_of_any_result_fails_and_is_named(operation, type_, fault):
    """The first, the middle and the last element, one at a time."""
    operation = of_type(operation, type_)
    inputs = draw(operation, Distribution.REALS, 3)
    right, references = kernel(operation, inputs), operation.reference(inputs)
    for number, result in enumerate(operation.results):
        values = right[number].astype(np.float64).reshape(-1)
        for index in (0, result.elements // 2, result.elements - 1):
            results = [array.copy() for array in right]
            results[number].reshape(-1)[index] = FAULTS[fault](values[index], np.abs(values).max(), result)
            comparison = compare(operation, results, references)
            assert not comparison.passed, (result.name, index)
            place = ", ".join(map(str, np.unravel_index(index, result.shape)))
            assert comparison.message.startswith(
                f"1 of {result.elements} elements are wrong; the worst: {result.name}[{place}] = "
            )
