"""Commands of MIOpenDriver -> operations. A new command is a table of its flags and a problem."""

from dispatch_profiler.workloads.miopen.commands import FLAGS, is_command, miopen_operations
from dispatch_profiler.workloads.miopen.problems import ConvProblem, GemmProblem, LayerNormProblem, Problem

__all__ = [
    "FLAGS",
    "ConvProblem",
    "GemmProblem",
    "LayerNormProblem",
    "Problem",
    "is_command",
    "miopen_operations",
]
