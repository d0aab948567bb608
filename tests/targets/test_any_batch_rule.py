"""The rule that chooses microkernels for any number of rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest

from dispatch_profiler.configurations import RowsMicrokernel
from dispatch_profiler.operations import Conv2d, Epilogue, Matmul
from dispatch_profiler.targets import (
    LARGEST_BATCH,
    Target,
    of_any_batch,
    parse_target,
    ranked_microkernels,
    rows_microkernel,
)

LINEAR = Matmul(LARGEST_BATCH, 3072, 768, rhs_layout="n", epilogue=Epilogue.parse("bias+gelu"))


@pytest.fixture
def target(host_has: Callable[..., None]) -> Target:
    """The target `llvm-cpu` on a CPU with AVX-512."""
    host_has("avx", "avx512f")
    return parse_target("llvm-cpu")


def kernel(operation: Matmul, target: Target, threads: int) -> RowsMicrokernel:
    found = rows_microkernel(operation, target, threads)
    assert found is not None
    return found


@pytest.mark.parametrize("threads", [1, 2, 6, 16])
@pytest.mark.parametrize(
    "operation",
    [LINEAR, replace(LINEAR, n=10, k=100), replace(LINEAR, m=100), replace(LINEAR, n=50257)],
    ids=lambda operation: operation.name,
)
def test_kernels_are_valid_and_cover_all_rows(target: Target, operation: Matmul, threads: int):
    found = kernel(operation, target, threads)
    assert found.invalid_reason(operation, target.limits) is None
    assert found.divisions[-1][0] == operation.m
    assert all(first[1:] != second[1:] for first, second in pairwise(found.divisions))


@pytest.mark.parametrize("threads", [2, 16])
def test_many_rows_keep_all_threads_busy(target: Target, threads: int):
    found = kernel(LINEAR, target, threads)
    _, parts, filters = found.divisions[-1]
    workgroups = parts * -(-LINEAR.n // filters)
    assert workgroups % threads == 0
    assert workgroups >= threads


@pytest.mark.parametrize("threads", [2, 16])
def test_one_row_is_divided_by_filters(target: Target, threads: int):
    _, parts, filters = kernel(LINEAR, target, threads).divisions[0]
    assert parts == 1
    assert -(-LINEAR.n // filters) >= threads


def test_the_division_is_that_of_microkernels_for_as_many_rows(target: Target):
    """Of the same register tiles: the rule is the same."""
    found = kernel(LINEAR, target, 2)
    height, block = found.registers
    rows = 2 * height
    alike = [
        each
        for each in ranked_microkernels(replace(LINEAR, m=rows), target, 2)
        if each.registers == (height, 1, block)
    ]
    _, parts, filters = next(each for each in found.divisions if each[0] >= rows)
    assert (-(-rows // parts), filters) in [each.distribution for each in alike]


def test_only_products_with_the_terms_of_a_row_side_by_side_have_one():
    assert of_any_batch(replace(LINEAR, m=4)) == LINEAR
    assert of_any_batch(replace(LINEAR, lhs_layout="n")) is None
    assert of_any_batch(Conv2d(1, 8, 8, 8, 8, 1, 1, layout="nhwc_fhwc_nhwc")) is None


def test_other_targets_have_none(host_has: Callable[..., None]):
    host_has("sse")
    assert rows_microkernel(LINEAR, parse_target("llvm-cpu"), 2) is None
    assert rows_microkernel(LINEAR, parse_target("cuda:sm_90"), 2) is None
