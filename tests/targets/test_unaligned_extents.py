"""Operations whose extents fill no vectors do not fall back to the compiler's default, which may be scalar code."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from dispatch_profiler.configurations import Configuration, CpuTiles, Default, Flow, Formed
from dispatch_profiler.operations import Conv2d, ElementTypes, Matmul
from dispatch_profiler.targets import fastest_form, parse_target
from dispatch_profiler.targets.untuned.unaligned_extents import unaligned_configurations

CPU = parse_target("llvm-cpu:x86-64-v4")
SHORT = CpuTiles((16, 32), (4, 16, 4), peel=True)
LARGE = CpuTiles((64, 128), (8, 32, 4), peel=True)


def is_peeled(found: Configuration | None) -> bool:
    """Whether tiles are peeled, those of a form's product as well."""
    return bool(getattr(getattr(found, "inner", found), "peel", False))


@pytest.mark.parametrize("layout", ["t", "n"])
@pytest.mark.parametrize(
    ("m", "n", "k"), [(65, 1023, 1021), (197, 768, 768), (167, 1023, 253), (510, 1000, 64)]
)
def test_products_are_peeled_or_padded(m: int, n: int, k: int, layout: str):
    found = fastest_form(Matmul(m, n, k, rhs_layout=layout), CPU)
    if layout == "t":
        assert found is not None
        assert getattr(found, "peel", False)
    else:
        assert found == Flow("ukernels")


@pytest.mark.parametrize(
    ("layout", "m", "n", "k"), [("n", 199, 42, 47), ("t", 34, 498, 89), ("n", 216, 215, 8)]
)
def test_small_products_are_peeled_because_packing_them_takes_longer(layout: str, m: int, n: int, k: int):
    assert is_peeled(fastest_form(Matmul(m, n, k, rhs_layout=layout), CPU))


def test_a_row_times_columns_is_peeled_and_dot_products_are_left_to_the_compiler():
    row = fastest_form(Matmul(1, 137, 708, rhs_layout="t"), CPU)
    assert row == CpuTiles((8, 64), (1, 16, 1), peel=True)
    assert not list(unaligned_configurations(Matmul(328, 1, 240, rhs_layout="n")))


def test_a_few_rows_times_whole_vectors_are_computed_in_many_columns_at_once():
    """The compiler's default takes twice as long. Of bf16, it is as fast for more rows than one."""
    types = ElementTypes("bf16", "bf16", "bf16")
    assert fastest_form(Matmul(1, 1024, 768, rhs_layout="t"), CPU) == CpuTiles((8, 64), (1, 64, 4))
    assert fastest_form(Matmul(1, 1024, 768, types, rhs_layout="t"), CPU) == CpuTiles((8, 64), (1, 64, 4))
    assert fastest_form(Matmul(2, 1024, 768, rhs_layout="t"), CPU) == CpuTiles((2, 64), (2, 64, 1))
    assert fastest_form(Matmul(4, 1024, 768, rhs_layout="t"), CPU) == CpuTiles((4, 64), (4, 32, 1))
    assert fastest_form(Matmul(4, 1024, 768, types, rhs_layout="t"), CPU) is None


def test_short_sums_are_not_packed():
    assert is_peeled(fastest_form(Matmul(422, 131, 6, rhs_layout="n"), CPU))


def test_what_fills_vectors_or_is_tiny_is_left_to_other_rules():
    for operation in (
        Matmul(128, 768, 768),
        Matmul(3, 5, 7),
        Conv2d(1, 14, 14, 64, 64, 3, 3, layout="nhwc_fhwc_nhwc"),
        Conv2d(1, 14, 14, 64, 36, 3, 3, layout="nhwc_fhwc_nhwc"),
        Conv2d(1, 14, 14, 64, 63, 3, 3, layout="nhwc_fhwc_nhwc", mode="input_backward"),
        Conv2d(1, 14, 14, 63, 64, 3, 3, layout="nhwc_fhwc_nhwc"),
    ):
        assert not list(unaligned_configurations(operation))


@pytest.mark.parametrize("layout", ["nhwc_fhwc_nhwc", "nhwc_hwcf_nhwc", "nchw_fchw_nchw"])
def test_convolutions_with_an_odd_number_of_filters_become_peeled_products(layout: str):
    """In large tiles, if these are many."""
    operation = Conv2d(1, 31, 31, 63, 127, 3, 3, padding=(1, 1), layout=layout)
    assert fastest_form(operation, CPU) == Formed("im2col_t", SHORT)
    assert fastest_form(replace(operation, n=8), CPU) == Formed("im2col_t", LARGE)


@pytest.mark.parametrize("layout", ["nhwc_fhwc_nhwc", "nchw_fchw_nchw"])
@pytest.mark.parametrize(
    ("size", "filters", "taps", "form"),
    [
        (57, 64, 3, "permuted"),
        (64, 42, 3, "permuted"),  # tiles of 14 filters
        (40, 68, 3, "im2col_t"),  # no tile divides the filters,
        (19, 256, 3, "im2col_t"),  # or the pixels of a row
        (40, 41, 3, "im2col_t"),
    ],
)
def test_the_compiler_keeps_the_convolutions_that_it_finds_tiles_for(size, filters, taps, form, layout):
    operation = Conv2d(1, size, size, 64, filters, taps, taps, padding=(1, 1), layout=layout)
    found = fastest_form(operation, CPU)
    assert isinstance(found, Formed)
    assert found.form == form


def test_a_few_rows_times_a_permuted_matrix_are_computed_in_columns():
    for m, n, k in ((43, 439, 68), (52, 256, 111), (22, 233, 83)):
        assert fastest_form(Matmul(m, n, k, rhs_layout="n"), CPU) == CpuTiles((64, 8), (8, 8, 4), peel=True)
    assert fastest_form(Matmul(300, 304, 301, rhs_layout="n"), CPU) == Flow("ukernels")


@pytest.mark.parametrize("type_", ["f16", "bf16"])
@pytest.mark.parametrize(("m", "n", "k"), [(128, 768, 768), (64, 256, 300), (52, 256, 111)])
def test_narrow_types_that_fill_vectors_stay_as_the_compiler_configures_them(m, n, k, type_):
    """This CPU converts bf16."""
    types = ElementTypes(type_, type_, type_)
    assert fastest_form(Matmul(m, n, k, types, rhs_layout="n"), CPU) is None


def test_a_filters_gradient_by_taps_reads_mostly_pixels_of_the_output():
    """And packs pixels of long sums, whose slices would be copied."""
    gradient = {"layout": "nhwc_fhwc_nhwc", "mode": "weight_backward"}
    assert fastest_form(Conv2d(2, 31, 31, 126, 2, 5, 5, **gradient), CPU) == Formed(
        "taps", Flow("data_tiling")
    )
    assert fastest_form(Conv2d(1, 27, 27, 60, 12, 3, 3, **gradient), CPU) == Formed("taps", SHORT)
    assert fastest_form(Conv2d(8, 11, 11, 110, 6, 5, 5, **gradient), CPU) == Formed(
        "im2col", Flow("data_tiling")
    )


def test_a_depthwise_gradient_pads_its_image_first():
    operation = Conv2d(
        2, 27, 27, 74, 74, 3, 3, padding=(1, 1), groups=74, layout="nchw", mode="input_backward"
    )
    assert fastest_form(operation, CPU) == Formed("permuted")


def test_pixels_with_few_channels_are_gathered_for_longer_sums():
    operation = Conv2d(8, 28, 28, 12, 55, 5, 5, padding=(2, 2), layout="nhwc_fhwc_nhwc")
    assert fastest_form(operation, CPU) == Formed("im2col", Flow("data_tiling"))


@pytest.mark.parametrize("stride", [(1, 1), (2, 2)])
def test_a_single_filter_is_not_padded_to_a_tile(stride: tuple[int, int]):
    operation = Conv2d(1, 37, 37, 186, 1, 7, 7, stride=stride, layout="nhwc_fhwc_nhwc")
    expected = Formed("kn2row", Flow("data_tiling")) if stride == (1, 1) else Formed("permuted")
    assert fastest_form(operation, CPU) == expected


@pytest.mark.parametrize("layout", ["nhwc_fhwc_nhwc", "nchw_fchw_nchw"])
def test_few_filters_and_few_channels_of_a_gradient_are_rows_of_taps(layout: str):
    forward = Conv2d(1, 64, 64, 96, 3, 5, 5, padding=(2, 2), layout=layout)
    gradient = Conv2d(1, 64, 64, 3, 96, 5, 5, padding=(2, 2), layout=layout, mode="input_backward")
    single = Conv2d(1, 30, 30, 6, 84, 5, 5, groups=6, layout=layout, mode="input_backward")
    for operation in (forward, gradient, single):
        found = fastest_form(operation, CPU)
        assert isinstance(found, Formed)
        assert found.form == "kn2row"


@pytest.mark.parametrize(
    ("size", "channels", "filters", "padding"),
    [(8, 208, 5, 0), (55, 12, 3, 3), (55, 256, 16, 3)],
    ids=["few of the pixels", "short sums", "many filters"],
)
def test_products_of_taps_that_are_mostly_overhead_are_not_chosen(
    size: int, channels: int, filters: int, padding: int
):
    operation = Conv2d(
        1, size, size, channels, filters, 7, 7, padding=(padding, padding), layout="nhwc_fhwc_nhwc"
    )
    found = fastest_form(operation, CPU)
    assert isinstance(found, Formed)
    assert found.form != "kn2row"


@pytest.mark.parametrize("layout", ["nhwc_fhwc_nhwc", "nchw_fchw_nchw"])
def test_a_strided_gradient_of_single_channels_is_one_product(layout: str):
    operation = Conv2d(
        4,
        22,
        22,
        29,
        87,
        3,
        3,
        stride=(3, 3),
        padding=(1, 1),
        groups=29,
        layout=layout,
        mode="input_backward",
    )
    assert fastest_form(operation, CPU) == Formed("shuffled")


def test_sums_of_three_products_are_computed_row_by_row():
    assert fastest_form(Matmul(130, 95, 3), CPU) == CpuTiles((8, 64), (1, 16, 1), peel=True)


def test_a_transposed_convolution_with_a_large_stride_is_no_loop_of_scalars():
    """The compiler's own loops take 39 and 616 times as long as torch."""
    wide = Conv2d(2, 232, 232, 18, 173, 4, 4, stride=(10, 10), layout="nchw_fchw_nchw", mode="input_backward")
    narrow = Conv2d(1, 87, 87, 3, 87, 3, 3, stride=(14, 14), layout="nchw_fchw_nchw", mode="input_backward")
    for operation in (wide, narrow):
        found = fastest_form(operation, CPU)
        assert isinstance(found, Formed)
        assert found.form == "shuffled"
        assert len(found.reduced(operation).kernels) <= 4  # not one for each of 100 or 196 phases


def test_gradients_with_many_phases_are_few_kernels_however_they_are_aligned():
    for groups, channels in ((1, 64), (4, 64), (64, 64)):
        operation = Conv2d(
            1, 64, 64, channels, 128, 8, 8, stride=(8, 8), groups=groups, layout="nhwc_fhwc_nhwc", mode="input_backward"
        )  # fmt: skip
        found = fastest_form(operation, CPU)
        assert isinstance(found, Formed)
        assert len(found.reduced(operation).kernels) == 1


@pytest.mark.parametrize("type_", ["f32", "f16"])
@pytest.mark.parametrize("layout", ["t", "n"])
@pytest.mark.parametrize(("m", "n"), [(2, 263), (3, 244), (5, 100), (8, 777)])
def test_tiles_are_as_high_as_a_result_of_few_rows(m: int, n: int, layout: str, type_: str):
    types = ElementTypes(type_, type_, type_)
    found = fastest_form(Matmul(m, n, 119, types, rhs_layout=layout), CPU)
    assert found == CpuTiles((m, 64), (m, 16, 16), peel=True)


@pytest.mark.parametrize("layout", ["t", "n"])
@pytest.mark.parametrize(("m", "n"), [(219, 1), (235, 2), (147, 3), (176, 5), (301, 11)])
def test_tiles_are_as_wide_as_a_result_of_few_columns(m: int, n: int, layout: str):
    found = fastest_form(Matmul(m, n, 311, rhs_layout=layout), CPU)
    assert found == CpuTiles((32, n), (8, n, 16), peel=True)


def test_rows_of_whole_vectors_leave_nothing_to_peel():
    for m in (2, 6):
        found = fastest_form(Matmul(m, 256, 320, rhs_layout="n"), CPU)
        assert found == CpuTiles((m, 64), (m, 16, 16))


@pytest.mark.parametrize(("m", "n"), [(42, 2), (96, 8), (1000, 4), (2, 144)])
def test_columns_that_the_compiler_vectorizes_are_left_to_it(m: int, n: int):
    assert fastest_form(Matmul(m, n, 398, rhs_layout="t"), CPU) is None


@pytest.mark.parametrize(("filters", "form"), [(2, "taps"), (6, "taps"), (25, "im2col_t"), (97, "im2col_t")])
def test_a_filters_gradient_with_few_filters_is_no_product_of_filters(filters: int, form: str):
    operation = Conv2d(1, 30, 30, 110, filters, 5, 5, layout="nhwc_fhwc_nhwc", mode="weight_backward")
    found = fastest_form(operation, CPU)
    assert isinstance(found, Formed)
    assert found.form == form


@pytest.mark.parametrize("layout", ["nhwc_fhwc_nhwc", "nchw_fchw_nchw"])
def test_phases_that_fill_no_vector_are_not_put_side_by_side(layout: str):
    operation = Conv2d(
        8, 13, 13, 9, 167, 3, 3, stride=(2, 2), padding=(1, 1), layout=layout, mode="input_backward"
    )
    found = fastest_form(operation, CPU)
    assert isinstance(found, Formed)
    assert found.form != "shuffled"


@pytest.mark.parametrize("layout", ["nhwc_fhwc_nhwc", "nchw_fchw_nchw"])
def test_few_filters_are_no_columns_unless_windows_leave_pixels_out(layout: str):
    overlapping = Conv2d(4, 44, 44, 62, 7, 3, 3, padding=(1, 1), layout=layout)
    apart = Conv2d(1, 252, 252, 265, 7, 4, 4, stride=(25, 25), layout=layout)
    assert fastest_form(overlapping, CPU) == Formed("permuted")
    assert fastest_form(apart, CPU) == Formed("im2col_t", SHORT)


@pytest.mark.parametrize("mode", ["forward", "weight_backward"])
def test_groups_of_one_channel_become_products(mode: str):
    operation = Conv2d(2, 44, 44, 14, 238, 3, 3, groups=14, layout="nchw_fchw_nchw", mode=mode)
    assert fastest_form(operation, CPU) == Formed("im2col")


def test_a_gradient_of_an_odd_number_of_channels_becomes_a_peeled_product():
    operation = Conv2d(
        1, 31, 31, 63, 128, 3, 3, padding=(1, 1), layout="nhwc_fhwc_nhwc", mode="input_backward"
    )
    found = fastest_form(operation, CPU)
    assert isinstance(found, Formed)
    assert found.form == "im2col"


def test_whatever_is_chosen_is_valid_for_the_operation():
    rng = random.Random(0)
    for _ in range(200):
        m, n, k = (rng.randint(1, 1100) for _ in range(3))
        lhs, rhs, kind = rng.choice("tn"), rng.choice("tn"), rng.choice(["f32", "f16", "bf16", "f64", "i8"])
        result = {"i8": "i32"}.get(kind, kind)
        operation = Matmul(m, n, k, ElementTypes(kind, kind, result), lhs_layout=lhs, rhs_layout=rhs)
        found = fastest_form(operation, CPU) or Default()
        assert found.invalid_reason(operation, CPU.limits) is None
