"""Kernels that are wrong in known ways, done by numpy, in every mode of every kind: each fails on drawn inputs."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from every_kind import EVERY_MODE, IDS

from dispatch_profiler.operations import (
    BatchMatmul,
    Conv1d,
    Conv2d,
    Conv3d,
    Distribution,
    ElementTypes,
    Epilogue,
    Matmul,
    Operation,
    Tensor,
)
from dispatch_profiler.operations.contraction.reference import reference
from dispatch_profiler.profiler.verification.inputs import draw, poison
from dispatch_profiler.profiler.verification.verify import Comparison, compare, compare_result

TYPES = {
    "f64": ElementTypes("f64", "f64", "f64"),
    "f32": ElementTypes("f32", "f32", "f32"),
    "f16": ElementTypes("f16", "f16", "f16"),
    "f16-f32": ElementTypes("f16", "f16", "f32"),
    "bf16": ElementTypes("bf16", "bf16", "bf16"),
    "f8": ElementTypes("f8", "f8", "f8"),
    "f8-f32": ElementTypes("f8", "f8", "f32"),
    "i8": ElementTypes("i8", "i8", "i32"),
}
BIAS = Epilogue.parse("bias")
SIZE = 32

both = pytest.mark.parametrize("distribution", [Distribution.INTEGERS, Distribution.REALS])
all_types = pytest.mark.parametrize("types", TYPES.values(), ids=TYPES)


def verified(
    operation: Operation, distribution: Distribution, kernel: Callable[..., Any], seed: int = 3
) -> Comparison:
    """Compare `kernel(lhs, rhs[, bias])`, called with float64 arrays, with the reference."""
    inputs = draw(operation, distribution, seed)
    result = np.asarray(kernel(*(a.astype(np.float64) for a in inputs)))
    actual = result.astype(operation.result.type.dtype)
    return compare_result(operation.result, actual, reference(operation, inputs))


def product(a, b):
    return a @ b


MATMUL_FAULTS = {
    "operands swapped": lambda a, b: b @ a,
    "lhs transposed": lambda a, b: a.T @ b,
    "rhs transposed": lambda a, b: a @ b.T,
    "result transposed": lambda a, b: (a @ b).T,
    "both transposed": lambda a, b: a.T @ b.T,
    "lhs read twice": lambda a, b: a @ a,
    "a slice of k dropped": lambda a, b: a[:, : -SIZE // 8] @ b[: -SIZE // 8],
    "a slice of k done twice": lambda a, b: a @ b + a[:, :4] @ b[:4],
    "one k dropped": lambda a, b: a[:, 1:] @ b[1:],
    "sign lost": lambda a, b: np.abs(a @ b),
    "rows shifted by one": lambda a, b: np.roll(a @ b, 1, axis=0),
    "columns shifted by one": lambda a, b: np.roll(a @ b, 1, axis=1),
    "accumulated twice": lambda a, b: 2 * (a @ b),
    "nothing done": lambda a, b: 0 * (a @ b),
}


@both
@all_types
def test_the_right_product_passes(types, distribution):
    """The kernel that all faults below are made from is right."""
    assert verified(Matmul(SIZE, SIZE, SIZE, types), distribution, product).passed


@both
@all_types
@pytest.mark.parametrize("fault", MATMUL_FAULTS)
def test_a_faulty_square_product_fails(fault, types, distribution):
    """A square product that is wrong in this way fails, in more than a fifth of its elements."""
    comparison = verified(Matmul(SIZE, SIZE, SIZE, types), distribution, MATMUL_FAULTS[fault])
    assert not comparison.passed
    if fault != "one k dropped":  # one product of 32 is within the rounding of many f8 results
        assert comparison.wrong > SIZE * SIZE // 5


@pytest.mark.parametrize("unwritten", [1, 7, SIZE * SIZE // 2])
@both
@all_types
def test_a_result_whose_tail_is_not_written_fails(types, distribution, unwritten):
    """Every element that still holds what memory held before is counted."""
    operation = Matmul(SIZE, SIZE, SIZE, types)
    inputs = draw(operation, distribution, 3)
    actual = (inputs[0].astype(np.float64) @ inputs[1].astype(np.float64)).astype(types.output.dtype)
    actual.reshape(-1)[-unwritten:] = poison(types.output, (unwritten,))
    comparison = compare_result(operation.result, actual, reference(operation, inputs))
    assert (comparison.passed, comparison.wrong) == (False, unwritten)


@both
@all_types
def test_a_bias_on_the_wrong_axis_fails(types, distribution):
    """Along columns it is right; along rows, or left out, or added twice, it is not."""
    operation = Matmul(SIZE, SIZE, SIZE, types, epilogue=BIAS)
    assert verified(operation, distribution, lambda a, b, c: a @ b + c).passed
    assert not verified(operation, distribution, lambda a, b, c: a @ b + c[:, None]).passed
    assert not verified(operation, distribution, lambda a, b, c: a @ b).passed
    assert not verified(operation, distribution, lambda a, b, c: a @ b + 2 * c).passed
    assert not verified(operation, distribution, lambda a, b, c: a @ b + c[::-1]).passed


@both
@all_types
def test_an_activation_that_was_left_out_or_misplaced_fails(types, distribution):
    """relu after the bias is right; none, or relu before the bias, is not."""
    operation = Matmul(SIZE, SIZE, SIZE, types, epilogue=Epilogue.parse("bias+relu"))
    assert verified(operation, distribution, lambda a, b, c: np.maximum(a @ b + c, 0)).passed
    assert not verified(operation, distribution, lambda a, b, c: a @ b + c).passed
    assert not verified(operation, distribution, lambda a, b, c: np.maximum(a @ b, 0) + c).passed


@pytest.mark.parametrize("layouts", ["tn", "nt", "nn"])
@both
def test_a_layout_that_was_ignored_fails(layouts, distribution):
    """A square operand that is stored column major and read row major is found."""
    operation = Matmul(SIZE, SIZE, SIZE, TYPES["f16"], layouts[0], layouts[1])

    def read(array, layout):
        return array.T if layout == "n" else array

    assert verified(operation, distribution, lambda a, b: read(a, layouts[0]) @ read(b, layouts[1])).passed
    assert not verified(operation, distribution, product).passed


@pytest.mark.parametrize("extent", [2**12, 2**16])
@pytest.mark.parametrize("name", ["f8", "f8-f32", "f16", "bf16", "i8"])
def test_a_dropped_slice_of_a_long_reduction_fails_on_whole_numbers(name, extent):
    """Also where inputs are mostly zeros, a sixteenth of k makes a difference."""
    operation = Matmul(8, 8, extent, TYPES[name])
    kept = extent - extent // 16
    assert verified(operation, Distribution.INTEGERS, product).passed
    assert not verified(operation, Distribution.INTEGERS, lambda a, b: a[:, :kept] @ b[:kept]).passed


def test_sums_held_in_f16_fail():
    """f16 products are summed in f32 here: a kernel that rounds after every step is out of bounds."""
    operation = Matmul(8, 8, 4096, TYPES["f16"])

    def narrow(a, b):
        total = np.zeros((8, 8), np.float16)
        for k in range(4096):
            total += (a[:, k, None] * b[None, k]).astype(np.float16)
        return total

    assert verified(operation, Distribution.REALS, product).passed
    assert not verified(operation, Distribution.REALS, narrow).passed


@both
def test_a_batch_taken_for_another_fails(distribution):
    """Each product of the batch belongs where it is."""
    operation = BatchMatmul(4, 16, 16, 16, TYPES["bf16"])
    assert verified(operation, distribution, product).passed
    assert not verified(operation, distribution, lambda a, b: (a @ b)[::-1]).passed
    assert not verified(operation, distribution, lambda a, b: a @ b[:1]).passed
    assert not verified(operation, distribution, lambda a, b: a @ np.roll(b, 1, axis=0)).passed


def test_a_faulty_convolution_fails():
    """Flipped filters, images padded on one side only, and exchanged axes are found."""
    conv = Conv2d(2, 8, 8, 4, 8, 3, 3, padding=(1, 1), types=TYPES["f32"])
    shifted = Conv2d(2, 10, 10, 4, 8, 3, 3, types=TYPES["f32"])

    def one_sided(a, b):
        return shifted.contract(np.pad(a, ((0, 0), (0, 2), (0, 2), (0, 0))), b)

    for distribution in (Distribution.INTEGERS, Distribution.REALS):
        assert verified(conv, distribution, conv.contract).passed
        assert not verified(conv, distribution, lambda a, b: conv.contract(a, b[::-1, ::-1])).passed
        assert not verified(conv, distribution, one_sided).passed
        assert not verified(conv, distribution, lambda a, b: conv.contract(a.swapaxes(1, 2), b)).passed


@pytest.mark.parametrize("mode", ["input_backward", "weight_backward"])
@pytest.mark.parametrize("kind", [Conv1d, Conv2d, Conv3d])
def test_faulty_gradients_of_a_convolution_fail(kind, mode):
    """Flipped or exchanged operands, padding on the other side, and a stride that was lost are found."""
    rank = kind.rank
    extents = {**dict.fromkeys(kind.extent_names(), 3), "n": 2, "c": 4, "k": 4, "w": 9}
    steps = {
        "stride": (1,) * (rank - 1) + (2,),
        "padding": (1,) * rank,
        "padding_after": (1,) * (rank - 1) + (2,),
    }
    conv = kind(**extents, **steps, types=TYPES["f32"], mode=mode)
    other_side = replace(conv, padding=conv.padding_after, padding_after=conv.padding)
    spatial = tuple(range(rank)) if mode == "input_backward" else tuple(range(1, rank + 1))

    faults = {
        "rhs flipped": lambda a, b: conv.contract(a, np.flip(b, spatial)),
        "padding on the other side": other_side.contract,
        "images exchanged": lambda a, b: conv.contract(a[::-1], b),
        "channels exchanged": lambda a, b: conv.contract(np.flip(a, -1), b),
        "last pixel dropped": lambda a, b: conv.contract(a * (np.arange(a.shape[-2]) > 0)[:, None], b),
        "sign lost": lambda a, b: np.abs(conv.contract(a, b)),
    }
    for distribution in (Distribution.INTEGERS, Distribution.REALS):
        assert verified(conv, distribution, conv.contract).passed
        for name, kernel in faults.items():
            assert not verified(conv, distribution, kernel).passed, name


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


def verified_kernel(operation: Operation, inputs: Arrays, results: Arrays) -> Comparison:
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
        assert verified_kernel(operation, inputs, kernel(operation, inputs)).passed


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
            assert not verified_kernel(operation, inputs, kernel(operation, changed)).passed, fault


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
            assert not verified_kernel(operation, inputs, kernel(operation, swapped)).passed, pair


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
            assert verified_kernel(operation, inputs, kernel(operation, flipped)).passed


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
