"""Which loops of an operation were folded into which loops of the compiler's."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatch_profiler.compiler.passes.folding import fold_groups
from dispatch_profiler.configurations import fold_levels
from dispatch_profiler.operations import Conv2d, Loop, Matmul


def loops(text: str) -> tuple[Loop, ...]:
    """`n=8 oh=56 | ic=64`: parallel loops, then reductions."""
    parallel, _, reduction = text.partition("|")
    pairs = [(x, "parallel") for x in parallel.split()] + [(x, "reduction") for x in reduction.split()]
    return tuple(Loop(p.split("=")[0], int(p.split("=")[1]), kind) for p, kind in pairs)


def real(*extents: int, reductions: int) -> list[tuple[int, bool]]:
    return [(extent, i >= len(extents) - reductions) for i, extent in enumerate(extents)]


def test_loops_that_are_all_there_stand_for_themselves():
    assert fold_groups(Matmul(4, 5, 6).loops, real(4, 5, 6, reductions=1)) == ((0,), (1,), (2,))


def test_a_pointwise_convolution_is_folded_to_a_matmul():
    """N, OH and OW become one loop, KH and KW vanish."""
    pointwise = Conv2d(8, 56, 56, 64, 256, 1, 1)

    groups = fold_groups(pointwise.loops, real(25088, 256, 64, reductions=1))

    assert [[pointwise.loops[i].name for i in g] for g in groups] == [
        ["n", "oh", "ow"],
        ["oc"],
        ["kh", "kw", "ic"],
    ]


def test_one_image_loses_its_batch_loop():
    one = Conv2d(1, 30, 30, 32, 64, 3, 3)

    groups = fold_groups(one.loops, real(28, 28, 64, 3, 3, 32, reductions=3))

    assert groups == ((0, 1), (2,), (3,), (4,), (5,), (6,))


def test_loops_that_do_not_multiply_to_the_real_ones_are_no_folding():
    assert fold_groups(loops("n=8 oh=6|k=4"), real(47, 4, reductions=1)) is None


def test_a_loop_that_is_missing_is_no_folding():
    assert fold_groups(loops("n=8 oh=6|k=4"), real(8, 4, reductions=1)) is None


def test_a_reduction_is_never_folded_into_a_parallel_loop():
    assert fold_groups(loops("n=8|k=4"), real(32, reductions=0)) is None


def test_a_real_loop_too_many_is_no_folding():
    assert fold_groups(loops("n=8|k=4"), real(8, 2, 4, reductions=1)) is None


@given(st.lists(st.lists(st.integers(1, 5), min_size=1, max_size=3), min_size=1, max_size=4))
def test_folding_neighbours_is_always_recognised(parts: list[list[int]]):
    """Whatever neighbours are multiplied together, the products of the groups are the real extents."""
    flat = tuple(Loop(f"l{i}", x, "parallel") for i, x in enumerate(x for part in parts for x in part))
    products = [math.prod(part) for part in parts]

    groups = fold_groups(flat, [(p, False) for p in products])

    assert groups is not None
    assert [math.prod(flat[i].extent for i in g) for g in groups] == products


@pytest.mark.parametrize(
    ("tiles", "expected"), [((1, 14, 28, 64, 0, 0, 0), (392, 64, 0)), ((0, 0, 0, 0, 1, 1, 8), (0, 0, 8))]
)
def test_a_folded_loop_is_tiled_by_the_product_of_its_tiles(
    tiles: tuple[int, ...], expected: tuple[int, ...]
):
    groups = ((0, 1, 2), (3,), (4, 5, 6))

    assert fold_levels([("level", tiles)], groups) == (("level", expected),)
