"""The attributes that configurations put on an operation: loop by loop, level by level."""

from __future__ import annotations

import pytest

from dispatch_profiler.configurations import CpuTiles, Default, Flow, lowering_config_text
from dispatch_profiler.operations import BatchMatmul, Conv2d, Matmul

MATMUL = Matmul(256, 512, 128)
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
