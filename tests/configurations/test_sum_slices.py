"""Slices of long sums: how many, and the longest chain of additions that results."""

from __future__ import annotations

import pytest

from dispatch_profiler.configurations import CpuTiles, Default, Formed, Limits
from dispatch_profiler.configurations.cpu.microkernel import Microkernel
from dispatch_profiler.configurations.splits import (
    lengths_of_slices,
    longest_sum,
    sliceable_extent,
    slices_of_long_sum,
)
from dispatch_profiler.operations import Conv2d, ElementTypes, LayerNorm, Matmul, element_type

F32 = element_type("f32")


@pytest.mark.parametrize("k", [1, 512, longest_sum(F32)])
def test_short_sums_are_not_sliced(k):
    assert slices_of_long_sum(Matmul(64, 64, k)) == 1
    assert Default().error_bound(Matmul(64, 64, k)) is None


@pytest.mark.parametrize("k", [769, 1024, 4096, 4099, 65_537, 10**6, 10**6 + 3, 10**7])
def test_no_chain_of_additions_is_much_longer_than_the_root_of_the_sum(k):
    bound = Default().error_bound(Matmul(8, 8, k))
    assert bound.longest_chain(Matmul(8, 8, k)) <= max(1024, 4 * k**0.5)


def test_slices_have_no_more_elements_than_the_operands():
    slices = slices_of_long_sum(Matmul(2048, 2048, 4096))
    assert 1 < slices * 2048 * 2048 <= 2 * 2048 * 4096


def test_sums_of_16_bit_products_are_sliced_later():
    types = ElementTypes("bf16", "bf16", "f32")
    assert slices_of_long_sum(Matmul(8, 8, 2**16, types)) == 1
    assert slices_of_long_sum(Matmul(8, 8, 2**17, types)) > 1


def test_slices_of_tiles_hold_whole_vectors():
    slices = CpuTiles((32, 32), (8, 32, 8)).slices(Matmul(64, 64, 4096))
    assert slices > 1 and -(-4096 // slices) % 8 == 0


def test_tiles_that_are_peeled_are_sliced_and_stay_valid():
    """Also if only the sum is no multiple of its tile, which its slices are."""
    tiles, limits = CpuTiles((32, 32), (8, 32, 4), peel=True), Limits()
    for operation in (Matmul(33, 17 * 32, 2000), Matmul(64, 64, 10_007)):
        assert tiles.slices(operation) > 1
        assert tiles.invalid_reason(operation, limits) is None


def test_only_products_are_sliced():
    assert slices_of_long_sum(Conv2d(1, 64, 64, 2048, 8, 3, 3)) == 1
    assert slices_of_long_sum(LayerNorm(2, 10**6)) == 1


@pytest.mark.parametrize("terms", [769, 5000, 26_794, 10**6 + 3])
def test_an_extent_that_was_filled_up_is_divided_by_slices(terms):
    extent = sliceable_extent(terms, F32)
    slices = slices_of_long_sum(Matmul(8, 8, extent), multiple=16)
    assert terms <= extent <= 1.05 * terms + 512
    assert slices > 1 and extent % slices == 0


@pytest.mark.parametrize("products", [1, 9, 25, 1000])
@pytest.mark.parametrize("extent", [1, 2, 64, 131, 132, 300, 512, 1009, 4096])
def test_slices_of_an_axis_are_the_axis_and_short_enough(extent, products):
    lengths = lengths_of_slices(extent, products, F32, most=16)
    assert sum(lengths) == extent and min(lengths) >= 1 and len(lengths) <= 16
    assert len(set(lengths[:-1])) <= 1  # but for the last, all are equal
    if extent * products <= longest_sum(F32):
        assert lengths == (extent,)
    elif -(-extent * products // longest_sum(F32)) <= min(16, extent):
        assert max(lengths) * products <= longest_sum(F32) + 8 * products


def test_slices_of_channels_keep_the_steps_of_kernels():
    assert lengths_of_slices(512, 9, F32, most=16) == (64,) * 8
    assert lengths_of_slices(132, 9, F32, most=16) == (44,) * 3
    assert lengths_of_slices(131, 9, F32, most=16) == (72, 59)
    assert lengths_of_slices(512, 9, F32, most=2) == (256, 256)


def test_forms_of_convolutions_add_channels_in_slices():
    """Also those of gradients and of each block or phase; the few kernels of many blocks are less precise."""
    backward = {"mode": "input_backward"}
    for form, operation in (
        ("permuted", Conv2d(1, 9, 9, 300, 8, 3, 3, layout="nchw")),
        ("permuted", Conv2d(1, 9, 9, 8, 300, 3, 3, layout="nchw", **backward)),
        ("phases", Conv2d(1, 9, 9, 8, 600, 4, 4, stride=(2, 2), **backward)),
        ("blocked", Conv2d(1, 9, 9, 300, 128, 3, 3)),
        ("per_group", Conv2d(1, 9, 9, 300, 4, 3, 3, groups=2)),
    ):
        assert Formed(form).error_bound(operation).longest <= 1.1 * longest_sum(F32), form
    wide = Conv2d(1, 9, 9, 512, 512, 3, 3, layout="nchw")
    assert Formed("permuted").error_bound(wide).longest == 64 * 9 + 2 * 7
    assert Formed("blocked").error_bound(wide).longest == 256 * 9 + 2


def test_a_form_has_the_bound_of_its_kernels():
    operation = Conv2d(4, 60, 60, 8, 8, 3, 3, mode="weight_backward")
    assert Formed("taps").error_bound(operation).longest < 700
    assert Formed("taps").error_bound(Conv2d(1, 8, 8, 8, 8, 3, 3, mode="weight_backward")) is None


def test_a_microkernel_adds_many_channels_in_slices():
    kernel = Microkernel((8, 32), (1, 8, 32))
    assert kernel.error_bound(Matmul(8, 32, 768)) is None
    assert kernel.error_bound(Matmul(8, 32, 4096)).longest == 512 + 8


def test_a_microkernel_adds_the_channels_of_each_tap_in_slices():
    kernel = Microkernel((8, 32), (1, 8, 32))
    assert kernel.error_bound(Conv2d(1, 8, 8, 256, 32, 3, 3)).longest == 256 + 9
    assert kernel.error_bound(Conv2d(1, 8, 8, 1024, 32, 3, 3)).longest == 512 + 18
    assert kernel.error_bound(Conv2d(1, 8, 8, 64, 32, 3, 3)) is None  # a short sum
    assert kernel.error_bound(Conv2d(1, 8, 8, 32, 32, 5, 5)) is None  # slices of few channels
