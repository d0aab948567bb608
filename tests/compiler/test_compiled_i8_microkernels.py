"""Microkernels of i8, which multiply in fours, through the compiler: results are exact."""

from __future__ import annotations

import pytest
from compiled_helpers import failures_of, verify_compiled
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatch_profiler.configurations import Configuration, DotMicrokernel, Microkernel, RowsMicrokernel
from dispatch_profiler.dispatches import Dispatch
from dispatch_profiler.operations import ElementTypes, Epilogue, Matmul
from dispatch_profiler.targets import host_cpu, parse_target

I8 = ElementTypes("i8", "i8", "i32")
AVX512, AVX2 = parse_target("llvm-cpu:cascadelake"), parse_target("llvm-cpu:alderlake")
HAS_AVX512 = {"avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_vnni"} <= host_cpu().features
HAS_AVX2 = {"avx2", "fma", "avx_vnni"} <= host_cpu().features

needs_vnni = pytest.mark.skipif(not HAS_AVX512, reason="this CPU has no AVX-512-VNNI")


def product(m: int, n: int, k: int, rhs: str = "n", epilogue: str = "none") -> Matmul:
    return Matmul(m, n, k, I8, "t", rhs, Epilogue.parse(epilogue))


#: Terms that fill vectors, leave part of one empty, or fill none; last tiles of rows and of filters that are smaller, also by
#: half a vector; both layouts of the weight; each step of integers.
PACKED: list[tuple[Matmul, Configuration]] = [
    (product(13, 150, 140, "n", "bias+relu"), Microkernel((13, 64), (6, 1, 64), 1, packed=True)),
    (product(8, 40, 64, "t"), Microkernel((4, 48), (2, 1, 48), 4, packed=True)),
    (product(5, 33, 20, "t", "scale_shift+residual"), Microkernel((5, 48), (5, 1, 48), 1, packed=True)),
    (product(1, 128, 256), Microkernel((1, 64), (1, 1, 64), 8, packed=True)),
    (product(6, 16, 8, "n", "clamp(-50,70)"), Microkernel((6, 16), (6, 1, 16), 2, packed=True)),
    (product(19, 70, 96, "n", "channel_scale"), RowsMicrokernel((6, 32), ((4, 1, 64), (19, 2, 32)), 2)),
]
ALONG_TERMS: list[tuple[Matmul, Configuration]] = [
    (product(7, 35, 140, "n", "bias+relu"), DotMicrokernel((6, 16), (2, 8))),
    (product(5, 19, 64), DotMicrokernel((5, 16), (1, 16))),
    (product(13, 42, 20, "n", "residual"), DotMicrokernel((8, 20), (4, 4))),
    (product(1, 7, 4), DotMicrokernel((1, 4), (1, 4))),
]
NARROW: list[tuple[Matmul, Configuration]] = [
    (product(13, 50, 76, "n", "bias"), Microkernel((13, 24), (3, 1, 24), 1, packed=True, lanes=8)),
    (product(3, 30, 40, "t"), RowsMicrokernel((3, 16), ((3, 1, 16),), 2, lanes=8)),
    (product(5, 21, 44, "n", "residual"), DotMicrokernel((4, 8), (1, 4), lanes=8)),
]


def test_vectors_of_16_sums() -> None:
    verify_compiled(
        [Dispatch(*each) for each in (*PACKED, *ALONG_TERMS)], AVX512.compile_flags, runs=HAS_AVX512
    )


def test_vectors_of_8_sums() -> None:
    verify_compiled([Dispatch(*each) for each in NARROW], AVX2.compile_flags, runs=HAS_AVX2)


@pytest.mark.parametrize("target", [AVX512, AVX2, parse_target("llvm-cpu:skylake-avx512")], ids=str)
def test_only_cpus_that_multiply_in_fours_have_them(target) -> None:
    limits = target.limits
    for operation, tiles in (*PACKED, *ALONG_TERMS):
        reason = tiles.invalid_reason(operation, limits)
        assert (reason is None) == limits.multiplies_i8, reason
    spaces = (Microkernel.packed_space(PACKED[0][0], limits), DotMicrokernel.space(PACKED[0][0], limits))
    assert all((each is not None) == limits.multiplies_i8 for each in spaces)


def test_constants_and_sums_of_elements_need_registers() -> None:
    assert "6x4 needs" in str(DotMicrokernel((6, 4), (6, 4)).invalid_reason(product(8, 8, 64), AVX512.limits))
    assert DotMicrokernel((4, 4), (4, 4)).invalid_reason(product(8, 8, 64), AVX512.limits) is None


@st.composite
def drawn(draw: st.DrawFn) -> tuple[Matmul, Configuration]:
    m, n, k = draw(st.integers(1, 20)), draw(st.integers(4, 200)), 4 * draw(st.integers(1, 60))
    steps = draw(st.lists(st.sampled_from(("channel_scale", "bias", "residual", "relu")), max_size=3))
    operation = product(m, n, k, draw(st.sampled_from("nt")), "+".join(steps) or "none")
    block = 16 * draw(st.integers(1, min(4, -(-n // 16))))
    rows = draw(st.integers(1, min(m, 28 * 16 // block - 1)))
    blocks = -(-n // block)
    share = draw(st.sampled_from([each for each in range(1, blocks + 1) if blocks % each == 0]))
    unroll = draw(st.sampled_from([each for each in (1, 2, 4, 8) if k // 4 % each == 0]))
    packed = Microkernel((draw(st.integers(rows, m)), share * block), (rows, 1, block), unroll, packed=True)
    height, width = draw(st.integers(1, min(m, 4))), draw(st.sampled_from((4, 8) if n >= 8 else (4,)))
    along = DotMicrokernel((height * -(-m // height), width * -(-n // width)), (min(height, 2), width))
    return operation, draw(st.sampled_from((packed, along) if operation.rhs_layout == "n" else (packed,)))


@pytest.mark.slow
@needs_vnni
@settings(max_examples=100, deadline=None)
@given(drawn())
def test_any_product_is_right(case: tuple[Matmul, Configuration]) -> None:
    if case[1].invalid_reason(case[0], AVX512.limits) is None:
        verify_compiled([Dispatch(*case)], AVX512.compile_flags)


@pytest.mark.slow
@needs_vnni
def test_wrong_kernels_are_found() -> None:
    packed, along = (Dispatch(*each[0]) for each in (PACKED, ALONG_TERMS))
    faults = {
        "signed weights": lambda text: text.replace("arith.constant -128 : i8", "arith.constant 0 : i8"),
        "no correction": lambda text: text.replace("arith.constant -128 : i32", "arith.constant 0 : i32"),
        "fewer elements added": lambda text: text.replace("vector.constant_mask [3]", "vector.constant_mask [2]"),
    }  # fmt: skip
    of_along = {
        "no correction": lambda text: text.replace("arith.constant 128 : i32", "arith.constant 127 : i32"),
        "one bit too few": lambda text: text.replace("dense<-2139062144>", "dense<-2139062272>"),
    }
    found = failures_of({packed: faults, along: of_along})
    assert found.pop((packed, "")) == found.pop((along, "")) == ""
    assert all(found.values()), found
