"""CPU tiles: names, rejection reasons, the operations that they fit, and the attributes that they put on an operation."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatch_profiler.configurations import (
    CpuTiles,
    Default,
    Flow,
    Formed,
    Limits,
    Microkernel,
    MmaTiles,
    SimtTiles,
    TritonTiles,
    lowering_config_text,
    spaces,
)
from dispatch_profiler.errors import ConfigurationError
from dispatch_profiler.operations import (
    BatchMatmul,
    Conv1d,
    Conv2d,
    Conv3d,
    ElementTypes,
    LayerNorm,
    LayerNormInputBackward,
    Matmul,
)
from dispatch_profiler.targets import parse_target

PROPERTY = settings(max_examples=100, deadline=None, derandomize=True)
ANY = Limits()
MATMUL = Matmul(256, 512, 128)
CONV = Conv2d(2, 58, 58, 64, 128, 3, 3)
DEPTHWISE = Conv2d(2, 58, 58, 64, 64, 3, 3, groups=64)
GROUPED = Conv2d(2, 58, 58, 64, 128, 3, 3, groups=4)


@pytest.mark.parametrize(
    ("configuration", "name"),
    [
        (CpuTiles((64, 128), (8, 32, 4)), "tile_config_64x128_8x32x4"),
        (CpuTiles((64, 128), (8, 32, 4), (8, 128, 256)), "tile_config_64x128_8x128x256_8x32x4"),
        (CpuTiles((64, 128), (8, 32, 4), peel=True), "tile_config_64x128_8x32x4_peel"),
        (CpuTiles((64, 128), (8, 32, 4), split_k=4), "tile_config_64x128_8x32x4_splitk4"),
        (
            CpuTiles((8, 8), (4, 4, 2), (8, 8, 2), peel=True, split_k=16),
            "tile_config_8x8_8x8x2_4x4x2_peel_splitk16",
        ),
        (
            CpuTiles((1, 14, 28, 64), (1, 1, 14, 32, 1, 1, 1)),
            "tile_config_1x14x28x64_1x1x14x32x1x1x1",
        ),
    ],
)
def test_a_name_holds_every_field(configuration, name):
    """Distribution, cache if any, vector, then what else was asked for."""
    assert name == configuration.name


def test_columns_of_the_report():
    """Tiles as in the name; no cache tile is an empty column."""
    columns = {"distribution_tile": "64x128", "cache_tile": "", "vector_tile": "8x32x4", "peel": "false"}
    assert columns == CpuTiles((64, 128), (8, 32, 4)).fields()
    with_cache = CpuTiles((64, 128), (8, 32, 4), (8, 128, 256), peel=True).fields()
    assert {**columns, "cache_tile": "8x128x256", "peel": "true"} == with_cache


def test_tiles_may_be_given_as_lists():
    """A list from a file is the same configuration, and hashes as such."""
    listed = CpuTiles([64, 128], [8, 32, 4], [8, 128, 256])
    assert {CpuTiles((64, 128), (8, 32, 4), (8, 128, 256)): 1} == {listed: 1}


def test_tiles_are_no_flags():
    """They go on the operation, so that all of them share the plain module."""
    tiles = CpuTiles((64, 128), (8, 32, 4))
    assert (tiles.flags, tiles.module, tiles.evidence) == ((), "", None)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"distribution": (64, 0)},
            "distribution: every tile must be a whole number of at least 1, but got [64, 0]",
        ),
        (
            {"vector": (8, -1, 4)},
            "vector: every tile must be a whole number of at least 1, but got [8, -1, 4]",
        ),
        (
            {"vector": (8, 2.0, 4)},
            "vector: every tile must be a whole number of at least 1, but got [8, 2.0, 4]",
        ),
        (
            {"cache": (8, True, 4)},
            "cache: every tile must be a whole number of at least 1, but got [8, True, 4]",
        ),
        (
            {"cache": (8, "4", 4)},
            "cache: every tile must be a whole number of at least 1, but got [8, '4', 4]",
        ),
        (
            {"distribution": ()},
            "vector needs a tile for each axis of distribution and at least one reduction axis, "
            "but got distribution=[], vector=[8, 32, 4]",
        ),
        (
            {"vector": (8, 32)},
            "vector needs a tile for each axis of distribution and at least one reduction axis, "
            "but got distribution=[64, 128], vector=[8, 32]",
        ),
        ({"cache": (8, 128)}, "cache needs as many tiles as vector, but got [8, 128], [8, 32, 4]"),
        ({"split_k": 0}, "split_k must be a whole number of at least 1, but got 0"),
        ({"split_k": True}, "split_k must be a whole number of at least 1, but got True"),
        ({"split_k": 2.0}, "split_k must be a whole number of at least 1, but got 2.0"),
    ],
)
def test_a_malformed_configuration_is_refused(fields, message):
    """The message has the field, the rule and the values."""
    with pytest.raises(ConfigurationError) as caught:
        CpuTiles(**{"distribution": (64, 128), "vector": (8, 32, 4), **fields})
    assert message == str(caught.value)


@pytest.mark.parametrize(
    ("configuration", "operation"),
    [
        (CpuTiles((64, 128), (8, 32, 4)), MATMUL),
        (CpuTiles((64, 128), (8, 32, 4)), BatchMatmul(3, 256, 512, 128)),
        (CpuTiles((64, 128), (8, 32, 4), (8, 128, 64)), MATMUL),
        (CpuTiles((64, 128), (8, 32, 4), split_k=4), MATMUL),
        (CpuTiles((64, 128), (8, 32, 3), peel=True), MATMUL),
        (CpuTiles((1024, 1024), (8, 32, 4)), MATMUL),
        (CpuTiles((1, 14, 28, 64), (1, 1, 14, 32, 1, 1, 8)), CONV),
        (CpuTiles((1, 14, 28, 32), (1, 1, 14, 32, 3, 3, 16)), GROUPED),
        (CpuTiles((1, 14, 28, 64), (1, 1, 14, 32, 1, 1, 1)), DEPTHWISE),
    ],
)
def test_a_configuration_that_fits_has_no_reason(configuration, operation):
    """For every rejection below, a similar configuration is accepted."""
    assert configuration.invalid_reason(operation, ANY) is None


MATMUL_REASONS = [
    (
        CpuTiles((64, 128), (8, 32, 4, 4)),
        "matmul takes 2 distribution and 3 vector tiles (m, n, k), but got 2 and 4",
    ),
    (
        CpuTiles((64,), (8, 32, 4)),
        "matmul takes 2 distribution and 3 vector tiles (m, n, k), but got 1 and 3",
    ),
    (CpuTiles((64, 128), (8, 32, 4), split_k=3), "3 slices do not divide k=128"),
    (CpuTiles((512, 128), (512, 32, 4)), "vector tile 512 exceeds m=256"),
    (CpuTiles((512, 128), (512, 32, 4), peel=True), "vector tile 512 exceeds m=256"),
    (CpuTiles((64, 128), (8, 32, 64), split_k=4), "vector tile 64 exceeds k=32"),
    (CpuTiles((64, 128), (8, 32, 3)), "vector tile 3 does not divide k=128, and peel is off"),
    (CpuTiles((60, 128), (8, 32, 4)), "distribution tile 60 is not a multiple of vector tile 8 along m"),
    (
        CpuTiles((64, 128), (8, 32, 4), (8, 48, 4)),
        "cache tile 48 is not a multiple of vector tile 32 along n",
    ),
    (
        CpuTiles((64, 128), (8, 32, 4), (8, 32, 6)),
        "cache tile 6 is not a multiple of vector tile 4 along k",
    ),
    (
        CpuTiles((64, 128), (8, 32, 4), peel=True),
        "every vector tile divides the problem, so there is nothing to peel",
    ),
]


@pytest.mark.parametrize(("configuration", "reason"), MATMUL_REASONS)
def test_why_a_configuration_does_not_fit_a_matmul(configuration, reason):
    """The reason has the rule and the values."""
    assert reason == configuration.invalid_reason(MATMUL, ANY)


@pytest.mark.parametrize(
    ("operation", "reason"),
    [
        (BatchMatmul(3, 256, 512, 128), "split-k is defined for matmul, not for batch_matmul"),
        (
            CONV,
            "conv2d takes 4 distribution and 7 vector tiles (n, oh, ow, oc, kh, kw, ic), but got 2 and 3",
        ),
    ],
)
def test_only_a_matmul_is_split(operation, reason):
    """Another kind of operation has another reason."""
    assert reason == CpuTiles((64, 128), (8, 32, 4), split_k=4).invalid_reason(operation, ANY)


@pytest.mark.parametrize(
    ("operation", "vector", "reason"),
    [
        (CONV, (1, 1, 57, 32, 1, 1, 1), "vector tile 57 exceeds ow=56"),
        (CONV, (1, 1, 16, 32, 1, 1, 1), "vector tile 16 does not divide ow=56, and peel is off"),
        (GROUPED, (1, 1, 14, 64, 1, 1, 1), "vector tile 64 exceeds oc=32"),
        (GROUPED, (1, 1, 14, 32, 1, 1, 32), "vector tile 32 exceeds ic=16"),
        (DEPTHWISE, (1, 1, 14, 32, 1, 1, 8), "this conv2d has no loop ic, but its vector tile is 8"),
    ],
)
def test_why_a_configuration_does_not_fit_a_convolution(operation, vector, reason):
    """Extents are those of the loops: of a group's channels, and none where a loop is missing."""
    assert reason == CpuTiles((1, 14, 56, 64), vector).invalid_reason(operation, ANY)


@pytest.mark.parametrize(
    ("types", "accumulator", "size"),
    [(("f16", "f16", "f16"), "f32", 4), (("f64", "f64", "f32"), "f64", 8), (("i8", "i8", "i32"), "i32", 4)],
)
def test_a_vector_that_the_compiler_refuses_is_left_out(types, accumulator, size):
    """Its bytes are those of the products in the accumulator; one byte below the limit is accepted."""
    operation = Matmul(256, 512, 128, ElementTypes(*types))
    tiles, held = CpuTiles((64, 128), (8, 32, 4)), 8 * 32 * 4 * size
    assert tiles.invalid_reason(operation, Limits(held + 1)) is None
    reason = (
        f"the vector tile has {held} B of {accumulator}, but the compiler needs vectors below {held} B: "
        "use a smaller vector tile"
    )
    assert reason == tiles.invalid_reason(operation, Limits(max_vector_bytes=held))


def test_where_a_cache_tile_cuts_the_reduction_it_is_the_widest_vector():
    """Its zeros are written at once, outside the loop over the reduction."""
    tiles = CpuTiles((64, 128), (8, 32, 4), (16, 128, 4))
    assert tiles.invalid_reason(MATMUL, Limits(16 * 128 * 4 + 1)) is None
    reason = tiles.invalid_reason(MATMUL, Limits(16 * 128 * 4))
    assert reason.startswith("the cache tile has 8192 B of f32, but")
    assert reason.endswith("use a smaller cache tile")


def test_where_a_cache_tile_leaves_the_reduction_whole_the_vector_tile_is_the_widest():
    """k=128 in one piece: the products of 8 x 32 x 4 are the widest, not 16 x 128; in two slices, 64 is whole."""
    limits = Limits(max_vector_bytes=8 * 32 * 4 * 4 + 1)
    assert CpuTiles((64, 128), (8, 32, 4), (16, 128, 128)).invalid_reason(MATMUL, limits) is None
    assert CpuTiles((64, 128), (8, 32, 4), (16, 128, 64), split_k=2).invalid_reason(MATMUL, limits) is None
    assert "cache tile" in CpuTiles((64, 128), (8, 32, 4), (16, 128, 64)).invalid_reason(MATMUL, limits)


WIDE = {
    "matmul": (Matmul(128, 256, 512), (128, 256), (8, 32, 32)),
    "batch_matmul": (BatchMatmul(4, 128, 128, 128), (128, 128), (8, 32, 32)),
    "conv": (Conv2d(2, 30, 30, 64, 64, 3, 3), (2, 28, 28, 64), (1, 1, 28, 64, 1, 1, 16)),
    "conv along h": (Conv2d(2, 30, 30, 64, 64, 3, 3), (2, 28, 28, 64), (1, 4, 1, 64, 1, 1, 64)),
    "1x1": (Conv2d(2, 28, 28, 64, 128, 1, 1), (2, 28, 28, 128), (2, 4, 14, 16, 1, 1, 8)),
    "grouped 1x1": (Conv2d(2, 14, 14, 32, 64, 1, 1, groups=4), (2, 14, 14, 16), (1, 14, 14, 16, 1, 1, 8)),
}


@pytest.mark.parametrize("name", WIDE)
def test_products_that_fill_a_vector_are_left_out(name):
    """What IREE 3.13 rejects as a large vector, in each case here; with one channel at a time it fits."""
    operation, distribution, vector = WIDE[name]
    limits = Limits(max_vector_bytes=32768)
    reason = CpuTiles(distribution, vector).invalid_reason(operation, limits)
    assert reason.startswith("the vector tile has ")
    assert CpuTiles(distribution, (*vector[:-1], 1)).invalid_reason(operation, limits) is None


def test_taps_are_done_one_at_a_time():
    """They do not count; and where a filter slides along two axes in one step nothing is vectorized."""
    operation, limits = Conv2d(2, 30, 30, 64, 64, 3, 3), Limits(max_vector_bytes=32768)
    for vector in ((1, 1, 14, 32, 1, 3, 16), (1, 4, 28, 64, 3, 3, 16), (1, 4, 28, 32, 1, 1, 8)):
        assert CpuTiles((2, 4, 28, 64), vector).invalid_reason(operation, limits) is None


def test_a_split_is_checked_against_its_slices():
    """128 in 4 slices is 32 at a time, so that a tile of 32 is the largest along k."""
    fits = [
        CpuTiles((64, 128), (8, 32, k), split_k=4).invalid_reason(MATMUL, ANY) is None for k in (16, 32, 64)
    ]
    assert fits == [True, True, False]


NORM = LayerNorm(64, 48)
FEW_CHUNKS = (
    "a row is split into 2 or more chunks of 2 or more elements: vector tile {} does not fit column={}"
)


@pytest.mark.parametrize("operation", [NORM, LayerNormInputBackward(64, 48)], ids=lambda op: op.kind)
@pytest.mark.parametrize(
    ("tiles", "reason"),
    [
        (CpuTiles((16,), (4, 16)), None),
        (CpuTiles((100,), (2, 24)), None),
        (CpuTiles((16,), (4, 48)), FEW_CHUNKS.format(48, 48)),
        (CpuTiles((16,), (4, 1)), FEW_CHUNKS.format(1, 48)),
        (CpuTiles((16,), (4, 5)), "vector tile 5 does not divide column=48, and peel is off"),
        (CpuTiles((18,), (4, 16)), "distribution tile 18 is not a multiple of vector tile 4 along row"),
        (CpuTiles((15,), (5, 16)), "vector tile 5 does not divide row=64, and peel is off"),
        (CpuTiles((15,), (5, 16), peel=True), "cache tiles and peel do not apply to rows"),
        (CpuTiles((16,), (4, 16), (4, 16)), "cache tiles and peel do not apply to rows"),
    ],
)
def test_why_a_configuration_does_not_fit_rows(operation, tiles, reason):
    assert tiles.invalid_reason(operation, ANY) == reason


def test_rows_that_the_compiler_would_fold_away_have_no_tiles():
    """One row; rows that have no divisor, and so no chunks; both have no space."""
    assert (
        CpuTiles((1,), (1, 16)).invalid_reason(LayerNorm(1, 48), ANY) == "tiles of rows need at least 2 rows"
    )
    assert CpuTiles((4,), (4, 7)).invalid_reason(LayerNorm(64, 7), ANY) == FEW_CHUNKS.format(7, 7)
    for operation in (LayerNorm(1, 48), LayerNorm(64, 7), LayerNorm(64, 1)):
        assert CpuTiles.space(operation, ANY) is None


small = st.integers(1, 8)


@PROPERTY
@given(
    st.tuples(small, small, small), st.tuples(small, small), st.tuples(small, small, small),
    st.none() | st.tuples(small, small, small), st.booleans(), st.integers(1, 3), st.integers(1, 600),
)  # fmt: skip
def test_tiles_fit_exactly_the_matmuls_that_the_rules_allow(
    extents, outer, vector, cache, peel, split, limit
):
    """The rules written out once more, for any tiles on any small problem."""
    tiles = CpuTiles(outer, vector, cache or (), peel, split)
    reason = tiles.invalid_reason(Matmul(*extents), Limits(limit))
    m, n, k = extents
    sliced = (m, n, k // split)
    widest = cache if cache and cache[2] < sliced[2] else vector
    rules = [
        k % split == 0,
        all(tile <= extent for tile, extent in zip(vector, sliced, strict=True)),
        peel != all(extent % tile == 0 for tile, extent in zip(vector, sliced, strict=True)),
        all(tile % inner == 0 for tile, inner in zip(outer, vector, strict=False)),
        all(tile % inner == 0 for tile, inner in zip(cache or vector, vector, strict=True)),
        max(math.prod(widest[:2]), math.prod(vector)) * 4 < limit,
    ]
    assert all(rules) == (reason is None)


IMAGE = {"n": 2, "h": 18, "w": 18, "c": 32, "k": 64, "r": 3, "s": 3}
UNSUPPORTED = {
    "forward conv2d and matrix products, not conv1d": Conv1d(2, 18, 32, 64, 3),
    "forward conv2d and matrix products, not conv3d": Conv3d(2, 6, 18, 18, 32, 64, 3, 3, 3),
    "forward conv2d and matrix products, not conv2d input_backward": Conv2d(**IMAGE, mode="input_backward"),
    "forward conv2d and matrix products, not conv3d weight_backward": Conv3d(
        2, 6, 18, 18, 32, 64, 3, 3, 3, mode="weight_backward"
    ),
    "convolutions in the layouts nhwc and nchw, not nhwc_fhwc_nhwc": Conv2d(**IMAGE, layout="nhwc_fhwc_nhwc"),
    "convolutions in the layouts nhwc and nchw, not nhwc_hwcf_nchw": Conv2d(**IMAGE, layout="nhwc_hwcf_nchw"),
}
CONFIGURATIONS = [
    ("llvm-cpu", CpuTiles((1, 2, 4, 4), (1, 1, 2, 2, 1, 1, 1))),
    ("cuda:sm_80", MmaTiles(workgroup=(1, 4, 16, 64), reduction=(32,), subgroups=(1, 2, 1, 2))),
    ("cuda:sm_80", SimtTiles(workgroup=(1, 4, 16, 32), reduction=(16,), thread=(1, 1, 4, 4))),
]


@pytest.mark.parametrize(
    ("target", "configuration"), CONFIGURATIONS, ids=lambda value: getattr(value, "kind", "")
)
@pytest.mark.parametrize("reason", UNSUPPORTED)
def test_a_convolution_is_rejected_with_what_is_supported(target, configuration, reason):
    found = configuration.invalid_reason(UNSUPPORTED[reason], parse_target(target).limits)
    assert found is not None
    assert found.endswith(f"for {reason}")


@pytest.mark.parametrize(
    ("target", "configuration"), CONFIGURATIONS, ids=lambda value: getattr(value, "kind", "")
)
def test_a_padding_of_one_side_is_supported(target, configuration):
    """It changes the input that the loops read, not the loops."""
    operation = Conv2d(**{**IMAGE, "h": 16, "w": 16}, padding=(0, 1), padding_after=(2, 1))
    reason = configuration.invalid_reason(operation, parse_target(target).limits)
    assert reason == configuration.invalid_reason(Conv2d(**IMAGE), parse_target(target).limits)


@pytest.mark.parametrize("target", ["llvm-cpu", "cuda:sm_80", "rocm:gfx942", "vulkan-spirv"])
@pytest.mark.parametrize("operation", UNSUPPORTED.values(), ids=UNSUPPORTED)
def test_only_forms_and_what_leaves_the_choice_to_the_compiler_have_a_space(target, operation):
    """And what does not use the compiler's tiles: microkernels, for CPUs, and Triton kernels, for CUDA."""
    kinds = {space.kind for space in spaces(operation, parse_target(target).limits)}
    assert kinds <= {Default, Flow, Formed, Microkernel, TritonTiles}


TILES = CpuTiles((64, 128), (8, 32, 4))
CONV_TILES = CpuTiles((1, 4, 14, 32), (1, 2, 7, 16, 3, 1, 8))


def conv(layout, groups):
    """128 channels and filters of 3 x 3 on images of 58 x 58."""
    return Conv2d(2, 58, 58, 128, 128, 3, 3, groups=groups, layout=layout)


def levels_of(configuration, operation):
    """`loops` and each level as one line of text."""
    lowering = configuration.lowering(operation)
    rows = {"loops": " ".join(loop.name for loop in lowering.loops)}
    return rows | {level: " ".join(map(str, tiles)) for level, tiles in lowering.levels}


def test_the_attribute_of_a_matmul():
    """Parallel levels leave k whole, the reduction level leaves m and n whole."""
    assert TILES.lowering(MATMUL).compilation_info == (
        "#iree_codegen.compilation_info<"
        "lowering_config = #iree_cpu.lowering_config<distribution = [64, 128, 0], "
        "vector_common_parallel = [8, 32, 0], vector_reduction = [0, 0, 4]>, "
        "translation_info = #iree_codegen.translation_info<pipeline = #iree_cpu.pipeline<DoubleTilingExpert>>>"
    )


def test_the_attribute_of_a_matmul_with_every_option():
    """Cache levels stand between; peeling is an option of the pipeline; slices are a loop."""
    tiles = CpuTiles((64, 128), (8, 32, 4), (16, 64, 8), peel=True, split_k=4)
    assert tiles.lowering(MATMUL).compilation_info == (
        "#iree_codegen.compilation_info<"
        "lowering_config = #iree_cpu.lowering_config<distribution = [1, 64, 128, 0], "
        "cache_parallel = [1, 16, 64, 0], cache_reduction = [0, 0, 0, 8], "
        "vector_common_parallel = [1, 8, 32, 0], vector_reduction = [0, 0, 0, 4]>, "
        "translation_info = #iree_codegen.translation_info<pipeline = #iree_cpu.pipeline<DoubleTilingExpert>, "
        "{enable_loop_peeling}>>"
    )


def test_the_attribute_of_a_convolution():
    """A named convolution is decomposed, which is another pipeline."""
    assert CONV_TILES.lowering(conv("nhwc", 1)).compilation_info == (
        "#iree_codegen.compilation_info<"
        "lowering_config = #iree_cpu.lowering_config<distribution = [1, 4, 14, 32, 0, 0, 0], "
        "vector_common_parallel = [1, 2, 7, 16, 0, 0, 0], vector_reduction = [0, 0, 0, 0, 3, 1, 8]>, "
        "translation_info = #iree_codegen.translation_info<"
        "pipeline = #iree_cpu.pipeline<ConvTileAndDecomposeExpert>>>"
    )


def test_batches_are_done_one_at_a_time():
    """The batch loop comes first, with a tile of 1 wherever it is cut."""
    assert levels_of(TILES, BatchMatmul(16, 256, 512, 128)) == {
        "loops": "batch m n k",
        "distribution": "1 64 128 0",
        "vector_common_parallel": "1 8 32 0",
        "vector_reduction": "0 0 0 4",
    }


@pytest.mark.parametrize("slices", [2, 4, 16])
def test_slices_are_done_one_at_a_time(slices):
    """k=128 is cut into slices of equal length, a loop of their own in front."""
    lowering = CpuTiles((64, 128), (8, 32, 4), split_k=slices).lowering(MATMUL)
    assert [("split", slices), ("m", 256), ("n", 512), ("k", 128 // slices)] == [
        (loop.name, loop.extent) for loop in lowering.loops
    ]
    assert dict(lowering.levels)["distribution"] == (1, 64, 128, 0)


@pytest.mark.parametrize(
    ("layout", "groups", "expected"),
    [
        ("nhwc", 1, ("n oh ow oc kh kw ic", "1 4 14 32 0 0 0", "1 2 7 16 0 0 0", "0 0 0 0 3 1 8")),
        ("nchw", 1, ("n oc oh ow ic kh kw", "1 32 4 14 0 0 0", "1 16 2 7 0 0 0", "0 0 0 0 8 3 1")),
        ("nhwc", 4, ("n oh ow g oc kh kw ic", "1 4 14 1 32 0 0 0", "1 2 7 1 16 0 0 0", "0 0 0 0 0 3 1 8")),
        ("nchw", 4, ("n g oc oh ow ic kh kw", "1 1 32 4 14 0 0 0", "1 1 16 2 7 0 0 0", "0 0 0 0 0 8 3 1")),
        ("nhwc", 128, ("n oh ow oc kh kw", "1 4 14 32 0 0", "1 2 7 16 0 0", "0 0 0 0 3 1")),
        ("nchw", 128, ("n oh ow oc kh kw", "1 4 14 32 0 0", "1 2 7 16 0 0", "0 0 0 0 3 1")),
    ],
)
def test_one_configuration_serves_every_form_of_a_convolution(layout, groups, expected):
    """Tiles follow their loops into the order of each linalg form; groups are done one at a time."""
    names = ("loops", "distribution", "vector_common_parallel", "vector_reduction")
    assert dict(zip(names, expected, strict=True)) == levels_of(CONV_TILES, conv(layout, groups))


@pytest.mark.parametrize(
    ("groups", "pipeline"),
    [(1, "ConvTileAndDecomposeExpert"), (4, "DoubleTilingExpert"), (128, "ConvTileAndDecomposeExpert")],
)
def test_only_convolutions_that_linalg_names_are_decomposed(groups, pipeline):
    """A grouped one is a linalg.generic, which is tiled like a product."""
    assert pipeline == CONV_TILES.lowering(conv("nhwc", groups)).pipeline


@pytest.mark.parametrize("configuration", [Default(), Default(4), Flow("data_tiling")])
def test_where_the_compiler_chooses_there_is_no_attribute(configuration):
    """The default and whole-flow configurations leave the tiles open."""
    assert configuration.lowering(MATMUL) is None


def test_levels_are_written_in_the_order_given():
    """The attribute's text for any dialect."""
    text = "#iree_gpu.lowering_config<workgroup = [64, 0], thread = [1, 2]>"
    assert text == lowering_config_text("iree_gpu", (("workgroup", (64, 0)), ("thread", (1, 2))))


@pytest.mark.parametrize(
    ("configuration", "operation"),
    [
        (TILES, MATMUL),
        (CpuTiles((64, 128), (8, 32, 4), (16, 64, 8), peel=True, split_k=4), MATMUL),
        (CONV_TILES, conv("nchw", 1)),
        (CONV_TILES, conv("nhwc", 4)),
    ],
)
def test_the_compiler_reads_the_attribute(configuration, operation):
    """IREE's own parser takes the text and knows its pipeline and its levels."""
    ir = pytest.importorskip("iree.compiler.ir")
    lowering = configuration.lowering(operation)
    with ir.Context():
        parsed = str(ir.Attribute.parse(lowering.compilation_info))
    assert lowering.pipeline in parsed
    for level, tiles in lowering.levels:
        assert f"{level} = [{', '.join(map(str, tiles))}]" in parsed
