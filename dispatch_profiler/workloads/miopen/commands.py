"""Commands of MIOpenDriver -> operations: `convbfp16 -n 16 -c 64 -H 56 -W 56 -k 64 -y 3 -x 3 ... -F 1`.

`MIOPEN_ENABLE_LOGGING_CMD=1` makes MIOpen print such a command for each call. Flags and their defaults are
MIOpen's, except for -F (see `_MODES`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dispatch_profiler.errors import UnsupportedFeature, WorkloadError, did_you_mean, short_repr
from dispatch_profiler.operations import Operation, filter_letters
from dispatch_profiler.workloads.miopen.problems import ConvProblem, Problem

#: Command -> element type.
COMMANDS = {"conv": "f32", "convfp16": "f16", "convbfp16": "bf16"}


@dataclass(frozen=True)
class Flag:
    """One flag: its names, its default, and what its value means.

    `allowed` lists the values that are supported, for a flag with few of them. `is_ignored`: the flag sets how
    the driver measures, verifies or prints, not what is computed.
    """

    long: str
    short: str = ""
    default: str = ""
    allowed: tuple[str, ...] = ()
    is_ignored: bool = False


def _ignored(long: str, short: str) -> Flag:
    return Flag(long, short, is_ignored=True)


#: All flags of conv, convfp16 and convbfp16.
FLAGS = (
    Flag("forw", "F", "1"),
    Flag("mode", "m", "conv", allowed=("conv", "trans")),
    Flag("spatial_dim", "_", "2"),
    Flag("batchsize", "n", "100"),
    Flag("in_channels", "c", "3"),
    Flag("in_d", "!", "32"),
    Flag("in_h", "H", "32"),
    Flag("in_w", "W", "32"),
    Flag("out_channels", "k", "32"),
    Flag("fil_d", "@", "3"),
    Flag("fil_h", "y", "3"),
    Flag("fil_w", "x", "3"),
    Flag("conv_stride_d", "#", "1"),
    Flag("conv_stride_h", "u", "1"),
    Flag("conv_stride_w", "v", "1"),
    Flag("pad_d", "$", "0"),
    Flag("pad_h", "p", "0"),
    Flag("pad_w", "q", "0"),
    Flag("dilation_d", "^", "1"),
    Flag("dilation_h", "l", "1"),
    Flag("dilation_w", "j", "1"),
    Flag("trans_output_pad_d", "%", "0"),
    Flag("trans_output_pad_h", "Y", "0"),
    Flag("trans_output_pad_w", "X", "0"),
    Flag("group_count", "g", "1"),
    Flag("bias", "b", "0", allowed=("0", "1")),
    Flag("in_layout", "I"),
    Flag("fil_layout", "f"),
    Flag("out_layout", "O"),
    Flag("pad_mode", "z", "conv", allowed=("conv", "default")),
    Flag("pad_val", "r", "0", allowed=("0",)),
    Flag("tensor_vect", "Z", "0", allowed=("0",)),
    Flag("vector_length", "L", "1", allowed=("1",)),
    Flag("in_cast_type", "U", "-1", allowed=("-1",)),
    Flag("out_cast_type", "T", "-1", allowed=("-1",)),
    Flag("wei_cast_type", "R", "-1", allowed=("-1",)),
    _ignored("iter", "i"),
    _ignored("time", "t"),
    _ignored("wall", "w"),
    _ignored("verify", "V"),
    _ignored("verification_cache", "C"),
    _ignored("search", "s"),
    _ignored("solution", "S"),
    _ignored("printconv", "P"),
    _ignored("dump_output", "o"),
    _ignored("gpualloc", "G"),
    _ignored("in_data", "d"),
    _ignored("weights", "e"),
    _ignored("in_bias", "a"),
    _ignored("dout_data", "D"),
)
_BY_NAME = {
    **{f"--{flag.long}": flag for flag in FLAGS},
    **{f"-{flag.short}": flag for flag in FLAGS},
}
_BIAS = "bias_backward"
#: -F -> modes. 0 to 6 are MIOpen's, 7 to 10 those of BOO's driver, as is the default of 1 (MIOpen's is 0).
_MODES = {
    "0": ("forward", "input_backward", "weight_backward"),
    "1": ("forward",),
    "2": ("input_backward",),
    "3": ("forward", "input_backward"),
    "4": ("weight_backward",),
    "5": ("forward", "weight_backward"),
    "6": ("input_backward", "weight_backward"),
    "7": (_BIAS,),
    "8": ("input_backward", _BIAS),
    "9": ("weight_backward", _BIAS),
    "10": ("input_backward", "weight_backward", _BIAS),
}
#: Spatial axes -> flags of each.
_AXES = {1: "w", 2: "hw", 3: "dhw"}
_WHOLE = re.compile(r"-?[0-9]{1,9}", re.ASCII)
#: A command, after a path or the prefix of a log line if there is one.
_COMMAND = re.compile(r"(?:.*[\s/]MIOpenDriver\s+|MIOpenDriver\s+|)([a-z]\w*)\s+(-\S.*)", re.ASCII)


def is_command(line: str) -> bool:
    """Whether a line has the form of a command of MIOpenDriver."""
    return _COMMAND.fullmatch(line.strip()) is not None


@dataclass(frozen=True)
class Command:
    """What a command describes: a problem, and the directions of -F that it runs."""

    problem: Problem
    directions: tuple[str, ...]


def miopen_operations(line: str) -> tuple[Operation, ...]:
    """The operations of one command, one for each direction of -F.

    Raises what `read_command` raises, and OperationError for an invalid convolution.
    """
    command = read_command(line)
    return tuple(command.problem.operation(direction) for direction in command.directions)


def read_command(line: str) -> Command:
    """The command in `line`. Raises WorkloadError if it is malformed, UnsupportedFeature if nothing computes it."""
    match = _COMMAND.fullmatch(line.strip())
    if match is None:
        raise WorkloadError("expected a command of MIOpenDriver, such as convfp16 -n 16 -c 64 ...")
    name, words = match[1], match[2].split()
    if name not in COMMANDS:
        raise UnsupportedFeature(
            f"the command {name[:40]} is not supported", hint=did_you_mean(name, COMMANDS)
        )
    values = _values(words)
    if (directions := _MODES.get(values["forw"])) is None:
        raise UnsupportedFeature(f"-F {values['forw'][:40]}: available: {', '.join(_MODES)}")
    return Command(_problem(values, COMMANDS[name]), directions)


def command_text(problem: Problem, directions: Sequence[str]) -> str:
    """The command that `read_command` reads as this problem and these directions.

    Raises UnsupportedFeature if there is none.
    """
    name = next((name for name, type_ in COMMANDS.items() if type_ == problem.type), None)
    forward = next((value for value, modes in _MODES.items() if set(modes) == set(directions)), None)
    if name is None or not isinstance(problem, ConvProblem):
        raise UnsupportedFeature(f"MIOpenDriver has no command for {problem.kind} of {problem.type}")
    if forward is None:
        raise UnsupportedFeature(f"-F has no value for {', '.join(directions)}")
    values = {**_values_of(problem), "forw": forward}
    written = (
        f"-{flag.short} {values[flag.long]}" if flag.short.isalpha() else f"--{flag.long} {values[flag.long]}"
        for flag in FLAGS
        if flag.long in values
    )
    return " ".join([name, *written])


def _values(words: list[str]) -> dict[str, str]:
    """Long name -> value, with defaults; checks the values of flags with few of them."""
    values = {flag.long: flag.default for flag in FLAGS}
    at = 0
    while at < len(words):
        name, _, value = words[at].partition("=")
        flag = _BY_NAME.get(name)
        if flag is None:
            raise WorkloadError(f"unknown flag {short_repr(name)}", hint=did_you_mean(name, _BY_NAME))
        if not value:
            at += 1
            if at == len(words):
                raise WorkloadError(f"{name} has no value")
            value = words[at]
        if flag.allowed and value not in flag.allowed:
            raise UnsupportedFeature(f"{name} {value[:40]}: available: {', '.join(flag.allowed)}")
        values[flag.long] = value
        at += 1
    return values


def _problem(values: Mapping[str, str], type_: str) -> ConvProblem:
    rank = _rank(values)
    axes = _AXES[rank]
    return ConvProblem(
        images=_whole(values, "batchsize"),
        channels=_whole(values, "in_channels"),
        filters=_whole(values, "out_channels"),
        pixels=tuple(_whole(values, f"in_{axis}") for axis in axes),
        window=tuple(_whole(values, f"fil_{axis}") for axis in axes),
        layouts=_layouts(values, rank),
        type=type_,
        stride=_tuple(values, "conv_stride", rank),
        padding=_tuple(values, "pad", rank),
        dilation=_tuple(values, "dilation", rank),
        output_padding=_tuple(values, "trans_output_pad", rank) if values["mode"] == "trans" else (),
        groups=_whole(values, "group_count"),
        has_bias=values["bias"] == "1",
        is_transposed=values["mode"] == "trans",
    )


def _values_of(problem: ConvProblem) -> dict[str, str]:
    """Inverse of `_problem`: the values of all flags that describe `problem`."""
    axes = _AXES[problem.rank]
    per_axis = {
        "in": problem.pixels,
        "fil": problem.window,
        "conv_stride": problem.stride,
        "pad": problem.padding,
        "dilation": problem.dilation,
        **({"trans_output_pad": problem.output_padding} if problem.is_transposed else {}),
    }
    input_, filter_, output = (each.upper() for each in problem.layouts)
    return {
        "mode": "trans" if problem.is_transposed else "conv",
        "spatial_dim": str(problem.rank),
        "batchsize": str(problem.images),
        "in_channels": str(problem.channels),
        "out_channels": str(problem.filters),
        **{
            f"{name}_{axis}": str(n)
            for name, each in per_axis.items()
            for axis, n in zip(axes, each, strict=True)
        },
        "group_count": str(problem.groups),
        "bias": str(int(problem.has_bias)),
        "in_layout": input_,
        "fil_layout": filter_.replace("F", "N"),
        "out_layout": output,
    }


def _rank(values: Mapping[str, str]) -> int:
    """The number of spatial axes: that of the layouts if they are given."""
    given = values["in_layout"] or values["fil_layout"] or values["out_layout"]
    rank = len(given) - 2 if given else _whole(values, "spatial_dim")
    if rank not in _AXES:
        what = f"layout {short_repr(given)}" if given else f"--spatial_dim {rank}"
        raise UnsupportedFeature(f"{what}: a convolution has 1, 2 or 3 spatial axes")
    return rank


def _layouts(values: Mapping[str, str], rank: int) -> tuple[str, str, str]:
    """Layouts of input, filter and output in our letters: MIOpen writes N for the filters of a filter too."""
    default = f"nc{_AXES[rank]}"
    input_, filter_, output = ((values[f"{role}_layout"] or default).lower() for role in ("in", "fil", "out"))
    return input_, filter_letters(filter_.replace("n", "f")), output


def _tuple(values: Mapping[str, str], name: str, rank: int) -> tuple[int, ...]:
    return tuple(_whole(values, f"{name}_{axis}") for axis in _AXES[rank])


def _whole(values: Mapping[str, str], name: str) -> int:
    if not _WHOLE.fullmatch(values[name]):
        raise WorkloadError(f"--{name}: expected a whole number, but got {short_repr(values[name])}")
    return int(values[name])
