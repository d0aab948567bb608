"""Commands of MIOpenDriver: each flag, against the operation written out and against torch."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from boo_signatures import conv_signatures
from hypothesis import given, settings

from dispatch_profiler.boo.op_exports.conv import ConvSignature
from dispatch_profiler.errors import OperationError, UnsupportedFeature, WorkloadError
from dispatch_profiler.operations import BiasBackward, Conv1d, Conv2d, Conv3d, ElementTypes, Epilogue
from dispatch_profiler.workloads.miopen import (
    FLAGS,
    Command,
    command_text,
    is_command,
    miopen_operations,
    read_command,
)

BASE = "conv -n 2 -c 4 -H 9 -W 8 -k 6 -y 3 -x 2 -p 1 -q 0 -u 2 -v 1 -l 1 -j 2 -g 2"
CONV = Conv2d(2, 9, 8, 4, 6, 3, 2, (2, 1), (1, 0), (1, 2), 2, "nchw")
BF16 = ElementTypes("bf16", "bf16", "bf16")


def test_a_command_is_the_convolution_that_its_flags_describe():
    assert miopen_operations(BASE) == (CONV,)


def test_short_and_long_flags_and_equals_signs_mean_the_same():
    long = (
        "conv --batchsize 2 --in_channels=4 --in_h 9 --in_w 8 --out_channels 6 --fil_h 3 --fil_w 2 --pad_h 1 --pad_w 0 "
        "--conv_stride_h 2 --conv_stride_w 1 --dilation_h 1 --dilation_w 2 --group_count 2 --forw 1 --mode conv"
    )
    assert miopen_operations(long) == miopen_operations(BASE)


def test_types_and_layouts():
    layouts = "--in_layout NHWC --fil_layout NHWC --out_layout NCHW"
    (found,) = miopen_operations(f"{BASE.replace('conv', 'convbfp16', 1)} {layouts}")
    assert (found.types, found.layout) == (BF16, "nhwc_fhwc_nchw")
    (half,) = miopen_operations(BASE.replace("conv", "convfp16", 1))
    assert half.types == ElementTypes("f16", "f16", "f16")


def test_convolutions_of_one_and_three_dimensions():
    (one,) = miopen_operations("conv --spatial_dim 1 -n 2 -c 4 -W 9 -k 6 -x 3 -q 1 -v 2 -j 1 -g 1")
    assert one == Conv1d(2, 9, 4, 6, 3, (2,), (1,), layout="ncw")
    (three,) = miopen_operations(
        "conv -n 1 -c 4 -k 8 --in_d 5 -H 6 -W 7 --fil_d 2 -y 3 -x 1 --pad_d 1 -p 1 -q 0 --conv_stride_d 2 -u 1 -v 1 "
        "--dilation_d 1 -l 1 -j 1 -g 2 --in_layout NDHWC --fil_layout NDHWC --out_layout NDHWC"
    )
    assert three == Conv3d(
        1, 5, 6, 7, 4, 8, 2, 3, 1, (2, 1, 1), (1, 1, 0), groups=2, layout="ndhwc_fdhwc_ndhwc"
    )


def test_a_command_of_a_real_workload():
    command = (
        "convbfp16 -n 16 -c 288 --in_d 4 -H 48 -W 32 -k 288 --fil_d 3 -y 1 -x 1 --pad_d 1 -p 0 -q 0 "
        "--conv_stride_d 1 -u 2 -v 1 --dilation_d 1 -l 1 -j 1 --spatial_dim 3 -m conv -g 3 -F 2 -t 1 "
        "--iter 100 --in_layout NDHWC --out_layout NDHWC --fil_layout NDHWC"
    )
    assert miopen_operations(command)[0] == Conv3d(
        *(16, 4, 48, 32, 288, 288, 3, 1, 1),
        stride=(1, 2, 1),
        padding=(1, 0, 0),
        groups=3,
        layout="ndhwc_fdhwc_ndhwc",
        types=BF16,
        mode="input_backward",
    )


@pytest.mark.parametrize(
    ("forw", "modes"),
    [
        ("0", ["forward", "input_backward", "weight_backward"]),
        ("1", ["forward"]),
        ("2", ["input_backward"]),
        ("3", ["forward", "input_backward"]),
        ("4", ["weight_backward"]),
        ("5", ["forward", "weight_backward"]),
        ("6", ["input_backward", "weight_backward"]),
    ],
)
def test_forw_is_a_set_of_modes(forw: str, modes: list[str]):
    found = miopen_operations(f"{BASE} -F {forw}")
    assert [each.mode for each in found] == modes
    assert {each.convolution.size for each in found} == {(9, 8)}


@pytest.mark.parametrize(("layout", "shape"), [("NCHW", (2, 6, 30)), ("NHWC", (60, 6, 1))])
def test_a_bias_gradient_sums_the_outputs_gradient(layout: str, shape: tuple[int, ...]):
    """The output has 2 images of 5 x 6 pixels with 6 channels."""
    command = f"{BASE} --in_layout {layout} --fil_layout {layout} --out_layout {layout}"
    assert miopen_operations(f"{command} -F 7") == (BiasBackward(*shape),)
    assert [each.kind for each in miopen_operations(f"{command} -F 10")] == [
        "conv2d",
        "conv2d",
        "bias_backward",
    ]
    assert miopen_operations(f"{command} -F 8")[0].mode == "input_backward"
    assert miopen_operations(f"{command} -F 9")[0].mode == "weight_backward"


def test_a_bias_is_the_epilogue_of_the_forward_convolution():
    forward, backward = miopen_operations(f"{BASE} -b 1 -F 3")
    assert (forward.epilogue, backward.epilogue) == (Epilogue.parse("bias"), Epilogue())


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("forw", ["1", "2", "4"])
def test_transposed_convolutions_compute_what_torch_computes(layout: str, forw: str):
    torch = pytest.importorskip("torch")
    command = "conv -m trans -n 2 -c 4 -H 5 -W 6 -k 6 -y 3 -x 2 -p 1 -q 0 -u 2 -v 3 -l 1 -j 1 -Y 1 -X 2 -g 2"
    layouts = " ".join(f"--{role}_layout {layout}" for role in ("in", "fil", "out"))
    (operation,) = miopen_operations(f"{command} {layouts} -F {forw}")
    rng = np.random.default_rng(7)
    x = torch.tensor(rng.integers(-3, 4, (2, 4, 5, 6)).astype(np.float64), requires_grad=True)
    w = torch.tensor(rng.integers(-3, 4, (4, 3, 3, 2)).astype(np.float64), requires_grad=True)
    y = torch.nn.functional.conv_transpose2d(
        x, w, stride=(2, 3), padding=(1, 0), output_padding=(1, 2), groups=2
    )
    dy = torch.tensor(rng.integers(-3, 4, y.shape).astype(np.float64))
    y.backward(dy)
    operands, expected = {"1": ((x, w), y), "2": ((dy, w), x.grad), "4": ((x, dy), w.grad)}[forw]
    order = (0, 2, 3, 1) if layout == "NHWC" else (0, 1, 2, 3)
    stored = [each.detach().numpy().transpose(order).astype(np.float32) for each in operands]
    assert [each.shape for each in stored] == [each.shape for each in operation.operands]
    (found,) = operation.reference(stored)
    np.testing.assert_array_equal(found.expected, expected.detach().numpy().transpose(order))


@pytest.mark.parametrize(
    "prefix",
    [
        "",
        "MIOpenDriver ",
        "./bin/MIOpenDriver ",
        "MIOpen(HIP): Command [LogCmdConvolution] ./bin/MIOpenDriver ",
    ],
)
def test_the_prefix_of_a_log_line_is_ignored(prefix: str):
    assert is_command(prefix + BASE)
    assert miopen_operations(prefix + BASE) == (CONV,)


@pytest.mark.parametrize("line", ["conv", "hipblaslt: conv -n 1", "some - text", "- {M: 1}", "conv,-n,1"])
def test_other_lines_are_no_commands(line: str):
    assert not is_command(line)


def test_flags_that_set_how_the_driver_measures_are_ignored():
    assert miopen_operations(f"{BASE} -t 1 --iter 100 -i 10 -V 0 -w 1 -s 1 -S -1 --dump_output 0") == (CONV,)


def test_no_two_flags_share_a_name():
    assert len({flag.long for flag in FLAGS}) == len({flag.short for flag in FLAGS}) == len(FLAGS)


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        ("-F 11", "-F 11: available: 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10"),
        ("-m transpose", "-m transpose: available: conv, trans"),
        ("-z same", "-z same: available: conv, default"),
        ("--pad_val 1", "--pad_val 1: available: 0"),
        ("--spatial_dim 4", "--spatial_dim 4: a convolution has 1, 2 or 3 spatial axes"),
        ("-I NCHWc4", "layout 'NCHWc4': a convolution has 1, 2 or 3 spatial axes"),
    ],
)
def test_an_unsupported_value_is_named(flags: str, reason: str):
    with pytest.raises(UnsupportedFeature) as raised:
        miopen_operations(f"{BASE} {flags}")
    assert str(raised.value) == reason


def test_other_commands_are_unsupported():
    with pytest.raises(UnsupportedFeature, match="the command bnormbfp16 is not supported"):
        miopen_operations("MIOpenDriver bnormbfp16 -n 1")


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        ("-Q 1", "unknown flag '-Q'"),
        ("-n", "-n has no value"),
        ("-n many", "--batchsize: expected a whole number, but got 'many'"),
        ("-n 1e3", "--batchsize: expected a whole number, but got '1e3'"),
    ],
)
def test_a_malformed_command_is_rejected(flags: str, reason: str):
    with pytest.raises(WorkloadError) as raised:
        miopen_operations(f"{BASE} {flags}")
    assert str(raised.value) == reason
    assert not isinstance(raised.value, UnsupportedFeature)


@pytest.mark.parametrize(
    ("flags", "reason"), [("-g 3", "groups must divide"), ("-n 0", "n=0"), ("-I NHWN", "repeats n")]
)
def test_an_invalid_convolution_is_rejected_with_its_rule(flags: str, reason: str):
    with pytest.raises(OperationError, match=reason):
        miopen_operations(f"{BASE} {flags}")


@settings(max_examples=60)
@given(conv_signatures(dtype="f16"))
def test_a_problem_is_what_its_command_says(signature: ConvSignature):
    line = command_text(signature.problem, (signature.mode.value,))
    assert read_command(line) == Command(signature.problem, (signature.mode.value,))


def test_what_no_command_says_is_named():
    problem = read_command("conv -F 1").problem
    with pytest.raises(UnsupportedFeature, match="no command for conv of f64"):
        command_text(replace(problem, type="f64"), ("forward",))
    with pytest.raises(UnsupportedFeature, match="-F has no value for forward, bias_backward"):
        command_text(problem, ("forward", "bias_backward"))
