"""Kernels that are wrong on purpose, compiled by IREE and run: every one of them is caught."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

SQUARE = ("--problem-m=32", "--problem-n=32", "--problem-k=32")

pytestmark = pytest.mark.usefixtures("in_process")


@pytest.fixture
def verdict_of(run) -> Callable[..., tuple[str, str]]:
    """Generate the default of a problem, change its MLIR, compile, verify: (verdict, reason)."""

    def verify(change: Callable[[str], str], *arguments: str) -> tuple[str, str]:
        shapes = arguments or (*SQUARE, "--lhs=f32")
        assert run("generator", "--default-config=only", *shapes).status == 0
        (source,) = Path("generated").rglob("*.mlir")
        text = source.read_text()
        changed = change(text)
        assert changed != text or change is unchanged
        source.write_text(changed)
        assert run("compile").status == 0, run("compile").err
        run("profiler", "--profiling-enabled=false", "--output=data.csv", "--device=local-sync")
        (row,) = csv.DictReader(Path("data.csv").read_text().splitlines())
        return row["Verification"], row["reason"]

    return verify


def unchanged(text: str) -> str:
    return text


def before_return(addition: str) -> Callable[[str], str]:
    """Put operations between the result and its return; they take %sums and make %wrong."""

    def change(text: str) -> str:
        value = re.search(r"return %(\w+) :", text).group(1)
        return re.sub(r"  return %\w+ :", addition.replace("%sums", f"%{value}") + "  return %wrong :", text)

    return change


def swapped_operands(text: str) -> str:
    return text.replace("ins(%lhs, %rhs :", "ins(%rhs, %lhs :")


def transposed_operand(text: str) -> str:
    return text.replace("-> (k, n)>", "-> (n, k)>")


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
ONE_ELEMENT = AT_ONE_PLACE.format(row=17, column=5, value="off_by_one")
NOT_A_NUMBER = AT_ONE_PLACE.format(row=31, column=31, value="nan")
UNWRITTEN_TAIL = """
  %head = tensor.extract_slice %sums[0, 0] [31, 32] [1, 1] : tensor<32x32xf32> to tensor<31x32xf32>
  %wrong = tensor.insert_slice %head into %result[0, 0] [31, 32] [1, 1] : tensor<31x32xf32> into tensor<32x32xf32>
"""


def test_the_kernel_without_a_fault_passes(verdict_of):
    assert verdict_of(unchanged) == ("SUCCESS", "")


def test_swapped_operands_of_a_square_problem_are_caught(verdict_of):
    """lhs and rhs are drawn apart, so that B @ A differs from A @ B."""
    verdict, reason = verdict_of(swapped_operands)

    assert verdict == "FAILED"
    assert "of 1024 elements are wrong" in reason


def test_a_transposed_operand_is_caught(verdict_of):
    assert verdict_of(transposed_operand)[0] == "FAILED"


def test_one_wrong_element_is_caught_and_named(verdict_of):
    verdict, reason = verdict_of(before_return(ONE_ELEMENT))

    assert verdict == "FAILED"
    assert reason.startswith("1 of 1024 elements are wrong; the worst: result[17, 5] = ")


def test_a_nan_is_caught_and_named(verdict_of):
    verdict, reason = verdict_of(before_return(NOT_A_NUMBER))

    assert verdict == "FAILED"
    assert "result[31, 31] = nan" in reason


def test_an_unwritten_tail_is_caught(verdict_of):
    """The last row is never stored: what was in memory before shows."""
    verdict, reason = verdict_of(before_return(UNWRITTEN_TAIL))

    assert verdict == "FAILED"
    assert reason.startswith("32 of 1024 elements are wrong; the worst: result[31, 0] = nan")


def test_an_unwritten_integer_tail_is_caught(verdict_of):
    """Integers have no NaN; the poison is a sum that no kernel can reach."""
    tail = UNWRITTEN_TAIL.replace("f32", "i32")

    verdict, reason = verdict_of(before_return(tail), *SQUARE, "--lhs=i8")

    assert verdict == "FAILED"
    assert reason.startswith("32 of 1024 elements are wrong")


@pytest.mark.parametrize(
    ("fault", "change"),
    [
        ("filter rows swapped", lambda t: t.replace("strides = dense<[1, 1]>", "strides = dense<[1, 1]>").replace("low[0, 1, 1, 0] high[0, 1, 1, 0]", "low[0, 0, 1, 0] high[0, 2, 1, 0]")),
        ("border not zero", lambda t: t.replace("%border = arith.constant 0.0", "%border = arith.constant 1.0")),
        ("sums not cleared", lambda t: t.replace("%zero = arith.constant 0.0", "%zero = arith.constant 1.0")),
    ],
    ids=["shifted padding", "border", "initial value"],
)  # fmt: skip
def test_faults_of_a_convolution_are_caught(verdict_of, fault: str, change):
    shapes = (
        "--conv-n=1",
        "--conv-h=8",
        "--conv-w=8",
        "--conv-c=4",
        "--conv-k=8",
        "--conv-padding=1",
        "--lhs=f32",
    )

    assert verdict_of(change, *shapes)[0] == "FAILED", fault


def test_a_bias_added_along_the_wrong_axis_is_caught(verdict_of):
    def change(text: str) -> str:
        return text.replace("affine_map<(d0, d1) -> (d1)>", "affine_map<(d0, d1) -> (d0)>")

    assert verdict_of(change, *SQUARE, "--lhs=f32", "--epilogue=bias")[0] == "FAILED"


@pytest.mark.parametrize(
    ("given", "emitted"), [("relu", "arith.maximumf"), ("gelu", "math.erf"), ("tanh", "math.tanh")]
)
def test_a_missing_activation_is_caught(verdict_of, given: str, emitted: str):
    """The activation's result is dropped and its argument stored."""

    def change(text: str) -> str:
        assert emitted in text
        return text.replace("linalg.yield %active", "linalg.yield %v")

    assert verdict_of(change, *SQUARE, "--lhs=f32", f"--epilogue={given}")[0] == "FAILED"


def erf_form(text: str) -> str:
    """gelu of the erf form in place of the tanh form."""
    for was, becomes in (
        ("0.79788456080286536", "0.70710678118654752"),
        ("arith.mulf %bent, %root", "arith.mulf %v, %root"),
        ("math.tanh", "math.erf"),
    ):
        assert was in text
        text = text.replace(was, becomes)
    return text


@pytest.mark.parametrize(
    ("epilogue", "change"),
    [
        ("leaky_relu", lambda t: t.replace("arith.constant 0.01 :", "arith.constant 0.011 :")),
        ("residual+relu", lambda t: t.replace("maximumf %added", "maximumf %v")),
        ("scale_shift", lambda t: t.replace("ins(%sums, %scale, %shift", "ins(%sums, %shift, %scale")),
        ("gelu_tanh", erf_form),
        ("clamp(-1,1)", lambda t: t.replace("arith.constant 1.0 :", "arith.constant 1.01 :")),
    ],
    ids=["wrong slope", "dropped residual", "swapped scale and shift", "erf form", "wrong bound"],
)
def test_faults_of_an_epilogue_are_caught(verdict_of, epilogue: str, change: Callable[[str], str]):
    verdict, reason = verdict_of(change, *SQUARE, "--lhs=f32", f"--epilogue={epilogue}")

    assert verdict == "FAILED", reason


@pytest.mark.parametrize(
    "epilogue", ["leaky_relu", "residual+relu", "scale_shift", "gelu_tanh", "clamp(-1,1)"]
)
def test_the_same_epilogues_without_a_fault_are_verified(verdict_of, epilogue: str):
    assert verdict_of(unchanged, *SQUARE, "--lhs=f32", f"--epilogue={epilogue}")[0] == "SUCCESS"


def test_sums_in_too_narrow_a_type_are_caught(verdict_of):
    """f16 products summed in f16: real values are off by more than sums in f32 may be."""

    def change(text: str) -> str:
        text = text.replace("arith.constant 0.0 : f32", "arith.constant 0.0 : f16")
        text = text.replace("x512xf32>", "x512xf16>").replace("ins(%zero : f32)", "ins(%zero : f16)")
        text = text.replace("%v: f32", "%v: f16")
        return re.sub(r"    %narrow = .*\n    linalg.yield %narrow", "    linalg.yield %v", text)

    shapes = ("--problem-m=16", "--problem-n=512", "--problem-k=2048", "--lhs=f16")
    verdict, reason = verdict_of(change, *shapes)

    assert verdict == "FAILED", reason


NORM = ("--norm-rows=4", "--norm-size=33", "--norm-type=f32")
BIAS = ("--bias-outer=4", "--bias-channels=33", "--bias-inner=33", "--bias-type=f32")
REDUCTION_FAULTS = {
    "layer_norm": [
        ("divided by one less", "%count = arith.constant 33.0", "%count = arith.constant 32.0"),
        ("no eps", "%shifted = arith.addf %variance, %eps", "%shifted = arith.addf %variance, %zero"),
        ("no bias", "arith.addf %scaled, %b ", "arith.addf %scaled, %zero "),
    ],
    "layer_norm_input_backward": [
        ("divided by one less", "%count = arith.constant 33.0", "%count = arith.constant 32.0"),
        ("no weight", "%g = arith.mulf %d, %w", "%g = arith.addf %d, %zero"),
        ("mean of g left in", "arith.subf %g, %mean_sum", "arith.subf %g, %zero"),
        ("no projection", "arith.subf %without_mean, %along", "arith.subf %without_mean, %zero"),
        ("rstd applied once", "arith.mulf %projected, %r", "arith.addf %projected, %zero"),
        ("sums not cleared", "%zero = arith.constant 0.0", "%zero = arith.constant 1.0"),
    ],
    "layer_norm_weight_backward": [
        ("x not centred", "arith.subf %v, %m", "arith.subf %v, %zero"),
        ("no rstd", "arith.mulf %centred, %r", "arith.addf %centred, %zero"),
        ("results exchanged", "return %sums#0, %sums#1", "return %sums#1, %sums#0"),
        ("sums not cleared", "%zero = arith.constant 0.0", "%zero = arith.constant 1.0"),
    ],
    "bias_backward": [
        ("wrong axis", "(outer, channel, inner)>", "(outer, inner, channel)>"),
        ("largest element", "arith.addf %sum, %d ", "arith.maximumf %sum, %d "),
        ("sums not cleared", "%zero = arith.constant 0.0", "%zero = arith.constant 1.0"),
    ],
}


def first_by_default(faults: Mapping[str | tuple[str, ...], Sequence[tuple[str, ...]]]) -> list:
    """A test for each fault, with its key; all but the first two of each key are slow."""
    return [
        pytest.param(
            *((key,) if isinstance(key, str) else key), *fault, marks=() if number < 2 else pytest.mark.slow
        )
        for key, group in faults.items()
        for number, fault in enumerate(group)
    ]


@pytest.mark.parametrize(
    ("kind", "fault", "right", "wrong"),
    first_by_default(REDUCTION_FAULTS),
    ids=lambda value: value if " " in value and "%" not in value else "",
)
def test_faults_of_reductions_are_caught(verdict_of, kind: str, fault: str, right: str, wrong: str):
    def change(text: str) -> str:
        assert right in text
        return text.replace(right, wrong)

    eps = ("--norm-eps=1e-2",) if kind == "layer_norm" else ()
    shapes = BIAS if kind == "bias_backward" else NORM
    assert verdict_of(change, f"--op-kind={kind}", *shapes, *eps)[0] == "FAILED", fault


NARROW = """%exact_sum = arith.addf %sum, {term} : f32
    %bits = arith.bitcast %exact_sum : f32 to i32
    %mask = arith.constant -65536 : i32
    %kept = arith.andi %bits, %mask : i32
    {total} = arith.bitcast %kept : i32 to f32"""


@pytest.mark.parametrize(
    ("shapes", "total", "term", "result"),
    [
        (
            ("--op-kind=layer_norm_weight_backward", "--norm-rows=300", "--norm-size=9", "--norm-type=bf16"),
            "%next_sum",
            "%d_wide",
            "dbias",
        ),
        (("--bias-outer=300", "--bias-channels=9", "--bias-type=bf16"), "%total", "%wide", "db"),
    ],
    ids=["layer_norm_weight_backward", "bias_backward"],
)
def test_sums_of_a_gradient_in_too_narrow_a_type_are_caught(verdict_of, shapes, total, term, result):
    """Sums of 300 terms with the bits of bf16: IREE removes a conversion to bf16 and back, but no mask."""

    def change(text: str) -> str:
        return text.replace(f"{total} = arith.addf %sum, {term} : f32", NARROW.format(total=total, term=term))

    verdict, reason = verdict_of(change, *shapes)
    assert verdict == "FAILED"
    assert f"{result}[" in reason


SMALL_CONV = ("--conv-n=2", "--conv-h=8", "--conv-w=7", "--conv-c=4", "--conv-k=6", "--lhs=f32")
PADDED = "--conv-padding=1"
CONV_FAULTS = {
    "input_backward": [
        ("filter not flipped", "tensor.extract %rhs[%at0, %at1,", "tensor.extract %rhs[%i0, %i1,"),
        ("one axis not flipped", "tensor.extract %rhs[%at0, %at1,", "tensor.extract %rhs[%at0, %i1,"),
        ("shifted by one", "into %zeros[0, 1, 1, 0]", "into %zeros[0, 0, 1, 0]"),
        ("stride dropped", "[1, 2, 1, 1] :", "[1, 1, 1, 1] :"),
        ("border not zero", "%border = arith.constant 0.0", "%border = arith.constant 1.0"),
        ("sums not cleared", "%zero = arith.constant 0.0", "%zero = arith.constant 1.0"),
    ],
    "weight_backward": [
        ("shifted padding", "low[0, 1, 1, 0] high[0, 1, 1, 0]", "low[0, 0, 1, 0] high[0, 2, 1, 0]"),
        ("border not zero", "%border = arith.constant 0.0", "%border = arith.constant 1.0"),
        ("taps exchanged", "oh * 2 + kh * 1, ow * 1 + kw * 1", "oh * 2 + kw * 1, ow * 1 + kh * 1"),
        ("sums not cleared", "%zero = arith.constant 0.0", "%zero = arith.constant 1.0"),
    ],
}


def replacing(right: str, wrong: str) -> Callable[[str], str]:
    def change(text: str) -> str:
        assert right in text
        return text.replace(right, wrong)

    return change


@pytest.mark.parametrize(
    ("mode", "fault", "right", "wrong"),
    first_by_default(CONV_FAULTS),
    ids=lambda value: (
        value if "_" in value or ("[" not in value and "%" not in value and "*" not in value) else ""
    ),
)
def test_faults_of_gradients_of_a_convolution_are_caught(verdict_of, mode, fault, right, wrong):
    shapes = (*SMALL_CONV, PADDED, "--conv-stride=2x1", f"--conv-mode={mode}")
    assert verdict_of(replacing(right, wrong), *shapes)[0] == "FAILED", fault


@pytest.mark.parametrize("mode", CONV_FAULTS)
def test_gradients_of_a_convolution_without_a_fault_are_verified(verdict_of, mode):
    shapes = (*SMALL_CONV, PADDED, "--conv-stride=2x1", f"--conv-mode={mode}")
    assert verdict_of(unchanged, *shapes)[0] == "SUCCESS"


LAYOUT_FAULTS = [
        ("padding on the wrong side", "low[0, 0, 1, 0] high[0, 2, 1, 0]", "low[0, 2, 1, 0] high[0, 0, 1, 0]",
         (*SMALL_CONV, "--conv-padding=0x1", "--conv-padding-after=2x1")),
        ("filter read in another layout", "(oc, kh, kw, ic)>", "(oc, kw, kh, ic)>",
         (*SMALL_CONV, "--layout=nhwc_kyxc_nhwc")),
        ("result in another layout", "(n, oc, oh, ow)>\n    ]", "(n, oc, ow, oh)>\n    ]",
         ("--conv-n=2", "--conv-h=8", "--conv-w=8", "--conv-c=4", "--conv-k=6", "--lhs=f32", "--layout=nhwc_hwcf_nchw")),
        ("groups exchanged", "(n, ow * 1 + kw * 1, g, ic)>", "(n, ow * 1 + kw * 1, ic, g)>",
         ("--conv-n=2", "--conv-w=9", "--conv-c=4", "--conv-k=4", "--conv-groups=2", "--lhs=f32")),
        ("frames without dilation", "dilations = dense<[2, 1, 1]>", "dilations = dense<[1, 1, 1]>",
         ("--conv-d=7", "--conv-h=4", "--conv-w=5", "--conv-c=3", "--conv-k=4", "--lhs=f32", "--conv-dilation=2x1x1")),
]  # fmt: skip


@pytest.mark.parametrize(
    ("fault", "right", "wrong", "arguments"), LAYOUT_FAULTS, ids=[row[0] for row in LAYOUT_FAULTS]
)
def test_faults_of_layouts_paddings_and_ranks_are_caught(verdict_of, fault, right, wrong, arguments):
    assert verdict_of(replacing(right, wrong), *arguments)[0] == "FAILED", fault


@pytest.mark.parametrize(
    "arguments", [row[3] for row in LAYOUT_FAULTS], ids=[row[0] for row in LAYOUT_FAULTS]
)
def test_the_same_convolutions_without_a_fault_are_verified(verdict_of, arguments):
    assert verdict_of(unchanged, *arguments)[0] == "SUCCESS"


def shapes_of(form: str, mode: str) -> tuple[str, ...]:
    """Arguments that generate one form of a small convolution, with a filter as MIOpen's commands have it."""
    Path("form.yaml").write_text(f"configurations: [{{form: {form}}}]")
    groups = "--conv-groups=2" if form == "per_group" else "--conv-groups=1"
    chosen = ("--configurations=form.yaml", f"--dispatches=*_{form}_default", "--default-config=true", groups)
    return (
        *SMALL_CONV,
        PADDED,
        "--conv-stride=2x1",
        f"--conv-mode={mode}",
        "--layout=nhwc_fhwc_nhwc",
        *chosen,
    )


FORM_FAULTS = {
    ("im2col", "forward"): [
        ("taps exchanged", "oh * 2 + kh, ow + kw", "oh * 2 + kw, ow + kh"),
        ("no stride", "oh * 2 + kh, ow + kw", "oh + kh, ow + kw"),
        ("shifted padding", "low[0, 1, 1, 0] high[0, 0, 1, 0]", "low[0, 0, 1, 0] high[0, 1, 1, 0]"),
        ("border not zero", "%padded_border = arith.constant 0.0", "%padded_border = arith.constant 1.0"),
        ("sums not cleared", "%product_zero = arith.constant 0.0", "%product_zero = arith.constant 1.0"),
    ],
    ("permuted", "forward"): [
        ("taps not permuted", "(kh, kw, c, f) -> (f, kh, kw, c)", "(kh, kw, c, f) -> (f, kw, kh, c)"),
    ],
    ("per_group", "forward"): [
        (
            "the first group's image",
            "%part_3 = tensor.extract_slice %padded[0, 0, 0, 1, 0]",
            "%part_3 = tensor.extract_slice %padded[0, 0, 0, 0, 0]",
        ),
    ],
    ("phases", "input_backward"): [
        ("taps not reversed", "arith.constant -2 : index", "arith.constant 0 : index"),
        ("wrong tap", "%offset_1 = arith.constant 1", "%offset_1 = arith.constant 0"),
    ],
    ("im2col_t", "weight_backward"): [
        ("taps exchanged", "oh * 2 + kh, ow + kw", "oh * 2 + kw, ow + kh"),
        ("sums not cleared", "%product_zero = arith.constant 0.0", "%product_zero = arith.constant 1.0"),
    ],
}


@pytest.mark.parametrize(
    ("form", "mode", "fault", "right", "wrong"),
    first_by_default(FORM_FAULTS),
    ids=lambda value: value if "[" not in value and "%" not in value and "*" not in value else "",
)
def test_faults_of_a_form_are_caught(verdict_of, form, mode, fault, right, wrong):
    assert verdict_of(replacing(right, wrong), *shapes_of(form, mode))[0] == "FAILED", fault


@pytest.mark.parametrize(("form", "mode"), FORM_FAULTS)
def test_a_form_without_a_fault_is_verified(verdict_of, form, mode):
    assert verdict_of(unchanged, *shapes_of(form, mode)) == ("SUCCESS", "")
