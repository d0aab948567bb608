"""MLIR text: every branch of every template as it stands, and everything parses."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import jinja2
import pytest
from epilogue_helpers import SEQUENCES, SIMPLE, STEP_TEXTS
from iree.compiler import ir
from iree.compiler.dialects import linalg

from dispatch_profiler.configurations import (
    AttentionMicrokernel,
    Configuration,
    CpuTiles,
    DecodingMicrokernel,
    Default,
    Extern,
    Flow,
    Int4Microkernel,
    Limits,
    Microkernel,
    MmaTiles,
    SimtTiles,
    TritonAttention,
    TritonRows,
    TritonTiles,
)
from dispatch_profiler.dispatches import Dispatch
from dispatch_profiler.generator import render as render_file
from dispatch_profiler.generator import render_module
from dispatch_profiler.operations import (
    Attention,
    BatchMatmul,
    Conv2d,
    ElementTypes,
    Epilogue,
    Int4Matmul,
    LayerNorm,
    LayerNormInputBackward,
    LayerNormWeightBackward,
    Matmul,
    Operation,
    Softmax,
)
from dispatch_profiler.operations.convolution.bias_backward import BiasBackward

I8 = ElementTypes("i8", "i8", "i32")
F8 = ElementTypes("f8E4M3FN", "f8E4M3FN", "f8E4M3FN")
F64 = ElementTypes("f64", "f64", "f64")
F16 = ElementTypes("f16", "f16", "f16")
BF16_WIDE = ElementTypes("bf16", "bf16", "f32")
EVERY_TYPE = (ElementTypes(), F64, F16, ElementTypes("f16", "f16", "f32"), BF16_WIDE, F8, I8)
EPILOGUES = (*SIMPLE, *(Epilogue.parse(text) for text in (*STEP_TEXTS, *SEQUENCES[-4:])))

MATMUL_TILES = CpuTiles((8, 16), (4, 8, 2))
CONV_TILES = CpuTiles((1, 2, 4, 4), (1, 1, 2, 2, 1, 1, 1))


def rendered(operation: Operation, *configurations: Configuration) -> str:
    return render_module(operation, [Dispatch(operation, c) for c in configurations or (Default(),)])


@pytest.fixture(scope="module")
def context() -> Iterator[ir.Context]:
    with ir.Context() as context:
        yield context


# -- golden files ----------------------------------------------------------------------------------


def with_epilogue(text: str, types: ElementTypes = ElementTypes()) -> tuple[Operation]:
    return (Matmul(8, 16, 4, types, epilogue=Epilogue.parse(text)),)


GOLDEN: dict[str, tuple[Operation | Configuration, ...]] = {
    "matmul_tt_default_and_tiles": (
        Matmul(8, 16, 4),
        Default(),
        MATMUL_TILES,
        CpuTiles((8, 16), (4, 8, 1), cache=(4, 8, 2), peel=True),
        Flow("data_tiling"),
    ),
    "matmul_nn_f16_is_truncated": (Matmul(8, 16, 4, F16, "n", "n"), Default()),
    "matmul_split_k": (Matmul(8, 16, 12), Default(2), replace(MATMUL_TILES, split_k=3)),
    "matmul_split_k_nn_f8": (Matmul(8, 16, 12, F8, "n", "n"), Default(2)),
    "matmul_split_k_i8": (Matmul(8, 16, 12, I8), Default(2)),
    "batch_matmul_tt_i8_tiles": (BatchMatmul(3, 8, 16, 4, I8), MATMUL_TILES),
    "batch_matmul_nn_bf16": (BatchMatmul(3, 8, 16, 4, BF16_WIDE, "n", "n"), Default()),
    "conv2d_nhwc_dense_padded": (
        Conv2d(2, 6, 8, 4, 8, 3, 3, (2, 1), (1, 2), types=F16),
        Default(),
        CONV_TILES,
    ),
    "conv2d_nchw_dense_dilated": (Conv2d(2, 6, 8, 4, 8, 3, 3, dilation=(1, 2), layout="nchw"), CONV_TILES),
    "conv2d_nchw_i8_padded": (Conv2d(1, 4, 4, 2, 2, 3, 3, padding=(1, 0), layout="nchw", types=I8),),
    "conv2d_nhwc_grouped": (
        Conv2d(2, 6, 8, 4, 8, 3, 3, (2, 1), (1, 0), (1, 2), groups=2, types=F16),
        CONV_TILES,
    ),
    "conv2d_nchw_grouped": (Conv2d(2, 6, 8, 4, 8, 3, 3, groups=2, layout="nchw", types=I8),),
    "conv2d_nhwc_depthwise": (
        Conv2d(2, 6, 8, 4, 4, 3, 3, groups=4),
        CpuTiles((1, 2, 4, 4), CONV_TILES.vector),
    ),
    "conv2d_nchw_depthwise_bias": (
        Conv2d(2, 6, 8, 4, 4, 3, 3, padding=(1, 1), groups=4, layout="nchw", epilogue=Epilogue.parse("bias")),
    ),
    "matmul_gpu": (
        Matmul(256, 128, 128, F16),
        MmaTiles(workgroup=(128, 64), reduction=(32,), stages=3),
        MmaTiles(
            workgroup=(128, 64),
            reduction=(64,),
            pipeline="VectorDistribute",
            order="transpose",
            shared_padding=False,
        ),
        SimtTiles(workgroup=(64, 32), reduction=(16,), thread=(4, 4), subgroup_size=64),
        SimtTiles(workgroup=(64, 32), reduction=(4,), thread=(4, 4), stages=1, pipeline="BaseVectorize"),
    ),
    "matmul_gpu_padded": (Matmul(100, 60, 50, F16), MmaTiles(workgroup=(64, 32), reduction=(32,))),
    "matmul_gpu_split_k": (
        Matmul(256, 128, 512, F16),
        MmaTiles(workgroup=(128, 64), reduction=(32,), split_k=4),
    ),
    "batch_matmul_gpu": (
        BatchMatmul(3, 256, 128, 128, F16),
        MmaTiles(workgroup=(128, 64), reduction=(32,), instruction="mfma", shape=(32, 32, 8)),
    ),
    "conv2d_nhwc_gpu": (
        Conv2d(2, 18, 18, 32, 64, 3, 3, types=F16),
        MmaTiles(workgroup=(1, 4, 16, 64), reduction=(32,), subgroups=(1, 2, 1, 2)),
        MmaTiles(workgroup=(1, 4, 16, 64), reduction=(1, 1, 32), subgroups=(1, 2, 1, 2)),
    ),
    "conv2d_nchw_gpu": (
        Conv2d(2, 18, 18, 32, 64, 3, 3, types=F16, layout="nchw"),
        MmaTiles(
            workgroup=(1, 1, 16, 64),
            reduction=(1, 1, 32),
            subgroups=(1, 1, 1, 2),
            pipeline="VectorDistribute",
        ),
        SimtTiles(workgroup=(1, 4, 16, 32), reduction=(16,), thread=(1, 1, 4, 4)),
    ),
    "matmul_triton": (
        Matmul(256, 128, 192, F16, "t", "n", Epilogue.parse("bias+relu")),
        TritonTiles(tile=(64, 32, 32), warps=4, descriptors=True, persistent=5),
        TritonTiles(tile=(64, 32, 32), warps=4, split_k=3),
    ),
    "conv2d_triton": (Conv2d(2, 18, 18, 32, 64, 3, 3, types=F16), TritonTiles(tile=(64, 32, 32))),
    "conv2d_weight_backward_triton": (
        Conv2d(2, 18, 18, 32, 64, 3, 3, types=F16, layout="nhwc_fhwc_nhwc", mode="weight_backward"),
        TritonTiles(tile=(64, 32, 32)),
        TritonTiles(tile=(64, 32, 32), split_k=4),
    ),
    "layer_norm_triton": (LayerNorm(4, 6), TritonRows(block=(2, 8))),
    "attention_triton": (
        Attention(1, 4, 1, 64, 16, key_heads=2, logsumexp=True),
        TritonAttention(tile=(16, 16), parts=4, heads=2),
    ),
    "layer_norm_weight_backward_triton": (LayerNormWeightBackward(4, 6), TritonRows(block=(4, 8))),
    "matmul_nt_microkernel_bias": (
        Matmul(5, 64, 16, rhs_layout="n", epilogue=Epilogue.parse("bias")),
        Microkernel((5, 64), (2, 1, 16), unroll=2),
    ),
    "matmul_transposed_lhs_microkernel_bias": (
        Matmul(5, 64, 16, lhs_layout="n", epilogue=Epilogue.parse("bias")),
        Microkernel((5, 64), (1, 1, 16), unroll=2),
    ),
    "matmul_nn_microkernel_in_place_bias": (
        Matmul(3, 44, 18, epilogue=Epilogue.parse("bias")),
        Microkernel((3, 48), (2, 1, 16), unroll=2),
    ),
    "conv2d_hwcf_microkernel": (
        Conv2d(2, 5, 7, 4, 16, 3, 2, (2, 1), (1, 0), layout="nhwc"),
        Microkernel((3, 16), (1, 2, 16), unroll=2, margin=16),
    ),
    "matmul_nt_packed_microkernel_bias_gelu": (
        Matmul(5, 64, 16, rhs_layout="n", epilogue=Epilogue.parse("bias+gelu")),
        Microkernel((5, 64), (2, 1, 16), unroll=2, packed=True),
    ),
    "conv2d_groups_packed_microkernel_narrower_bias": (
        Conv2d(1, 5, 5, 4, 80, 1, 1, groups=2, layout="nhwc_fhwc_nhwc", epilogue=Epilogue.parse("bias")),
        Microkernel((5, 64), (1, 3, 32), unroll=2, packed=True),
    ),
    "batch_matmul_extern": (
        BatchMatmul(3, 256, 128, 128, F16),
        Extern(
            label="mine",
            object="k.ptx",
            entry="k",
            workgroups=("ceildiv(m, 96)", "batch"),
            workgroup_size=(96, 2),
        ),
    ),
    "epilogue_bias": with_epilogue("bias"),
    "epilogue_bias_relu_f16": with_epilogue("bias+relu", F16),
    "epilogue_bias_relu_i8": with_epilogue("bias+relu", I8),
    "epilogue_gelu": with_epilogue("gelu"),
    "epilogue_sigmoid": with_epilogue("sigmoid"),
    "epilogue_tanh": with_epilogue("tanh"),
    "epilogue_tanh_f64": with_epilogue("tanh", F64),
    "layer_norm": (LayerNorm(4, 6),),
    "layer_norm_tiles_f16": (LayerNorm(4, 6, "f16"), CpuTiles((4,), (2, 3))),
    "layer_norm_plain_bf16": (LayerNorm(4, 6, "bf16", 1e-6, False),),
    "layer_norm_weight_f16": (LayerNorm(4, 6, "f16", affine="weight"),),
    "layer_norm_bias": (LayerNorm(4, 6, affine="bias"),),
    "layer_norm_input_backward": (LayerNormInputBackward(4, 6),),
    "layer_norm_input_backward_tiles": (LayerNormInputBackward(4, 6), CpuTiles((4,), (2, 3))),
    "layer_norm_input_backward_plain_f16": (LayerNormInputBackward(4, 6, "f16", False),),
    "attention": (Attention(2, 4, 3, 5, 6, key_heads=2),),
    "attention_causal_f16": (
        Attention(2, 4, 3, 5, 6, 0, 7, "f16", 0.5, "lower_right", 2, "add", "hq", layout="bshd"),
    ),
    "attention_logsumexp_bool": (Attention(2, 4, 3, 5, 6, mask="bool", mask_axes="b", logsumexp=True),),
    "attention_microkernel": (
        Attention(1, 2, 20, 100, 5, causal="upper_left"),
        AttentionMicrokernel(1, 48),
    ),
    "int4_matmul": (Int4Matmul(2, 128, 8, 4),),
    "int4_matmul_bf16": (Int4Matmul(2, 64, 8, 4, "bf16"),),
    "int4_microkernel_bf16": (Int4Matmul(1, 128, 64, 32, "bf16"), Int4Microkernel(1, 1)),
    "int4_microkernel_integers_bf16": (
        Int4Matmul(3, 64, 64, 32, "bf16"),
        Int4Microkernel(3, 1, integers=True),
    ),
    "int4_microkernel_blocks_f16": (Int4Matmul(5, 64, 48, 16, "f16"), Int4Microkernel(2, 1, 32, 4)),
    "decoding_microkernel": (Attention(1, 4, 1, 40, 5, key_heads=2), DecodingMicrokernel(32, 2)),
    "decoding_microkernel_parts": (
        Attention(1, 4, 1, 40, 5, key_heads=2, mask="bool", mask_axes="h"),
        DecodingMicrokernel(16, 2, 2),
    ),
    "softmax": (Softmax(4, 6),),
    "softmax_tiles_scaled_f16": (Softmax(4, 6, "f16", 0.25), CpuTiles((4,), (2, 3))),
    "layer_norm_weight_backward": (LayerNormWeightBackward(4, 6),),
    "layer_norm_weight_backward_tiles": (LayerNormWeightBackward(4, 6), CpuTiles((6,), (3, 2))),
    "layer_norm_weight_backward_bf16": (LayerNormWeightBackward(4, 6, "bf16"),),
    "layer_norm_weight_backward_weight_bf16": (LayerNormWeightBackward(4, 6, "bf16", "weight"),),
    "bias_backward": (BiasBackward(4, 6, 5), Default(), CpuTiles((6,), (3, 2, 5))),
    "bias_backward_f16": (BiasBackward(4, 6, 1, "f16"),),
    "epilogue_scale_shift_residual_relu": with_epilogue("scale_shift+residual+relu"),
    "epilogue_scale_shift_i8": with_epilogue("scale_shift+relu6", I8),
    "epilogue_clamp_leaky_relu_f16": with_epilogue("bias+clamp(-1,0.5)+leaky_relu(1e-5)", F16),
    "epilogue_scale_residual_f16": with_epilogue("scale(0.5)+residual(-0.25)+relu", F16),
    "epilogue_scale_residual_i8": with_epilogue("scale(2)+bias+residual(3)", I8),
    "epilogue_silu": with_epilogue("silu"),
    "epilogue_hardswish_f16": with_epilogue("bias+hardswish", F16),
    "epilogue_hardsigmoid": with_epilogue("hardsigmoid"),
    "epilogue_gelu_tanh": with_epilogue("bias+gelu_tanh"),
    "epilogue_gelu_tanh_f64": with_epilogue("gelu_tanh", F64),
    "epilogue_repeated_f16": with_epilogue("residual+tanh+residual+scale_shift+sigmoid", F16),
    "conv2d_nchw_scale_shift_residual": (
        Conv2d(
            2, 6, 8, 4, 8, 3, 3, layout="nchw", epilogue=Epilogue.parse("scale_shift+residual+leaky_relu")
        ),
    ),
}


@pytest.mark.parametrize("case", GOLDEN)
def test_golden(case, golden, context):
    """The text of a module, read by a person once and unchanged since."""
    operation, *configurations = GOLDEN[case]
    text = rendered(operation, *configurations)
    ir.Module.parse(text)
    golden(text)


def test_a_golden_file_refuses_another_text(golden, request):
    """The check above fails on a change of one character."""
    golden("a text\n")
    if not request.config.getoption("--update-golden"):
        with pytest.raises(AssertionError):
            golden("a test\n")


# -- everything parses -----------------------------------------------------------------------------


def every_epilogue(types: ElementTypes) -> list[Epilogue]:
    return [
        each for each in EPILOGUES if not types.output.is_integer or all(s.is_on_integers for s in each.steps)
    ]


def every_matmul() -> Iterator[Operation]:
    for types, (lhs, rhs) in itertools.product(EVERY_TYPE, itertools.product("tn", repeat=2)):
        for epilogue in every_epilogue(types):
            yield Matmul(8, 16, 12, types, lhs, rhs, epilogue)
            yield BatchMatmul(3, 8, 16, 12, types, lhs, rhs, epilogue)
            yield Matmul(1, 1, 1, types, lhs, rhs, epilogue)


def every_convolution() -> Iterator[Operation]:
    forms = ((4, 8, 1), (4, 8, 2), (4, 4, 4), (1, 1, 1))
    windows = ({}, {"stride": (2, 1), "padding": (1, 0), "dilation": (1, 2)}, {"padding": (0, 3)})
    for types, (c, k, groups), window in itertools.product(EVERY_TYPE, forms, windows):
        for layout, epilogue in itertools.product(("nhwc", "nchw"), every_epilogue(types)):
            yield Conv2d(
                2, 6, 8, c, k, 3, 2, **window, groups=groups, layout=layout, types=types, epilogue=epilogue
            )


def valid_configurations(operation: Operation) -> list[Configuration]:
    tiles = CONV_TILES if isinstance(operation, Conv2d) else MATMUL_TILES
    peeled = (
        CpuTiles((1, 1, 1, 3), (1, 1, 1, 3, 1, 1, 1), peel=True)
        if isinstance(operation, Conv2d)
        else CpuTiles((3, 5), (3, 5, 1), peel=True)
    )
    every = [Default(), Default(2), tiles, replace(MATMUL_TILES, split_k=3), peeled, Flow("ukernels")]
    return [c for c in every if c.invalid_reason(operation, Limits()) is None]


@pytest.mark.slow
@pytest.mark.parametrize("step", [7, pytest.param(1, marks=pytest.mark.slow)], ids=["some", "all"])
@pytest.mark.parametrize("operations", [every_matmul, every_convolution], ids=["matmul", "conv2d"])
def test_every_module_parses(operations, step, context):
    """All kinds, types, layouts, forms and epilogues: IREE's verifier has nothing to say. By default, every seventh."""
    for operation in itertools.islice(operations(), 0, None, step):
        configurations = valid_configurations(operation)
        module = ir.Module.parse(rendered(operation, *configurations))
        functions = [ir.StringAttr(f.attributes["sym_name"]).value for f in module.body.operations]
        assert functions == [Dispatch(operation, c).name for c in configurations]


def test_a_broken_module_does_not_parse(context):
    """The check above fails on text that is no MLIR, and on MLIR that contradicts itself."""
    text = rendered(Matmul(8, 16, 4))
    for wrong in (text[:-3], text.replace("tensor<8x4xf32>", "tensor<8x5xf32>")):
        with pytest.raises(ir.MLIRError):
            ir.Module.parse(wrong)


def signature(text: str) -> tuple[str, ...]:
    """`(tensor<8x4xf32>, ...) -> tensor<8x16xf32>` of the first function, type by type."""
    module = ir.Module.parse(text)  # the bindings do not keep it alive for its operations
    function = module.body.operations[0]
    type_ = ir.FunctionType(ir.TypeAttr(function.attributes["function_type"]).value)
    return tuple(str(t) for t in (*type_.inputs, *type_.results))


@pytest.mark.slow
@pytest.mark.parametrize("operations", [every_matmul, every_convolution], ids=["matmul", "conv2d"])
def test_a_function_takes_the_operands_and_the_storage_of_its_result(operations, context):
    """In the order of `Operation.operands`; the result is written where the caller says."""
    for operation in itertools.islice(operations(), 0, None, 7):
        tensors = [*operation.operands, operation.result, operation.result]
        text = rendered(operation)
        assert signature(text) == tuple(tensor.mlir for tensor in tensors)
        assert "%result: " + operation.result.mlir + " {iree.abi.output = 0 : index}" in text


# -- loops -----------------------------------------------------------------------------------------


def loop_extents(text: str) -> list[int]:
    """How often each loop of the one contraction in `text` runs, as its maps and operands say."""
    module = ir.Module.parse(text)
    found: list[dict[int, int]] = []

    def see(op: ir.Operation) -> ir.WalkResult:
        if op.name.startswith("linalg.") and len(op.operands) - len(op.results) == 2:
            found.append(extents_of(op))
        return ir.WalkResult.ADVANCE

    module.operation.walk(see)
    (extents,) = found
    return [extents[i] for i in range(len(extents))]


def extents_of(op: ir.Operation) -> dict[int, int]:
    """Position of each loop -> the size of a dimension that it alone runs over."""
    return {
        ir.AffineDimExpr(index).position: size
        for operand, map_ in zip(op.operands, linalg.get_indexing_maps(op), strict=True)
        for size, index in zip(ir.RankedTensorType(operand.type).shape, map_.value.results, strict=True)
        if isinstance(index, ir.AffineDimExpr)
    }


def loop_cases() -> Iterator[Operation]:
    yield Matmul(2, 3, 5)
    yield Matmul(2, 3, 5, lhs_layout="n", rhs_layout="n")
    yield BatchMatmul(7, 2, 3, 5)
    for (c, k, groups), layout in itertools.product(((3, 5, 1), (6, 9, 3), (5, 5, 5)), ("nhwc", "nchw")):
        yield Conv2d(2, 11, 14, c, k, 4, 3, groups=groups, layout=layout)


@pytest.mark.parametrize("operation", list(loop_cases()), ids=lambda op: op.name)
def test_the_loops_of_an_operation_are_those_of_its_module(operation, context):
    """Number, order and extent: tiles are given by position, so a wrong order tiles another loop."""
    assert loop_extents(rendered(operation)) == [loop.extent for loop in operation.loops]


def test_a_split_has_the_slices_as_its_first_loop(context):
    """The product of its loops is that of the whole."""
    operation, split = Matmul(2, 3, 20), CpuTiles((1, 1), (1, 1, 1), split_k=4)
    extents = loop_extents(rendered(operation, split))
    assert extents == [loop.extent for loop in split.lowering(operation).loops] == [4, 2, 3, 5]
    assert 2 * math.prod(extents) == operation.flops


# -- one template for all --------------------------------------------------------------------------


def test_functions_stand_apart():
    """A module starts with its first function; a blank line is between two of them."""
    text = rendered(Matmul(8, 16, 4), Default(), MATMUL_TILES)
    assert text.startswith("func.func @")
    assert text.count("\n}\n\nfunc.func @") == 1


def test_the_same_module_is_the_same_text():
    """Byte for byte, in any process and in any order."""
    first = [rendered(op) for op in loop_cases()]
    assert first == [rendered(op) for op in reversed(list(loop_cases()))][::-1]


def broken_environment(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The product's environment, with `text` in place of its matmul template."""
    environment = render_file.environment().overlay(loader=jinja2.DictLoader({"matmul.mlir.j2": text}))
    monkeypatch.setattr(render_file, "environment", lambda: environment)


@pytest.mark.parametrize("text", ["{{ nothing }}", "{{ op.nothing }}", "{{ dispatches[0].nothing.at_all }}"])
def test_an_unfilled_name_is_an_error(text, monkeypatch):
    """It never becomes empty text."""
    broken_environment(text, monkeypatch)
    with pytest.raises(jinja2.UndefinedError, match="nothing"):
        rendered(Matmul(8, 16, 4))


def test_a_filled_name_is_none(monkeypatch):
    """The same environment renders what it knows, so that it is the name that was refused."""
    broken_environment("{{ op.name }}", monkeypatch)
    assert rendered(Matmul(8, 16, 4)) == "matmul_8x16x4_f32t_f32t_f32t\n"


def test_every_kind_has_a_template_that_ships():
    """An operation kind without one could not be generated."""
    from dispatch_profiler.operations import KINDS

    folder = Path(render_file.__file__).parents[1] / "templates"
    assert {f"{kind}.mlir.j2" for kind in KINDS} <= {path.name for path in folder.iterdir()}
