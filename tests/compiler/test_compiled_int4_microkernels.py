"""Microkernels for weights of 4 bits through the compiler: results are verified."""

from __future__ import annotations

import pytest
from compiled_helpers import verify_compiled
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatch_profiler.configurations import Int4Microkernel
from dispatch_profiler.dispatches import Dispatch
from dispatch_profiler.operations import Int4Matmul
from dispatch_profiler.targets import host_cpu, parse_target

TARGET = parse_target("llvm-cpu:cascadelake")
RUNS = {"avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_vnni"} <= host_cpu().features
#: Last tiles, workgroups and parts with less to do; groups of one vector and of several; each type.
PAIRS = [
    (Int4Matmul(1, 128, 64, 32), Int4Microkernel(1, 1)),
    (Int4Matmul(7, 192, 192, 64, "f16"), Int4Microkernel(4, 2, 128)),
    (Int4Matmul(23, 192, 128, 64, "bf16"), Int4Microkernel(6, 1, 64, 12)),
    (Int4Matmul(5, 192, 128, 32, "bf16"), Int4Microkernel(2, 2, integers=True)),
    (Int4Matmul(11, 128, 96, 16, "f16"), Int4Microkernel(5, 1, part=10, integers=True)),
    (Int4Matmul(1, 64, 512, 256, "bf16"), Int4Microkernel(1, 1, integers=True)),
]


def test_results_are_those_of_the_reference():
    assert [kernel.invalid_reason(operation, TARGET.limits) for operation, kernel in PAIRS] == [None] * 6
    verify_compiled([Dispatch(*each) for each in PAIRS], TARGET.compile_flags, runs=RUNS)


@pytest.mark.parametrize(
    ("operation", "kernel", "reason"),
    [
        (
            Int4Matmul(1, 64, 64, 32),
            Int4Microkernel(1, 1, integers=True),
            "too short for the precision of f32",
        ),
        (
            Int4Matmul(8, 64, 64, 32, "bf16"),
            Int4Microkernel(5, 1, 32, 0, True),
            "in registers, not in blocks",
        ),
        (
            Int4Matmul(1, 64, 512, 512, "f16"),
            Int4Microkernel(1, 1, integers=True),
            "at most 256 whole numbers",
        ),
    ],
)
def test_whole_numbers_have_limits(operation: Int4Matmul, kernel: Int4Microkernel, reason: str):
    assert reason in str(kernel.invalid_reason(operation, TARGET.limits))
    skylake = parse_target("llvm-cpu:skylake-avx512")
    other = Int4Microkernel(1, 1, integers=True).invalid_reason(
        Int4Matmul(1, 64, 64, 32, "bf16"), skylake.limits
    )
    assert other == "the target has no instructions of AVX-512-VNNI, which multiply whole numbers"


@st.composite
def products(draw: st.DrawFn) -> tuple[Int4Matmul, Int4Microkernel]:
    """Any product that a microkernel computes, of few elements, with tiles for it."""
    group = 16 * draw(st.integers(1, 4))
    m, panels, groups = draw(st.integers(1, 13)), draw(st.integers(1, 4)), draw(st.integers(1, 5))
    type_ = draw(st.sampled_from(("f32", "bf16", "f16")))
    operation = Int4Matmul(m, 64 * panels, group * groups, group, type_)
    rows, share = draw(st.integers(1, min(m, 5))), draw(st.integers(1, panels))
    part = rows * draw(st.integers(0, m // rows))
    integers = type_ != "f32" and draw(st.booleans())
    block = 0 if integers else group * draw(st.integers(0, min(groups, 512 // group)))
    return operation, Int4Microkernel(rows, share, block, part, integers)


@pytest.mark.slow
@settings(max_examples=100)
@given(products())
def test_any_product_is_right(drawn: tuple[Int4Matmul, Int4Microkernel]):
    verify_compiled([Dispatch(*drawn)], TARGET.compile_flags, runs=RUNS)
