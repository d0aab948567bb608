"""Entry points that do not wait: they enqueue the work of a call behind other work, and return.

For each entry point `f` that waits once, at its end, one is added:

    f$enqueue(operands, results, a fence to wait for, a fence to signal)

A chain of calls then waits once. For short kernels on several threads, that saves most of a call: the threads wait for
work instead of for the caller, and the caller prepares the next call meanwhile.
"""

from __future__ import annotations

from typing import Any

from iree.compiler import ir

from dispatch_profiler.compiler.ir_module import IrModule

ENQUEUE = "$enqueue"
_AWAIT, _NEW_FENCE, _NO_FENCE, _RETURN = "hal.fence.await", "hal.fence.create", "util.null", "util.return"
#: What may follow the wait: nothing that reads what was computed.
_FOLLOWING = {"util.status.check_ok", "hal.buffer_view.create", _RETURN}


def add_enqueuing(module: IrModule) -> None:
    """Add `f$enqueue` to a module at phase `hal`, for each entry point `f` that permits it."""
    for name, function in module.symbols("util.func").items():
        if _awaited(function) is not None:
            _add(name, function, module)


def _operations(function: Any) -> list[Any]:
    """The operations of a function with one block; none if it has several, or is private."""
    (body,) = function.regions
    if "sym_visibility" in function.attributes or len(body.blocks) != 1:
        return []
    return [each.operation for each in body.blocks[0].operations]


def _awaited(function: Any) -> Any:
    """The fence that a function creates and waits for before it returns; None if it does more than that."""
    operations = _operations(function)
    at = [number for number, op in enumerate(operations) if op.name == _AWAIT]
    if len(at) != 1 or {op.name for op in operations[at[0] + 1 :]} - _FOLLOWING:
        return None
    fences = [each for each in operations[at[0]].operands if str(each.type) == "!hal.fence"]
    if len(fences) != 1 or isinstance(fences[0].owner, ir.Block) or fences[0].owner.name != _NEW_FENCE:
        return None
    return fences[0]


def _add(name: str, function: Any, module: IrModule) -> None:
    """Insert the copy of `function` that takes its fences."""
    copy = function.clone()
    block = copy.regions[0].blocks[0]
    with copy.context, ir.Location.unknown():
        fence = ir.Type.parse("!hal.fence")
        wait, signal = (block.add_argument(fence, ir.Location.unknown()) for _ in range(2))
        copy.attributes["sym_name"] = ir.StringAttr.get(f"{name}{ENQUEUE}")
        inputs = [each.type for each in block.arguments]
        copy.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(inputs, []))
        for each in ("arg_attrs", "res_attrs", "tied_operands", "iree.reflection"):
            if each in copy.attributes:
                del copy.attributes[each]
        done = _awaited(copy)
        created = done.owner
        done.replace_all_uses_with(signal)
        created.erase()
        for op in reversed(_operations(copy)):
            if op.name in (_AWAIT, *_FOLLOWING):
                op.erase()
            elif op.name == _NO_FENCE and op.result.type == fence:
                op.result.replace_all_uses_with(wait)
                op.erase()
        ir.Operation.create(_RETURN, ip=ir.InsertionPoint(block))
    end = ir.InsertionPoint(module.operation.regions[0].blocks[0])
    end.insert(copy)
