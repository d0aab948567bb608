"""The rule that chooses the microkernel of a product with a weight of 4 bits without an entry."""

from __future__ import annotations

from itertools import product

import pytest

from dispatch_profiler.configurations import Int4Microkernel
from dispatch_profiler.operations import Int4Matmul, Matmul
from dispatch_profiler.targets import Target, parse_target, untuned_kernels
from dispatch_profiler.targets.untuned.int4_products import ranked_int4_microkernels

AVX512 = ("avx512f", "avx512bw", "avx512dq", "avx512vl", "fma", "avx2")
ROWS = (1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 16, 33, 200, 1000)


@pytest.fixture
def avx512(host_has) -> Target:
    host_has(*AVX512)
    return parse_target("llvm-cpu")


@pytest.fixture
def vnni(host_has) -> Target:
    host_has(*AVX512, "avx512_vnni")
    return parse_target("llvm-cpu")


@pytest.mark.parametrize("threads", [1, 2, 16, 96])
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("multiplies", [False, True], ids=["f32", "whole numbers"])
def test_every_size_has_a_valid_kernel(host_has, multiplies: bool, rows: int, threads: int):
    """Of whole numbers where they can be. The busiest thread has at most twice an even share of the panels, unless they are few."""
    host_has(*AVX512, *(["avx512_vnni"] if multiplies else []))
    target = parse_target("llvm-cpu")
    for n, group, groups in product((64, 512, 8192), (16, 32, 128, 256), (1, 3, 64)):
        operation = Int4Matmul(rows, n, group * groups, group, "bf16")
        (kernel,) = ranked_int4_microkernels(operation, target, threads)
        assert kernel.integers is multiplies
        assert kernel.invalid_reason(operation, target.limits) is None
        shares, parts = kernel.plan(operation).workgroups
        rounds = -(-shares * parts // threads)
        units = operation.int4_product.panels * parts
        assert rounds * kernel.share <= max(2 * units / threads, 1)


def test_other_products_are_of_numbers_in_f32(vnni):
    for operation in (Int4Matmul(1, 64, 64, 32, "f32"), Int4Matmul(1, 64, 512, 512, "bf16")):
        (kernel,) = ranked_int4_microkernels(operation, vnni, 2)
        assert not kernel.integers


def test_few_rows_are_unpacked_in_registers(avx512):
    """In as few tiles as possible, equally tall; many rows in blocks of whole groups."""
    found = {
        rows: next(ranked_int4_microkernels(Int4Matmul(rows, 4096, 4096, 32), avx512, 2)) for rows in ROWS
    }
    assert [found[rows].rows for rows in ROWS[:9]] == [1, 2, 3, 4, 5, 3, 4, 5, 5]
    assert [found[rows].block for rows in ROWS] == [0] * 9 + [64, 64, 128, 128, 128]


def test_launches_have_it(avx512):
    operation = Int4Matmul(1, 2048, 2048, 32)
    assert isinstance(next(iter(untuned_kernels(operation, avx512))), Int4Microkernel)
    assert not list(ranked_int4_microkernels(Matmul(1, 2048, 2048), avx512))


def test_narrow_vectors_have_none(host_has):
    host_has("fma", "avx2")
    assert not list(ranked_int4_microkernels(Int4Matmul(1, 64, 32, 32), parse_target("llvm-cpu")))
