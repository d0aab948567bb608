"""The fastest known form of an operation follows rules that come from measurements, on every CPU."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest

from dispatch_profiler.configurations import Configuration, CpuTiles, Default, Flow, Formed, Microkernel
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
from dispatch_profiler.targets import (
    HostCpu,
    Target,
    cpu,
    fastest_form,
    packed_microkernel,
    parse_target,
    ranked_microkernels,
    unpacked_kernels,
)
from dispatch_profiler.targets.cpu import LEVELS
from dispatch_profiler.targets.untuned import packed_microkernels

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
                if mode == "weight_backward" and operation.convolution.variant == "depthwise":
                    assert found is None  # its sums are no products of matrices
                    continue
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


WITH, WITHOUT = parse_target("llvm-cpu:znver4"), parse_target("llvm-cpu:cascadelake")
TYPES = ElementTypes("bf16", "bf16", "bf16")
PAIRS = (Flow("data_tiling"), Flow("ukernels"))
LAYOUTS = ("nchw_fchw_nchw", "nhwc_fhwc_nhwc", "nhwc_hwcf_nhwc")


def product(m: int, n: int, k: int, layout: str) -> Operation:
    return Matmul(m, n, k, TYPES, rhs_layout=layout)


def convolution(mode: str, layout: str, filters: int = 64, stride: int = 1) -> Operation:
    return Conv2d(
        2, 14, 14, 48, filters, 3, 3, stride=(stride, stride), types=TYPES, layout=layout, mode=mode
    )


def multiplies_pairs(found: Configuration | None) -> bool:
    return getattr(found, "inner", found) in PAIRS


@pytest.mark.parametrize("layout", ["t", "n"])
@pytest.mark.parametrize(("m", "n", "k"), [(256, 256, 256), (43, 68, 439), (407, 817, 27), (53, 55, 1028)])
def test_products_are_tiled_for_pairs_where_the_cpu_multiplies_them(m: int, n: int, k: int, layout: str):
    assert fastest_form(product(m, n, k, layout), WITH) == Flow("data_tiling")


@pytest.mark.parametrize(
    "operation",
    [product(4, 128, 256, "t"), product(1, 300, 200, "t"), product(3, 5, 7, "t"), product(18, 55, 36, "t")],
)
def test_a_few_rows_and_little_work_are_not_packed(operation: Operation):
    assert fastest_form(operation, WITH) != Flow("data_tiling")


@pytest.mark.parametrize("filters", [64, 51])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("mode", "form"), [("forward", "im2col_t"), ("weight_backward", "im2col_t"), ("input_backward", "im2col")]
)
def test_convolutions_are_products_of_pairs(mode: str, form: str, layout: str, filters: int):
    assert fastest_form(convolution(mode, layout, filters), WITH) == Formed(form, Flow("data_tiling"))


def test_an_inputs_gradient_with_a_stride_is_not_gathered():
    operation = replace(convolution("input_backward", "nchw_fchw_nchw", stride=2), h=40, w=40)
    assert getattr(fastest_form(operation, WITH), "form", "") in ("phases", "shuffled")


@pytest.mark.parametrize("mode", ["forward", "input_backward", "weight_backward"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("filters", [1, 6, 51, 64])
@pytest.mark.parametrize("stride", [1, 2])
def test_a_cpu_without_the_instructions_converts_no_element_by_itself(mode, layout, filters, stride):
    """It takes some 100 times as long."""
    assert not multiplies_pairs(fastest_form(convolution(mode, layout, filters, stride), WITHOUT))


@pytest.mark.parametrize("layout", ["t", "n"])
@pytest.mark.parametrize(("m", "n", "k"), [(256, 256, 256), (43, 68, 439), (328, 1, 235), (1, 137, 708)])
def test_nor_does_a_product_there(m: int, n: int, k: int, layout: str):
    assert not multiplies_pairs(fastest_form(product(m, n, k, layout), WITHOUT))


@pytest.mark.parametrize("layout", ["t", "n"])
def test_batches_of_products_are_tiled_too(layout: str):
    assert fastest_form(BatchMatmul(12, 128, 128, 64, TYPES, rhs_layout=layout), WITH) == Flow("data_tiling")


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


POINTWISE = Conv2d(1, 14, 14, 256, 256, 1, 1, layout="nhwc_fhwc_nhwc")


def on(monkeypatch: pytest.MonkeyPatch, cores: int, *features: str) -> Target:
    """The target `llvm-cpu` on a machine with so many cores, whose CPU has these features."""
    monkeypatch.setattr(cpu, "host_cpu", lambda: cpu.HostCpu("a CPU", frozenset(features)))
    monkeypatch.setattr(packed_microkernels, "usable_threads", lambda: cores)
    return parse_target("llvm-cpu")


def test_it_packs_and_is_valid(monkeypatch: pytest.MonkeyPatch):
    target = on(monkeypatch, 2, "avx", "avx512f")
    for operation in (POINTWISE, Matmul(64, 1024, 1024, rhs_layout="n"), Matmul(64, 1024, 1024)):
        found = packed_microkernel(operation, target)
        assert isinstance(found, Microkernel) and found.packs_weight
        assert found.invalid_reason(operation, target.limits) is None


def test_other_microkernels_follow_the_likely_fastest(monkeypatch: pytest.MonkeyPatch):
    """All are valid, and each is another kernel."""
    target = on(monkeypatch, 2, "avx", "avx512f")
    ranked = ranked_microkernels(POINTWISE, target)
    assert ranked[0] == packed_microkernel(POINTWISE, target)
    assert len(set(ranked)) == len(ranked) > 4
    assert len({each.registers for each in ranked}) > 1
    assert all(each.invalid_reason(POINTWISE, target.limits) is None for each in ranked)
    assert ranked_microkernels(POINTWISE, parse_target("cuda:sm_90")) == ()


def test_vectors_are_as_wide_as_those_of_the_cpu(monkeypatch: pytest.MonkeyPatch):
    """Only AVX2 is sure to have an instruction that multiplies and adds."""
    assert packed_microkernel(POINTWISE, on(monkeypatch, 2, "avx512f")).lanes == 16
    avx2 = on(monkeypatch, 2, *LEVELS["x86-64-v2"], *LEVELS["x86-64-v3"])
    for target in (avx2, parse_target("llvm-cpu:x86-64-v3")):
        found = packed_microkernel(POINTWISE, target)
        assert found.lanes == 8 and found.invalid_reason(POINTWISE, target.limits) is None
    assert packed_microkernel(POINTWISE, on(monkeypatch, 2, "avx")) is None
    assert (
        packed_microkernel(POINTWISE, parse_target("llvm-cpu:znver4")) is None
    )  # its width is not known here
    assert packed_microkernel(POINTWISE, parse_target("cuda:sm_90")) is None


def test_only_for_what_microkernels_compute(monkeypatch: pytest.MonkeyPatch):
    """Both operands of a batch of products are computed; one block in hwcf is stored as it is multiplied."""
    target = on(monkeypatch, 1, "avx512f")
    for operation in (
        BatchMatmul(2, 64, 64, 64),
        Matmul(64, 1024, 1024, HALF, rhs_layout="n"),
        Conv2d(1, 28, 28, 16, 16, 3, 3, layout="nhwc_hwcf_nhwc"),
    ):
        assert packed_microkernel(operation, target) is None


@pytest.mark.parametrize("cores", [1, 2, 3, 4, 6, 8, 9, 16, 24, 32, 64])
@pytest.mark.parametrize("images", [1, 8])
def test_its_workgroups_keep_all_cores_busy(monkeypatch: pytest.MonkeyPatch, cores: int, images: int):
    """If each takes as long as another, cores compute results for six tenths of the time at least."""
    target = on(monkeypatch, cores, "avx512f")
    operation = Conv2d(images, 14, 14, 256, 512, 1, 1, layout="nhwc_fhwc_nhwc")
    found = packed_microkernel(operation, target)
    assert found is not None
    workgroups = images * -(-14 // found.distribution[0]) * -(-512 // found.distribution[1])
    assert workgroups / (cores * -(-workgroups // cores)) >= 0.6
    assert cores <= workgroups <= 8 * max(images, cores)


@pytest.mark.parametrize("size", [(28, 128), (14, 256), (7, 512)])
def test_sixteen_threads_share_a_convolution_of_one_image(
    monkeypatch: pytest.MonkeyPatch, size: tuple[int, int]
):
    """Padded rows are divided with register tiles of one row, although wider tiles load less."""
    extent, channels = size
    operation = Conv2d(1, extent, extent, channels, channels, 3, 3, padding=(1, 1), layout="nhwc_fhwc_nhwc")
    found = packed_microkernel(operation, on(monkeypatch, 16, "avx512f"))
    assert found is not None and math.prod(found.plan(operation).workgroups) >= 16


def test_fewer_threads_get_larger_workgroups(monkeypatch: pytest.MonkeyPatch):
    operation = Matmul(512, 1024, 1024, rhs_layout="n")
    areas = [
        math.prod(packed_microkernel(operation, on(monkeypatch, cores, "avx512f")).distribution)
        for cores in (1, 4, 16, 64)
    ]
    assert areas == sorted(areas, reverse=True) and areas[0] > areas[-1]


def test_without_enough_work_for_the_cores_it_keeps_as_many_busy_as_possible(monkeypatch: pytest.MonkeyPatch):
    """Seven rows, and two to four blocks of filters."""
    operation = Conv2d(1, 7, 7, 64, 64, 3, 3, padding=(1, 1), layout="nhwc_fhwc_nhwc")
    workgroups = [
        math.prod(packed_microkernel(operation, on(monkeypatch, cores, "avx512f")).plan(operation).workgroups)
        for cores in (2, 64)
    ]
    assert workgroups[0] < 14 <= workgroups[1]


@pytest.mark.parametrize("cores", [1, 2, 16])
@pytest.mark.parametrize(
    "operation",
    [
        Conv2d(1, 28, 28, 120, 120, 5, 5, padding=(2, 2), groups=120, layout="nhwc_fhwc_nhwc"),
        Conv2d(1, 14, 14, 24, 24, 3, 3, (2, 2), (1, 1), groups=24, layout="nhwc_fhwc_nhwc"),
        Conv2d(2, 28, 28, 144, 144, 3, 3, padding=(1, 1), groups=9, layout="nhwc_fhwc_nhwc"),
        Conv2d(1, 37, 37, 3, 40, 3, 3, (2, 2), (1, 1), layout="nhwc_fhwc_nhwc"),
        Conv2d(1, 19, 19, 72, 21, 1, 1, layout="nhwc_fhwc_nhwc"),
        Conv1d(1, 100, 24, 40, 3, layout="nwc_fwc_nwc"),
        Conv3d(1, 8, 16, 16, 16, 24, 3, 3, 3, padding=(1, 1, 1), layout="ndhwc_fdhwc_ndhwc"),
        Matmul(197, 1000, 333, rhs_layout="n"),
        Matmul(1, 120, 480, rhs_layout="n"),
    ],
    ids=lambda operation: operation.name,
)
def test_groups_channels_that_do_not_fill_vectors_and_all_spatial_ranks(
    monkeypatch: pytest.MonkeyPatch, cores: int, operation: Operation
):
    """Their text is short enough to compile within a second or two."""
    target = on(monkeypatch, cores, "avx512f")
    found = packed_microkernel(operation, target)
    assert found is not None and found.invalid_reason(operation, target.limits) is None
    assert found.plan(operation).text_length <= 8000


# -- microkernels of gradients of weights --------------------------------------------------------------


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("cores", [1, 2, 16])
@pytest.mark.parametrize(("m", "n", "k"), [(768, 3072, 1024), (3072, 768, 1024), (97, 53, 1576), (5, 17, 3)])
def test_gradients_of_weights_read_lhs_where_it_is(
    monkeypatch: pytest.MonkeyPatch, cores: int, m: int, n: int, k: int
):
    """All cores are busy."""
    target, operation = on(monkeypatch, cores, "avx512f"), Matmul(m, n, k, lhs_layout="n")
    ranked = ranked_microkernels(operation, target, packed=False)
    assert ranked and all(each.invalid_reason(operation, target.limits) is None for each in ranked)
    assert all(each.margin == 0 for each in ranked)
    assert math.prod(ranked[0].plan(operation).workgroups) >= min(cores, m * n // 2**10)
    assert bool(unpacked_kernels(operation, target)) == (m >= 768)


def test_short_gradients_of_weights_have_forms(monkeypatch: pytest.MonkeyPatch):
    """Starting a microkernel takes longer than computing them."""
    target, operation = on(monkeypatch, 2, "avx512f"), Matmul(128, 128, 128, lhs_layout="n")
    assert unpacked_kernels(operation, target)
    assert not unpacked_kernels(replace(operation, k=127), target)


def test_rows_that_evict_each_other_are_read_in_whole_cache_lines(monkeypatch: pytest.MonkeyPatch):
    """Of 3072 rows, the terms of a tile are in so few sets of a cache that no line stays until the next tile."""
    target = on(monkeypatch, 2, "avx512f")

    def rows(m: int, n: int) -> int:
        operation = Matmul(m, n, 1024, lhs_layout="n")
        return ranked_microkernels(operation, target, packed=False)[0].registers[0]

    assert 16 % rows(3072, 768) == 0
    assert 16 % rows(768, 3072) != 0


def test_narrow_vectors_of_gradients_of_weights():
    target, operation = parse_target("llvm-cpu:x86-64-v3"), Matmul(768, 768, 1024, lhs_layout="n")
    ranked = ranked_microkernels(operation, target, 2, packed=False)
    assert ranked and {each.lanes for each in ranked} == {8}
