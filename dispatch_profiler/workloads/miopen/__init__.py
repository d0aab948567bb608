"""Commands of MIOpenDriver -> operations. A new command is one module: a problem, a table of flags, and `FAMILY`."""

from dispatch_profiler.workloads.miopen._commands import (
    FAMILIES,
    Command,
    command_help,
    command_text,
    is_command,
    message_reason,
    miopen_operations,
    read_command,
    searching,
)
from dispatch_profiler.workloads.miopen._flags import Family, Problem
from dispatch_profiler.workloads.miopen.conv import ConvProblem
from dispatch_profiler.workloads.miopen.gemm import GemmProblem
from dispatch_profiler.workloads.miopen.layer_norm import LayerNormProblem

__all__ = [
    "FAMILIES",
    "Command",
    "ConvProblem",
    "Family",
    "GemmProblem",
    "LayerNormProblem",
    "Problem",
    "command_help",
    "command_text",
    "is_command",
    "message_reason",
    "miopen_operations",
    "read_command",
    "searching",
]
