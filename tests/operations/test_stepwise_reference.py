"""References for a library that stores its result between the steps of an epilogue."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from epilogue_helpers import SEQUENCES, SIMPLE, STEP_TEXTS
from naive_operations import operand_count, stepped, steps_in
from pairwise import parametrize_pairwise

from dispatch_profiler.operations import ElementTypes, Epilogue, Matmul
from dispatch_profiler.operations.contraction.reference import reference

NARROW = ("f16", "bf16", "f8E4M3FN")
EPILOGUES = [*SIMPLE, *(Epilogue.parse(text) for text in (*STEP_TEXTS, *SEQUENCES))]


def operands(operation: Matmul, seed: int, whole: bool) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    largest = 1.5 if operation.types.result == "f8E4M3FN" else 4  # no value between the steps may overflow
    arrays = [rng.uniform(-largest, largest, tensor.shape) for tensor in operation.operands]
    return [
        (np.rint(array) if whole else array).astype(t.type.dtype)
        for array, t in zip(arrays, operation.operands, strict=True)
    ]


def stepwise(operation: Matmul, inputs: list[np.ndarray]) -> np.ndarray:
    """The product and each step: in float64, and rounded to the result's type."""
    dtype = operation.types.output.dtype
    value = (inputs[0].astype(float) @ inputs[1].astype(float)).astype(dtype)
    rest = inputs[2:]
    for step in steps_in(operation.epilogue):
        count = operand_count(step)
        broadcast = [np.broadcast_to(each.astype(float), value.shape) for each in rest[:count]]
        rest = rest[count:]
        each = np.vectorize(lambda x, *theirs, step=step: stepped(step, x, theirs), otypes=[float])
        value = each(value.astype(float), *broadcast).astype(dtype)
    return value


@parametrize_pairwise(
    ("result", "epilogue", "whole"), list(itertools.product(NARROW, EPILOGUES, [True, False])), ids=str
)
def test_rounding_after_each_step_is_within_the_bound(result, epilogue, whole):
    """What is off by the roundings alone is right."""
    operation = Matmul(8, 12, 40, ElementTypes("f16", "f16", result), epilogue=epilogue)
    for seed in range(2):
        inputs = operands(operation, seed, whole)
        found = reference(operation, inputs, stepwise=True)
        actual = stepwise(operation, inputs).astype(float)
        tolerance = 0.0 if found.tolerance is None else found.tolerance
        with np.errstate(invalid="ignore"):
            near = np.abs(actual - found.expected.astype(float)) <= tolerance
        # Beyond the largest value of an f8 there is NaN, and so it is in the reference.
        assert (near | (np.isnan(actual) & np.isnan(found.expected.astype(float)))).all()


def test_a_fused_kernel_is_held_to_one_rounding():
    """The bound that allows for steps is not the one of a dispatch: some of these are outside it."""
    operation = Matmul(16, 24, 40, ElementTypes("f16", "f16", "f16"), epilogue=Epilogue.parse("bias"))
    inputs = operands(operation, 1, True)
    assert reference(operation, inputs).tolerance is None
    reals = operands(operation, 1, False)
    fused, allowed = reference(operation, reals), reference(operation, reals, stepwise=True)
    assert fused.tolerance is not None and allowed.tolerance is not None
    assert (allowed.tolerance > fused.tolerance).all()


@pytest.mark.parametrize("epilogue", EPILOGUES, ids=str)
def test_without_a_narrower_result_nothing_is_allowed_for(epilogue):
    """Sums in f32 are stored as f32: there is no rounding between the steps."""
    operation = Matmul(8, 8, 8, epilogue=epilogue)
    inputs = operands(operation, 2, False)
    one, other = reference(operation, inputs), reference(operation, inputs, stepwise=True)
    np.testing.assert_array_equal(one.tolerance, other.tolerance)


@pytest.mark.parametrize("epilogue", [Epilogue(), Epilogue.parse("relu")], ids=str)
def test_what_no_rounding_changes_stays_exact(epilogue):
    """relu of a rounded sum is the rounded relu."""
    operation = Matmul(8, 8, 8, ElementTypes("f16", "f16", "f16"), epilogue=epilogue)
    assert reference(operation, operands(operation, 3, True), stepwise=True).tolerance is None


def test_a_wrong_element_is_still_outside():
    """The bound is a few roundings of the values that are stored, no more."""
    operation = Matmul(8, 8, 8, ElementTypes("f16", "f16", "f16"), epilogue=Epilogue.parse("bias+gelu"))
    found = reference(operation, operands(operation, 4, True), stepwise=True)
    assert found.tolerance is not None
    assert (found.tolerance < 0.02 * np.maximum(np.abs(found.expected), 16.0)).all()
