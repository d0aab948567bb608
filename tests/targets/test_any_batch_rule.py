"""The rule that chooses microkernels for any number of rows or images."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest

from dispatch_profiler.configurations import ImagesMicrokernel, RowsMicrokernel
from dispatch_profiler.operations import BatchMatmul, Conv2d, Epilogue, Matmul, Operation
from dispatch_profiler.targets import (
    LARGEST_BATCH,
    RowsSpace,
    Target,
    any_batch_kernel,
    batch_space,
    images_microkernel,
    of_any_batch,
    parse_target,
    ranked_microkernels,
    rows_microkernel,
)

IMAGES = Conv2d(LARGEST_BATCH, 14, 14, 64, 64, 3, 3, padding=(1, 1), layout="nhwc_fhwc_nhwc")
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


@pytest.mark.parametrize("threads", [1, 2, 16])
@pytest.mark.parametrize(
    "operation",
    [
        IMAGES,
        replace(IMAGES, padding=(0, 0), stride=(2, 2), epilogue=Epilogue.parse("bias+residual+relu")),
        replace(IMAGES, groups=64),
        replace(IMAGES, groups=4),
        replace(IMAGES, r=1, s=1, padding=(0, 0)),
    ],
    ids=lambda operation: operation.name,
)
def test_each_image_is_divided_as_a_single_one(target: Target, operation: Conv2d, threads: int):
    found = images_microkernel(operation, target, threads)
    assert found is not None
    assert found.invalid_reason(operation, target.limits) is None
    assert found in map(ImagesMicrokernel.of, ranked_microkernels(replace(operation, n=1), target, threads))
    parts, of_rows, images = found.plan(replace(operation, n=3)).workgroups
    assert (parts, of_rows, 1) == found.plan(replace(operation, n=1)).workgroups
    assert images == 3


def test_products_and_convolutions_have_kernels_of_their_own(target: Target):
    assert isinstance(any_batch_kernel(LINEAR, target), RowsMicrokernel)
    assert isinstance(any_batch_kernel(IMAGES, target), ImagesMicrokernel)
    assert rows_microkernel(IMAGES, target) is None
    assert images_microkernel(LINEAR, target) is None


OTHERS: dict[str, Operation] = {
    "transposed lhs": replace(LINEAR, lhs_layout="n"),
    "batches of products": BatchMatmul(2, 8, 8, 8),
    "gradient of the input": replace(IMAGES, mode="input_backward"),
    "gradient of the weight": replace(IMAGES, mode="weight_backward"),
    "images last": replace(IMAGES, layout="chwn_fhwc_chwn"),
}


@pytest.mark.parametrize("operation", OTHERS.values(), ids=OTHERS)
def test_other_operations_have_none(operation: Operation):
    assert of_any_batch(operation) is None


def test_the_largest_batch_has_all_other_extents():
    assert of_any_batch(replace(LINEAR, m=4)) == LINEAR
    assert of_any_batch(replace(IMAGES, n=4)) == IMAGES


@pytest.mark.parametrize("operation", [LINEAR, IMAGES], ids=lambda operation: operation.kind)
def test_other_targets_have_none(operation: Operation, host_has: Callable[..., None]):
    host_has("sse")
    assert any_batch_kernel(operation, parse_target("llvm-cpu"), 2) is None
    assert any_batch_kernel(operation, parse_target("cuda:sm_90"), 2) is None


# -- search spaces ---------------------------------------------------------------------------------


def rows_space(target: Target) -> RowsSpace:
    space = batch_space(LINEAR, target, 2)
    assert isinstance(space, RowsSpace)
    return space


def test_a_space_begins_with_the_kernel_of_the_rule(target: Target):
    space = rows_space(target)
    assert space.first[0] == kernel(LINEAR, target, 2)
    further = space.further(space.first)
    every = [*space.first, *further]
    assert len(set(every)) == len(every)
    assert {each.invalid_reason(LINEAR, target.limits) for each in every} == {None}
    images = batch_space(IMAGES, target, 2)
    assert images is not None
    assert images.first[0] == images_microkernel(IMAGES, target, 2)


def division(found: RowsMicrokernel, rows: int) -> tuple[int, ...]:
    return next(how for up_to, *how in found.divisions if rows <= up_to)


def test_a_joined_kernel_divides_each_number_of_rows_as_the_fastest_for_the_nearest_one(target: Target):
    space = rows_space(target)
    tile = space.tiles[0]
    fastest = {rows: space.kernel(tile, rank) for rows, rank in ((1, 1), (30, 0), (500, 2), (4096, 0))}
    joined = space.joined(fastest, 5000)
    assert isinstance(joined, RowsMicrokernel)
    assert joined.invalid_reason(replace(LINEAR, m=5000), target.limits) is None
    for rows in (*range(1, 700), 1431, 1432, 5000):
        nearest = next(at for at in (1, 30, 500, 4096) if rows <= {1: 5, 30: 122, 500: 1431}.get(at, 2**20))
        assert division(joined, rows) == division(fastest[nearest], rows)


def test_a_kernel_joined_with_itself_is_the_same(target: Target):
    space = rows_space(target)
    first = space.first[0]
    assert space.joined(dict.fromkeys((1, 7, 300), first), LARGEST_BATCH) == first


def test_a_kernel_for_few_rows_has_no_taller_tiles(target: Target):
    space = rows_space(target)
    joined = space.joined(dict.fromkeys((1, 2), space.first[0]), 2)
    assert isinstance(joined, RowsMicrokernel)
    assert joined.registers[0] == 2
    assert joined.divisions[-1][0] == 2
    assert joined.invalid_reason(replace(LINEAR, m=2), target.limits) is None
