"""The profile module: everything that one execution does, many times per call.

An execution may consist of several commands: a padded convolution fills a buffer with zeros, copies the
image into it and convolves it. The command buffer gets the whole sequence again and again, in the order of
separate executions:

    fill, copy, convolve  ->  fill, copy, convolve, fill, copy, convolve, ...

Commands that pack a weight at load time are not repeated (see `packing`).

The compiler's own pass repeats each dispatch in a row, and neither fills nor copies.
"""

from __future__ import annotations

from typing import Any

from iree.compiler import ir

from dispatch_profiler.compiler.ir_module import COMMANDS, IrModule, operations_in
from dispatch_profiler.compiler.passes.packing import commands_of, pack_once
from dispatch_profiler.errors import ToolError

#: The operation that begins a command buffer; each one that a call creates is repeated.
CREATE = "hal.command_buffer.create"
_FINALIZE = "hal.command_buffer.finalize"
_BARRIER = "hal.command_buffer.execution_barrier"
#: The bit of fills and copies in the stages of a barrier, and the attributes with these stages.
_TRANSFER = 8
_STAGES = ("source_stage_mask", "target_stage_mask")


def repeated(module: IrModule, count: int) -> IrModule:
    """A copy of a module at phase `hal` in which every command buffer does its commands `count` times.

    Weights are packed once. Raises ToolError if the copy does not have `count` times as many other commands.
    """
    copy = module.clone()
    packing = pack_once(copy)
    packed = sum(map(commands_of, packing))
    for op in operations_in(copy.operation):
        if op.name == CREATE and op not in packing:
            _repeat(op, count)
    before, after = module.commands() - packed, copy.commands() - packed
    if after != count * before:
        raise ToolError(
            f"the profile module should execute {count} x {before} commands, but executes {after}",
            hint="this compiler arranges commands differently: use --batch-size=1",
        )
    return copy


def _repeat(create: Any, count: int) -> None:
    """Repeat the commands of the buffer that `create` makes, with a barrier after each repetition."""
    buffer = create.results[0]
    users = [
        op.operation for op in ir.InsertionPoint(create).block.operations if buffer in op.operation.operands
    ]
    sequence = [op for op in users if op.name.startswith("hal.command_buffer.") and op.name != _FINALIZE]
    end = next((op for op in users if op.name == _FINALIZE), None)
    if end is None or not sequence or sequence[-1].name != _BARRIER:
        return  # the caller counts the missing commands
    barriers = [sequence[-1]]
    for _ in range(count - 1):
        barriers.append([op.clone(ir.InsertionPoint(end)) for op in sequence][-1])
    if {op.name for op in sequence} & COMMANDS <= {"hal.command_buffer.dispatch"}:
        for barrier in barriers[:-1]:
            for name in _STAGES:
                stages = ir.IntegerAttr(barrier.attributes[name])
                barrier.attributes[name] = ir.IntegerAttr.get(stages.type, stages.value & ~_TRANSFER)
