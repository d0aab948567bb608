"""Entry points that add the commands of a call to a command buffer, so that several calls become one submission.

For each entry point `f` whose commands are one command buffer, these are added:

    f$scratch() -> the bytes of temporary memory that a call needs
    f$begin() -> a new command buffer
    f$append(operands, results, a buffer view of temporary memory, a command buffer)
    f$finish(a command buffer)        nothing can be added afterwards
    f$replay(a command buffer)        executes it, and waits; any number of times

Commands run in the order in which they were appended. A submission of its own, with a fence to wait for,
takes 50 to 80 us on the CPU, because a thread of IREE's wakes up for each fence. In one command buffer, the
workers find the next dispatch themselves, which takes less than a microsecond.
"""

from __future__ import annotations

import re

from dispatch_profiler.compiler.ir_module import IrModule
from dispatch_profiler.compiler.passes.recording import (
    REPLAY,
    EntryPoint,
    Texts,
    entry_point,
    insert,
)

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
    %scratch = hal.buffer_view.buffer<%scratch_view : !hal.buffer_view> : !hal.buffer
{body}
    util.call @"{name}$commands"({arguments}) : ({types}) -> ()
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
    insert(module, added)


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
    return _FUNCTIONS.format(
        name=of.name,
        scratch=SCRATCH,
        begin=BEGIN,
        append=APPEND,
        finish=FINISH,
        bytes=scratch,
        device=of.device,
        parameters=of.parameters,
        body="\n".join(of.preceding),
        arguments=", ".join((*of.commands.buffers, "%appended_to")),
        types=", ".join((*("!hal.buffer" for _ in of.commands.buffers), "!hal.command_buffer")),
    )
