"""Commands of MIOpenDriver -> problems and operations: `convbfp16 -n 16 -c 64 -H 56 -W 56 -k 64 -y 3 -x 3 ... -F 1`.

`MIOPEN_ENABLE_LOGGING_CMD=1` makes MIOpen print such a command for each call.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from dispatch_profiler.errors import UnsupportedFeature, WorkloadError, did_you_mean
from dispatch_profiler.families import families
from dispatch_profiler.operations import Operation
from dispatch_profiler.workloads.miopen._flags import Family, Problem

#: Kind of problem -> its commands.
FAMILIES = {family.kind: family for _, family in families(__package__, Family)}
_BY_COMMAND = {name: family for family in FAMILIES.values() for name in family.types}
#: The driver, after an optional path and prefix of a log line, on any system: `"C:\rocm\bin\MIOpenDriver.exe"`.
_DRIVER = r"(?:.*[\s/\\\"'])?MIOpenDriver(?:\.exe)?[\"']?\s+"
_COMMAND = re.compile(
    rf"{_DRIVER}(?P<driven>[A-Za-z]\w*)(?:\s+(?P<flags>-\S.*))?|(?P<name>[a-z]\w*|CBAInfer\w*)\s+(?P<words>-\S.*)",
    re.ASCII,
)
#: What ends a command in a script.
_SHELL = re.compile(r"\s(?:[0-9]?>|[|&;<])")
#: The function of MIOpen that logs a command, `MIOpen(HIP): Command [LogCmdConvolution] ./bin/MIOpenDriver conv ...`
_LOGGED_BY = re.compile(r"\bMIOpen(?:\([^()]{0,20}\))?: .{0,200}?\[LogCmd(\w+)\]", re.ASCII)
#: A line of MIOpen's log.
_LOGGED = re.compile(r"\bMIOpen(?:\([^()]{0,20}\))?: ", re.ASCII)
_FUSED = "CBAInfer"


@dataclass(frozen=True)
class Command:
    """A parsed command: a problem, and the directions of -F that it runs."""

    problem: Problem
    directions: tuple[str, ...]


def is_command(line: str) -> bool:
    """Whether a line has the form of a command of MIOpenDriver, with the driver's name or at least one flag."""
    return _COMMAND.fullmatch(_without_redirection(line)) is not None


def searching(line: str) -> str:
    """The function of MIOpen that logged `line` while it searched for a kernel; empty for other lines."""
    logged = _LOGGED_BY.search(line)
    return f"LogCmd{logged[1]}" if logged and logged[1].startswith("Find") else ""


def _without_redirection(line: str) -> str:
    """The command in a line of a script: without redirections, pipes and the commands behind it."""
    return _SHELL.split(line.strip(), maxsplit=1)[0].rstrip()


def message_reason(line: str) -> str:
    """Why a line of MIOpen's log has no operation, if it is a message and no command; otherwise empty."""
    if not _LOGGED.search(line) or is_command(line):
        return ""
    return "a message of MIOpen and no command of MIOpenDriver; log the commands with MIOPEN_ENABLE_LOGGING_CMD=1"


def miopen_operations(line: str) -> tuple[Operation, ...]:
    """The operations of one command, one for each direction of -F.

    Raises the errors of `read_command`, and OperationError for an invalid operation.
    """
    command = read_command(line)
    return tuple(command.problem.operation(direction) for direction in command.directions)


def read_command(line: str) -> Command:
    """The command in `line`.

    Raises WorkloadError if it is malformed, UnsupportedFeature if nothing computes it, and OperationError if its
    values do not fit each other.
    """
    if function := searching(line):
        raise UnsupportedFeature(
            f"{function}: MIOpen searches for a kernel here; the calls that compute have lines of their own"
        )
    command = _without_redirection(line)
    match = _COMMAND.fullmatch(command)
    if match is None and command not in _BY_COMMAND:
        raise WorkloadError("expected a command of MIOpenDriver, such as convfp16 -n 16 -c 64 ...")
    name = (match["driven"] or match["name"]) if match else command
    words = (match["flags"] or match["words"] or "").split() if match else []
    if name.startswith(_FUSED):
        raise UnsupportedFeature(
            f"the command {name[:40]} is not supported: MIOpen logs neither the activation nor the exact type of a fused "
            "convolution; write it as a conv2d with an epilogue, such as bias+relu, in a workload.yaml"
        )
    if name not in _BY_COMMAND:
        raise UnsupportedFeature(
            f"the command {name[:40]} is not supported", hint=did_you_mean(name, _BY_COMMAND)
        )
    family = _BY_COMMAND[name]
    values = family.values(words)
    problem = family.read(values, family.types[name])
    return Command(problem, family.directions_of(values["forw"], problem))


def command_help(words: Sequence[str]) -> str:
    """The flags of the command if `words` ask for them (`conv --help`); otherwise empty."""
    is_asked = len(words) == 2 and words[0] in _BY_COMMAND and words[1] in ("-h", "--help")
    return _BY_COMMAND[words[0]].help if is_asked else ""


def command_text(problem: Problem, directions: Sequence[str]) -> str:
    """The command that `read_command` reads as this problem and these directions.

    Raises UnsupportedFeature without one.
    """
    family = FAMILIES[problem.kind]
    name = next((name for name, type_ in family.types.items() if type_ == problem.type), None)
    if name is None:
        raise UnsupportedFeature(f"MIOpenDriver has no command for {problem.kind} of {problem.type}")
    values = {"forw": family.forw_of(directions, problem), **family.write(problem)}
    written = (
        f"-{flag.short} {values[flag.long]}" if flag.short.isalpha() else f"--{flag.long} {values[flag.long]}"
        for flag in family.flags
        if flag.long in values
    )
    return " ".join([name, *written])
