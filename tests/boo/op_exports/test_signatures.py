"""What holds for the signatures of every kind."""

from __future__ import annotations

import pickle
import subprocess
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from boo_signatures import signatures, torch_results
from hypothesis import given, settings

from dispatch_profiler.boo.op_exports import Mode, OpSignature, signature_classes
from dispatch_profiler.boo.op_exports.attention import AttentionSignature
from dispatch_profiler.boo.op_exports.conv import ConvSignature
from dispatch_profiler.boo.op_exports.gemm import GEMMSignature
from dispatch_profiler.boo.op_exports.layer_norm import LayerNormSignature
from dispatch_profiler.boo.op_exports.softmax import SoftmaxSignature
from dispatch_profiler.compiler import IreeCompiler, launch_key
from dispatch_profiler.configurations import Default
from dispatch_profiler.dispatches import Dispatch
from dispatch_profiler.errors import OperationError, UnsupportedFeature, UsageError
from dispatch_profiler.operations import LayerNorm
from dispatch_profiler.targets import parse_target

CONV = ConvSignature(input_shape=[2, 8, 8, 4], kernel_shape=[4, 3, 3, 4], shared_layout="NHWC")


def test_kinds_are_found_by_themselves():
    assert signature_classes() == {
        "conv": ConvSignature,
        "gemm": GEMMSignature,
        "layernorm": LayerNormSignature,
        "sdpa": AttentionSignature,
        "softmax": SoftmaxSignature,
    }


@settings(max_examples=60)
@given(signatures())
def test_a_launch_computes_what_torch_computes(signature: OpSignature):
    """By the operation's float64 reference; only the order and the shapes of tensors are the signature's."""
    arguments = signature.get_sample_args(seed=1)
    specs, operation = signature.launch.arguments, signature.operation
    operands = {
        spec.position: each.numpy().reshape(spec.kernel_shape)
        for spec, each in zip(specs, arguments, strict=True)
    }
    references = operation.reference([operands[at] for at in range(len(operands))])
    expected = torch_results(signature, arguments)
    assert len(expected) == len(references) == len(signature.launch.results)
    for spec, result, reference in zip(signature.launch.results, expected, references, strict=True):
        assert tuple(result.shape) == spec.shape
        np.testing.assert_allclose(
            np.asarray(reference.expected, np.float64).reshape(spec.shape),
            result.detach().numpy(),
            rtol=1e-9,
            atol=1e-9,
        )


@settings(max_examples=60)
@given(signatures())
def test_a_signature_is_what_its_fields_say(signature: OpSignature):
    same = type(signature)(**signature.as_init_kwargs())
    assert same == signature and hash(same) == hash(signature) and same.operation == signature.operation
    assert pickle.loads(pickle.dumps(signature)) == signature
    assert type(signature).of_problem(signature.problem, signature.mode) == signature


DIFFERENT = [
    CONV,
    replace(CONV, transposed=True),
    replace(CONV, transposed=True, stride=2),
    replace(CONV, transposed=True, stride=2, output_padding=1),
    replace(CONV, stride=2),
    replace(CONV, padding=1),
    replace(CONV, dilation=2),
    replace(CONV, bias=True),
    replace(CONV, dtype="f16"),
    replace(CONV, mode="bwd"),
    replace(CONV, mode="wrw"),
    replace(CONV, output_layout="NCHW"),
    ConvSignature(input_shape=[2, 8, 8, 4], kernel_shape=[4, 3, 3, 2], shared_layout="NHWC", groups=2),
    LayerNormSignature(input_shape=[4, 16], normalized_shape=[16]),
    LayerNormSignature(input_shape=[4, 16], normalized_shape=[16], eps=1e-3),
    LayerNormSignature(input_shape=[4, 16], normalized_shape=[16], elementwise_affine=False),
    LayerNormSignature(input_shape=[4, 16], normalized_shape=[16], bias=False),
    LayerNormSignature(input_shape=[4, 16], normalized_shape=[16], elementwise_affine=False, bias=True),
    LayerNormSignature(input_shape=[4, 16], normalized_shape=[16], mode="wrw"),
    LayerNormSignature(input_shape=[4, 16], normalized_shape=[16], bias=False, mode="wrw"),
    LayerNormSignature(input_shape=[4, 16], normalized_shape=[4, 16]),
    GEMMSignature(a_shape=[8, 8], b_shape=[8, 8]),
    GEMMSignature(a_shape=[8, 8], b_shape=[8, 8], transpose_a=True),
    GEMMSignature(a_shape=[8, 8], b_shape=[8, 8], transpose_b=True),
    GEMMSignature(a_shape=[8, 8], b_shape=[8, 4], mode="b_backward"),
    GEMMSignature(a_shape=[8, 8], b_shape=[8, 8], b_dtype="f16"),
    GEMMSignature(a_shape=[8, 8], b_shape=[8, 8], dtype="f16", b_dtype="f32"),
    GEMMSignature(a_shape=[8, 8], b_shape=[8, 8], dtype="f8E4M3FN"),
]


def test_signatures_that_differ_in_anything_share_neither_operation_nor_name_nor_kernel():
    assert len({each.operation for each in DIFFERENT}) == len(DIFFERENT)
    dispatches = [Dispatch(each.operation, Default()) for each in DIFFERENT]
    target, compiler = parse_target("llvm-cpu"), IreeCompiler()
    assert len({launch_key(each, target, compiler) for each in dispatches}) == len(DIFFERENT)
    assert len({each.func_name for each in DIFFERENT}) == len(DIFFERENT)
    assert len(set(DIFFERENT)) == len(DIFFERENT)


def test_what_is_given_in_another_way_is_equal():
    same = ConvSignature(
        input_shape=(2, 8, 8, 4),
        kernel_shape=np.array([4, 3, 3, 4]),
        input_layout="nhwc",
        kernel_layout="NHWC",
        output_layout="NHWC",
        dtype=torch.bfloat16,
        stride=[1, 1],
        mode=Mode.FORWARD,
    )
    assert same == CONV and hash(same) == hash(CONV)
    one = ConvSignature(input_shape=[1, 2, 9], kernel_shape=[3, 2, 3], shared_layout="NCW")
    assert one == ConvSignature(input_shape=[1, 2, 9], kernel_shape=[3, 2, 3])


@pytest.mark.parametrize(
    ("given_as", "name"),
    [
        (torch.float16, "f16"),
        (np.float32, "f32"),
        (np.dtype("float64"), "f64"),
        ("bfloat16", "bf16"),
        ("f16", "f16"),
    ],
)
def test_types_of_torch_and_numpy_and_names(given_as: object, name: str):
    assert replace(CONV, dtype=given_as).dtype == name


@pytest.mark.parametrize(
    ("mode", "parsed"),
    [
        ("fwd", Mode.FORWARD),
        ("FORWARD", Mode.FORWARD),
        (None, Mode.FORWARD),
        ("bwd", Mode.INPUT_BACKWARD),
        ("input-backward", Mode.INPUT_BACKWARD),
        ("wrw", Mode.WEIGHT_BACKWARD),
        (Mode.BIAS_BACKWARD, Mode.BIAS_BACKWARD),
    ],
)
def test_modes_have_the_names_of_the_documents(mode: object, parsed: Mode):
    assert Mode.parse(mode) is parsed


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mode": "backward"}, "unknown mode 'backward'"),
        ({"dtype": "int8"}, "unsupported type int8"),
        ({"input_shape": [2, 8]}, "3, 4 or 5 numbers"),
        ({"input_shape": [2, 8, 8.5, 4]}, "input_shape must be whole numbers"),
        ({"input_layout": "NHCC"}, "input_layout 'NHCC' is no layout of 4 axes"),
        ({"groups": 2}, "the input has 4 channels, but the kernel's C times groups is 8"),
        ({"transposed": True, "kernel_shape": [5, 3, 3, 4]}, "the kernel's N is 5"),
        ({"stride": [1, 2, 3]}, "stride is one number or 2"),
        ({"stride": float("inf")}, "stride must be whole numbers"),
        ({"bias": "wrw"}, "bias must be True or False, but got 'wrw'"),
        ({"groups": None}, "groups must be whole numbers of at least 1"),
        ({"padding": -1}, "padding must be whole numbers of at least 0"),
    ],
)
def test_what_is_wrong_is_named(changes: dict[str, object], message: str):
    with pytest.raises(UsageError, match=message.replace("'", ".")):
        replace(CONV, **changes)


def test_other_kinds_say_what_is_wrong():
    with pytest.raises(UsageError, match="is not the end of input_shape"):
        LayerNormSignature(input_shape=[4, 16], normalized_shape=[4])
    with pytest.raises(UsageError, match="bias must be True or False, but got 2"):
        LayerNormSignature(input_shape=[4, 16], normalized_shape=[16], bias=2)
    for eps in (0, float("nan"), "1e-5"):
        with pytest.raises(UsageError, match="eps must be a number above 0"):
            LayerNormSignature(input_shape=[4, 16], normalized_shape=[16], eps=eps)
    with pytest.raises(UsageError, match="transpose_a must be True or False, but got 2"):
        GEMMSignature(a_shape=[4, 16], b_shape=[16, 4], transpose_a=2)
    with pytest.raises(UsageError, match="a_shape is"):
        GEMMSignature(a_shape=[4, 16], b_shape=[4, 16])
    with pytest.raises(UsageError, match="has no bias"):
        GEMMSignature(a_shape=[4, 16], b_shape=[16, 4], mode="bias_backward")


def test_weight_and_bias_of_a_layer_norm_are_given_separately():
    """Without `bias`, there is one if there is a weight, as in `torch.nn.LayerNorm`."""

    def norm(**options: Any) -> LayerNormSignature:
        return LayerNormSignature(input_shape=[4, 16], normalized_shape=[16], **options)

    def names(signature: LayerNormSignature) -> list[str]:
        return [each.name for each in signature.launch.arguments]

    assert norm() == norm(bias=True) and norm(elementwise_affine=False).bias is False
    assert names(norm()) == ["x", "w", "b"]
    assert names(norm(bias=False)) == ["x", "w"]
    assert names(norm(elementwise_affine=False, bias=True)) == ["x", "b"]
    assert norm(bias=False).operation == LayerNorm(4, 16, "bf16", affine="weight")
    weight = norm(bias=False, mode="wrw")
    assert [each.name for each in weight.launch.results] == ["dLdw"]
    assert norm(bias=False, mode="bwd").operation == norm(mode="bwd").operation
    for mode, needed in (
        ("wrw", {"elementwise_affine": False, "bias": True}),
        ("bias_backward", {"bias": False}),
    ):
        with pytest.raises(OperationError, match=r"needs a (weight|bias)"):
            _ = norm(mode=mode, **needed).operation
    with pytest.raises(UnsupportedFeature, match="MIOpenDriver has no layer norm with a weight alone"):
        _ = norm(bias=False).command


def test_sample_arguments_depend_on_the_seed_alone():
    one, again, other = (CONV.get_sample_args(seed=seed) for seed in (3, 3, 4))
    assert all(torch.equal(a, b) for a, b in zip(one, again, strict=True))
    assert not torch.equal(one[0], other[0])
    assert all((each == 0.5).all() for each in CONV.get_sample_conv_args(splat_value=0.5))
    assert [each.dtype for each in one] == [torch.bfloat16] * 2


def test_without_torch_sample_arguments_are_aligned_arrays():
    """In a process that cannot import torch."""
    program = """
import sys
sys.modules["torch"] = None
from dispatch_profiler.boo.op_exports.conv import ConvSignature
from dispatch_profiler.errors import UsageError
signature = ConvSignature(input_shape=[2, 8, 8, 4], kernel_shape=[4, 3, 3, 4], shared_layout="NHWC")
x, w = signature.get_sample_args(seed=0)
assert x.shape == (2, 8, 8, 4) and str(x.dtype) == "bfloat16" and x.ctypes.data % 64 == 0
try:
    signature.get_sample_args(device="cuda:0")
except UsageError as error:
    assert "need torch" in str(error)
else:
    raise AssertionError
"""
    subprocess.run([sys.executable, "-c", program], check=True)
