"""Triton configurations of products, convolutions and layer norms: their rules with values, launches and constants."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from epilogue_helpers import OF_ROWS, SEQUENCES, STEP_TEXTS

from dispatch_profiler.configurations import (
    Limits,
    ListedConfiguration,
    TritonRows,
    TritonTiles,
    draw_valid,
    load_configurations,
    shipped_configurations,
    spaces,
)
from dispatch_profiler.errors import ConfigurationError
from dispatch_profiler.operations import (
    BatchMatmul,
    BiasBackward,
    Conv2d,
    Conv3d,
    ElementTypes,
    Epilogue,
    LayerNorm,
    LayerNormInputBackward,
    LayerNormWeightBackward,
    Matmul,
    Operation,
)
from dispatch_profiler.targets import parse_target

F16 = ElementTypes("f16", "f16", "f16")
PRODUCT = Matmul(3456, 1024, 2048, F16)
BEST = TritonTiles(tile=(128, 256, 64))
TMA = replace(BEST, descriptors=True)
CONV = Conv2d(2, 18, 18, 32, 64, 3, 3, types=F16)

REFUSED = {
    "cuda:sm_90": [
        (PRODUCT, replace(BEST, tile=(96, 256, 64)), "tile m must be a power of two for Triton, but is 96"),
        (PRODUCT, replace(BEST, warps=6), "warps must be a power of two for Triton, but is 6"),
        (PRODUCT, replace(BEST, tile=(8, 256, 64)), "tiles must be at least 16x16x16 for f16, but got 8x256x64"),
        (PRODUCT, replace(BEST, warps=64), "64 warps are 2048 threads, but sm_90 allows 1024"),
        (
            PRODUCT,
            replace(BEST, warps=2),
            "the sums of a 128x256 tile need 512 registers per thread, but sm_90 has 255: use a smaller tile or more "
            "warps",
        ),
        # Five buffers of (128 + 256) * 64 elements of 2 bytes.
        (
            PRODUCT,
            replace(BEST, stages=6),
            "6 stages of 128x256x64 need 245760 B of shared memory, but sm_90 has 232448: use fewer stages or a "
            "smaller tile",
        ),
        (
            Matmul(64, 64, 63, F16),
            replace(TMA, tile=(64, 64, 32)),
            "the bulk copy engine needs strides that are multiples of 16 B, but got 126 B",
        ),
        (replace(CONV, stride=(1, 2)), TMA, "descriptors fetch windows of convolutions with stride 1, not 2"),
        (replace(CONV, groups=2), TMA, "descriptors fetch windows of convolutions with one group, not 2"),
        (
            replace(CONV, layout="nchw"),
            TMA,
            "the bulk copy engine needs contiguous channels, but the layout of the input is nchw",
        ),
        (
            replace(CONV, layout="nhwc_fchw_nhwc"),
            TMA,
            "the bulk copy engine needs contiguous channels, but the layout of the filter is fchw",
        ),
        (
            replace(CONV, c=12),
            TMA,
            "the bulk copy engine needs strides that are multiples of 16 B, but got 24 B",
        ),
        # Four buffers of (128 + 256) * 128 elements of 2 bytes.
        (
            CONV,
            replace(TMA, tile=(128, 256, 128), stages=5),
            "5 stages of 128x256x128 need 393216 B of shared memory, but sm_90 has 232448: use fewer stages or a "
            "smaller tile",
        ),
        *(
            (operation, configuration, "windows_only applies to descriptors of convolutions with windows, forward and input_backward")
            for operation, configuration in (
                (CONV, replace(BEST, windows_only=True)),
                (PRODUCT, replace(TMA, windows_only=True)),
                (replace(CONV, mode="weight_backward"), replace(TMA, windows_only=True)),
            )
        ),
        (Conv3d(2, 6, 18, 18, 32, 64, 3, 3, 3, types=F16), BEST, "Triton kernels are for convolutions with one or two spatial axes, not 3"),
        (LayerNorm(4, 64), BEST, "Triton kernels are for matrix products and convolutions, not layer_norm"),
        (
            replace(CONV, mode="input_backward", stride=(1, 2), dilation=(1, 3)),
            BEST,
            "the Triton kernels compute input_backward with a stride or a dilation along an axis, not with stride 2 "
            "and dilation 3",
        ),
        (
            replace(CONV, mode="weight_backward"),
            replace(BEST, persistent=2),
            "the kernel of weight gradients computes one tile per workgroup: leave out persistent, or use split_k",
        ),
        # 2 * 16 * 16 pixels.
        (
            replace(CONV, mode="weight_backward"),
            replace(BEST, split_k=9),
            "8 steps of 64 pixels are too few for 9 slices",
        ),
        (
            replace(CONV, mode="weight_backward", r=1, s=1, layout="nhwc_fhwc_nhwc"),
            replace(BEST, split_k=5),
            "5 slices do not divide 648 pixels, as the product of a 1x1 filter needs",
        ),
        (PRODUCT, replace(TMA, l1=True), "l1 applies to copies without descriptors, because the bulk copy engine bypasses the L1 cache"),
        (
            PRODUCT,
            replace(TMA, tile=(512, 64, 64)),
            "the bulk copy engine fetches at most 256 elements along an axis, but got 512x64x64",
        ),
        (PRODUCT, replace(BEST, precision="tf32"), "tf32 applies to f32 inputs, not f16"),
        (
            Matmul(3456, 128, 2048, F16),
            BEST,
            "a tile of 256 along n, which is 128, is larger than necessary: use at most 128",
        ),
        (CONV, replace(BEST, tile=(32, 64, 32), swapped=True), "swapped applies to matrix products"),
        (PRODUCT, replace(BEST, swapped=True), "swapped is for tiles of fewer than 64 rows, not 128"),
        (
            PRODUCT,
            replace(BEST, tile=(32, 64, 64), swapped=True),
            "swapped is for at most 16 tiles along m: use larger tiles than 32 for 3456",
        ),
        (
            PRODUCT,
            replace(BEST, tile=(64, 64, 64), joined=True, split_k=2),
            "1728 workgroups of joined slices, which wait for each other, but 132 multiprocessors: use fewer slices or larger "
            "tiles",
        ),
        (CONV, replace(BEST, tile=(64, 64, 32), joined=True, split_k=2), "joined applies to matrix products"),
        *(
            (
                PRODUCT,
                replace(BEST, tile=(32, 256, 64), joined=True, split_k=slices),
                f"joined slices must be a power of two from 2 to 32, but split_k is {slices}",
            )
            for slices in (1, 64)
        ),
        (
            PRODUCT,
            replace(BEST, joined=True, split_k=2, persistent=132),
            "joined slices wait for each other, so each needs a workgroup of its own: leave out persistent",
        ),
        (Matmul(64, 64, 64, ElementTypes("f64", "f64", "f64")), BEST, "the kernels support f32, f16, bf16, f8E4M3FN, i8, not f64"),
        (
            Matmul(64, 64, 64, ElementTypes("f8", "f8", "f8")),
            BEST,
            "Triton saturates f8 results, but the operation overflows",
        ),
        (replace(CONV, k=32, groups=32), BEST, "the Triton kernels do not support depthwise convolutions"),
        (
            PRODUCT,
            replace(BEST, persistent=132),
            "108 tiles are too few for 132 persistent workgroups: each would compute at most one",
        ),
        (PRODUCT, replace(BEST, split_k=3), "3 slices do not divide k=2048"),
        # 9 taps of 32 channels.
        (CONV, replace(BEST, split_k=6), "5 steps of 64 products are too few for 6 slices"),
        (CONV, replace(TMA, split_k=10), "9 steps of 64 products are too few for 10 slices"),
        (
            replace(CONV, r=1, s=1, layout="nhwc_fhwc_nhwc"),
            replace(BEST, split_k=3),
            "3 slices do not divide 32 products, as the product of a 1x1 filter needs",
        ),
        (
            Matmul(65536, 65536, 64, F16),
            BEST,
            "the kernels use 32-bit indices, but a tensor has 4294967296 elements",
        ),
    ],
    "cuda:sm_80": [
        (
            Matmul(512, 512, 8192, F16),
            replace(BEST, tile=(128, 128, 32), joined=True, split_k=8),
            "joined slices wait for each other, and are for sm_90, whose multiprocessors hold them all, not sm_80",
        ),
        (PRODUCT, TMA, "descriptors need the bulk copy engine of sm_90, but the target is sm_80"),
        (
            Matmul(64, 64, 64, ElementTypes("f8", "f8", "f32")),
            replace(BEST, tile=(64, 64, 32)),
            "f8E4M3FN needs sm_89 or newer, but the target is sm_80",
        ),
    ],
    "cuda:sm_70": [(PRODUCT, BEST, "the kernels are for sm_80 and newer, but the target is sm_70")],
    "rocm:gfx942": [(PRODUCT, BEST, "Triton kernels are for cuda, but the target is rocm")],
    "llvm-cpu": [(PRODUCT, BEST, "Triton kernels are for cuda, but the target is llvm-cpu")],
}  # fmt: skip


@pytest.mark.parametrize(
    ("target", "operation", "configuration", "reason"),
    [(target, *row) for target, rows in REFUSED.items() for row in rows],
)
def test_what_does_not_fit_is_refused_with_the_rule_and_its_values(target, operation, configuration, reason):
    assert configuration.invalid_reason(operation, parse_target(target).limits) == reason


def test_kernels_from_outside_are_for_the_device_and_not_for_what_iree_makes_code_for():
    """On an H200 IREE's code is that of sm_89, which has 99 KiB of shared memory."""
    assert BEST.invalid_reason(PRODUCT, parse_target("cuda:h200").limits) is None
    assert "take 98304 B" not in str(BEST.invalid_reason(PRODUCT, parse_target("cuda:sm_89").limits))
    assert "sm_89 has 101376" in str(
        replace(BEST, stages=4).invalid_reason(PRODUCT, parse_target("cuda:sm_89").limits)
    )


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"tile": (128, 256)}, r"triton tile must be m, n and k, but got \[128, 256\]"),
        ({"tile": (128, 256, 0)}, "triton tile: every tile must be"),
        ({"tile": (128, 256, 64), "warps": 0}, "warps must be a whole number of at least 1, but got 0"),
        ({"tile": (128, 256, 64), "persistent": -1}, "persistent must be a whole number of at least 0, but got -1"),
        ({"tile": (128, 256, 64), "descriptors": 1}, "descriptors must be true or false, but got 1"),
        ({"tile": (128, 256, 64), "l1": 1}, "l1 must be true or false, but got 1"),
        ({"tile": (128, 256, 64), "windows_only": 1}, "windows_only must be true or false, but got 1"),
        ({"tile": (128, 256, 64), "precision": "tf23"}, "unknown precision 'tf23'"),
    ],
)  # fmt: skip
def test_what_is_no_configuration_is_refused(values, message):
    with pytest.raises(ConfigurationError, match=f"^{message}"):
        TritonTiles(**values)


def test_a_launch_has_a_workgroup_for_each_tile_or_as_many_as_stay():
    """27 x 4 tiles of 128x256; a batch of three has three times as many."""
    assert BEST.launch(PRODUCT).workgroups == (108, 1, 1)
    assert replace(BEST, persistent=132, tile=(128, 128, 64)).launch(PRODUCT).workgroups == (132, 1, 1)
    assert BEST.launch(BatchMatmul(3, 3456, 1024, 2048, F16)).workgroups == (324, 1, 1)
    assert BEST.launch(PRODUCT).workgroup_size == (256, 1, 1)


def test_a_launch_of_a_gradient_has_a_workgroup_for_each_tile_of_its_result():
    """Input: four phases of 5 x 9 x 9 pixels by 32 channels. Weight: 64 x 288, in three slices of the pixels."""
    strided = replace(CONV, n=5, stride=(2, 2), mode="input_backward")
    small = TritonTiles(tile=(64, 16, 64))
    assert small.launch(strided).workgroups == (4 * 7 * 2, 1, 1)
    weight = replace(CONV, mode="weight_backward")
    assert replace(small, split_k=3).launch(weight).workgroups == (3 * 18, 1, 1)
    assert replace(small, split_k=3).launch(weight).mlir == "tensor<3x3x3x32x64xf32>"


def test_a_box_of_pixels_covers_an_image_with_few_copies():
    """7x7 pixels of 32 images in boxes of 1x8 pixels of 8 images: 7 x 4 boxes, and four columns of 128 filters."""
    small = Conv2d(32, 7, 7, 512, 512, 3, 3, padding=(1, 1), types=F16, layout="nhwc_fhwc_nhwc")
    tiles = TritonTiles(tile=(64, 128, 128), warps=4, stages=4, descriptors=True)
    source = tiles.kernel(small)
    constants = dict(source.constants)
    assert source.kernel == "convolution_by_descriptors"
    assert [constants[f"BOX_{axis}"] for axis in "NHW"] == [8, 1, 8]
    assert tiles.launch(small).workgroups == (7 * 4 * 4, 1, 1)
    assert source.programs == 7 * 4 * 4
    assert replace(tiles, split_k=3).launch(small).workgroups == (7 * 4 * 4 * 3, 1, 1)
    weight = replace(small, mode="weight_backward")
    assert tiles.kernel(weight).kernel == "weight_gradient_by_descriptors"
    # 8 rows of 64 filters, and columns for 9 taps of 4 x 128 channels.
    assert tiles.launch(weight).workgroups == (8 * 9 * 4, 1, 1)


def test_a_configuration_without_the_newer_options_keeps_its_name():
    assert TMA.name == "triton_128x256x64_8w_3s_g8_tma"
    assert replace(TMA, windows_only=True, split_k=2).name == "triton_128x256x64_8w_3s_g8_tma_windows_splitk2"
    assert replace(BEST, swapped=True).name == "triton_128x256x64_8w_3s_g8_swapped"


def test_a_pointwise_convolution_is_a_matrix_product_unless_an_operand_has_to_be_permuted():
    pointwise = Conv2d(2, 18, 18, 32, 64, 1, 1, types=F16)
    kernels = {
        (mode, layout): BEST.kernel(replace(pointwise, mode=mode, layout=layout)).kernel
        for mode in ("forward", "input_backward", "weight_backward")
        for layout in ("nhwc", "nhwc_fhwc_nhwc", "nchw")
    }
    assert [key for key, kernel in kernels.items() if kernel != "product"] == [
        ("forward", "nchw"),
        ("input_backward", "nchw"),
        ("weight_backward", "nhwc"),
        ("weight_backward", "nchw"),
    ]
    for changes in ({"stride": (2, 2)}, {"padding": (1, 0)}, {"groups": 2}, {"s": 2}):
        assert BEST.kernel(replace(pointwise, **changes)).kernel == "convolution"


def test_descriptors_have_scratch_memory_for_each_workgroup():
    """Two of 128 B; a kernel without them is given pointers that it does not read."""
    assert TMA.launch(PRODUCT).scratch == (108 * 256, 16)
    assert BEST.launch(PRODUCT).scratch == (16, 16)


def test_a_split_writes_the_sums_of_each_slice_and_leaves_the_epilogue():
    """In the accumulator's type: IREE's code adds them up and rounds once."""
    operation = replace(PRODUCT, epilogue=Epilogue.parse("bias+relu"))
    split = replace(BEST, split_k=4)
    launch, constants = split.launch(operation), dict(split.kernel(operation).constants)

    assert launch.mlir == "tensor<4x3456x1024xf32>"
    assert (constants["STEPS"], split.kernel(operation).operands) == ("", ())
    assert (constants["BATCH"], constants["K"], constants["LHS_BATCH"]) == (4, 512, 512)


def test_joined_slices_write_the_result_with_its_epilogue_and_share_their_sums():
    """27 x 4 tiles of 128x256, each in four slices, and a counter for each tile."""
    operation = replace(PRODUCT, epilogue=Epilogue.parse("bias+relu"))
    joined = replace(TMA, split_k=4, joined=True)
    launch, source = joined.launch(operation), joined.kernel(operation)
    constants = dict(source.constants)

    assert joined.name == "triton_128x256x64_8w_3s_g8_tma_joined_splitk4"
    assert (launch.mlir, launch.workgroups) == ("tensor<3456x1024xf16>", (432, 1, 1))
    assert launch.scratch == (432 * 128 * 256 * 4, 432 * 256, 16)
    assert (constants["STEPS"], constants["JOINED"]) == ("bias:0:0.0:0.0 relu:1:0.0:0.0", 4)
    assert source.operands == ("bias",)
    assert [name for name, _ in source.types] == ["lhs", "rhs", "bias", "result", "partial", "arrivals"]
    assert source.counters == 108


def test_the_entry_of_a_file_has_the_tile_first(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(
        "configurations:\n  - {kinds: [matmul], triton: [128, 256, 64], stages: 4, persistent: 132}\n"
        "  - {triton: [64, 128, 64], descriptors: true, windows_only: true, split_k: 2}\n"
    )
    entry, other = load_configurations(path)
    assert entry == ListedConfiguration(
        TritonTiles(tile=(128, 256, 64), stages=4, persistent=132), ("matmul",)
    )
    assert other.configuration == TritonTiles(
        tile=(64, 128, 64), descriptors=True, windows_only=True, split_k=2
    )


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("{triton: 128}", "entry 1: triton tile must be a list of tiles, but got 128"),
        ("{triton: [128, 256, 64], wraps: 4}", "entry 1: unknown key 'wraps'"),
        ("{extern: mine, entry: k}", "entry 1: 'extern' also needs 'object'"),
        ("{extern: a b, object: k, entry: k, workgroups: [1], workgroup_size: [1]}", "entry 1: name must be letters"),
        (
            "{extern: a, object: k, entry: k, workgroups: ['m ** 2'], workgroup_size: [1]}",
            r"entry 1: workgroups: cannot read 'm \*\* 2'",
        ),
        (
            "{extern: a, object: k, entry: k, workgroups: ['__import__(1)'], workgroup_size: [1]}",
            "entry 1: workgroups: cannot read",
        ),
        ("{extern: a, object: k, entry: k, workgroups: [1], workgroup_size: [0]}", "entry 1: workgroup_size, shared"),
        (
            "{extern: a, object: k, entry: k, workgroups: [1], workgroup_size: [1], target_arch: 90}",
            "entry 1: target_arch must have the form sm_90, but got 90",
        ),
    ],
)  # fmt: skip
def test_a_wrong_entry_is_refused_with_its_place(tmp_path, row, message):
    path = tmp_path / "mine.yaml"
    path.write_text(f"configurations:\n  - {row}\n")
    with pytest.raises(ConfigurationError, match=message):
        load_configurations(path)


def test_two_kernels_of_ones_own_may_not_share_a_name(tmp_path):
    """It becomes the function's."""
    row = "  - {extern: mine, object: %s, entry: k, workgroups: [1], workgroup_size: [1]}\n"
    path = tmp_path / "mine.yaml"
    path.write_text("configurations:\n" + row % "a.ptx" + row % "b.ptx")
    with pytest.raises(ConfigurationError, match="two different configurations are called 'extern_mine'"):
        load_configurations(path)


@pytest.mark.parametrize("types", ["f16", "bf16", "f32", "f8", "i8"])
@pytest.mark.parametrize("target", ["cuda:sm_90", "cuda:sm_80"])
def test_the_shipped_list_has_something_for_every_type(target, types):
    """On sm_80 but for f8, which it has not."""
    result = {"i8": "i32", "f8": "f32"}.get(types, types)
    limits = parse_target(target).limits
    for operation in (
        Matmul(3456, 1024, 2048, ElementTypes(types, types, result)),
        replace(CONV, types=ElementTypes(types, types, result)),
    ):
        fitting = [
            e.configuration
            for e in shipped_configurations("triton")
            if e.is_for(operation) and e.configuration.invalid_reason(operation, limits) is None
        ]
        assert bool(fitting) == ((target, types) != ("cuda:sm_80", "f8"))


def test_hopper_gets_triton_kernels_beside_irees_own():
    """Other targets get them where they are asked for: --configurations=triton."""
    hopper = shipped_configurations(parse_target("cuda:h200").shipped_list)
    assert hopper == (*shipped_configurations("cuda"), *shipped_configurations("triton"))
    assert not any(isinstance(e.configuration, TritonTiles) for e in shipped_configurations("cuda"))


@pytest.mark.parametrize("epilogue", [*STEP_TEXTS, *SEQUENCES, *OF_ROWS])
def test_the_kernels_compute_every_epilogue(epilogue):
    """Its operands follow lhs and rhs, as those of the operation do."""
    operation = replace(PRODUCT, epilogue=Epilogue.parse(epilogue))
    assert BEST.invalid_reason(operation, parse_target("cuda:sm_90").limits) is None
    source, names = BEST.kernel(operation), [each.name for each in operation.operands]
    assert [name for name, _ in source.types] == [*names, "result"]
    assert source.operands == tuple(names[2:])


def test_steps_have_the_place_of_their_operands_and_their_parameters():
    """In the type of the sums: i32 has no fractions."""
    text = "bias+clamp(-1,2)+scale_shift+residual"
    expected = {
        F16: "bias:0:0.0:0.0 clamp:1:-1.0:2.0 scale_shift:1:0.0:0.0 residual:3:1.0:0.0",
        ElementTypes("i8", "i8", "i32"): "bias:0:0:0 clamp:1:-1:2 scale_shift:1:0:0 residual:3:1:0",
    }
    for types, steps in expected.items():
        operation = replace(PRODUCT, types=types, epilogue=Epilogue.parse(text))
        assert dict(BEST.kernel(operation).constants)["STEPS"] == steps


SM_90 = parse_target("cuda:sm_90").limits
FORWARD = LayerNorm(64, 768, "bf16")
INPUT = LayerNormInputBackward(64, 768, "f16")
WEIGHT = LayerNormWeightBackward(64, 768, "f32")
ROWS = TritonRows(block=(2, 1024))
COLUMNS = TritonRows(block=(32, 16))


@pytest.mark.parametrize(("operation", "block"), [(FORWARD, ROWS), (INPUT, ROWS), (WEIGHT, COLUMNS)])
@pytest.mark.parametrize("type_", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("target", ["cuda:sm_80", "cuda:sm_90", "cuda:h200"])
def test_every_kind_and_type_has_a_kernel(target, type_, operation, block):
    assert block.invalid_reason(replace(operation, type=type_), parse_target(target).limits) is None


@pytest.mark.parametrize(
    ("operation", "affine"),
    [
        *itertools.product([FORWARD], [True, False, "weight", "bias"]),
        *itertools.product([INPUT], [True, False]),
    ],
)
def test_parameters_are_not_needed(operation, affine):
    assert ROWS.invalid_reason(replace(operation, affine=affine), SM_90) is None


@pytest.mark.parametrize(
    ("operation", "configuration", "target", "reason"),
    [
        (Matmul(8, 8, 8), ROWS, "cuda:sm_90", "triton_rows is for layer norms, not matmul"),
        (Conv2d(1, 4, 4, 4, 4, 1, 1), ROWS, "cuda:sm_90", "triton_rows is for layer norms, not conv2d"),
        (BiasBackward(4, 4), ROWS, "cuda:sm_90", "triton_rows is for layer norms, not bias_backward"),
        (FORWARD, ROWS, "llvm-cpu", "Triton kernels are for cuda, but the target is llvm-cpu"),
        (FORWARD, ROWS, "rocm:gfx942", "Triton kernels are for cuda, but the target is rocm"),
        (FORWARD, ROWS, "cuda:sm_75", "the kernels are for sm_80 and newer, but the target is sm_75"),
        (replace(FORWARD, type="f64"), ROWS, "cuda:sm_90", "the kernels support f32, f16 and bf16, not f64"),
        (FORWARD, replace(ROWS, block=(3, 1024)), "cuda:sm_90", "rows must be a power of two for Triton, but is 3"),
        (WEIGHT, replace(COLUMNS, block=(32, 12)), "cuda:sm_90", "columns must be a power of two for Triton, but is 12"),
        (FORWARD, replace(ROWS, warps=6), "cuda:sm_90", "warps must be a power of two for Triton, but is 6"),
        (FORWARD, replace(ROWS, block=(2, 512)), "cuda:sm_90", "rows of 768 elements need blocks of 1024 columns, but got 512"),
        (INPUT, replace(ROWS, block=(2, 2048)), "cuda:sm_90", "rows of 768 elements need blocks of 1024 columns, but got 2048"),
        (FORWARD, replace(ROWS, warps=64), "cuda:sm_90", "64 warps are 2048 threads, but sm_90 allows 1024"),
        (
            FORWARD,
            replace(ROWS, block=(16, 1024)),
            "cuda:sm_90",
            "a block of 16x1024 has more than 64 elements for each of 128 threads: use a smaller block or more warps",
        ),
        (
            replace(FORWARD, rows=2**22),
            ROWS,
            "cuda:sm_90",
            "the kernels use 32-bit indices, but a tensor has 3221225472 elements",
        ),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_rejected_with_the_rule_and_its_values(operation, configuration, target, reason):
    assert configuration.invalid_reason(operation, parse_target(target).limits) == reason


def test_a_gradient_of_the_weight_has_any_block():
    """It sums columns, so that a block need not hold whole rows."""
    assert COLUMNS.invalid_reason(replace(WEIGHT, size=5), SM_90) is None


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"block": (4,)}, r"triton_rows must be rows and columns, but got \[4\]"),
        ({"block": (4, 0)}, "triton_rows: every tile must be"),
        ({"block": (4, 64), "warps": 0}, "warps must be a whole number of at least 1, but got 0"),
        ({"block": (4, 64), "stages": 2.0}, r"stages must be a whole number of at least 1, but got 2\.0"),
    ],
)
def test_what_is_no_configuration_is_rejected(values, message):
    with pytest.raises(ConfigurationError, match=f"^{message}"):
        TritonRows(**values)


def test_a_launch_has_a_workgroup_for_each_block():
    """Of rows; of columns for the gradients of weight and bias. Every result is written by one kernel."""
    assert replace(ROWS, block=(2, 1024)).launch(replace(FORWARD, rows=7)).workgroups == (4, 1, 1)
    assert COLUMNS.launch(replace(WEIGHT, size=33)).workgroups == (3, 1, 1)
    assert replace(ROWS, warps=8).launch(FORWARD).workgroup_size == (256, 1, 1)
    launch = ROWS.launch(FORWARD)
    assert (launch.shape, [each.name for each in launch.more]) == ((64, 768), ["mean", "rstd"])
    assert [each.name for each in COLUMNS.launch(WEIGHT).more] == ["dbias"]


def test_constants_are_those_of_the_operation():
    plain = dict(ROWS.kernel(replace(FORWARD, affine=False, eps=1e-3)).constants)
    assert (plain["weight"], plain["bias"], plain["WEIGHT"], plain["BIAS"]) == (None, None, False, False)
    assert plain["EPS"] == 1e-3
    scaled = dict(ROWS.kernel(replace(FORWARD, affine="weight")).constants)
    assert (scaled["bias"], scaled["WEIGHT"], scaled["BIAS"]) == (None, True, False)
    assert "weight" not in scaled
    assert (plain["COUNT"], plain["SIZE"], plain["ROWS"], plain["COLUMNS"]) == (64, 768, 2, 1024)
    assert plain["ACCUMULATOR"] == "fp32"
    weight = dict(COLUMNS.kernel(WEIGHT).constants)
    assert weight["STAGES"] == 3 and weight["BIAS"] and "WEIGHT" not in weight and "EPS" not in weight
    assert "dbias" not in weight
    alone = dict(COLUMNS.kernel(replace(WEIGHT, affine="weight")).constants)
    assert alone["dbias"] is None and not alone["BIAS"]


@pytest.mark.parametrize(
    "operation", [FORWARD, INPUT, WEIGHT, LayerNorm(3, 1), LayerNormInputBackward(1, 8191)]
)
def test_points_of_the_space_are_valid(operation: Operation):
    """Those that are drawn; a space exists for CUDA only."""
    (space,) = (each for each in spaces(operation, SM_90) if each.kind is TritonRows)
    drawn = draw_valid([space], operation, SM_90, np.random.default_rng(0))
    for configuration in itertools.islice(drawn, 20):
        assert configuration.invalid_reason(operation, SM_90) is None
    assert TritonRows.space(Matmul(8, 8, 8), SM_90) is None
    assert TritonRows.space(operation, Limits()) is None


def test_the_entry_of_a_file_has_the_block_first(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("configurations:\n  - {triton_rows: [32, 16], warps: 8, stages: 2}\n")
    (entry,) = load_configurations(path)
    assert entry.configuration == TritonRows(block=(32, 16), warps=8, stages=2)
    assert entry.configuration.name == "triton_rows_32x16_8w_2s"


@pytest.mark.parametrize("operation", [FORWARD, INPUT, WEIGHT])
def test_the_shipped_list_has_something_for_every_kind(operation):
    fitting = [
        each.configuration
        for each in shipped_configurations("triton")
        if each.is_for(operation) and each.configuration.invalid_reason(operation, SM_90) is None
    ]
    assert any(isinstance(each, TritonRows) for each in fitting)
