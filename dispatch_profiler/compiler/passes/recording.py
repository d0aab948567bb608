"""Entry points that record the commands of a call once, and execute the recording any number of times.

IREE records the commands of a call with temporary memory anew in every call, and passes the buffers of others in a
binding table, which a CUDA graph cannot take. For each entry point `f` whose commands are one command buffer, two are
added:

    f$record(operands and results) -> a command buffer, which refers to these buffers and keeps them alive
    f$replay(a command buffer)        executes it, and waits

Recording and replaying correspond to capturing and launching a CUDA graph.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from iree.compiler import ir

from dispatch_profiler.compiler.ir_module import IrModule

RECORD, REPLAY = "$record", "$replay"

#: Operations that may precede the execution of the commands: constants, checks of arguments, and their buffers.
_PRECEDING = re.compile(
    r"arith\.constant|util\.null|util\.global\.load|hal\.(memory_type|buffer_usage|element_type|encoding_type)<"
    r"|hal\.encoding_type|hal\.buffer_view\.(assert|buffer)<|hal\.buffer\.assert<|hal\.device\.allocator<"
)
#: Requests of an entry point to the device's queue: memory, and the execution of commands.
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
#: Private functions have no signature here.
_SIGNATURE = re.compile(r"util\.func public @[^(]+\((.*?)\) -> ")
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
class Texts:
    """The functions of a module by their names, and its initializers: printed once, since a module has up to hundreds."""

    functions: Mapping[str, str]
    initializers: tuple[str, ...]

    @classmethod
    def of(cls, module: IrModule) -> Texts:
        functions = {name: str(op) for name, op in module.symbols("util.func").items()}
        return cls(functions, tuple(str(op) for op in module.top() if op.name == "util.initializer"))


@dataclass(frozen=True)
class Commands:
    """A function that records commands and returns them, and the buffers that it takes."""

    text: str
    buffers: tuple[str, ...]


@dataclass(frozen=True)
class EntryPoint:
    """An entry point whose commands are one command buffer. All fields except the names are MLIR.

    `preceding` has the lines before the execution: checks, and the buffers that `commands` takes.
    """

    name: str
    parameters: str
    preceding: tuple[str, ...]
    commands: Commands
    device: str

    @property
    def replay(self) -> str:
        """The function that executes a command buffer, and waits."""
        return _REPLAYER.format(name=self.name, replay=REPLAY, device=self.device)


#: A match of a temporary buffer's allocation -> the lines that make another buffer in its place.
TakeBuffer = Callable[[re.Match[str]], str | None]


def add_recordings(module: IrModule) -> None:
    """Add `f$record` and `f$replay` to a module at phase `hal`, for each entry point `f` that permits it."""
    texts, added = Texts.of(module), []
    for name, text in texts.functions.items():
        allocator = re.search(r"(%\S+) = hal\.device\.allocator<", text)
        found = entry_point(texts, name, partial(_kept_buffer, allocator[1] if allocator else ""))
        if found is not None:
            added += [found.commands.text, _recorder(found), found.replay]
    insert(module, added)


def _recorder(of: EntryPoint) -> str:
    return _RECORDER.format(
        name=of.name,
        record=RECORD,
        parameters=of.parameters,
        body="\n".join(of.preceding),
        buffers=", ".join(of.commands.buffers),
        types=", ".join("!hal.buffer" for _ in of.commands.buffers),
    )


def _kept_buffer(allocator: str, temporary: re.Match[str]) -> str | None:
    """A buffer that the command buffer keeps alive."""
    found, affinity, type_, usage, size = temporary.groups()
    return allocator and (
        f"    {found} = hal.allocator.allocate<{allocator} : !hal.allocator> affinity({affinity}) "
        f"type({type_}) usage({usage}) : !hal.buffer{{{size}}}"
    )


def insert(module: IrModule, functions: Sequence[str]) -> None:
    """Add functions, as text, which may refer to the module's globals."""
    if not functions:
        return
    globals_ = (str(op) for op in module.symbols("util.global").values())
    parsed = IrModule.parse("\n".join((*globals_, *functions)), module.operation.context)
    end = ir.InsertionPoint(module.operation.regions[0].blocks[0])
    for op in parsed.symbols("util.func").values():
        op.detach_from_parent()
        end.insert(op)


def entry_point(texts: Texts, name: str, take_buffer: TakeBuffer) -> EntryPoint | None:
    """The entry point `name` of a module at phase `hal`; None if it does more than execute one command buffer.

    `take_buffer` makes the line that yields the buffer in place of a temporary one, or None if that is impossible.
    """
    text = texts.functions[name]
    execute = _EXECUTE.search(text)
    signature = _SIGNATURE.match(text)
    steps = re.findall(r"hal\.device\.queue\.(\w+)", text)
    if execute is None or signature is None or steps.count("execute") != 1 or set(steps) - _STEPS:
        return None
    commands = _commands(name, text, execute, texts)
    preceding = _preceding(text[: execute.start()].rstrip(), execute["commands"], take_buffer)
    device = re.search(rf"{re.escape(execute['device'])} = util\.global\.load (?:immutable )?@(\S+) ", text)
    if commands is None or preceding is None or device is None:
        return None
    return EntryPoint(name, signature[1], tuple(preceding), commands, device[1])


def _preceding(text: str, commands: str, take_buffer: TakeBuffer) -> list[str] | None:
    """The lines before the execution, with other buffers in place of temporary ones; None if others occur."""
    kept = []
    for line in text.splitlines()[1:]:
        temporary = _ALLOCA.search(line)
        if line.lstrip().startswith(f"{commands} = ") or " = hal.fence.create " in line:
            continue
        taken = take_buffer(temporary) if temporary else line if _PRECEDING.search(line) else None
        if not taken:
            return None
        kept.append(taken)
    return kept


def _commands(name: str, text: str, execute: re.Match[str], texts: Texts) -> Commands | None:
    """The function that records the commands of an entry point, without a binding table."""
    commands = re.escape(execute["commands"])
    call = re.search(rf"{commands} = util\.call @(\S+?)\((.*?)\) ", text)
    if call:
        recorder, passed = call[1], tuple(call[2].split(", "))
    else:  # recorded when the module is loaded
        stored = re.search(rf"{commands} = util\.global\.load (?:immutable )?@(\S+) ", text)
        recorder, passed = _initializer(texts, stored[1]) if stored else "", ()
    table = _BINDING.findall(execute["bindings"])
    zeros = set(re.findall(r"(%\S+) = arith\.constant 0 : index", text))
    if not recorder or any(offset not in zeros for _, offset in table):
        return None
    found, without_table = re.subn(
        r"(hal\.command_buffer\.create .*?) bindings\(%\S+\) :", r"\1 :", texts.functions.get(recorder, "")
    )
    found = found.replace(f"@{recorder}(", f'@"{name}$commands"(', 1)
    found = _bound(found, len(table))
    buffers = (*passed, *(buffer for buffer, _ in table))
    return Commands(found, buffers) if without_table == 1 and not _SLOT.search(found) else None


def _initializer(texts: Texts, stored: str) -> str:
    """The function whose result an initializer stores in the global `stored`; empty without such an initializer."""
    for text in texts.initializers:
        call = re.search(
            rf"(%\S+) = util\.call @(\S+?)\(\) .*\n\s+util\.global\.store \1, @{re.escape(stored)} ", text
        )
        if call:
            return call[2]
    return ""


def _bound(text: str, count: int) -> str:
    """`text`, a function, with `count` buffers as further parameters in place of the slots of a binding table."""
    slots = dict(re.findall(r"(%\S+) = arith\.constant (\d+) : index", text))
    further = [f"%slot{each}: !hal.buffer" for each in range(count)]

    def parameters(match: re.Match[str]) -> str:
        return f"({', '.join([*([match[1]] if match[1] else []), *further])}) ->"

    def buffer(match: re.Match[str]) -> str:
        slot = slots.get(match[1], "")
        return f"(%slot{slot} : !hal.buffer)[" if slot and int(slot) < count else match[0]

    return _SLOT.sub(buffer, re.sub(r"\((.*?)\) ->", parameters, text, count=1))


# -- appending -------------------------------------------------------------------------------------

# Entry points that add the commands of a call to a command buffer, so that several calls become one submission.
#
# For each entry point `f` whose commands are one command buffer, also where it is recorded in each call because a shape is
# dynamic, these are added:
#
#     f$scratch() -> the bytes of temporary memory that a call needs
#     f$begin() -> a new command buffer
#     f$append(operands, results, a buffer view of temporary memory, a command buffer)
#     f$finish(a command buffer)        nothing can be added afterwards
#     f$replay(a command buffer)        executes it, and waits; any number of times
#
# Commands run in the order in which they were appended. A submission of its own, with a fence to wait for,
# takes 50 to 80 us on the CPU, because a thread of IREE's wakes up for each fence. In one command buffer, the
# workers find the next dispatch themselves, which takes less than a microsecond.


SCRATCH, BEGIN, APPEND, FINISH = "$scratch", "$begin", "$append", "$finish"
#: Suffixes of all added functions.
APPENDING = (SCRATCH, BEGIN, APPEND, FINISH, REPLAY)

#: Temporary buffers begin at multiples of this.
_ALIGNMENT = 64
_CREATE = re.compile(r"\n\s+(%\S+) = hal\.command_buffer\.create .*")
_FINALIZE = re.compile(r"\n\s+hal\.command_buffer\.finalize<.*")
_RETURN = re.compile(r"\n\s+util\.return .*")

_FUNCTIONS = """util.func public @"{name}{scratch}"() -> i64 {{
    %bytes = arith.constant {bytes} : i64
    util.return %bytes : i64
}}
util.func public @"{name}{begin}"() -> !hal.command_buffer {{
    %any = arith.constant -1 : i64
    %capacity = arith.constant 1 : index
    %device = util.global.load immutable @{device} : !hal.device
    %commands = hal.command_buffer.create device(%device : !hal.device) mode("None") categories("Transfer|Dispatch") affinity(%any) bindings(%capacity) : !hal.command_buffer
    util.return %commands : !hal.command_buffer
}}
util.func public @"{name}{append}"({parameters}, %scratch_view: !hal.buffer_view, %appended_to: !hal.command_buffer) {{
{body}
    util.return
}}
util.func public @"{name}{finish}"(%commands: !hal.command_buffer) {{
    hal.command_buffer.finalize<%commands : !hal.command_buffer>
    util.return
}}"""


def add_appending(module: IrModule) -> None:
    """Add these entry points to a module at phase `hal`, for each entry point that permits it."""
    texts, added = Texts.of(module), []
    for name, text in texts.functions.items():
        scratch = _Scratch(dict(re.findall(r"(%\S+) = arith\.constant (\d+) : index", text)))
        found = entry_point(texts, name, scratch.take)
        if found is not None:
            added += [_appended(found), _functions(found, scratch.bytes), found.replay]
        else:
            added += _recorded_in_calls(name, text)
    insert(module, added)


def _recorded_in_calls(name: str, text: str) -> list[str]:
    """The functions for an entry point that records its commands itself; none if it does more than execute these."""
    signature, created, end = _SIGNATURE.match(text), _CREATE.search(text), _FINALIZE.search(text)
    steps = re.findall(r"hal\.device\.queue\.(\w+(?:\.\w+)?)", text)
    if signature is None or created is None or end is None or steps != ["execute"]:
        return []
    device = re.search(r"device\((%\S+) :", created[0])
    stored = device and re.search(
        rf"{re.escape(device[1])} = util\.global\.load (?:immutable )?@(\S+) ", text
    )
    if not stored:
        return []
    body = text[text.index("\n") + 1 : created.start()] + text[created.end() : end.start()]
    body = re.sub(rf"{re.escape(created[1])}\b", "%appended_to", body)
    return [
        _texts_of(name, signature[1], body, stored[1], scratch=0),
        _REPLAYER.format(name=name, replay=REPLAY, device=stored[1]),
    ]


class _Scratch:
    """Temporary memory that is passed in: the parts of it that have been taken."""

    def __init__(self, constants: dict[str, str]) -> None:
        """`constants` are the constants of type `index`, by their names."""
        self._constants = constants
        self.bytes = 0

    def take(self, temporary: re.Match[str]) -> str | None:
        """A part of the memory as a temporary buffer; None if its size is no constant."""
        name, *_, size = temporary.groups()
        if size not in self._constants:
            return None
        start = self.bytes
        self.bytes += -(-int(self._constants[size]) // _ALIGNMENT) * _ALIGNMENT
        return (
            f"    {name}_start = arith.constant {start} : index\n"
            f"    {name} = hal.buffer.subspan<%scratch : !hal.buffer>[{name}_start, {size}] : !hal.buffer"
        )


def _appended(of: EntryPoint) -> str:
    """The function of the commands, which takes the command buffer last, and leaves it open."""
    text = of.commands.text
    created = _CREATE.search(text)
    assert created is not None  # `entry_point`
    parameter = f"{created[1]}: !hal.command_buffer"
    text = _RETURN.sub("\n    util.return", _FINALIZE.sub("", _CREATE.sub("", text)))
    separator = ", " if of.commands.buffers else ""
    return text.replace(") -> !hal.command_buffer", f"{separator}{parameter})", 1)


def _functions(of: EntryPoint, scratch: int) -> str:
    arguments = ", ".join((*of.commands.buffers, "%appended_to"))
    types = ", ".join((*("!hal.buffer" for _ in of.commands.buffers), "!hal.command_buffer"))
    body = (
        "    %scratch = hal.buffer_view.buffer<%scratch_view : !hal.buffer_view> : !hal.buffer",
        *of.preceding,
        f'    util.call @"{of.name}$commands"({arguments}) : ({types}) -> ()',
    )
    return _texts_of(of.name, of.parameters, "\n".join(body), of.device, scratch)


def _texts_of(name: str, parameters: str, body: str, device: str, scratch: int) -> str:
    """The functions other than the replay. `body` adds the commands to `%appended_to`."""
    return _FUNCTIONS.format(
        name=name,
        scratch=SCRATCH,
        begin=BEGIN,
        append=APPEND,
        finish=FINISH,
        bytes=scratch,
        device=device,
        parameters=parameters,
        body=body,
    )
