"""What IREE gets wrong or cannot compile on a target is told before it is tried, and is still so."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dispatch_profiler.compiler import BuildRequest, IreeCompiler, build_request
from dispatch_profiler.configurations import Default
from dispatch_profiler.dispatches import Dispatch
from dispatch_profiler.errors import CompilerError
from dispatch_profiler.generator import render_module
from dispatch_profiler.operations import ElementTypes, Epilogue, Matmul, Operation
from dispatch_profiler.profiler.measurement.kernels import open_kernels
from dispatch_profiler.targets import parse_target

NARROW = ElementTypes("f32", "f32", "f8")
DOUBLE = ElementTypes("f64", "f64", "f64")
#: Every step that needs a function, besides the erf form of gelu.
F64_STEPS = "scale_shift+hardswish+gelu_tanh+silu+hardsigmoid+leaky_relu+sigmoid+tanh+clamp(-0.5,1)"


def request_for(operation: Operation, target: str) -> BuildRequest:
    dispatch = Dispatch(operation, Default())
    return build_request(render_module(operation, [dispatch]), [dispatch], parse_target(target))


def reasons(operation: Operation, target: str) -> list[str]:
    return [reason for _, reason in request_for(operation, target).rejected]


@pytest.mark.parametrize("target", ["llvm-cpu", "llvm-cpu:neoverse-v2", "vmvx"])
@pytest.mark.parametrize(
    "epilogue",
    [
        "gelu",
        "tanh",
        "bias+sigmoid",
        "silu",
        "hardswish",
        "hardsigmoid",
        "leaky_relu",
        "scale_shift+gelu_tanh",
        "clamp(-0.5,1)",
    ],
)
def test_a_result_in_f8_of_an_approximated_activation_is_rejected_with_its_reason(target: str, epilogue: str):
    (reason,) = reasons(Matmul(8, 8, 8, NARROW, epilogue=Epilogue.parse(epilogue)), target)

    family = target.partition(":")[0]
    assert reason == (
        f"IREE 3.13 flushes f8E4M3FN results from 0.0146484 to 0.015625 to zero on {family}: "
        "use a wider result, such as --result=f16"
    )


def test_gelu_in_f64_is_rejected_with_its_reason():
    operation = Matmul(8, 8, 8, DOUBLE, epilogue=Epilogue.parse("bias+gelu+residual"))

    assert reasons(operation, "llvm-cpu") == [
        "IREE 3.13 has no erf in f64 on llvm-cpu, which gelu needs: use f32, or gelu_tanh"
    ]


@pytest.mark.parametrize(("lhs", "rhs"), [("f64", "f8E4M3FN"), ("f8E5M2", "f64")])
def test_a_product_of_f8_and_f64_is_rejected_with_its_reason(lhs: str, rhs: str):
    assert reasons(Matmul(8, 8, 8, ElementTypes(lhs, rhs, "f64")), "llvm-cpu") == [
        f"IREE 3.13 has no conversion from f8 to f64 on llvm-cpu, which a product of {lhs} and {rhs} needs: "
        "use f32 instead of f64"
    ]


@pytest.mark.parametrize(
    ("operation", "targets"),
    [
        (Matmul(8, 8, 8, ElementTypes("f8", "f8", "f32")), ("llvm-cpu", "vmvx")),
        (Matmul(8, 8, 8, epilogue=Epilogue.parse("gelu")), ("llvm-cpu", "vmvx")),
        (Matmul(8, 8, 8, DOUBLE, epilogue=Epilogue.parse("sigmoid")), ("llvm-cpu", "vmvx")),
        (Matmul(8, 8, 8, DOUBLE, epilogue=Epilogue.parse(F64_STEPS)), ("llvm-cpu", "vmvx")),
        (
            Matmul(8, 8, 8, NARROW, epilogue=Epilogue.parse("scale_shift+residual+relu6")),
            ("llvm-cpu", "vmvx"),
        ),
        (Matmul(8, 8, 8, DOUBLE, epilogue=Epilogue.parse("gelu")), ("vmvx", "cuda:sm_80", "null")),
        (Matmul(8, 8, 8, NARROW), ("llvm-cpu", "vmvx")),
        (Matmul(8, 8, 8, NARROW, epilogue=Epilogue.parse("bias+relu")), ("llvm-cpu", "vmvx")),
        (Matmul(8, 8, 8, NARROW, epilogue=Epilogue.parse("gelu")), ("cuda:sm_89", "null")),
    ],
    ids=[
        "f8 inputs",
        "f32 gelu",
        "f64 sigmoid",
        "f64 steps without erf",
        "f8 result of exact steps",
        "f64 gelu elsewhere",
        "f8 result",
        "f8 result with a bias and relu",
        "f8 gelu elsewhere",
    ],
)
def test_what_works_is_not_rejected(operation: Operation, targets: tuple[str, ...]):
    for target in targets:
        assert reasons(operation, target) == []


@pytest.mark.parametrize(("result", "smallest"), [("f8E4M3FN", 2.0**-6), ("f8E5M2", 2.0**-14)])
@pytest.mark.parametrize("target", ["llvm-cpu", "vmvx"])
def test_iree_makes_zero_of_what_rounds_up_to_the_smallest_normal_number_in_f8(
    target: str, result: str, smallest: float
):
    """And of nothing else. When this fails, IREE rounds all of them, and the reason above may go."""
    values = np.linspace(-2, 2, 2**12 + 1).astype(np.float32)[:, None] * np.float32(smallest)
    operation = Matmul(len(values), 1, 1, ElementTypes("f32", "f32", result))
    request = request_for(operation, target)
    device = open_kernels("local-sync")
    operands = device.put(operation, [values, np.ones((1, 1), np.float32)])

    program = device.load(IreeCompiler().build(request).verify)
    (made,) = program.bind(request.dispatches[0].name, operands).run()

    right = values.astype(operation.results[0].type.dtype).astype(np.float64)
    rounded_up = (np.abs(right) == smallest) & (np.abs(values) < smallest)
    assert rounded_up.sum() > 100
    np.testing.assert_array_equal(made.astype(np.float64), np.where(rounded_up, 0, right))


#: Types of lhs and rhs that IREE 3.13 does not multiply on GPUs, and words of the reason.
NOT_ON_GPUS = [
    (
        "cuda:sm_89",
        "f16 bf16",
        "compiles no product of f16 and bf16 for cuda: use one type for both operands",
    ),
    ("cuda:sm_89", "f8 f32", "has no conversion from f8 on cuda, which a product of f8E4M3FN and f32 needs"),
    ("cuda:sm_89", "i8 bf8", "has no conversion from f8 on cuda, which a product of i8 and f8E5M2 needs"),
    ("rocm:gfx950", "bf16 f8", "compiles no product of bf16 and f8E4M3FN for rocm"),
]


@pytest.mark.parametrize(("target", "types", "words"), NOT_ON_GPUS)
def test_two_types_that_a_gpu_does_not_multiply_are_rejected_in_a_sentence(
    target: str, types: str, words: str
):
    (reason,) = reasons(Matmul(64, 64, 64, ElementTypes(*types.split(), "f32")), target)
    assert reason.startswith(f"IREE 3.13 {words}")


@pytest.mark.slow
@pytest.mark.parametrize(("target", "types"), [row[:2] for row in NOT_ON_GPUS])
def test_the_compiler_still_rejects_them(target: str, types: str):
    """When this fails, the reasons above may go."""
    request = replace(
        request_for(Matmul(64, 64, 64, ElementTypes(*types.split(), "f32")), target), rejected=()
    )
    with pytest.raises(CompilerError):
        IreeCompiler().build(request)


@pytest.mark.parametrize(
    ("target", "types"),
    [
        ("cuda:sm_89", "f16 f32"),
        ("cuda:sm_89", "i8 bf16"),
        ("rocm:gfx950", "f8 f32"),
        ("rocm:gfx950", "f8 bf8"),
        ("llvm-cpu", "f16 f8"),
    ],
)
def test_other_types_are_left_to_the_compiler(target: str, types: str):
    assert reasons(Matmul(64, 64, 64, ElementTypes(*types.split(), "f32")), target) == []


@pytest.mark.usefixtures("in_process")
def test_a_dispatch_without_right_code_is_not_compiled(run):
    """The manifest has the reason; what the compiler can do beside it is done."""
    shape = ("--m=8", "--n=8", "--k=8", "--lhs=f8", "--default-config=only")
    run("generator", *shape, "--result=f8,f32", "--epilogue=gelu")

    outcome = run("compile", "-j1").checked(1)
    assert "1 compiled, 1 not compiled" in outcome.err
    assert "IREE 3.13 flushes f8E4M3FN results" in outcome.err


@pytest.mark.slow
@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize("target", ["llvm-cpu", pytest.param("vmvx", marks=pytest.mark.slow)])
def test_results_in_f8_without_an_approximated_activation_are_verified(target: str, run):
    """Operands are drawn such that no result lies where IREE makes zero of it: here 1 of 3,400 uniform ones would."""
    shape = ("--m=128", "--n=128", "--k=32", "--lhs=f8,f32", "--epilogue=none,bias+relu")
    run("generator", *shape, "--result=f8", "--default-config=only", f"--target={target}")

    assert run("compile").status == 0
    run("profiler", "--profiling-enabled=false", "--output=data.csv").checked()
    with Path("data.csv").open(newline="") as file:
        assert [row["Verification"] for row in csv.DictReader(file)] == 4 * ["SUCCESS"]
