"""Work in blocks is the work of the whole."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from dispatch_profiler.blocks import in_blocks
from dispatch_profiler.operations import Distribution, ElementTypes, Epilogue, Matmul
from dispatch_profiler.operations.contraction.reference import reference
from dispatch_profiler.profiler.verification.inputs import draw
from dispatch_profiler.profiler.verification.verify import compare_result


@pytest.mark.parametrize("count", [0, 1, 9, 10, 11, 35])
def test_blocks_cover_everything_once_in_order(count: int):
    numbers = np.arange(count)

    parts = in_blocks(lambda block: numbers[block] * 2, count, size=10)

    assert [int(x) for part in parts for x in part] == [2 * x for x in range(count)]
    assert len(parts) == -(-count // 10) and max(map(len, parts), default=0) <= 10


def test_several_blocks_are_done_side_by_side():
    both = threading.Barrier(2)

    in_blocks(lambda _: both.wait(timeout=60), 2, size=1)  # alone, each would wait for ever


def test_what_breaks_in_a_block_is_raised():
    with pytest.raises(ZeroDivisionError):
        in_blocks(lambda block: 1 // block.start, 3, size=1)


@pytest.mark.parametrize("types", [("f16", "f16", "f16"), ("bf16", "bf16", "f32"), ("f64", "f64", "f64")])
@pytest.mark.parametrize("epilogue", ["none", "bias+gelu"])
def test_a_reference_and_a_comparison_in_blocks_are_those_of_the_whole(types, epilogue: str):
    """To the last bit, and with the same worst element. The parts are so small that each is one block.

    Products of f64 depend on the order in which BLAS adds, unless the operands are integers.
    """
    operation, part = (
        Matmul(m, 700, 8, ElementTypes(*types), epilogue=Epilogue.parse(epilogue)) for m in (300, 100)
    )
    inputs = draw(operation, Distribution.INTEGERS if "f64" in types else Distribution.REALS, 1)
    parts = [reference(part, (inputs[0][at : at + 100], *inputs[1:])) for at in (0, 100, 200)]

    whole = reference(operation, inputs)
    actual = whole.expected.astype(operation.result.type.dtype)
    wrong = actual.copy()
    wrong[3, 7], wrong[209, 1], wrong[209, 2] = 900.0, np.nan, 5.0

    np.testing.assert_array_equal(whole.expected, np.concatenate([each.expected for each in parts]))
    if whole.tolerance is not None:
        np.testing.assert_array_equal(whole.tolerance, np.concatenate([each.tolerance for each in parts]))
    message = compare_result(operation.result, wrong, whole).message
    assert message.startswith("3 of 210000 elements are wrong; the worst: result[209, 1] = nan")
    assert compare_result(operation.result, actual, whole).passed
