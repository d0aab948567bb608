"""Weights that are packed at load time, in a module at phase `hal`.

The verify vmfb packs the weight in every call, so that its results prove the packing. In the profile vmfb, the first
call packs it and later calls read the packed weight, like a model with constant weights:

    pack, wait, compute  ->  if another function packed last:  pack, wait, store
                             compute

One packed weight is held for all functions of a module: a function that runs after another one packs again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from iree.compiler import ir

from dispatch_profiler.compiler.ir_module import COMMANDS, IrModule, operations_in
from dispatch_profiler.errors import ToolError

_BARRIER = "util.optimization_barrier"
#: The operations of packing, before its barriers. Everything else there only reads arguments.
_PACKING = ("hal.device.queue.", "hal.fence.", "hal.buffer.subspan", "hal.command_buffer.", "util.status.")
_EXECUTE = ("hal.device.queue.execute", "hal.device.queue.execute.indirect")
_BUFFER = "!hal.buffer"
#: The globals: the number of the function that packed last, and the packed weights.
_PACKED_BY, _PACKED = "packed_by", "packed_weight"


def pack_once(module: IrModule) -> list[Any]:
    """Let each function of `module` that packs its weight do so only if another one did in between.

    Returns the `hal.command_buffer.create` of every command buffer that packs, which must not outlive `module`.
    Raises ToolError if the compiler arranged packing in an unknown way, such as together with other commands.
    """
    packing = [
        (function, barriers)
        for function in module.symbols("util.func").values()
        if (barriers := [op for op in operations_in(function) if op.name == _BARRIER])
    ]
    if not packing:
        return []
    with module.operation.context, ir.Location.unknown():
        _declare_globals(packing[0][0], max(len(barriers) for _, barriers in packing))
        moved = [_packs_if_needed(barriers, number) for number, (_, barriers) in enumerate(packing, start=1)]
    return [_command_buffer(module, op) for ops in moved for op in ops if op.name in _EXECUTE]


def commands_of(create: Any) -> int:
    """The number of dispatches, fills and copies of the command buffer that `create` makes."""
    return sum(use.owner.name in COMMANDS for use in create.results[0].uses)


def _declare_globals(before: Any, count: int) -> None:
    lines = [f"util.global private mutable @{_PACKED_BY} = 0 : i32"]
    lines += [f"util.global private mutable @{_PACKED}_{index} : {_BUFFER}" for index in range(count)]
    parsed = ir.Module.parse("\n".join(lines))  # the bindings do not keep it alive for its operations
    for op in parsed.body.operations:
        op.operation.clone(ir.InsertionPoint(before))


def _packs_if_needed(barriers: Sequence[Any], number: int) -> list[Any]:
    """Move the operations that `barriers` wait for into a branch. Returns the moved operations."""
    packed = [operand for op in barriers for operand in op.operands]
    results = [result for op in barriers for result in op.results]
    before = _before(barriers[-1])
    moved = [op for op in before if op.name.startswith(_PACKING)]
    _check_apart(moved, barriers)
    buffer, i32 = ir.Type.parse(_BUFFER), ir.IntegerType.get_signless(32)
    if not moved or any(value.type != buffer for value in packed):
        raise _unknown_arrangement("a packed weight is no buffer of its own")
    at = ir.InsertionPoint(moved[0])
    (this,) = _made(at, "arith.constant", [i32], value=ir.IntegerAttr.get(i32, number))
    (last,) = _made(at, "util.global.load", [i32], **_global(_PACKED_BY))
    unequal = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), 1)
    (is_needed,) = _made(at, "arith.cmpi", [ir.IntegerType.get_signless(1)], [this, last], predicate=unequal)
    branch = ir.Operation.create("scf.if", [buffer] * len(packed), [is_needed], regions=2, ip=at)
    then, other = (ir.InsertionPoint(region.blocks.append()) for region in branch.regions)
    for op in moved:
        copy_at_end = ir.Operation.create("scf.yield", ip=then)
        op.move_before(copy_at_end)
        copy_at_end.erase()
    for index, value in enumerate(packed):
        _made(then, "util.global.store", [], [value], **_global(f"{_PACKED}_{index}"))
    _made(then, "util.global.store", [], [this], **_global(_PACKED_BY))
    _made(then, "scf.yield", [], packed)
    loaded = [
        value
        for index in range(len(packed))
        for value in _made(other, "util.global.load", [buffer], **_global(f"{_PACKED}_{index}"))
    ]
    _made(other, "scf.yield", [], loaded)
    for old, new in zip(results, branch.results, strict=True):
        old.replace_all_uses_with(new)
    for op in barriers:
        op.erase()
    return moved


def _before(barrier: Any) -> list[Any]:
    """The operations of the same block before `barrier`, in order."""
    found: list[Any] = []
    for op in ir.InsertionPoint(barrier).block.operations:
        if op.operation == barrier:
            break
        found.append(op.operation)
    return found


def _check_apart(moved: Sequence[Any], barriers: Sequence[Any]) -> None:
    """Raise ToolError if anything but `barriers` uses the results of `moved`, which then do more than pack."""
    own = [*moved, *barriers]
    for op in moved:
        for result in op.results:
            if any(use.owner not in own for use in result.uses):
                raise _unknown_arrangement(f"the result of {op.name} is used without a barrier")


def _made(
    at: Any, name: str, types: Sequence[Any], operands: Iterable[Any] = (), **attributes: Any
) -> Sequence[Any]:
    """The results of a new operation."""
    op = ir.Operation.create(name, list(types), list(operands), attributes=attributes, ip=at)
    found: Sequence[Any] = op.results
    return found


def _global(name: str) -> dict[str, Any]:
    return {"global": ir.FlatSymbolRefAttr.get(name)}


def _command_buffer(module: IrModule, execute: Any) -> Any:
    """The `hal.command_buffer.create` of the commands of `execute`: beside it, or in an initializer of the module."""
    made = next((value.owner for value in execute.operands if "command_buffer" in str(value.type)), None)
    if made is not None and made.name == "util.global.load":
        stored = ir.FlatSymbolRefAttr(made.attributes["global"]).value
        made = _stored_in(module, stored)
    if made is not None and made.name == "util.call":
        function = module.symbols("util.func")[ir.FlatSymbolRefAttr(made.attributes["callee"]).value]
        made = next((op for op in operations_in(function) if op.name == "hal.command_buffer.create"), None)
    if made is None or made.name != "hal.command_buffer.create":
        raise _unknown_arrangement(f"{execute.name} has no command buffer")
    return made


def _stored_in(module: IrModule, name: str) -> Any:
    """The operation whose result is stored in a global."""
    for op in operations_in(module.operation):
        if op.name == "util.global.store" and ir.FlatSymbolRefAttr(op.attributes["global"]).value == name:
            return op.operands[0].owner
    return None


def _unknown_arrangement(what: str) -> ToolError:
    return ToolError(
        f"this compiler arranges packed weights in an unknown way: {what}", hint="leave 'packed' out"
    )


# -- repetition ------------------------------------------------------------------------------------

# The profile module: everything that one execution does, many times per call.
#
# An execution may consist of several commands: a padded convolution fills a buffer with zeros, copies the
# image into it and convolves it. The command buffer gets the whole sequence again and again, in the order of
# separate executions:
#
#     fill, copy, convolve  ->  fill, copy, convolve, fill, copy, convolve, ...
#
# Commands that pack a weight at load time are not repeated (see `packing`).
#
# The compiler's own pass repeats each dispatch in a row, and neither fills nor copies.


#: The operation that begins a command buffer; each one that a call creates is repeated.
CREATE = "hal.command_buffer.create"
_FINALIZE = "hal.command_buffer.finalize"
_EXECUTION_BARRIER = "hal.command_buffer.execution_barrier"
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
    if end is None or not sequence or sequence[-1].name != _EXECUTION_BARRIER:
        return  # the caller counts the missing commands
    barriers = [sequence[-1]]
    for _ in range(count - 1):
        barriers.append([op.clone(ir.InsertionPoint(end)) for op in sequence][-1])
    if {op.name for op in sequence} & COMMANDS <= {"hal.command_buffer.dispatch"}:
        for barrier in barriers[:-1]:
            for name in _STAGES:
                stages = ir.IntegerAttr(barrier.attributes[name])
                barrier.attributes[name] = ir.IntegerAttr.get(stages.type, stages.value & ~_TRANSFER)
