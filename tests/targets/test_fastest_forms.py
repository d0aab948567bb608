"""The fastest known form of an operation follows rules that come from measurements."""

from __future__ import annotations

import pytest

from dispatch_profiler.configurations import Default
from dispatch_profiler.operations import (
    BatchMatmul,
    Conv1d,
    Conv2d,
    Conv3d,
    ElementTypes,
    Epilogue,
    LayerNorm,
    Matmul,
    Operation,
)
from dispatch_profiler.targets import fastest_form, parse_target

CPU = parse_target("llvm-cpu:x86-64-v4")
FHWC = "nhwc_fhwc_nhwc"
EARLY = Conv2d(1, 56, 56, 64, 64, 3, 3, padding=(1, 1))
HALF = ElementTypes("f16", "f16", "f16")
LATE = {"n": 1, "h": 7, "w": 7, "c": 512, "k": 512, "r": 3, "s": 3, "padding": (1, 1)}


def of(kind=Conv2d, **fields):
    """The name of the fastest form of a convolution."""
    shape = {"n": 1, "h": 56, "w": 56, "c": 64, "k": 64, "r": 3, "s": 3, "padding": (1, 1)}
    found = fastest_form(kind(**{**shape, **fields}), CPU)
    return found and found.name.removeprefix("tile_config_").removeprefix("flow_config_")


@pytest.mark.parametrize(
    "operation",
    [EARLY, Conv2d(2, 28, 28, 64, 64, 3, 3, groups=64), Matmul(64, 64, 64), LayerNorm(4, 8)],
    ids=lambda operation: operation.name,
)
def test_the_direct_form_is_the_fastest_of_a_canonical_convolution(operation):
    """Nothing is added beside the compiler's own choice."""
    assert fastest_form(operation, CPU) is None


def test_a_canonical_convolution_with_many_filters_reads_them_in_blocks():
    """A pixel reads 1152 elements of each of 128 filters; with fewer of either, the direct form is as fast."""
    wide = {"h": 28, "w": 28, "c": 128, "k": 128}
    assert of(**wide) == "blocked_1x7x28x64_1x1x14x32x1x1x8"
    assert of(**wide, n=8) == "blocked_1x14x28x64_1x1x14x32x1x1x8"
    assert of(**{**wide, "c": 64}) is of(**{**wide, "k": 64}) is of(**wide, types=HALF) is None
    assert of(**LATE) == "blocked_1x7x7x64_1x1x7x64x1x1x8"
    assert of(**{**wide, "c": 132}) == "blocked_1x7x28x64_1x1x14x32x1x1x4"  # 8 does not divide the channels


def test_a_filter_in_fhwc_is_permuted():
    """With tiles that were measured for f32; the compiler tiles other types, and what no tile divides."""
    assert of(layout=FHWC) == "permuted_1x14x28x64_1x1x14x32x1x1x1"
    assert of(layout=FHWC, h=28, w=28) == "permuted_1x7x28x64_1x1x14x32x1x1x1"
    assert of(layout=FHWC, n=8, h=7, w=7) == "permuted_1x7x7x64_1x1x7x64x1x1x1"
    assert of(layout=FHWC, w=57) == of(layout=FHWC, types=HALF) == "permuted_default"
    assert of(layout=FHWC, h=14, w=14, c=256, r=1, s=1, padding=(0, 0)) == "permuted_1x7x7x64_1x1x7x64x1x1x1"


def test_many_filters_in_fhwc_are_stored_in_blocks():
    """Of a gradient, these are the channels. Few pixels are multiplied with the filter as it is, if f is first."""
    wide = {"layout": FHWC, "h": 14, "w": 14, "c": 256, "k": 256}
    assert of(**wide) == of(**wide, mode="input_backward") == "blocked_1x7x28x64_1x1x14x32x1x1x8"
    assert of(**LATE, layout=FHWC) == of(**LATE, layout="nchw") == "im2col_t32_32x64_4x64x8"


def test_long_sums_in_many_blocks_are_permuted_instead():
    """Blocks would each be divided among too many kernels."""
    assert of(**{**LATE, "n": 8}, layout=FHWC) == "permuted_1x7x7x64_1x1x7x64x1x1x1"
    assert of(**LATE, layout=FHWC, mode="input_backward") == "im2col_data_tiling"
    assert of(**{**LATE, "n": 8, "k": 256}, layout=FHWC) == "blocked_1x7x7x64_1x1x7x64x1x1x8"


def test_gradients():
    assert of(mode="input_backward") == "permuted_1x14x28x64_1x1x14x32x1x1x1"
    assert of(mode="input_backward", c=96) == "blocked_1x14x28x64_1x1x14x32x1x1x8"
    assert of(mode="input_backward", stride=(2, 2)) == "phases_1x7x28x64_1x1x14x32x1x1x4"
    assert of(mode="input_backward", stride=(2, 2), types=HALF) == "phases_default"
    assert of(mode="weight_backward") == "taps_default"
    assert of(mode="weight_backward", n=8) == "taps_32x64_32x64x1024_8x32x1"
    assert of(mode="weight_backward", n=8, c=96) == "taps_32x32_32x32x1024_8x32x1"
    assert of(mode="weight_backward", n=8, c=80) == "taps_data_tiling"
    assert of(mode="weight_backward", r=1, s=1, padding=(0, 0)) == "taps_64x64_8x32x1"
    assert of(mode="weight_backward", stride=(2, 2)) == "im2col_t_64x64_32x64x256_8x32x1"
    assert of(**LATE, mode="weight_backward") == "im2col_t_64x64_32x64x256_8x32x1"


def test_groups_and_other_ranks():
    assert of(groups=4) == "per_group_1x14x28x64_1x1x14x16x1x1x1"
    assert of(layout="nchw", groups=32) == of(groups=4, types=HALF) == "per_group_default"
    assert of(c=128, k=128, groups=4) == "per_group_1x14x28x64_1x1x14x32x1x1x1"
    assert (
        of(c=128, k=128, groups=64) == of(groups=16, mode="input_backward", stride=(2, 2)) == "im2col_default"
    )
    assert of(groups=64) == "fused_padding"
    assert of(layout="nchw", groups=64) == "permuted_fused_padding"
    assert of(layout="nchw", groups=64, padding=(0, 0)) == "permuted_default"
    assert fastest_form(Conv3d(1, 10, 30, 30, 64, 64, 3, 3, 3), CPU).name == (
        "tile_config_permuted_1x14x28x64_1x1x14x32x1x1x1"
    )
    assert fastest_form(Conv1d(1, 3000, 80, 512, 3), CPU).name == "tile_config_im2col_data_tiling"


def test_a_filter_of_one_row_or_column_is_no_fast_convolution():
    """In no layout."""
    assert of(r=3, s=1) == of(layout=FHWC, r=1, s=3) == "im2col_data_tiling"


def test_a_pointwise_convolution_in_nchw_is_a_product_of_what_is_stored():
    assert of(layout="nchw", r=1, s=1, padding=(0, 0)) == "im2col_t_64x64_8x32x1"


@pytest.mark.parametrize("target", ["cuda:sm_80", "rocm:gfx942", "vulkan-spirv", "vmvx"])
def test_no_form_was_measured_on_other_targets(target):
    assert fastest_form(Conv2d(**LATE, layout=FHWC), parse_target(target)) is None


@pytest.mark.parametrize("layout", ["nhwc", "nchw", FHWC])
def test_a_gradient_that_no_pixel_reaches_has_no_form(layout):
    """All of it is zero, so that its forms would have no kernels."""
    fields = {"stride": (9, 9), "padding": (1, 1), "mode": "input_backward", "layout": layout}
    assert fastest_form(Conv2d(1, 1, 1, 1, 1, 1, 1, **fields), CPU) is None


def test_the_fastest_form_is_valid():
    """Odd extents, which no tile divides, leave the kernel to the compiler or peel."""
    for layout in ("nchw", FHWC, "hcwn_cwfh_wnch"):
        for mode in ("forward", "input_backward", "weight_backward"):
            for stride, h, c, k, groups in ((1, 7, 5, 3, 1), (2, 15, 9, 6, 3), (3, 33, 4, 4, 4)):
                operation = Conv2d(
                    1, h, h + 1, c, k, 3, 3, (stride, 1), groups=groups, layout=layout, mode=mode
                )  # fmt: skip
                found = fastest_form(operation, CPU)
                assert found is not None
                assert found.invalid_reason(operation, CPU.limits) is None
                assert found != Default()


def form_of(operation: Operation) -> str | None:
    found = fastest_form(operation, CPU)
    return found.name.removeprefix("tile_config_") if found else None


def test_a_product_with_a_transposed_rhs_is_computed_transposed():
    """If its rows fill vectors: with fewer rows, the direct form is faster."""

    def of_product(m: int, **fields: object) -> str | None:
        return form_of(Matmul(m, 96, 64, **{"rhs_layout": "n", **fields}))

    assert of_product(32) == of_product(32, lhs_layout="n") == "transposed_64x128_8x32x8"
    assert of_product(48) == "transposed_64x16_8x16x8"
    assert of_product(8) is of_product(100) is of_product(32, types=HALF) is None
    assert of_product(32, rhs_layout="t") is of_product(384, rhs_layout="t") is None


@pytest.mark.parametrize(
    ("m", "n", "k", "form"),
    [
        (128, 768, 768, "transposed_panels_32x32_8x32x8"),
        (128, 3072, 768, "transposed_panels_32x32_8x32x8"),
        (384, 768, 768, "panels_96x32_12x32x4"),
        (384, 3072, 768, "panels_96x32_12x32x4"),
        (384, 768, 3072, "transposed_panels_64x32_8x32x8"),
        (1024, 1024, 1024, "panels_64x32_8x32x8"),
        (400, 768, 3072, "transposed_64x16_8x16x8"),
    ],
)
def test_what_is_stored_as_panels_is_what_moves_fewer_elements(m, n, k, form):
    """rhs once; or lhs, and the result once or, before a bias, twice."""
    assert form_of(Matmul(m, n, k, rhs_layout="n", epilogue=Epilogue.parse("bias"))) == form


def test_a_batch_of_products_with_a_transposed_rhs_permutes_it():
    def of_batch(m: int, n: int, **fields: object) -> str | None:
        return form_of(BatchMatmul(12, m, n, 64, **{"rhs_layout": "n", **fields}))

    assert of_batch(128, 128) == "permuted_64x64_4x64x4"
    assert of_batch(128, 96) == "permuted_64x32_8x32x4"
    assert of_batch(8, 128) is of_batch(128, 128, rhs_layout="t") is of_batch(128, 128, types=HALF) is None


def test_a_row_times_columns_that_fill_no_vectors_has_tiles():
    assert form_of(Matmul(1, 1000, 2048, rhs_layout="n")) == "1x64_1x16x16_peel"
    assert form_of(Matmul(1, 1024, 2048, rhs_layout="n")) is None


@pytest.mark.parametrize(
    ("h", "c", "k", "stride", "form"),
    [
        (7, 512, 2048, 1, "blocked_1x7x7x64_1x1x7x64x1x1x8"),
        (28, 512, 1024, 2, "blocked_1x7x7x64_1x1x7x64x1x1x8"),
        (14, 256, 1024, 1, "permuted_1x7x7x64_1x1x7x64x1x1x1"),
    ],
)
def test_a_pointwise_convolution_with_many_filters_of_many_channels_reads_them_in_blocks(
    h, c, k, stride, form
):
    assert form_of(Conv2d(1, h, h, c, k, 1, 1, stride=(stride, stride), layout=FHWC)) == form
