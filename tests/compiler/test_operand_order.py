"""Products in 16-bit types for tensor cores: the order of operands, and reductions that need padding."""

from __future__ import annotations

import re

import pytest
from gpu_helpers import BF16, F16

from dispatch_profiler.compiler import BuildOutcome, Built, IreeCompiler, launch_request
from dispatch_profiler.compiler.ir_module import IrModule, operations_in
from dispatch_profiler.compiler.passes.padded_products import order_operands
from dispatch_profiler.configurations import Default
from dispatch_profiler.dispatches import Dispatch, State
from dispatch_profiler.operations import BatchMatmul, Conv2d, ElementTypes, Matmul, Operation
from dispatch_profiler.targets import parse_target

SAME = ElementTypes("bf16", "bf16", "bf16")
GENERIC = """func.func @f(%a: tensor<{a}>, %b: tensor<{b}>, %c: tensor<{c}>) -> tensor<{c}> {{
  %r = linalg.generic {{
    indexing_maps = [affine_map<{maps[0]}>, affine_map<{maps[1]}>, affine_map<{maps[2]}>],
    iterator_types = ["parallel", "parallel", "reduction"]
  }} ins(%a, %b : tensor<{a}>, tensor<{b}>) outs(%c : tensor<{c}>) {{
  ^bb0(%x: {t}, %y: {u}, %sum: f32):
    %wide_x = arith.extf %x : {t} to f32
    %wide_y = arith.extf %y : {u} to f32
    %product = arith.mulf %wide_x, %wide_y : f32
    %total = arith.{add}f %sum, %product : f32
    linalg.yield %total : f32
  }} -> tensor<{c}>
  return %r : tensor<{c}>
}}
"""
LEFT, RIGHT = "(m, n, k) -> (k, m)", "(m, n, k) -> (k, n)"
WINDOW = "(m, n, k) -> (k, n + n)"


def ordered(
    *maps: str, types: tuple[str, str] = ("bf16", "bf16"), add: str = "add"
) -> tuple[list[str], list[str]]:
    """(operands, maps) after ordering, of a generic operation with these maps."""
    t, u = types
    columns = 15 if WINDOW in maps else 8
    shapes = {"a": f"32x8x{t}", "b": f"32x{columns}x{u}", "c": "8x8xf32"}
    module = IrModule.parse(GENERIC.format(**shapes, t=t, u=u, maps=maps, add=add))
    order_operands(module)
    assert module.operation.verify()
    (op,) = (each for each in operations_in(module.operation) if each.name == "linalg.generic")
    names = [each.get_name() for each in op.operands]
    return names[:2], [str(each.value) for each in op.attributes["indexing_maps"]]


def test_a_result_that_ends_with_an_axis_of_the_first_operand_gets_the_other_order():
    names, maps = ordered(LEFT, RIGHT, "(m, n, k) -> (n, m)")

    assert names == ["%arg1", "%arg0"]
    assert maps == [f"(d0, d1, d2) -> {each}" for each in ("(d2, d1)", "(d2, d0)", "(d1, d0)")]


@pytest.mark.parametrize(
    ("maps", "options"),
    [
        ((LEFT, RIGHT, "(m, n, k) -> (m, n)"), {}),
        ((LEFT, WINDOW, "(m, n, k) -> (n, m)"), {}),
        ((LEFT, RIGHT, "(m, n, k) -> (n, m)"), {"types": ("bf16", "f16")}),
        ((LEFT, RIGHT, "(m, n, k) -> (n, m)"), {"add": "sub"}),
    ],
    ids=["in order", "convolution", "two types", "no sum"],
)
def test_other_operations_are_left_as_they_are(maps: tuple[str, ...], options: dict[str, str]):
    assert ordered(*maps, **options)[0] == ["%arg0", "%arg1"]


def code_of(operation: Operation) -> list[str]:
    """The instructions of the PTX of an operation's kernel, without names."""
    dispatch = Dispatch(operation, Default())
    built: Built = IreeCompiler().build(launch_request(dispatch, parse_target("cuda:sm_80")))
    text = built.verify.decode("latin-1")
    ptx = text[text.index(".version") :]
    body = ptx[ptx.index("{") : ptx.index("\0")]
    return re.sub(r"\[\w+_param_(\d)\]", r"[param \1]", body).splitlines()


def stores_of(operation: Operation) -> list[str]:
    """Where the kernel stores which part of its result: two neighbours of a row at once, if it is right."""
    lines = (re.sub(r"%[a-z]+\d+", "%", line.strip()) for line in code_of(operation))
    return [line for line in lines if line.startswith("st.global")]


def test_the_gradient_of_a_pointwise_filter_is_stored_as_a_product_is():
    """Whose kernels are right on a GPU."""
    gradient = Conv2d(1, 8, 16, 64, 64, 1, 1, types=SAME, layout="nhwc_fhwc_nhwc", mode="weight_backward")
    stores = stores_of(gradient)
    assert stores == stores_of(Matmul(64, 64, 128, SAME, "n", "t"))
    assert all(".v2.b16" in line for line in stores)


@pytest.mark.parametrize("types", [F16, pytest.param(BF16, marks=pytest.mark.slow)])
@pytest.mark.parametrize("mode", ["forward", "input_backward", "weight_backward"])
def test_pointwise_convolutions_in_nchw_compile_for_tensor_cores(mode: str, types: ElementTypes):
    convolution = Conv2d(2, 16, 16, 64, 96, 1, 1, types=types, layout="nchw", mode=mode)
    assert any("mma.sync" in line for line in code_of(convolution))


SAME_F16 = ElementTypes("f16", "f16", "f16")
F32 = ElementTypes("f32", "f32", "f32")


def outcome_of(operation: Operation) -> BuildOutcome:
    request = launch_request(Dispatch(operation, Default()), parse_target("cuda:sm_80"))
    (found,) = IreeCompiler().build(request).outcomes.values()
    assert found.state is State.COMPILED, found.reason
    return found


@pytest.mark.parametrize(
    ("operation", "workgroup"),
    [
        (BatchMatmul(4, 64, 64, 40, SAME_F16), [1, 32, 64, 0]),
        (BatchMatmul(4, 64, 96, 8, F16, lhs_layout="n", rhs_layout="n"), [1, 32, 96, 0]),
        (BatchMatmul(2, 7, 65, 197, BF16), [1, 7, 13, 0]),
        (Conv2d(2, 8, 8, 8, 16, 1, 1, layout="nchw_fhwc_nchw", types=SAME_F16), [1, 16, 64, 0]),
    ],
    ids=lambda each: each.name if hasattr(each, "name") else "",
)
def test_rows_of_padding_are_avoided(operation: Operation, workgroup: list[int]):
    applied = outcome_of(operation).applied
    assert "padding" not in applied and "mma_kind" not in applied
    assert f"workgroup = {workgroup}" in applied


@pytest.mark.parametrize(
    "operation",
    [
        BatchMatmul(4, 64, 64, 48, SAME_F16),
        BatchMatmul(4, 64, 64, 40, SAME_F16, rhs_layout="n"),
        Matmul(64, 64, 40, SAME_F16),
        Conv2d(2, 8, 8, 8, 16, 3, 3, padding=(1, 1), layout="nhwc_fhwc_nhwc", types=SAME_F16),
    ],
    ids=["a multiple", "reductions last", "no batch", "taps"],
)
def test_what_the_compiler_masks_is_left_to_tensor_cores(operation: Operation):
    assert "mma_kind" in outcome_of(operation).applied


def test_products_in_f32_are_left_as_they_are():
    assert "padding" not in outcome_of(BatchMatmul(4, 64, 64, 40, F32)).applied
