"""On CPUs without AVX-512, tiles keep their sums in 16 registers, and few shapes are left to slow code."""

from __future__ import annotations

import math
import random

import pytest

from dispatch_profiler.configurations import Configuration, CpuTiles, Flow, Formed
from dispatch_profiler.operations import Conv2d, ElementTypes, Matmul, Operation
from dispatch_profiler.targets import HostCpu, fastest_form, parse_target

AVX2 = parse_target("llvm-cpu:x86-64-v3")
AVX512 = parse_target("llvm-cpu:x86-64-v4")
BYTES, REGISTERS, F32 = 32, 16, 4


def vectors_of(found: Configuration | None) -> int:
    """Vectors that hold the sums of a tile; 0 if the compiler chooses the tile."""
    tiles = getattr(found, "inner", found)
    if not isinstance(tiles, CpuTiles):
        return 0
    parallel = tiles.vector[:-1] if len(tiles.vector) == 3 else tiles.vector[:4]
    return math.prod(parallel[:-1]) * math.ceil(parallel[-1] * F32 / BYTES)


def drawn(seed: int) -> Operation:
    draw = random.Random(seed)

    def extent(most: int) -> int:
        return round(most ** draw.random())

    if seed % 2:
        return Matmul(extent(1100), extent(1100), extent(1100), rhs_layout=draw.choice("nt"))
    size, taps = extent(60), draw.choice((1, 3, 5))
    return Conv2d(
        draw.choice((1, 4)), max(size, taps), max(size, taps), extent(300), extent(300), taps, taps,
        layout=draw.choice(("nhwc_fhwc_nhwc", "nchw_fchw_nchw")),
        mode=draw.choice(("forward", "input_backward", "weight_backward")),
    )  # fmt: skip


def test_sums_of_any_tile_stay_in_registers():
    tiled = 0
    for seed in range(400):
        operation = drawn(seed)
        vectors = vectors_of(fastest_form(operation, AVX2))
        assert vectors < REGISTERS, operation.name
        tiled += vectors > 0
    assert tiled > 100


@pytest.mark.parametrize("layout", ["n", "t"])
def test_small_products_are_left_to_the_compiler(layout: str):
    assert fastest_form(Matmul(102, 33, 205, rhs_layout=layout), AVX2) is None
    assert fastest_form(Matmul(102, 33, 205, rhs_layout=layout), AVX512) is not None


def test_a_row_times_whole_vectors_is_computed_in_many_columns_at_once():
    """The compiler's default took 7 to 12 times torch's time."""
    assert fastest_form(Matmul(1, 1024, 768, rhs_layout="t"), AVX2) == CpuTiles((8, 64), (1, 64, 4))


def test_a_gradient_with_many_phases_is_one_product():
    """Of a kernel for each phase, the compiler needed more than two minutes."""
    operation = Conv2d(
        1, 323, 323, 6, 59, 38, 38, stride=(19, 19), layout="nchw_fchw_nchw", mode="input_backward"
    )
    found = fastest_form(operation, AVX2)
    assert isinstance(found, Formed)
    assert found.form == "shuffled"


@pytest.mark.parametrize("type_", ["f16", "bf16"])
def test_products_of_narrow_types_are_left_to_the_compiler(type_: str):
    assert fastest_form(Matmul(100, 37, 300, ElementTypes(type_, type_, type_), rhs_layout="t"), AVX2) is None


def test_the_host_s_vectors_decide():
    assert HostCpu("AMD EPYC 7763", frozenset({"avx", "avx2", "fma"})).vector_bytes == BYTES
    assert AVX2.limits.vector_bytes == BYTES
    assert AVX512.limits.vector_bytes is None


def test_large_products_are_packed():
    assert fastest_form(Matmul(507, 139, 718, rhs_layout="n"), AVX2) == Flow("ukernels")
    assert fastest_form(Matmul(925, 421, 159, rhs_layout="t"), AVX2) == Flow("data_tiling")
    assert fastest_form(Matmul(8, 1024, 1024, rhs_layout="n"), AVX2) is None
