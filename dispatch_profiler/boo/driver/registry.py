"""Turns commands of MIOpenDriver into signatures."""

from __future__ import annotations

from collections.abc import Sequence

from dispatch_profiler.boo.op_exports import Mode, OpSignature, signature_classes
from dispatch_profiler.errors import UsageError
from dispatch_profiler.workloads.miopen import read_command


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
