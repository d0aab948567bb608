"""Work in blocks is the work of the whole."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from dispatch_profiler import blocks
from dispatch_profiler.blocks import in_blocks
from dispatch_profiler.operations import Distribution, ElementTypes, Epilogue, Matmul
from dispatch_profiler.operations.contraction.reference import reference
from dispatch_profiler.profiler.verification.inputs import draw
from dispatch_profiler.profiler.verification.verify import compare_result


@pytest.mark.parametrize("count", [0, 1, 9, 10, 11, 35])
def test_blocks_cover_everything_once_in_order(monkeypatch, count: int):
    monkeypatch.setattr(blocks, "_ELEMENTS", 10)
    numbers = np.arange(count)

    parts = in_blocks(lambda block: numbers[block] * 2, count)

    assert [int(x) for part in parts for x in part] == [2 * x for x in range(count)]
    assert len(parts) == -(-count // 10) and max(map(len, parts), default=0) <= 10


def test_several_blocks_are_done_side_by_side(monkeypatch):
    monkeypatch.setattr(blocks, "_ELEMENTS", 1)
    both = threading.Barrier(2)

    in_blocks(lambda _: both.wait(timeout=60), 2)  # alone, each would wait for ever


def test_what_breaks_in_a_block_is_raised(monkeypatch):
    monkeypatch.setattr(blocks, "_ELEMENTS", 1)

    with pytest.raises(ZeroDivisionError):
        in_blocks(lambda block: 1 // block.start, 3)


@pytest.mark.parametrize("types", [("f16", "f16", "f16"), ("bf16", "bf16", "f32"), ("f64", "f64", "f64")])
@pytest.mark.parametrize("epilogue", ["none", "bias+gelu"])
def test_a_reference_and_a_comparison_in_blocks_are_those_of_the_whole(monkeypatch, types, epilogue: str):
    """To the last bit, and with the same worst element."""
    operation = Matmul(12, 20, 40, ElementTypes(*types), epilogue=Epilogue.parse(epilogue))
    inputs = draw(operation, Distribution.REALS, 1)
    actual = reference(operation, inputs).expected.astype(operation.result.type.dtype)
    wrong = actual.copy()
    wrong[3, 7], wrong[9, 1], wrong[9, 2] = 900.0, np.nan, 5.0

    def told() -> tuple[np.ndarray, np.ndarray | None, str, bool]:
        found = reference(operation, inputs)
        said = (
            compare_result(operation.result, wrong, found).message,
            compare_result(operation.result, actual, found).passed,
        )
        return found.expected, found.tolerance, *said

    whole = told()
    monkeypatch.setattr(blocks, "_ELEMENTS", 7)
    parts = told()

    np.testing.assert_array_equal(parts[0], whole[0])
    np.testing.assert_array_equal(parts[1], whole[1])
    assert parts[2:] == whole[2:] and parts[3]
    assert parts[2].startswith("3 of 240 elements are wrong; the worst: result[9, 1] = nan")
