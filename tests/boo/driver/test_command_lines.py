"""Commands: files of them, the flags that say how to measure, their signatures and their MLIR."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from boo_signatures import signatures
from hypothesis import assume, given, settings

from dispatch_profiler.boo.driver.driver import main
from dispatch_profiler.boo.driver.registry import (
    BooOpRegistry,
    CommandLine,
    Timing,
    command_to_signature,
    read_commands,
    split_timing,
)
from dispatch_profiler.boo.op_exports import Mode, OpSignature
from dispatch_profiler.boo.op_exports.conv import ConvSignature
from dispatch_profiler.configurations import Default
from dispatch_profiler.dispatches import Dispatch
from dispatch_profiler.errors import OperationError, UnsupportedFeature, UsageError, WorkloadError
from dispatch_profiler.generator import render_module
from dispatch_profiler.operations import Conv2d, LayerNorm, LayerNormInputBackward
from dispatch_profiler.workloads.miopen import is_command, miopen_operations


def test_a_file_has_a_command_on_each_line():
    Path("commands.txt").write_text("# a comment\n\nconv -n 1\n  conv\t-n 2  \n#conv -n 3\n")

    assert read_commands(Path("commands.txt")) == [CommandLine(3, "conv -n 1"), CommandLine(4, "conv\t-n 2")]


def test_searches_for_kernels_in_a_log_are_no_commands():
    """MIOpen logs them with the command of the call that follows."""
    call = "MIOpen(HIP): Command [LogCmdConvolution] ./bin/MIOpenDriver conv -n 1"
    Path("commands.txt").write_text(f"{call.replace('CmdConv', 'CmdFindConv')}\n{call}\n")
    assert read_commands(Path("commands.txt")) == [CommandLine(2, call)]


@pytest.mark.parametrize("content", [b"", b"# nothing\n", b"conv \xff\xfe\n"])
def test_a_file_without_commands_is_rejected(content: bytes):
    Path("commands.txt").write_bytes(content)

    with pytest.raises(UsageError, match=r"commands\.txt"):
        read_commands(Path("commands.txt"))


def test_the_sample_commands_are_those_of_the_package_or_ones_own():
    path = Path("sample_commands.txt")

    assert len(read_commands(path)) > 10
    path.write_text("conv -n 1\n")
    assert read_commands(path) == [CommandLine(1, "conv -n 1")]


def test_the_place_of_a_command_is_its_line():
    assert CommandLine(3, "conv").place == "line 3: "
    assert CommandLine(0, "conv").place == ""


@pytest.mark.parametrize(
    ("command", "text", "timing"),
    [
        ("conv -n 1", "conv -n 1", Timing(True, 7)),
        ("conv -n 1 -t 1 --iter 100", "conv -n 1 --iter 100", Timing(True, 100)),
        ("conv -t 0 -n 1", "conv -n 1", Timing(False, 7)),
        ("conv --time=0 --iter=3", "conv --iter=3", Timing(False, 3)),
        ("conv -i 9 --time 1 -b 1", "conv -i 9 -b 1", Timing(True, 9)),
        ("conv -i 0", "conv -i 0", Timing(True, 1)),
    ],
)
def test_timing_flags_are_read_and_t_is_removed(command: str, text: str, timing: Timing):
    """As in the transcripts of the documents, which repeat the command without `-t 1` and with `--iter 100`."""
    assert split_timing(command.split(), Timing(True, 7)) == (text, timing)


@pytest.mark.parametrize(
    "flag", ["-t", "-t 2", "--time x", "--iter -1", "--iter=", "-i 1.5", "-i 1000001", "--iter ²"]
)
def test_an_invalid_timing_flag_is_rejected(flag: str):
    with pytest.raises(WorkloadError, match=flag.split()[0].split("=")[0]):
        split_timing(["conv", *flag.split()], Timing())


def _mlir(*operations: Conv2d | LayerNorm | LayerNormInputBackward) -> str:
    return "\n".join(render_module(each, [Dispatch(each, Default())]) for each in operations)


def test_the_mlir_of_a_command_is_printed(capsys: pytest.CaptureFixture[str]):
    assert (
        main(
            [
                "generate",
                "conv",
                "-n",
                "1",
                "-c",
                "2",
                "-H",
                "5",
                "-W",
                "4",
                "-k",
                "3",
                "-y",
                "3",
                "-x",
                "3",
                "-p",
                "1",
                "-t",
                "1",
            ]
        )
        == 0
    )
    assert capsys.readouterr().out == _mlir(Conv2d(1, 5, 4, 2, 3, 3, 3, padding=(1, 0), layout="nchw"))


def test_each_direction_is_a_function(capsys: pytest.CaptureFixture[str]):
    assert main(["generate", "layernorm", "-X", "4x8", "-o", "1", "-F", "0"]) == 0
    assert capsys.readouterr().out == _mlir(
        LayerNorm(4, 8, affine=False), LayerNormInputBackward(4, 8, affine=False)
    )


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ("generate", "expected a command"),
        ("generate conv -Q 1", "unknown flag '-Q'"),
        ("generate bnorm -n 1", "the command bnorm is not supported"),
    ],
)
def test_what_is_no_command_is_a_usage_error(given: str, reason: str, capsys: pytest.CaptureFixture[str]):
    assert main(given.split()) == 2
    assert reason in capsys.readouterr().err


def test_help_of_a_command_lists_its_flags(capsys: pytest.CaptureFixture[str]):
    assert main(["gemm", "--help"]) == 0
    shown = capsys.readouterr().out
    assert "-m, --a_h" in shown and "M: rows of A" in shown


WORKLOADS = Path(__file__).parents[3] / "benchmarks" / "workloads"
COMMAND = (
    "convbfp16 -n 128 -c 128 -H 24 -W 48 -k 384 -y 1 -x 1 -p 0 -q 0 -u 1 -v 1 -l 1 -j 1 -m conv -g 1 -F 1 -t 1 "
    "--iter 100 --in_layout NHWC --out_layout NHWC --fil_layout NHWC"
)


def test_a_command_of_the_documents():
    signature = command_to_signature(COMMAND)
    assert signature == ConvSignature(
        input_shape=[128, 24, 48, 128], kernel_shape=[384, 1, 1, 128], shared_layout="NHWC"
    )
    assert BooOpRegistry.parse_command(COMMAND.split()) == signature
    assert signature.func_name == (
        "conv_2d_bfloat16_forward_128x24x48x128_nhwc_384x1x1x128_fhwc_nhwf_1x1s_0x0p_1x1d_1g"
    )


@pytest.mark.parametrize("file", ["miopen_commands.txt", "resnet50_f32.txt"])
def test_every_line_of_a_workload_has_the_operations_of_its_signatures(file: str):
    lines = [line for line in (WORKLOADS / file).read_text().splitlines() if is_command(line)]
    assert len(lines) >= 20
    for line in dict.fromkeys(lines):
        found = BooOpRegistry.parse_commands(line)
        assert tuple(each.operation for each in found) == miopen_operations(line)


@pytest.mark.slow
@settings(max_examples=40)
@given(signatures(dtype="f16"))
def test_a_signature_is_what_its_command_says(signature: OpSignature):
    try:
        command = signature.command
    except UnsupportedFeature:  # a layer norm with a weight alone
        assume(False)
    assert command_to_signature(command) == signature


def test_a_command_with_several_directions_has_several_signatures():
    line = COMMAND.replace("-F 1", "-F 0")
    with pytest.raises(UsageError, match="3 directions") as raised:
        BooOpRegistry.parse_command(line)
    assert "parse_commands" in raised.value.hint
    modes = [each.mode for each in BooOpRegistry.parse_commands(line)]
    assert modes == [Mode.FORWARD, Mode.INPUT_BACKWARD, Mode.WEIGHT_BACKWARD]


def test_an_invalid_convolution_is_rejected_when_it_is_parsed():
    with pytest.raises(OperationError):
        BooOpRegistry.parse_command("conv -H 2 -W 2 -y 5 -x 5 -F 1")
    with pytest.raises(WorkloadError):
        BooOpRegistry.parse_command("")


#: What damage puts in the place of a part of a line.
_PIECES = [
    "",
    " ",
    "-",
    "=",
    "0",
    "-1",
    "9",
    "999999999",
    "1e9",
    "nan",
    ",",
    "x",
    "N",
    "NCHW",
    "\x00",
    "é",
    "-F 0",
    "-g 0",
]


def _damaged(rng: random.Random, line: str) -> str:
    """`line` with a word replaced, or up to three of its parts."""
    if rng.random() < 0.5:
        words = line.split()
        words[rng.randrange(len(words))] = rng.choice(_PIECES)
        return " ".join(words)
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(line) + 1)
        line = line[:at] + rng.choice(_PIECES) + line[at + rng.randint(0, 3) :]
    return line


def test_a_thousand_damaged_lines_are_signatures_or_errors_of_their_kind():
    rng = random.Random(20261123)
    lines = [
        line for line in (WORKLOADS / "miopen_commands.txt").read_text().splitlines() if is_command(line)
    ]
    lines += 10 * [
        "conv -m trans -n 2 -c 4 -H 5 -W 6 -k 6 -y 3 -x 2 -p 1 -u 2 -v 3 -Y 1 -X 2 -g 2 -F 10 -b 1",
        "layernormbfp16 -X 4x8x16 -o 1 -m 1 -e 1e-5 -F 0",
        "softmaxfp16 -n 4 -c 8 -H 1 -W 16 -m 0 -a 1 -F 1",
        "layernorm -n 4 -c 8 -H 0 -W 16 -o 2 -F 3",
        "gemmfp16 -m 32 -k 64 -n 128 -u 1 -v 0 -A 1.0 -F 0",
    ]
    outcomes = {None: 0, WorkloadError: 0, UnsupportedFeature: 0, OperationError: 0}
    for _ in range(1500):
        line = _damaged(rng, rng.choice(lines))
        try:
            assert BooOpRegistry.parse_commands(line)
            outcomes[None] += 1
        except UsageError as error:
            assert 0 < len(str(error)) < 500
            outcomes[type(error)] += 1
    assert min(outcomes.values()) > 40
