"""Entry points that record the commands of a call once, and execute the recording any number of times.

IREE records the commands of a call with temporary memory anew in every call, and passes the buffers of others in a
binding table, which a CUDA graph cannot take. For each entry point `f` whose commands are one command buffer, two are
added:

    f$record(operands and results) -> a command buffer, which refers to these buffers and keeps them alive
    f$replay(a command buffer)        executes it, and waits

They are to `f` what capturing and launching a CUDA graph are to launching kernels.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from iree.compiler import ir

from dispatch_profiler.compiler.ir_module import IrModule

RECORD, REPLAY = "$record", "$replay"

#: What may precede the execution of the commands: constants, checks of the arguments, and their buffers.
_PRECEDING = re.compile(
    r"arith\.constant|util\.null|util\.global\.load|hal\.(memory_type|buffer_usage|element_type|encoding_type)<"
    r"|hal\.encoding_type|hal\.buffer_view\.(assert|buffer)<|hal\.buffer\.assert<|hal\.device\.allocator<"
)
#: What an entry point asks of the device's queue: memory, and to execute the commands.
_STEPS = {"alloca", "execute", "dealloca"}
_EXECUTE = re.compile(
    r"hal\.device\.queue\.execute\.indirect<(?P<device>%\S+) : !hal\.device> affinity\((?P<affinity>%\S+)\) .*?"
    r"commands\((?P<commands>%\S+)\) bindings\(\[(?P<bindings>.*?)\]\)",
    re.DOTALL,
)
_BINDING = re.compile(r"\((%\S+) : !hal\.buffer\)\[(%\S+), %\S+\]")
#: A temporary buffer: its name, affinity, memory type, usage and size.
_ALLOCA = re.compile(
    r"(%\S+) = hal\.device\.queue\.alloca<.*? affinity\((%\S+)\) .*? type\((%\S+)\) usage\((%\S+)\) .*?\{(%\S+)\}"
)
_SLOT = re.compile(r"\((%\S+) : index\)\[")

_RECORDER = """util.func public @"{name}{record}"({parameters}) -> !hal.command_buffer {{
{body}
    %recorded = util.call @"{name}$commands"({buffers}) : ({types}) -> !hal.command_buffer
    util.return %recorded : !hal.command_buffer
}}"""
_REPLAYER = """util.func public @"{name}{replay}"(%commands: !hal.command_buffer) {{
    %any = arith.constant -1 : i64
    %forever = arith.constant -1 : i32
    %device = util.global.load immutable @{device} : !hal.device
    %none = util.null : !hal.fence
    %done = hal.fence.create device(%device : !hal.device) flags("None") : !hal.fence
    hal.device.queue.execute<%device : !hal.device> affinity(%any) wait(%none) signal(%done) commands(%commands) flags("None")
    %status = hal.fence.await until([%done]) timeout_millis(%forever) flags("None") : i32
    util.status.check_ok %status, "failed to wait on timepoint"
    util.return
}}"""


@dataclass(frozen=True)
class _Commands:
    """A function that records commands, and the buffers that it takes."""

    text: str
    buffers: tuple[str, ...]


def add_recordings(module: IrModule) -> None:
    """Add `f$record` and `f$replay` to a module at phase `hal`, for each entry point `f` that permits it."""
    texts = {name: str(op) for name, op in module.symbols("util.func").items()}
    for name, text in texts.items():
        if text.startswith("util.func public"):
            _insert(module, _recording(name, text, texts, module))


def _insert(module: IrModule, functions: tuple[str, ...]) -> None:
    """Add functions, as text, which may refer to the module's globals."""
    if not functions:
        return
    globals_ = (str(op) for op in module.symbols("util.global").values())
    parsed = IrModule.parse("\n".join((*globals_, *functions)), module.operation.context)
    end = ir.InsertionPoint(module.operation.regions[0].blocks[0])
    for op in parsed.symbols("util.func").values():
        op.detach_from_parent()
        end.insert(op)


def _recording(name: str, text: str, texts: dict[str, str], module: IrModule) -> tuple[str, ...]:
    """The functions to add for an entry point; none if it does more than execute one command buffer."""
    execute = _EXECUTE.search(text)
    signature = re.match(r"util\.func public @[^(]+\((.*?)\) -> ", text)
    steps = re.findall(r"hal\.device\.queue\.(\w+)", text)
    if execute is None or signature is None or steps.count("execute") != 1 or set(steps) - _STEPS:
        return ()
    commands = _commands(name, text, execute, texts, module)
    body = _body(text[: execute.start()].rstrip(), execute["commands"])
    device = re.search(rf"{re.escape(execute['device'])} = util\.global\.load (?:immutable )?@(\S+) ", text)
    if commands is None or body is None or device is None:
        return ()
    recorder = _RECORDER.format(
        name=name,
        record=RECORD,
        parameters=signature[1],
        body="\n".join(body),
        buffers=", ".join(commands.buffers),
        types=", ".join("!hal.buffer" for _ in commands.buffers),
    )
    return commands.text, recorder, _REPLAYER.format(name=name, replay=REPLAY, device=device[1])


def _body(text: str, commands: str) -> list[str] | None:
    """The lines before the execution, with buffers that are kept in place of temporary ones; None if others occur."""
    allocator = re.search(r"(%\S+) = hal\.device\.allocator<", text)
    kept = []
    for line in text.splitlines()[1:]:
        temporary = _ALLOCA.search(line)
        if temporary and allocator:
            found, affinity, type_, usage, size = temporary.groups()
            kept.append(
                f"    {found} = hal.allocator.allocate<{allocator[1]} : !hal.allocator> affinity({affinity}) "
                f"type({type_}) usage({usage}) : !hal.buffer{{{size}}}"
            )
        elif line.lstrip().startswith(f"{commands} = ") or " = hal.fence.create " in line:
            continue
        elif _PRECEDING.search(line):
            kept.append(line)
        else:
            return None
    return kept


def _commands(
    name: str, text: str, execute: re.Match[str], texts: dict[str, str], module: IrModule
) -> _Commands | None:
    """The function that records the commands of an entry point, without a binding table."""
    commands = re.escape(execute["commands"])
    call = re.search(rf"{commands} = util\.call @(\S+?)\((.*?)\) ", text)
    if call:
        recorder, buffers = call[1], tuple(call[2].split(", "))
    else:
        # Recorded when the module is loaded: then all buffers are slots of the binding table.
        table = _BINDING.findall(execute["bindings"])
        stored = re.search(rf"{commands} = util\.global\.load (?:immutable )?@(\S+) ", text)
        recorder = _initializer(module, stored[1]) if stored else ""
        zeros = set(re.findall(r"(%\S+) = arith\.constant 0 : index", text))
        if not recorder or any(offset not in zeros for _, offset in table):
            return None
        buffers = tuple(buffer for buffer, _ in table)
    found = texts.get(recorder, "")
    found, without_table = re.subn(r"(hal\.command_buffer\.create .*?) bindings\(%\S+\) :", r"\1 :", found)
    found = found.replace(f"@{recorder}(", f'@"{name}$commands"(', 1)
    if not call:
        found = _bound(found, len(buffers))
    return _Commands(found, buffers) if without_table == 1 and not _SLOT.search(found) else None


def _initializer(module: IrModule, stored: str) -> str:
    """The function whose result an initializer stores in the global `stored`; empty if there is none."""
    for op in module.top():
        text = str(op) if op.name == "util.initializer" else ""
        call = re.search(
            rf"(%\S+) = util\.call @(\S+?)\(\) .*\n\s+util\.global\.store \1, @{re.escape(stored)} ", text
        )
        if call:
            return call[2]
    return ""


def _bound(text: str, count: int) -> str:
    """`text`, a function without parameters, with `count` buffers as parameters in place of the slots."""
    slots = dict(re.findall(r"(%\S+) = arith\.constant (\d+) : index", text))
    parameters = ", ".join(f"%slot{each}: !hal.buffer" for each in range(count))

    def buffer(match: re.Match[str]) -> str:
        slot = slots.get(match[1], "")
        return f"(%slot{slot} : !hal.buffer)[" if slot and int(slot) < count else match[0]

    return _SLOT.sub(buffer, text.replace("() ->", f"({parameters}) ->", 1))
