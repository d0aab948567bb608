"""Commands of MIOpenDriver: each flag, against the operation written out and against torch."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from boo_signatures import signatures
from hypothesis import given, settings

from dispatch_profiler.boo.op_exports import OpSignature
from dispatch_profiler.errors import OperationError, UnsupportedFeature, UsageError, WorkloadError
from dispatch_profiler.operations import (
    BiasBackward,
    Conv1d,
    Conv2d,
    Conv3d,
    ElementTypes,
    Epilogue,
    LayerNorm,
    LayerNormInputBackward,
    LayerNormWeightBackward,
    Matmul,
    Operation,
    Softmax,
)
from dispatch_profiler.workloads.miopen import (
    FAMILIES,
    Command,
    Family,
    LayerNormProblem,
    command_help,
    command_text,
    is_command,
    message_reason,
    miopen_operations,
    read_command,
)
from dispatch_profiler.workloads.miopen.softmax import SoftmaxProblem

BASE = "conv -n 2 -c 4 -H 9 -W 8 -k 6 -y 3 -x 2 -p 1 -q 0 -u 2 -v 1 -l 1 -j 2 -g 2"
#: Flags that MIOpenDriver itself lists, each with its short name. `layernorm` has those of all its versions.
#: Commands whose defaults no operation computes -> words that one does.
SUPPORTED = {"softmax": "softmax -m 0"}
REAL_FLAGS = {
    "conv": "in_layout I out_layout O fil_layout f spatial_dim _ forw F batchsize n in_channels c in_d ! in_h H in_w W "
    "out_channels k fil_d @ fil_h y fil_w x conv_stride_d # conv_stride_h u conv_stride_w v pad_d $ pad_h p pad_w q "
    "pad_val r trans_output_pad_d % trans_output_pad_h Y trans_output_pad_w X iter i verify V verification_cache C "
    "time t wall w search s printconv P dump_output o in_data d weights e bias b mode m pad_mode z tensor_vect Z "
    "vector_length L dilation_d ^ dilation_h l dilation_w j in_bias a group_count g dout_data D solution S gpualloc G "
    "in_cast_type U out_cast_type T wei_cast_type R help h",
    "gemm": "forw F batch_count b isColMajor C a_h m a_w k b_w n alpha A beta B transA u transB v iter i verify V time t "
    "help h",
    "softmax": "forw F batchsize n in_channels c in_h H in_w W alpha A beta B algorithm a mode m iter i verify V time t "
    "wall w help h",
    "layernorm": "forw F input X batchsize n in_channels c in_n N in_c C in_d D in_h H in_w W layout L eps e "
    "nomalized_dim o normalized_dim o mode m iter i verify V time t wall w mt u help h",
}
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
        "MIOpen: Command [LogCmdConvolution] MIOpenDriver.exe ",
        "MIOpenDriver.exe ",
        "C:\\rocm\\bin\\MIOpenDriver.exe ",
        '"C:\\Program Files\\ROCm\\MIOpenDriver.exe" ',
    ],
)
def test_the_prefix_of_a_log_line_is_ignored(prefix: str):
    assert is_command(prefix + BASE)
    assert miopen_operations(prefix + BASE) == (CONV,)


@pytest.mark.parametrize("line", ["conv", "hipblaslt: conv -n 1", "some - text", "- {M: 1}", "conv,-n,1"])
def test_other_lines_are_no_commands(line: str):
    assert not is_command(line)


def test_redirections_of_a_script_are_no_flags():
    assert miopen_operations(f"./bin/MIOpenDriver {BASE} > log.txt 2>&1") == (CONV,)
    assert miopen_operations(f"{BASE} | tee log.txt") == (CONV,)


def test_a_command_of_the_driver_without_flags_has_its_defaults():
    assert is_command("./bin/MIOpenDriver gemm")
    assert miopen_operations("./bin/MIOpenDriver gemm") == (Matmul(256, 256, 256),)


@pytest.mark.parametrize("backend", ["MIOpen(HIP)", "MIOpen(OpenCL)", "MIOpen", "4711: MIOpen(HIP)"])
def test_a_search_for_a_kernel_is_no_call(backend: str):
    """MIOpen logs it with the command of the call that follows."""
    line = f"{backend}: Command [LogCmdFindConvolution] ./bin/MIOpenDriver {BASE}"
    with pytest.raises(
        UnsupportedFeature, match=r"^LogCmdFindConvolution: MIOpen searches for a kernel here"
    ):
        miopen_operations(line)
    assert miopen_operations(line.replace("CmdFind", "Cmd")) == (CONV,)


@pytest.mark.parametrize("name", ["CBAInfer", "CBAInferfp16"])
@pytest.mark.parametrize("prefix", ["", "MIOpen(HIP): Command [LogCmdFusion] ./bin/MIOpenDriver "])
def test_a_fused_convolution_is_not_supported_because_its_activation_is_not_logged(name: str, prefix: str):
    line = f"{prefix}{name} -F 4 -n 2 -c 4"
    assert is_command(line)
    with pytest.raises(
        UnsupportedFeature, match=f"^the command {name} is not supported: MIOpen logs neither"
    ):
        miopen_operations(line)


def test_messages_of_a_log_have_a_reason_of_their_own():
    assert message_reason("MIOpen(HIP): Warning [SQLiteBase] Missing system database file").startswith(
        "a message of MIOpen"
    )
    assert message_reason(f"MIOpen(HIP): Command [LogCmdConvolution] ./bin/MIOpenDriver {BASE}") == ""
    assert message_reason("some text") == ""


def test_flags_that_set_how_the_driver_measures_are_ignored():
    assert miopen_operations(f"{BASE} -t 1 --iter 100 -i 10 -V 0 -w 1 -s 1 -S -1 --dump_output 0") == (CONV,)


@pytest.mark.parametrize("command", REAL_FLAGS)
def test_every_flag_of_the_real_driver_is_accepted_or_rejected_by_name(command: str):
    words = REAL_FLAGS[command].split()
    named = {f"--{long}": f"-{short}" for long, short in zip(words[::2], words[1::2], strict=True)}
    by_name = {name: flag for flag in FAMILIES[command].flags for name in flag.names}
    for long, short in named.items():
        flag = by_name[long]
        assert by_name[short] is flag
        if flag.is_ignored:
            read_command(f"{SUPPORTED.get(command, command)} {long} 1")
        elif flag.why:
            with pytest.raises(UnsupportedFeature, match=f"{long}.*: {flag.why}"):
                read_command(f"{SUPPORTED.get(command, command)} {long} 7")
    assert {name for name in by_name if len(name) == 2} == {*named.values()}


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_the_help_of_a_command_lists_each_flag_with_its_default(family: Family):
    text = command_help([next(iter(family.types)), "--help"])
    for flag in family.flags:
        at = text.index(f"  {', '.join(flag.names)}\n")
        entry = text[at:].split("\n")[1]
        assert flag.default in entry and (flag.purpose or flag.why) in entry


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_no_two_flags_of_a_command_share_a_name(family: Family):
    names = [name for flag in family.flags for name in flag.names]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        ("-F 11", "-F 11: available: 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10"),
        ("-m transpose", "-m transpose: available: conv, trans"),
        (
            "-z same",
            "-z same: give the padding with --pad_d, --pad_h and --pad_w (available: default, conv)",
        ),
        ("--pad_val 1", "--pad_val 1: convolutions are padded with zeros (available: 0)"),
        ("-h", "-h: it prints MIOpenDriver's help, and computes nothing"),
        ("--spatial_dim 4", "--spatial_dim 4: a convolution has 1, 2 or 3 spatial axes"),
        ("-I NCHWc4", "layout 'NCHWc4': a convolution has 1, 2 or 3 spatial axes"),
    ],
)
def test_an_unsupported_value_is_named(flags: str, reason: str):
    with pytest.raises(UnsupportedFeature) as raised:
        miopen_operations(f"{BASE} {flags}")
    assert str(raised.value) == reason


GEMM = "gemm -m 3 -k 5 -n 7"
LAYER_NORM = "layernorm -X 2x3x4x5 -o 2 -m 1"


@pytest.mark.parametrize(
    ("line", "operations"),
    [
        (GEMM, [Matmul(3, 7, 5)]),
        ("gemm", [Matmul(256, 256, 256)]),
        ("gemmfp16 --a_h 3 --a_w 5 --b_w=7", [Matmul(3, 7, 5, ElementTypes("f16", "f16", "f16"))]),
        (f"{GEMM} -u 1", [Matmul(3, 7, 5, lhs_layout="n")]),
        (f"{GEMM} -v 1 -A 1 -B 0.0 -b 1 -C 0 -V 0 -i 3", [Matmul(3, 7, 5, rhs_layout="n")]),
        (f"{GEMM} -F 2", [Matmul(3, 5, 7, rhs_layout="n")]),
        (f"{GEMM} -F 3", [Matmul(5, 7, 3, lhs_layout="n")]),
        (
            f"{GEMM} -F 0",
            [Matmul(3, 7, 5), Matmul(3, 5, 7, rhs_layout="n"), Matmul(5, 7, 3, lhs_layout="n")],
        ),
    ],
)
def test_products(line: str, operations: list[Operation]):
    assert list(miopen_operations(line)) == operations


@pytest.mark.parametrize(
    ("line", "operations"),
    [
        (LAYER_NORM, [LayerNorm(6, 20)]),
        ("layernorm", [LayerNorm(9600, 32, affine=False)]),
        ("layernormbfp16 -X 8x16 -o 1 -e 1e-3", [LayerNorm(8, 16, "bf16", 1e-3, affine=False)]),
        ("layernormfp16 -X 8x16x2 -o 0 -m 1", [LayerNorm(1, 256, "f16")]),
        (f"{LAYER_NORM} -F 2", [LayerNormInputBackward(6, 20)]),
        ("softmax -n 8 -c 32 -H 1 -W 1", [Softmax(8, 32)]),
        ("softmaxfp16 -n 8 -c 3 -H 4 -W 5 -m 0 -a 0 -F 1", [Softmax(8, 60, "f16")]),
        (f"{LAYER_NORM} -F 4 -t 1 --iter 10 -w 1 --mt 1", [LayerNormWeightBackward(6, 20)]),
        (f"{LAYER_NORM} -F 8", [BiasBackward(6, 20)]),
        (
            f"{LAYER_NORM} -F 14",
            [LayerNormInputBackward(6, 20), LayerNormWeightBackward(6, 20), BiasBackward(6, 20)],
        ),
        (
            f"{LAYER_NORM} -F 0",
            [LayerNorm(6, 20), LayerNormInputBackward(6, 20), LayerNormWeightBackward(6, 20)],
        ),
        (
            "layernorm -X 8x16 -o 1 -F 0",
            [LayerNorm(8, 16, affine=False), LayerNormInputBackward(8, 16, affine=False)],
        ),
    ],
)
def test_layer_norms(line: str, operations: list[Operation]):
    assert list(miopen_operations(line)) == operations


@pytest.mark.parametrize(
    ("sizes", "shape"),
    [
        ("-n 2 -c 3 -D 4 -H 5 -W 6", (2, 3, 4, 5, 6)),
        ("-n 2 -c 3 -H 5 -W 6", (2, 3, 5, 6)),
        ("--in_n 2 --in_c 3 --in_h 5 --in_w 6 --layout NCHW", (2, 3, 5, 6)),
        ("-N 2 -C 3 -H 0 -W 6", (2, 3, 6)),
        ("-n 2 -c 0 -W 6", (2, 6)),
        ("-X 2x3x5", (2, 3, 5)),
        ("-X 2x3x5,NCW", (2, 3, 5)),
        ("-X 2x3x5,15x5x1", (2, 3, 5)),
    ],
)
def test_the_input_of_a_layer_norm_is_given_as_by_any_version_of_the_driver(
    sizes: str, shape: tuple[int, ...]
):
    """As in MIOpen, a size of 0 removes its axis, and -o counts the axes that are left."""
    assert read_command(f"layernorm {sizes} -o 1").problem == LayerNormProblem(
        shape, len(shape) - 1, affine=False
    )


@pytest.mark.parametrize(
    ("line", "error", "reason"),
    [
        (f"{GEMM} -b 2", UnsupportedFeature, "-b 2: the product is a single one (available: 1)"),
        (f"{GEMM} -F 4", UnsupportedFeature, "-F 4: available: 0, 1, 2, 3"),
        (f"{GEMM} -m 0", OperationError, "matmul: every extent must be at least 1, but got m=0"),
        (
            "softmax -F 2 -m 0",
            UnsupportedFeature,
            "-F 2: no operation computes the gradient of a softmax (available: 1)",
        ),
        (
            "softmax -m 0 -a 2",
            UnsupportedFeature,
            "-a 2: no operation computes the logarithm (available: 0, 1)",
        ),
        (
            "softmax",
            UnsupportedFeature,
            "--mode 1 with 32 x 32 pixels: operations compute a softmax over the last axis, and channels are the second one"
            " (available: --mode 0, or --in_h 1 --in_w 1)",
        ),
        ("softmax -n 0 -m 0", OperationError, "softmax: every extent must be at least 1, but got rows=0"),
        (f"{LAYER_NORM} -n 2", WorkloadError, "--input replaces --batchsize: give only one of them"),
        ("layernorm -X 2x3 -o 2", WorkloadError, "--normalized_dim 2: the input has the axes 0 to 1"),
        ("layernorm -X 2xx3", WorkloadError, "--input: expected a whole number, but got ''"),
        ("layernorm -e nan", WorkloadError, "--eps: expected a number, but got 'nan'"),
        ("layernorm -e 0", OperationError, "layer_norm: eps must be a number above 0, but got 0.0"),
        (
            "layernorm -m 0 -F 4",
            OperationError,
            "layer_norm: weight_backward needs a weight"
            " (MIOpenDriver computes the same with -m 0 as with -m 1)",
        ),
        (
            "layernorm -W 0",
            WorkloadError,
            "--batchsize 100 --in_w 0: the axes N and W are in every input",
        ),
        (
            "layernorm -L NHWC",
            UnsupportedFeature,
            "layout or strides 'NHWC': a layer norm has a dense, row-major input of shape 100x3x32x32",
        ),
        (
            "layernorm -X 2x3,1x2 -o 1",
            UnsupportedFeature,
            "layout or strides '1x2': a layer norm has a dense, row-major input of shape 2x3",
        ),
    ],
)
def test_what_is_no_product_or_layer_norm_is_rejected_with_its_reason(
    line: str, error: type[UsageError], reason: str
):
    with pytest.raises(error) as raised:
        miopen_operations(line)
    assert (type(raised.value), str(raised.value)) == (error, reason)


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
        ("-n 3000000000", "--batchsize: expected a whole number of at most 9 digits, but got '3000000000'"),
    ],
)
def test_a_malformed_command_is_rejected(flags: str, reason: str):
    with pytest.raises(WorkloadError) as raised:
        miopen_operations(f"{BASE} {flags}")
    assert str(raised.value) == reason
    assert not isinstance(raised.value, UnsupportedFeature)


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("conv --bais 1", "did you mean '--bias'? dispatch-profiler boo conv --help lists the flags"),
        ("gemmfp16 -Q 1", "dispatch-profiler boo gemm --help lists the flags"),
    ],
)
def test_an_unknown_flag_has_a_short_hint(line: str, hint: str):
    with pytest.raises(WorkloadError, match="unknown flag") as raised:
        read_command(line)
    assert raised.value.hint == hint


@pytest.mark.parametrize(
    ("flags", "reason"), [("-g 3", "groups must divide"), ("-n 0", "n=0"), ("-I NHWN", "repeats n")]
)
def test_an_invalid_convolution_is_rejected_with_its_rule(flags: str, reason: str):
    with pytest.raises(OperationError, match=reason):
        miopen_operations(f"{BASE} {flags}")


def has_command(signature: OpSignature) -> bool:
    """MIOpenDriver has weight and bias of a layer norm, or neither, and softmax of matrices."""
    problem = signature.problem
    if isinstance(problem, SoftmaxProblem):
        return len(problem.shape) == 2 and problem.scale == 1.0
    return not isinstance(getattr(problem, "affine", None), str)


@settings(max_examples=60)
@given(signatures(dtype="f16").filter(has_command))
def test_a_problem_is_what_its_command_says(signature: OpSignature):
    line = command_text(signature.problem, (signature.mode.value,))
    assert read_command(line) == Command(signature.problem, (signature.mode.value,))


def test_what_no_command_says_is_named():
    problem = read_command("conv -F 1").problem
    for affine in ("weight", "bias"):
        with pytest.raises(UnsupportedFeature, match=f"MIOpenDriver has no layer norm with a {affine} alone"):
            command_text(LayerNormProblem((4, 8), 1, affine=affine), ("forward",))
    with pytest.raises(UnsupportedFeature, match="MIOpenDriver has no softmax of scaled elements"):
        command_text(SoftmaxProblem((4, 8), scale=0.5), ("forward",))
    with pytest.raises(UnsupportedFeature, match="no softmax of a tensor with 3 axes, only of 2"):
        command_text(SoftmaxProblem((2, 4, 8)), ("forward",))
    with pytest.raises(UnsupportedFeature, match="no command for conv of f64"):
        command_text(replace(problem, type="f64"), ("forward",))
    with pytest.raises(UnsupportedFeature, match="-F has no value for forward, bias_backward"):
        command_text(problem, ("forward", "bias_backward"))
