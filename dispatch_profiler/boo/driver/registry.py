"""Turns commands of MIOpenDriver, and files of commands, into signatures and into the outcomes of their launches."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from dispatch_profiler.boo.op_exports import Mode, OpSignature, signature_classes
from dispatch_profiler.command import show, warn
from dispatch_profiler.errors import DispatchProfilerError, UsageError, WorkloadError, reason_of, short_repr
from dispatch_profiler.files.regular import read_bounded
from dispatch_profiler.workloads.miopen import read_command, searching


class BooOpRegistry:
    """Finds the signatures of commands. The first word of a command selects a module of `boo.op_exports`."""

    @staticmethod
    def keys() -> tuple[str, ...]:
        """The first words of commands, without the suffix for the type: conv, gemm, layernorm."""
        return tuple(sorted(signature_classes()))

    @staticmethod
    def parse_commands(command: str | Sequence[str]) -> tuple[OpSignature, ...]:
        """A signature for each direction of `-F`. `command` is a line, or its words.

        Raises WorkloadError for a malformed command, UnsupportedFeature if no operation computes the command, and
        OperationError for an invalid operation.
        """
        read = read_command(command if isinstance(command, str) else " ".join(command))
        for direction in read.directions:
            read.problem.operation(direction)  # raises if no operation computes this direction
        of_kind = signature_classes()[read.problem.kind]
        return tuple(of_kind.of_problem(read.problem, Mode(each)) for each in read.directions)

    @classmethod
    def parse_command(cls, command: str | Sequence[str]) -> OpSignature:
        """The signature of a command with one direction; see `parse_commands`.

        Raises UsageError if -F asks for several.
        """
        signatures = cls.parse_commands(command)
        if len(signatures) > 1:
            modes = ", ".join(each.mode.value for each in signatures)
            raise UsageError(
                f"-F asks for {len(signatures)} directions ({modes}), but a signature has one",
                hint="BooOpRegistry.parse_commands returns a signature for each direction",
            )
        return signatures[0]


def command_to_signature(command: str | Sequence[str]) -> OpSignature:
    """`BooOpRegistry.parse_command` by its name in BOO's first version."""
    return BooOpRegistry.parse_command(command)


# -- lines of commands -----------------------------------------------------------------------------

# Reads files of MIOpenDriver commands, separates the timing flags from a command, and runs its signatures.


T = TypeVar("T")
#: Bytes of a file of commands.
_LARGEST_FILE = 16 * 2**20
#: Launches that --iter accepts at most.
_MOST_LAUNCHES = 1_000_000
#: The commands that come with the package.
_SAMPLES = "sample_commands.txt"
_TIME = ("-t", "--time")
_ITERATIONS = ("-i", "--iter")


@dataclass(frozen=True)
class Timing:
    """Whether launches are timed, and how many: `launches`, or None for as many as a precise median takes."""

    is_on: bool = False
    launches: int | None = None


@dataclass(frozen=True)
class CommandLine:
    """A command, and its line number in the file; 0 for a command that was given as arguments."""

    number: int
    text: str

    @property
    def place(self) -> str:
        """The prefix of messages: `line 3: `, or nothing for a command that was given as arguments."""
        return f"line {self.number}: " if self.number else ""


def read_commands(path: Path) -> list[CommandLine]:
    """The commands of a file, one per line.

    Blank lines, lines that start with `#`, and lines of a log for MIOpen's searches for kernels are ignored.
    `sample_commands.txt` names the file that comes with this package, unless the current folder has a file of this
    name. Raises UsageError if the file cannot be read, is not UTF-8, or has no command.
    """
    if path == Path(_SAMPLES) and not path.exists():
        path = Path(__file__).with_name(_SAMPLES)
    try:
        text = read_bounded(path, _LARGEST_FILE).decode()
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not a text file in UTF-8") from error
    numbered = enumerate((line.strip() for line in text.splitlines()), start=1)
    commands = [
        CommandLine(number, line)
        for number, line in numbered
        if line and not line.startswith("#") and not searching(line)
    ]
    if not commands:
        raise UsageError(f"{path} has no commands", hint="write one per line, such as conv -n 1 -c 64 -k 64")
    return commands


def outcomes(
    command: CommandLine,
    default: Timing,
    run: Callable[[str, OpSignature, Timing], T],
    failed: Callable[..., T],
) -> Iterator[T]:
    """Print each signature of a command as a command of its own, and yield the outcome of `run` for it.

    A failure is a warning with the command's line number, and yields `failed(text, error=reason)`. It does not affect other
    signatures.
    """

    def failure(text: str, error: DispatchProfilerError) -> T:
        warn(f"{command.place}{text}: {reason_of(error)}")
        if error.hint:
            warn(f"hint: {error.hint}")
        return failed(text, error=reason_of(error))

    try:
        text, timing = split_timing(command.text.split(), default)
        signatures = BooOpRegistry.parse_commands(text)
    except DispatchProfilerError as error:
        yield failure(command.text, error)
        return
    for signature in signatures:
        own = text if len(signatures) == 1 else signature.command
        show(own)
        try:
            outcome = run(own, signature, timing)
        except DispatchProfilerError as error:
            outcome = failure(own, error)
        yield outcome


def split_timing(words: Sequence[str], default: Timing) -> tuple[str, Timing]:
    """The command without `-t`, and its timing: `conv -n 1 -t 1 --iter 9` -> `conv -n 1 --iter 9`, Timing(True, 9).

    Flags that the command lacks are as in `default`. Raises WorkloadError for values that are not whole numbers.
    """
    kept: list[str] = []
    timing = default
    for name, value, own in _flags(words):
        if name in _TIME:
            timing = replace(timing, is_on=_whole(name, value, 1) > 0)
            continue
        if name in _ITERATIONS:
            timing = replace(timing, launches=max(1, _whole(name, value, _MOST_LAUNCHES)))
        kept += own
    return " ".join(kept), timing


def _flags(words: Sequence[str]) -> Iterator[tuple[str, str | None, Sequence[str]]]:
    """Name, value (None if missing) and words of each timing flag; other words one at a time."""
    at = 0
    while at < len(words):
        name, sign, value = words[at].partition("=")
        if name not in (*_TIME, *_ITERATIONS) or sign:
            yield name, value if sign else None, words[at : at + 1]
            at += 1
            continue
        yield name, words[at + 1] if at + 1 < len(words) else None, words[at : at + 2]
        at += 2


def _whole(name: str, value: str | None, most: int) -> int:
    if value is None:
        raise WorkloadError(f"{name} has no value")
    if not _is_whole(value) or int(value) > most:
        raise WorkloadError(f"{name}: expected a whole number from 0 to {most}, but got {short_repr(value)}")
    return int(value)


def whole_number(text: str) -> int:
    """Parse a whole number of at least 0, with at most 9 digits, for argparse."""
    if not _is_whole(text):
        raise argparse.ArgumentTypeError(f"expected a whole number such as 0, but got {text!r}")
    return int(text)


def _is_whole(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 9
