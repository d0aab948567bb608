"""Kernels that multiply along terms through the compiler on this CPU: results are verified."""

from __future__ import annotations

from dataclasses import replace

import pytest
from compiled_helpers import failures_of, verify_tiles
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatch_profiler.configurations import DotMicrokernel
from dispatch_profiler.dispatches import Dispatch
from dispatch_profiler.operations import Conv1d, Conv2d, ElementTypes, Epilogue, Matmul, Operation
from dispatch_profiler.targets import parse_target

FULL, BIAS = Epilogue.parse("scale_shift+residual+relu"), Epilogue.parse("bias+gelu")
SCALED = Epilogue.parse("channel_scale+bias+gelu")


def product(m: int, n: int, k: int, epilogue: Epilogue = Epilogue()) -> Matmul:
    return Matmul(m, n, k, rhs_layout="n", epilogue=epilogue)


def quantised(m: int, n: int, k: int, lhs: str, result: str, epilogue: Epilogue = SCALED) -> Matmul:
    """With weights of i8."""
    return Matmul(m, n, k, ElementTypes(lhs, "i8", result), "t", "n", epilogue)


#: Weights of i8 in each type of lhs and of results.
QUANTISED: list[tuple[Operation, DotMicrokernel]] = [
    (quantised(7, 35, 70, "f32", "f32"), DotMicrokernel((6, 16), (3, 8))),
    (quantised(1, 19, 33, "bf16", "bf16"), DotMicrokernel((1, 16), (1, 16))),
    (quantised(5, 42, 48, "bf16", "f32", FULL), DotMicrokernel((5, 20), (5, 4))),
    (quantised(4, 21, 37, "f16", "f16"), DotMicrokernel((4, 8), (2, 8))),
    (quantised(3, 7, 5, "f16", "f32", Epilogue()), DotMicrokernel((3, 4), (3, 4))),
]
NARROW: list[tuple[Operation, DotMicrokernel]] = [
    (
        Matmul(5, 21, 70, ElementTypes("bf16", "bf16", "bf16"), "t", "n", FULL),
        DotMicrokernel((6, 16), (3, 8)),
    ),
    (Matmul(1, 19, 33, ElementTypes("f16", "f16", "f32"), "t", "n", BIAS), DotMicrokernel((1, 16), (1, 16))),
]
#: Terms that leave part of a vector empty, or fill none; last tiles that overlap others, of rows and of filters, in the last
#: workgroup and in others; each number of filters of a tile; pixels as rows.
RIGHT: list[tuple[Operation, DotMicrokernel]] = [
    (product(7, 35, 70, FULL), DotMicrokernel((6, 16), (3, 8))),
    (product(5, 19, 33, BIAS), DotMicrokernel((5, 16), (1, 16))),
    (product(13, 42, 48), DotMicrokernel((8, 20), (4, 4))),
    (product(1, 7, 5), DotMicrokernel((1, 4), (1, 4))),
    (product(20, 16, 64), DotMicrokernel((24, 8), (6, 4))),
    (Conv2d(2, 3, 5, 20, 24, 1, 1, layout="nhwc_fhwc_nhwc", epilogue=FULL), DotMicrokernel((30, 24), (6, 4))),
    (Conv1d(1, 9, 32, 10, 1, layout="nwc_fcw_nwc", epilogue=BIAS), DotMicrokernel((4, 8), (2, 8))),
]


@pytest.mark.parametrize(
    "pairs", [RIGHT[:3], pytest.param(RIGHT, marks=pytest.mark.slow)], ids=["some", "all"]
)
def test_results_are_those_of_the_reference(pairs):
    verify_tiles(pairs)


def test_weights_of_narrow_types_are_read_as_they_are():
    verify_tiles([*QUANTISED, *NARROW])


@st.composite
def narrow_products(draw: st.DrawFn) -> tuple[Operation, DotMicrokernel]:
    """Any product that a dot microkernel computes, of few elements, with tiles for it."""
    m, n, k = draw(st.integers(1, 9)), draw(st.integers(4, 50)), draw(st.integers(1, 200))
    lhs = draw(st.sampled_from(("f32", "bf16", "f16")))
    rhs, result = draw(st.sampled_from(("i8", "i8", lhs))), draw(st.sampled_from((lhs, "f32")))
    steps = draw(st.lists(st.sampled_from(("channel_scale", "bias", "residual", "silu", "relu")), max_size=3))
    operation = Matmul(
        m, n, k, ElementTypes(lhs, rhs, result), "t", "n", Epilogue.parse("+".join(steps) or "none")
    )
    rows, filters = draw(st.integers(1, min(m, 6))), draw(st.sampled_from((4, 8)))
    filters = filters if filters <= n and rows * filters <= 24 else 4
    rows_of_group = rows * draw(st.integers(1, -(-m // rows)))
    filters_of_group = filters * draw(st.integers(1, -(-n // filters)))
    return operation, DotMicrokernel((rows_of_group, filters_of_group), (rows, filters))


@pytest.mark.slow
@settings(max_examples=100)
@given(narrow_products())
def test_any_product_is_right(drawn: tuple[Operation, DotMicrokernel]):
    verify_tiles([drawn])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["host", "x86-64-v3"])
def test_vectors_of_eight_elements(name: str):
    """For CPUs with AVX2; CPUs with AVX-512 run them, too."""
    target = parse_target(f"llvm-cpu:{name}")
    pairs = [
        (operation, replace(tiles, lanes=8, registers=(2, 4), distribution=(4, 12)))
        for operation, tiles in (*RIGHT[:3], QUANTISED[2], QUANTISED[3])
    ]
    pairs.append((RIGHT[0][0], DotMicrokernel((7, 16), (1, 8), lanes=8)))
    verify_tiles(pairs, target)


@pytest.mark.slow
def test_wrong_kernels_are_found():
    dispatch = Dispatch(*RIGHT[0])
    faults = {
        "lanes of one vector only": lambda text: text.replace("%folded_0_1_0_low, %folded_0_1_0_high", "%folded_0_1_0_low, %folded_0_1_0_low"),
        "no mask": lambda text: text.replace("vector.constant_mask [6]", "vector.constant_mask [5]"),
        "rows after the last": lambda text: text.replace("(tile) -> (tile, 4)", "(tile) -> (tile, 3)"),
    }  # fmt: skip
    found = failures_of({dispatch: faults})
    assert found.pop((dispatch, "")) == ""
    assert all(found.values())
