"""Kernels that are wrong on purpose, compiled by IREE and run: every one of them is caught."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from compiled_helpers import Change, failures_of
from every_kind import EVERY_MODE

from dispatch_profiler.configurations import FORMS, Configuration, Default, Formed
from dispatch_profiler.dispatches import Dispatch
from dispatch_profiler.operations import (
    Attention,
    BiasBackward,
    Conv1d,
    Conv2d,
    Conv3d,
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

SQUARE = ("--problem-m=32", "--problem-n=32", "--problem-k=32")

pytestmark = pytest.mark.usefixtures("in_process")


def replacing(*pairs: str) -> Change:
    """`replacing(right, wrong, right, wrong)`: each `right` has to be there."""

    def change(text: str) -> str:
        for right, wrong in zip(pairs[::2], pairs[1::2], strict=True):
            assert right in text, right
            text = text.replace(right, wrong)
        return text

    return change


def before_return(addition: str) -> Change:
    """Put operations between the result and its return; they take %sums and make %wrong."""

    def change(text: str) -> str:
        value = re.search(r"return %(\w+) :", text).group(1)
        return re.sub(r"  return %\w+ :", addition.replace("%sums", f"%{value}") + "  return %wrong :", text)

    return change


AT_ONE_PLACE = """
  %wrong = linalg.generic {{
    indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>],
    iterator_types = ["parallel", "parallel"]
  }} outs(%sums : tensor<32x32xf32>) {{
  ^bb0(%old: f32):
    %row = linalg.index 0 : index
    %column = linalg.index 1 : index
    %i = arith.constant {row} : index
    %j = arith.constant {column} : index
    %at_row = arith.cmpi eq, %row, %i : index
    %at_column = arith.cmpi eq, %column, %j : index
    %here = arith.andi %at_row, %at_column : i1
    %one = arith.constant 1.0 : f32
    %off_by_one = arith.addf %old, %one : f32
    %nan = arith.constant 0x7FC00000 : f32
    %chosen = arith.select %here, %{value}, %old : f32
    linalg.yield %chosen : f32
  }} -> tensor<32x32xf32>
"""
ONE_ELEMENT = before_return(AT_ONE_PLACE.format(row=17, column=5, value="off_by_one"))
NOT_A_NUMBER = before_return(AT_ONE_PLACE.format(row=31, column=31, value="nan"))
UNWRITTEN_TAIL = """
  %head = tensor.extract_slice %sums[0, 0] [31, 32] [1, 1] : tensor<32x32xf32> to tensor<31x32xf32>
  %wrong = tensor.insert_slice %head into %result[0, 0] [31, 32] [1, 1] : tensor<31x32xf32> into tensor<32x32xf32>
"""
LAST_ROW = before_return(UNWRITTEN_TAIL)


# -- through the commands --------------------------------------------------------------------------


@pytest.fixture
def verdict_of(run) -> Callable[[Change], tuple[str, str]]:
    """Generate the default of a square problem, change its MLIR, compile, verify: (verdict, reason)."""

    def verify(change: Change) -> tuple[str, str]:
        assert run("generator", "--default-config=only", *SQUARE, "--lhs=f32").status == 0
        (source,) = Path("generated").rglob("*.mlir")
        source.write_text(change(source.read_text()))
        assert run("compile").status == 0, run("compile").err
        run("profiler", "--profiling-enabled=false", "--output=data.csv", "--device=local-sync")
        (row,) = csv.DictReader(Path("data.csv").read_text().splitlines())
        return row["Verification"], row["reason"]

    return verify


def test_the_kernel_without_a_fault_passes(verdict_of):
    assert verdict_of(str) == ("SUCCESS", "")


def test_one_wrong_element_is_caught_and_named(verdict_of):
    verdict, reason = verdict_of(ONE_ELEMENT)

    assert verdict == "FAILED"
    assert reason.startswith("1 of 1024 elements are wrong; the worst: result[17, 5] = ")


# -- as one module for each group ------------------------------------------------------------------

SMALL = Matmul(32, 32, 32)


@pytest.mark.slow
def test_faults_of_a_square_product_are_caught_and_named():
    """lhs and rhs are drawn apart, so that B @ A differs from A @ B; what is not written shows what was in memory."""
    integers = Matmul(32, 32, 32, ElementTypes("i8", "i8", "i32"))
    planted = {
        Dispatch(SMALL, Default()): {
            "operands swapped": replacing("ins(%lhs, %rhs :", "ins(%rhs, %lhs :"),
            "operand transposed": replacing("-> (k, n)>", "-> (n, k)>"),
            "one element": ONE_ELEMENT,
            "not a number": NOT_A_NUMBER,
            "unwritten tail": LAST_ROW,
        },
        # Integers have no NaN; the poison is a sum that no kernel can reach.
        Dispatch(integers, Default()): {
            "unwritten tail": before_return(UNWRITTEN_TAIL.replace("f32", "i32"))
        },
    }

    found = {(dispatch.operation, fault): why for (dispatch, fault), why in failures_of(planted).items()}

    assert found[SMALL, ""] == found[integers, ""] == ""
    for fault in ("operands swapped", "operand transposed"):
        assert int(found[SMALL, fault].split(" of 1024 elements are wrong; the worst: ")[0]) > 900
    assert found[SMALL, "one element"].startswith("1 of 1024 elements are wrong; the worst: result[17, 5] = ")
    assert "result[31, 31] = nan" in found[SMALL, "not a number"]
    tail = "32 of 1024 elements are wrong; the worst: result[31, 0] = nan"
    assert found[SMALL, "unwritten tail"].startswith(tail)
    assert found[integers, "unwritten tail"].startswith("32 of 1024 elements are wrong")


#: A kernel and the faults that are planted in it.
Planted = tuple[Operation, Configuration, dict[str, Change]]


def with_epilogue(text: str, **faults: Change) -> Planted:
    return replace(SMALL, epilogue=Epilogue.parse(text)), Default(), faults


#: The activation's result is dropped and its argument stored.
NO_ACTIVATION = replacing("linalg.yield %active", "linalg.yield %v")
#: gelu of the erf form in place of the tanh form.
ERF_FORM = replacing(
    "1.59576912160573071", "0.70710678118654752", "arith.mulf %bent, %root", "arith.mulf %v, %root",
    "%unit = arith.constant 1.0", "%unit = arith.constant 0.5", "%exp = math.exp %negated : f32",
    "%half = arith.constant 0.5 : f32\n %erf = math.erf %scaled : f32\n %exp = arith.mulf %erf, %half : f32",
    "arith.divf %v, %exp1", "arith.mulf %v, %exp1",
)  # fmt: skip
EPILOGUES: list[Planted] = [
    with_epilogue(
        "bias", wrong_axis=replacing("affine_map<(d0, d1) -> (d1)>", "affine_map<(d0, d1) -> (d0)>")
    ),
    with_epilogue("relu", missing=NO_ACTIVATION),
    with_epilogue("gelu", missing=NO_ACTIVATION),
    with_epilogue("tanh", missing=NO_ACTIVATION),
    with_epilogue("leaky_relu", wrong_slope=replacing("arith.constant 0.01 :", "arith.constant 0.011 :")),
    with_epilogue("residual+relu", no_residual=replacing("maximumf %added", "maximumf %v")),
    with_epilogue("channel_scale", added=replacing("%rescaled = arith.mulf", "%rescaled = arith.addf")),
    with_epilogue("row_scale", added=replacing("%rescaled = arith.mulf", "%rescaled = arith.addf")),
    with_epilogue("scale_shift", swapped=replacing("ins(%sums, %scale, %shift", "ins(%sums, %shift, %scale")),
    with_epilogue("gelu_tanh", erf_form=ERF_FORM),
    with_epilogue("clamp(-1,1)", wrong_bound=replacing("arith.constant 1.0 :", "arith.constant 1.01 :")),
]


def narrow_sums(text: str) -> str:
    """f16 products summed in f16."""
    text = text.replace("arith.constant 0.0 : f32", "arith.constant 0.0 : f16")
    text = text.replace("x512xf32>", "x512xf16>").replace("ins(%zero : f32)", "ins(%zero : f16)")
    text = text.replace("%v: f32", "%v: f16")
    return re.sub(r"    %narrow = .*\n    linalg.yield %narrow", "    linalg.yield %v", text)


def bits_of_bf16(total: str, term: str) -> Change:
    """Sums with the bits of bf16: IREE removes a conversion to bf16 and back, but no mask."""
    return replacing(
        f"{total} = arith.addf %sum, {term} : f64",
        f"""%exact_sum = arith.addf %sum, {term} : f64
    %bits = arith.bitcast %exact_sum : f64 to i64
    %mask = arith.constant {-(2**45)} : i64
    %kept = arith.andi %bits, %mask : i64
    {total} = arith.bitcast %kept : i64 to f64""",
    )


NARROW_SUMS: list[Planted] = [
    (Matmul(16, 512, 2048, ElementTypes("f16", "f16", "f16")), Default(), {"f16": narrow_sums}),
    (LayerNormWeightBackward(300, 9, "bf16"), Default(), {"bf16": bits_of_bf16("%next_sum", "%d_wide_term")}),
    (BiasBackward(300, 9, 1, "bf16"), Default(), {"bf16": bits_of_bf16("%total", "%term")}),
]

NOT_CLEARED = {"sums not cleared": replacing("%zero = arith.constant 0.0", "%zero = arith.constant 1.0")}
WRONG_COUNT = {"one less": replacing("%count = arith.constant 33.0", "%count = arith.constant 32.0")}
REDUCTIONS: list[Planted] = [
    (
        LayerNorm(4, 33, eps=1e-2),
        Default(),
        {
            **NOT_CLEARED,
            **WRONG_COUNT,
            "no eps": replacing(
                "%shifted = arith.addf %variance, %eps", "%shifted = arith.maximumf %variance, %variance"
            ),
            "no bias": replacing("arith.addf %scaled, %b ", "arith.maximumf %scaled, %scaled "),
        },
    ),
    (
        LayerNormInputBackward(4, 33),
        Default(),
        {
            **NOT_CLEARED,
            **WRONG_COUNT,
            "no weight": replacing("%g = arith.mulf %d, %w", "%g = arith.maximumf %d, %d"),
            "mean of g left in": replacing("arith.subf %g, %mean_sum", "arith.maximumf %g, %g"),
            "no projection": replacing(
                "arith.subf %without_mean, %along", "arith.maximumf %without_mean, %without_mean"
            ),
            "rstd applied once": replacing(
                "arith.mulf %projected, %r", "arith.maximumf %projected, %projected"
            ),
        },
    ),
    (
        LayerNormWeightBackward(4, 33),
        Default(),
        {
            **NOT_CLEARED,
            "x not centred": replacing("arith.subf %v, %m", "arith.maximumf %v, %v"),
            "no rstd": replacing("arith.mulf %centred, %r", "arith.maximumf %centred, %centred"),
            "results exchanged": replacing("return %stored#0, %stored#1", "return %stored#1, %stored#0"),
        },
    ),
    (
        Attention(1, 4, 5, 33, 8, key_heads=2, causal="lower_right", mask="add", mask_axes="q"),
        Default(),
        {
            **NOT_CLEARED,
            "no maximum": replacing("arith.subf %before, %shift", "arith.maximumf %before, %before"),
            "not scaled": replacing("arith.mulf %score, %scale", "arith.maximumf %score, %score"),
            "no mask": replacing("arith.addf %scaled, %added", "arith.maximumf %scaled, %scaled"),
            "not divided": replacing("arith.divf %sum, %divisor", "arith.maximumf %sum, %sum"),
            "one key more is seen": replacing("%offset = arith.constant 28", "%offset = arith.constant 29"),
        },
    ),
    (
        Int4Matmul(3, 128, 48, 16),
        Default(),
        {
            "halves exchanged": replacing("cmpi eq, %h, %first", "cmpi ne, %h, %first"),
            "numbers not moved": replacing("%middle = arith.constant 8.0", "%middle = arith.constant 7.0"),
            "no zero": replacing("arith.addf %scaled, %zero_narrow", "arith.maximumf %scaled, %scaled"),
            "not scaled": replacing("arith.mulf %number, %scale_narrow", "arith.maximumf %number, %number"),
            "scale of another group": replacing(
                "%group_size = arith.constant 16", "%group_size = arith.constant 24"
            ),
        },
    ),
    (
        Softmax(4, 33, scale=0.25),
        Default(),
        {
            **NOT_CLEARED,
            "no maximum": replacing("arith.subf %v, %m", "arith.maximumf %v, %v"),
            "not scaled": replacing("arith.mulf %below, %scale", "arith.maximumf %below, %below"),
            "not divided": replacing("arith.divf %power, %sum", "arith.maximumf %power, %power"),
            "largest term": replacing("arith.addf %sum, %power", "arith.maximumf %sum, %power"),
        },
    ),
    (
        BiasBackward(4, 33, 33),
        Default(),
        {
            **NOT_CLEARED,
            "wrong axis": replacing("(outer, channel, inner)>", "(outer, inner, channel)>"),
            "largest element": replacing("arith.addf %sum, %term ", "arith.maximumf %sum, %term "),
        },
    ),
]


def shifted_padding(text: str) -> str:
    """A pixel of padding moves from the low side to the high side of the first axis that has one."""

    def shift(found: re.Match[str]) -> str:
        low, high = (list(map(int, each.split(", "))) for each in found.groups())
        axis = next(i for i, each in enumerate(low) if each)
        low[axis], high[axis] = low[axis] - 1, high[axis] + 1
        return f"low[{', '.join(map(str, low))}] high[{', '.join(map(str, high))}]"

    return re.sub(r"low\[([^]]*)\] high\[([^]]*)\]", shift, text, count=1)


def shifted_gradient(text: str) -> str:
    """The output's gradient is stored a pixel too low along the first axis with an offset."""
    return re.sub(r"(into %zeros\[[0, ]*)1", r"\g<1>0", text, count=1)


def unflipped_axis(text: str) -> str:
    """The filter is flipped along every axis but the first."""
    return re.sub(r"(tensor.extract %rhs\[[^]]*?)%at(\d)", r"\1%i\2", text, count=1)


PADDED = {
    **NOT_CLEARED,
    "border not zero": replacing("%border = arith.constant 0.0", "%border = arith.constant 1.0"),
}
OF_MODE: dict[str, dict[str, Change]] = {
    "forward": {**PADDED, "shifted padding": shifted_padding},
    "input_backward": {**PADDED, "shifted": shifted_gradient, "an axis not flipped": unflipped_axis},
    "weight_backward": {**PADDED, "shifted padding": shifted_padding},
}
#: 8 x 7 pixels with 4 channels, 6 filters of 3 x 3, a pixel of padding.
IMAGE = Conv2d(2, 8, 7, 4, 6, 3, 3, (2, 1), (1, 1))


def faults_of_every_mode(kind: type[Operation]) -> list[Planted]:
    """Every mode of a kind in `EVERY_MODE`, with the faults that are the same for every rank."""
    found = []
    for operation in EVERY_MODE:
        if isinstance(operation, kind):
            convolution = operation.convolution
            found.append((operation, Default(), OF_MODE[convolution.mode] if convolution else NOT_CLEARED))
    return found


OF_IMAGES: list[Planted] = [
    (
        replace(IMAGE, mode="input_backward"),
        Default(),
        {
            "filter not flipped": replacing(
                "tensor.extract %rhs[%at0, %at1,", "tensor.extract %rhs[%i0, %i1,"
            ),
            "stride dropped": replacing("[1, 2, 1, 1] :", "[1, 1, 1, 1] :"),
        },
    ),
    (
        replace(IMAGE, mode="weight_backward"),
        Default(),
        {"taps exchanged": replacing("oh * 2 + kh * 1, ow * 1 + kw * 1", "oh * 2 + kw * 1, ow * 1 + kh * 1")},
    ),
]
LAYOUTS: list[Planted] = [
    (
        replace(IMAGE, stride=(1, 1), padding=(0, 1), padding_after=(2, 1)),
        Default(),
        {
            "padding on the wrong side": replacing(
                "low[0, 0, 1, 0] high[0, 2, 1, 0]", "low[0, 2, 1, 0] high[0, 0, 1, 0]"
            )
        },
    ),
    (
        replace(IMAGE, stride=(1, 1), padding=(0, 0), layout="nhwc_fhwc_nhwc"),
        Default(),
        {"filter read in another layout": replacing("(oc, kh, kw, ic)>", "(oc, kw, kh, ic)>")},
    ),
    (
        Conv2d(2, 8, 8, 4, 6, 3, 3, layout="nhwc_hwcf_nchw"),
        Default(),
        {"result in another layout": replacing("(n, oc, oh, ow)>\n    ]", "(n, oc, ow, oh)>\n    ]")},
    ),
    (
        Conv1d(2, 9, 4, 4, 3, groups=2),
        Default(),
        {"groups exchanged": replacing("(n, ow * 1 + kw * 1, g, ic)>", "(n, ow * 1 + kw * 1, ic, g)>")},
    ),
    (
        Conv3d(1, 7, 4, 5, 3, 4, 3, 3, 3, dilation=(2, 1, 1)),
        Default(),
        {
            "frames without dilation": replacing(
                "dilations = dense<[2, 1, 1]>", "dilations = dense<[1, 1, 1]>"
            )
        },
    ),
]

#: With a filter as MIOpen's commands have it.
FHWC = replace(IMAGE, layout="nhwc_fhwc_nhwc")
TAPS_EXCHANGED = {"taps exchanged": replacing("oh * 2 + kh, ow + kw", "oh * 2 + kw, ow + kh")}
PRODUCT_NOT_CLEARED = {
    "sums not cleared": replacing("%product_zero = arith.constant 0.0", "%product_zero = arith.constant 1.0")
}
FORM_FAULTS: list[Planted] = [
    (
        FHWC,
        Formed("im2col"),
        {
            **TAPS_EXCHANGED,
            **PRODUCT_NOT_CLEARED,
            "no stride": replacing("oh * 2 + kh, ow + kw", "oh + kh, ow + kw"),
            "shifted padding": replacing(
                "low[0, 1, 1, 0] high[0, 0, 1, 0]", "low[0, 0, 1, 0] high[0, 1, 1, 0]"
            ),
            "border not zero": replacing(
                "%padded_border = arith.constant 0.0", "%padded_border = arith.constant 1.0"
            ),
        },
    ),
    (
        FHWC,
        Formed("permuted"),
        {
            "taps not permuted": replacing(
                "(kh, kw, c, f) -> (f, kh, kw, c)", "(kh, kw, c, f) -> (f, kw, kh, c)"
            )
        },
    ),
    (
        replace(FHWC, groups=2),
        Formed("per_group"),
        {
            "the first group's image": replacing(
                "%part_3 = tensor.extract_slice %padded[0, 0, 0, 1, 0]",
                "%part_3 = tensor.extract_slice %padded[0, 0, 0, 0, 0]",
            )
        },
    ),
    (
        replace(FHWC, mode="input_backward"),
        Formed("phases"),
        {
            "wrong tap": replacing(
                "%part_2 = tensor.extract_slice %part[0, 0, 2, 0]",
                "%part_2 = tensor.extract_slice %part[0, 0, 0, 0]",
            ),
            "a phase stored twice": replacing("insert_slice %product_2 into", "insert_slice %product into"),
        },
    ),
    (
        replace(FHWC, mode="weight_backward"),
        Formed("im2col_t"),
        {**TAPS_EXCHANGED, **PRODUCT_NOT_CLEARED},
    ),
    (
        FHWC,
        Formed("im2col_t32"),
        {
            "cut on the wrong side": replacing(
                "%part = tensor.extract_slice %shaped_3[0, 0, 0, 0]",
                "%part = tensor.extract_slice %shaped_3[0, 0, 0, 1]",
            )
        },
    ),
    (
        replace(FHWC, mode="weight_backward", stride=(1, 1)),
        Formed("taps"),
        {
            "wrong tap": replacing(
                "%part_3 = tensor.extract_slice %shaped[1, 0]", "%part_3 = tensor.extract_slice %shaped[0, 0]"
            ),
            "rows run together": replacing(
                "%padded_2_border = arith.constant 0.0", "%padded_2_border = arith.constant 1.0"
            ),
        },
    ),
    (
        Conv2d(1, 4, 5, 32, 128, 3, 3, padding=(1, 1), layout="nhwc_fhwc_nhwc"),
        Formed("blocked"),
        {
            "the first block twice": replacing(
                "%part_2 = tensor.extract_slice %stored_filters[0, 0, 1, 0, 0]",
                "%part_2 = tensor.extract_slice %stored_filters[0, 0, 0, 0, 0]",
            )
        },
    ),
    (
        replace(FHWC, mode="input_backward"),
        Formed("shuffled"),
        {
            "wrong tap": replacing(
                "%part_2 = tensor.extract_slice %part[0, 1, 0, 0, 0, 0]",
                "%part_2 = tensor.extract_slice %part[0, 0, 0, 0, 0, 0]",
            ),
            "wrong phase": replacing(
                "%part_14 = tensor.extract_slice %shaped_2[0, 0, 1, 0, 0, 0]",
                "%part_14 = tensor.extract_slice %shaped_2[0, 0, 0, 0, 0, 0]",
            ),
        },
    ),
    (
        Conv2d(1, 6, 6, 8, 2, 3, 3, padding=(1, 1), layout="nhwc_fhwc_nhwc"),
        Formed("kn2row"),
        {
            "a tap twice": replacing("arith.addf %sum1, %v2", "arith.addf %sum1, %v1"),
            "wrong pixel": replacing(
                "%part_12 = tensor.extract_slice %part_11[0, 0, 2, 0, 0, 0]",
                "%part_12 = tensor.extract_slice %part_11[0, 0, 1, 0, 0, 0]",
            ),
        },
    ),
    (
        replace(FHWC, stride=(1, 1)),
        Formed("winograd"),
        {
            "wrong sign": replacing(
                "dense<[1.0, -1.25, 1.5625, -1.953125]>", "dense<[1.0, 1.25, 1.5625, -1.953125]>"
            ),
            "inexact number": replacing("0.2730666666666667", "0.2728"),
        },
    ),
    (
        replace(FHWC, stride=(1, 1)),
        Formed("winograd_2"),
        {
            "wrong sign": replacing(
                "%outputs_column_3 = arith.constant dense<[0.0, -1.0]>",
                "%outputs_column_3 = arith.constant dense<[0.0, 1.0]>",
            ),
            "wrong column": replacing("%stored_tile_rows[0, 0, 0, 3, 0]", "%stored_tile_rows[0, 0, 0, 2, 0]"),
        },
    ),
    (
        Matmul(8, 8, 8, rhs_layout="n"),
        Formed("transposed"),
        {
            **PRODUCT_NOT_CLEARED,
            "columns not permuted": replacing("affine_map<(k, m) -> (m, k)>", "affine_map<(k, m) -> (k, m)>"),
            "result not permuted": replacing("affine_map<(m, n) -> (n, m)>", "affine_map<(m, n) -> (m, n)>"),
        },
    ),
    (
        Matmul(8, 8, 8, rhs_layout="n"),
        Formed("permuted"),
        {
            **PRODUCT_NOT_CLEARED,
            "columns not permuted": replacing("affine_map<(k, n) -> (n, k)>", "affine_map<(k, n) -> (k, n)>"),
        },
    ),
    (
        Matmul(64, 32, 32, rhs_layout="n"),
        Formed("transposed_panels"),
        {
            **PRODUCT_NOT_CLEARED,
            "panel not permuted": replacing("(p, k, m) -> (p, m, k)", "(p, k, m) -> (p, k, m)"),
            "rows transposed": replacing("(m, p, n, k) -> (m, k)", "(m, p, n, k) -> (k, m)"),
        },
    ),
    (
        Matmul(32, 64, 32),
        Formed("panels"),
        {
            **PRODUCT_NOT_CLEARED,
            "panel transposed": replacing("(m, p, n, k) -> (p, k, n)", "(m, p, n, k) -> (p, n, k)"),
            "lhs transposed": replacing("(m, p, n, k) -> (m, k)", "(m, p, n, k) -> (k, m)"),
        },
    ),
]

GROUPS: dict[str, list[Planted]] = {
    "epilogues": EPILOGUES,
    "narrow sums": NARROW_SUMS,
    "reductions": REDUCTIONS,
    **{kind.kind: faults_of_every_mode(kind) for kind in dict.fromkeys(map(type, EVERY_MODE))
       if kind.kind not in {operation.kind for operation, *_ in REDUCTIONS}},
    "gradients of images": OF_IMAGES,
    "layouts": LAYOUTS,
    "forms": FORM_FAULTS[:5],
    "other forms": [(*which, dict([*faults.items()][-1:])) for *which, faults in FORM_FAULTS[5:]],
    "every fault of the other forms": FORM_FAULTS[5:],
}  # fmt: skip
#: `forms` has five of the forms in the quick suite; conv1d and conv3d have the macros of conv2d.
SLOW = ("conv1d", "conv3d", "other forms", "every fault of the other forms")


def test_faults_are_planted_in_every_mode_of_every_kind():
    def mode(operation: Operation) -> tuple[str, str]:
        return operation.kind, operation.convolution.mode if operation.convolution else ""

    planted = {mode(operation) for group in GROUPS.values() for operation, *_ in group}
    assert planted == set(map(mode, EVERY_MODE))


def test_faults_are_planted_in_every_form():
    planted = {configuration.form for _, configuration, _ in FORM_FAULTS}
    assert planted == set(FORMS)


@pytest.mark.some(4)
@pytest.mark.parametrize(
    "group", [pytest.param(each, marks=pytest.mark.slow if each in SLOW else ()) for each in GROUPS]
)
def test_every_planted_fault_is_caught(group: str):
    """And the kernels without a fault are right."""
    found = failures_of(
        {Dispatch(operation, configuration): faults for operation, configuration, faults in GROUPS[group]}
    )
    assert {dispatch.name: why for (dispatch, fault), why in found.items() if not fault and why} == {}
    missed = [f"{dispatch.name}: {fault}" for (dispatch, fault), why in found.items() if fault and not why]
    assert missed == []
