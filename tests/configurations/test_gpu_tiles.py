"""GPU tiles: what they are called, what they refuse, and which operations they fit."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dispatch_profiler.configurations import GpuLimits, Limits, MmaTiles, SimtTiles
from dispatch_profiler.errors import ConfigurationError
from dispatch_profiler.operations import BatchMatmul, Conv2d, ElementTypes, Matmul, operation_from_dict

SM_80 = GpuLimits("sm_80", 1024, 166912, (32,), 255, 65536, (1,), ("NV_MMA_SYNC_F32_16x8x16_F16",))
CUDA = Limits(backend="cuda", gpu=SM_80)
MFMA = ("MFMA_F32_16x16x16_F16", "MFMA_F32_32x32x8_F16")
ROCM = Limits(backend="rocm", gpu=GpuLimits("gfx942", 1024, 65536, (64,), 512, 0, (1, 2, 3), MFMA))
SPIRV = Limits(backend="vulkan-spirv", gpu=GpuLimits("phone", 128, 16384, (64,), 0, 0, (1,), ()))
F16 = ElementTypes("f16", "f16", "f16")
PRODUCT = Matmul(512, 512, 512, F16)
CONV = Conv2d(8, 66, 66, 64, 64, 3, 3, types=F16)
MMA = MmaTiles(workgroup=(128, 128), reduction=(32,))
VECTOR = replace(MMA, pipeline="VectorDistribute")
NARROW = replace(MMA, accumulator="f16")
SIMT = SimtTiles(workgroup=(64, 64), reduction=(16,), thread=(4, 8))
WORDS = SimtTiles(workgroup=(32, 32), reduction=(4,), thread=(4, 4), stages=1, pipeline="BaseVectorize")
IMPLICIT = MmaTiles(workgroup=(1, 4, 16, 64), reduction=(32,), subgroups=(1, 2, 1, 2))
DIRECT = replace(IMPLICIT, reduction=(1, 1, 32))


@pytest.mark.parametrize(
    ("configuration", "name"),
    [
        (MMA, "tile_config_128x128_32x2_tensorcore_mmasync"),
        (replace(MMA, stages=5), "tile_config_128x128_32x5_tensorcore_mmasync"),
        (replace(MMA, subgroups=(4, 2)), "tile_config_128x128_32x2_tensorcore_mmasync_s4x2"),
        (VECTOR, "tile_config_128x128_32x2_tensorcore_mmasync_vd"),
        (replace(VECTOR, order="transpose"), "tile_config_128x128_32x2_tensorcore_mmasync_vd_transpose"),
        (
            replace(MMA, shared_padding=False, split_k=4),
            "tile_config_128x128_32x2_tensorcore_mmasync_unpadded_splitk4",
        ),
        (IMPLICIT, "tile_config_1x4x16x64_32x2_tensorcore_mmasync_s1x2x1x2"),
        (DIRECT, "tile_config_1x4x16x64_1x1x32x2_tensorcore_mmasync_s1x2x1x2"),
        (
            MmaTiles(workgroup=(128, 128), reduction=(32,), instruction="mfma", shape=(32, 32, 8)),
            "tile_config_128x128_32x2_matrixcore_mfma_32x32x8",
        ),
        (NARROW, "tile_config_128x128_32x2_tensorcore_mmasync_sumsf16"),
        (SIMT, "tile_config_64x64_16x2_simt_ffma_4x8"),
        (
            replace(SIMT, promote=False, subgroup_size=64),
            "tile_config_64x64_16x2_simt_ffma_4x8_unpromoted_w64",
        ),
        (WORDS, "tile_config_32x32_4x1_simt_ffma_4x4_spirv"),
    ],
)
def test_a_name_is_the_originals_and_what_is_not_as_usual(configuration, name):
    """Workgroup, k tile x stages, core and instruction; then each field that differs."""
    assert configuration.name == name


@pytest.mark.parametrize(
    ("workgroup", "threads"),
    [((256, 128), 256), ((128, 256), 256), ((128, 128), 128), ((128, 64), 128), ((64, 64), 128)],
)
def test_subgroups_are_the_originals_unless_given(workgroup, threads):
    """[64, 4, 1], [128, 2, 1] and [64, 2, 1] threads in its tables."""
    assert MmaTiles(workgroup=workgroup, reduction=(32,)).threads == threads


def test_columns_of_the_report():
    """Core and instruction as in the IREE dispatch profiler."""
    assert MMA.fields() == {
        "workgroup_tile": "128x128", "k_tile": "32", "stages": "2", "core": "tensorcore", "instruction": "mmasync",
        "pipeline": "TileAndFuse", "inner_tile": "2x2", "options": "wave32",
    }  # fmt: skip
    other = replace(VECTOR, order="transpose", shared_padding=False)
    assert other.fields()["options"] == "wave32 unpadded transpose"
    assert SIMT.fields()["inner_tile"] == "4x8"


MALFORMED = [
    (
        MMA,
        {"workgroup": (0, 8)},
        "workgroup: every tile must be a whole number of at least 1, but got [0, 8]",
    ),
    (MMA, {"workgroup": ()}, "workgroup and reduction need at least one tile each, but got [], [32]"),
    (
        MMA,
        {"subgroups": (1, 2, 3)},
        "subgroups needs a number for each tile of workgroup, but got [1, 2, 3], [128, 128]",
    ),
    (MMA, {"shape": (16, 16)}, "shape needs m, n and k, but got [16, 16]"),
    (MMA, {"stages": 0}, "stages must be a whole number of at least 1, but got 0"),
    (MMA, {"stages": True}, "stages must be a whole number of at least 1, but got True"),
    (MMA, {"subgroup_size": 16}, "unknown subgroup_size 16"),
    (MMA, {"pipeline": "VectorDistribut"}, "unknown pipeline 'VectorDistribut'"),
    (MMA, {"order": "swizzle"}, "unknown order 'swizzle'"),
    (MMA, {"instruction": "wgmma"}, "unknown instruction 'wgmma'"),
    (MMA, {"accumulator": "f64"}, "unknown accumulator 'f64'"),
    (MMA, {"shared_padding": 1}, "shared_padding must be true or false, but got 1"),
    (MMA, {"split_k": 0}, "split_k must be a whole number of at least 1, but got 0"),
    (
        SIMT,
        {"thread": (4, 8, 1)},
        "thread needs a tile for each tile of workgroup, but got [4, 8, 1], [64, 64]",
    ),
    (SIMT, {"promote": "yes"}, "promote must be true or false, but got 'yes'"),
]


@pytest.mark.parametrize(("base", "changes", "message"), MALFORMED)
def test_a_malformed_configuration_is_refused(base, changes, message):
    """The field, the rule and the value."""
    with pytest.raises(ConfigurationError) as caught:
        replace(base, **changes)
    assert str(caught.value) == message


VALID = [
    (MMA, PRODUCT, CUDA), (VECTOR, PRODUCT, CUDA), (SIMT, PRODUCT, CUDA), (replace(SIMT, promote=False), PRODUCT, CUDA),
    (MMA, BatchMatmul(4, 512, 512, 512, F16), CUDA),
    (replace(MMA, split_k=4), PRODUCT, CUDA),
    # TileAndFuse pads what it does not divide, and a row of one to an instruction's.
    (MMA, Matmul(500, 300, 70, F16), CUDA),
    (MmaTiles(workgroup=(16, 64), reduction=(32,), subgroups=(1, 2)), Matmul(1, 512, 512, F16), CUDA),
    (IMPLICIT, CONV, CUDA), (DIRECT, CONV, CUDA), (IMPLICIT, replace(CONV, stride=(2, 2)), CUDA),
    (IMPLICIT, replace(CONV, layout="nchw"), CUDA), (IMPLICIT, replace(CONV, k=128, groups=2), CUDA),
    (MmaTiles(workgroup=(64, 64), reduction=(32,), instruction="mfma"), PRODUCT, ROCM),
    (WORDS, Matmul(64, 64, 64), SPIRV),
]  # fmt: skip


@pytest.mark.parametrize(("configuration", "operation", "limits"), VALID)
def test_these_are_valid(configuration, operation, limits):
    """And supported."""
    assert configuration.invalid_reason(operation, limits) is None
    assert configuration.unsupported_reason(operation, limits) is None


INVALID = [
    (MMA, PRODUCT, Limits(), "TileAndFuse is for cuda and rocm, but the target is llvm-cpu"),
    (MMA, PRODUCT, SPIRV, "TileAndFuse is for cuda and rocm, but the target is vulkan-spirv"),
    (WORDS, PRODUCT, CUDA, "BaseVectorize is for vulkan-spirv and metal-spirv, but the target is cuda"),
    (MMA, PRODUCT, Limits(backend="cuda"), "the GPU limits of cuda are unknown"),
    (MMA, PRODUCT, ROCM, "gfx942 has no mmasync; available: mfma"),
    (IMPLICIT, PRODUCT, CUDA, "matmul needs 2 workgroup tiles (m, n) and 1 of the reduction, but got 4 and 1"),
    (MMA, CONV, CUDA, "conv2d needs 4 workgroup tiles (n, oh, ow, oc) and 1 or 3 of the reduction, but got 2 and 1"),
    (replace(IMPLICIT, split_k=2), CONV, CUDA, "split-k is defined for matmul, not for conv2d"),
    (replace(MMA, split_k=3), PRODUCT, CUDA, "3 slices do not divide k=512"),
    (replace(MMA, order="transpose"), PRODUCT, CUDA, "TileAndFuse does not reorder workgroups"),
    (replace(MMA, subgroup_size=64), PRODUCT, CUDA, "subgroups of 64 threads, but sm_80 has 32"),
    (replace(MMA, subgroups=(8, 8)), PRODUCT, CUDA, "a workgroup of 2048 threads, but sm_80 allows 1024"),
    (replace(MMA, subgroups=(3, 2)), PRODUCT, CUDA,
     "tile 128 along m is not a multiple of 48, the size of 3 subgroups of NV_MMA_SYNC_F32_16x8x16_F16"),
    (replace(MMA, reduction=(24,)), PRODUCT, CUDA,
     "tile 24 along k is not a multiple of 16, the size of NV_MMA_SYNC_F32_16x8x16_F16"),
    (MMA, Matmul(64, 512, 512, F16), CUDA, "tile 128 exceeds m=64"),
    (VECTOR, Matmul(512, 500, 512, F16), CUDA, "tile 128 does not divide n=500, and VectorDistribute does not pad"),
    (DIRECT, Conv2d(8, 58, 58, 64, 64, 3, 3, types=F16), CUDA, "tile 16 does not divide ow=56, and a direct convolution does not pad"),
    (replace(MMA, workgroup=(256, 256), subgroups=(2, 2)), PRODUCT, CUDA,
     "the sums of a 256x256 tile need 512 registers per thread, but sm_80 has 255"),
    (replace(MMA, workgroup=(256, 256), subgroups=(4, 8)), PRODUCT, CUDA, None),
    (replace(MMA, workgroup=(256, 256), subgroups=(4, 8), reduction=(192,)), Matmul(512, 512, 768, F16), CUDA,
     "the tiles need 196608 B of shared memory, but sm_80 has 166912"),
    (replace(VECTOR, reduction=(96,)), Matmul(512, 512, 768, F16), CUDA,
     "128 threads cannot evenly share the lhs tile (128 rows of 96) in loads of 8 elements"),
    (replace(IMPLICIT, pipeline="VectorDistribute"), CONV, CUDA, "VectorDistribute supports only direct convolutions"),
    (DIRECT, replace(CONV, stride=(2, 1)), CUDA, "a direct convolution needs stride 1, but got 2x1"),
    (replace(DIRECT, reduction=(3, 3, 32)), CONV, CUDA, "a direct convolution needs tiles of 1 for kh and kw, but got 3x3"),
    (IMPLICIT, replace(CONV, groups=64), CUDA, "matrix instructions do not support depthwise convolutions"),
    (NARROW, Matmul(512, 512, 512, ElementTypes("f16", "f16", "f32")), CUDA,
     "accumulator=f16 needs f16 inputs and results, but got f16 inputs and f32 results"),
    (NARROW, Matmul(512, 512, 512), CUDA, "accumulator=f16 needs f16 inputs and results, but got f32 inputs"),
    (replace(SIMT, thread=(4, 5)), PRODUCT, CUDA, "workgroup tile 64 along n is not a multiple of the thread's 5"),
    (replace(SIMT, thread=(32, 16)), PRODUCT, CUDA, "8 threads are not a multiple of the subgroup size 32"),
    (replace(SIMT, reduction=(128,)), PRODUCT, CUDA, "a thread would do 4096 multiply-adds per step"),
    (SIMT, Matmul(500, 512, 512, F16), CUDA, "tile 64 does not divide m=500"),
    (SIMT, Matmul(32, 512, 512, F16), CUDA, "tile 64 exceeds m=32"),
    (replace(SIMT, order="transpose"), PRODUCT, CUDA, "TileAndFuse does not reorder workgroups"),
    (replace(SIMT, promote=False, shared_padding=False), PRODUCT, CUDA, "shared_padding=false has no effect without promote"),
    (replace(WORDS, stages=2), Matmul(64, 64, 64), SPIRV, "BaseVectorize does not support shared_padding, stages"),
    (replace(WORDS, thread=(2, 2)), Matmul(64, 64, 64), SPIRV, "a workgroup of 256 threads, but phone allows 128"),
    (SimtTiles(workgroup=(128, 8), reduction=(8,), thread=(2, 1), stages=3, subgroup_size=64), Matmul(512, 512, 512), ROCM,
     "with 3 stages, 512 threads must divide the rhs tile evenly, but it has 64 elements: IREE 3.13 crashes"),
    (SimtTiles(workgroup=(64, 96), reduction=(4,), thread=(8, 4), stages=3, subgroup_size=64), Matmul(512, 768, 512), ROCM,
     "with 3 stages, 192 threads must divide the lhs tile evenly, but it has 256 elements: IREE 3.13 crashes"),
    # The compiler said so: "uses 211200 bytes of shared memory".
    (SimtTiles(workgroup=(4, 4, 32, 64), reduction=(3, 3, 1), thread=(1, 1, 16, 8), stages=1),
     Conv2d(4, 34, 34, 64, 64, 3, 3, groups=64), CUDA, "the tiles need 211200 B of shared memory, but sm_80 has 166912"),
]  # fmt: skip


@pytest.mark.parametrize(("configuration", "operation", "limits", "reason"), INVALID)
def test_what_does_not_fit_is_left_out_with_the_values(configuration, operation, limits, reason):
    """The start of the reason; the rest says what to do."""
    found = configuration.invalid_reason(operation, limits)
    assert (found is None) if reason is None else found.startswith(reason), found


def test_spirv_for_a_convolution_is_left_out():
    """Only products have been tried there."""
    tiles = replace(WORDS, workgroup=(1, 1, 32, 32), thread=(1, 1, 4, 4))
    assert (
        tiles.invalid_reason(replace(CONV, types=ElementTypes()), SPIRV)
        == "BaseVectorize supports only matrix products, not conv2d"
    )


def test_a_loop_that_there_is_not_takes_a_tile_of_one():
    """A depthwise convolution sums over no channels."""
    depthwise = Conv2d(8, 66, 66, 64, 64, 3, 3, groups=64)
    tiles = SimtTiles(workgroup=(1, 4, 16, 32), reduction=(1, 1, 8), thread=(1, 1, 4, 4), promote=False)
    assert tiles.invalid_reason(depthwise, CUDA) == "this conv2d has no loop ic, but its tile is 8"
    assert replace(tiles, reduction=(1, 1, 1)).invalid_reason(depthwise, CUDA) is None


@pytest.mark.parametrize(
    ("tiles", "operation", "limits", "reason"),
    [
        (MMA, Matmul(512, 512, 512), CUDA,
         "IREE 3.13 has no mmasync for f32 inputs with sums in f32 on sm_80; available: none"),
        (replace(MMA, shape=(16, 16, 16)), PRODUCT, CUDA,
         "IREE 3.13 has no mmasync 16x16x16 for f16 inputs with sums in f32 on sm_80; available: NV_MMA_SYNC_F32_16x8x16_F16"),
        (replace(MMA, instruction="mfma", shape=(16, 16, 32), subgroup_size=64), PRODUCT, ROCM,
         f"IREE 3.13 has no mfma 16x16x32 for f16 inputs with sums in f32 on gfx942; available: {', '.join(MFMA)}"),
        (replace(MMA, instruction="mfma", subgroup_size=64, accumulator="f16"), PRODUCT, ROCM,
         "IREE 3.13 has no mfma for f16 inputs with sums in f16 on gfx942; available: none"),
        (MMA, PRODUCT, Limits(), None),
        (SIMT, Matmul(512, 512, 512), CUDA, None),
        (SIMT, Matmul(512, 512, 512, ElementTypes("f8", "f8", "f32")), CUDA,
         "IREE 3.13 has no conversion from f8E4M3FN on sm_80, which SIMT code needs"),
    ],
)  # fmt: skip
def test_what_the_compiler_has_no_instruction_for_is_unsupported(tiles, operation, limits, reason):
    """It is generated, so that its name is heard of; it is valid as far as its tiles go."""
    assert tiles.unsupported_reason(operation, limits) == reason
    if reason is not None:
        assert tiles.invalid_reason(operation, limits) is None


def test_a_split_is_a_variant():
    """Of what has none."""
    assert MMA.split(4) == replace(MMA, split_k=4)
    assert MMA.split(4).split(2) is None


def test_sums_in_f16_are_another_computation():
    """The operation keeps its name; what is verified is what the kernel computes."""
    assert MMA.effective_operation(PRODUCT) is PRODUCT
    effective_operation = NARROW.effective_operation(PRODUCT)
    assert (effective_operation.types.accumulator.name, effective_operation.name) == ("f16", PRODUCT.name)
    assert effective_operation != PRODUCT
    assert operation_from_dict(effective_operation.to_dict()) == effective_operation
