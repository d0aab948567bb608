"""Commands of MIOpenDriver -> operations. A new command is a table of its flags and a problem."""

from dispatch_profiler.workloads.miopen.commands import (
    FAMILIES,
    Command,
    command_help,
    command_text,
    is_command,
    miopen_operations,
    read_command,
)
from dispatch_profiler.workloads.miopen.problems import ConvProblem, GemmProblem, LayerNormProblem, Problem

__all__ = [
    "FAMILIES",
    "Command",
    "ConvProblem",
    "GemmProblem",
    "LayerNormProblem",
    "Problem",
    "command_help",
    "command_text",
    "is_command",
    "miopen_operations",
    "read_command",
]
