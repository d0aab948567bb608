"""The commands of one function of a module at phase `hal`, as data.

At phase `hal` the functions of a module only compute sizes, allocate temporary memory and submit command
buffers. This module executes the functions with symbols for buffers. A value that is not constant, or an
operation that this module does not know, raises NotStaticError.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from iree.compiler import ir

from dispatch_profiler.compiler.ir_module import IrModule
from dispatch_profiler.dispatches.launch_program import Command, Copy, Fill, Run, Span

#: Operations without effect on the commands of a device that executes them one after another.
_IGNORED = frozenset(
    (
        "util.null", "util.status.check_ok", "hal.fence.create", "hal.fence.await", "hal.memory_type",
        "hal.buffer_usage", "hal.element_type", "hal.encoding_type", "hal.buffer_view.assert", "hal.device.allocator",
        "hal.device.queue.dealloca", "hal.command_buffer.execution_barrier", "hal.command_buffer.finalize",
    )
)  # fmt: skip
_CREATES = "hal.command_buffer.create"
_STORE, _CALL = "util.global.store", "util.call"
_PREFIX = "hal.command_buffer."
#: Operands of `hal.command_buffer.dispatch` before its constants, and of `queue.execute.indirect` before its bindings.
_DISPATCH_OPERANDS = 6
_EXECUTE_OPERANDS = 5
#: Operands of `hal.device.queue.copy` before its source: device, affinity and two fences.
_QUEUE_OPERANDS = 4
_WIDTHS = {"i8": 1, "i16": 2, "i32": 4}

#: Errors of the bindings for operations in another form, such as the form of another release of the compiler.
_UNEXPECTED = (AttributeError, IndexError, KeyError, TypeError, ValueError)


class NotStaticError(Exception):
    """The function does what commands of constant sizes cannot express; the message is the reason."""


@dataclass(frozen=True)
class _Buffer:
    number: int


@dataclass(frozen=True)
class _Global:
    name: str


@dataclass(frozen=True)
class _KernelEntry:
    """A kernel: executable, variant, entry."""

    path: tuple[str, ...]


@dataclass(frozen=True)
class _BufferPart:
    """A part of a buffer, or of a slot of the binding table of a command buffer."""

    buffer: _Buffer | int
    offset: int
    length: int


@dataclass(frozen=True)
class _Command:
    """A command whose kernel is known, and whose places may be slots. `make` takes their spans."""

    places: tuple[_BufferPart, ...]
    make: Callable[[tuple[Span, ...]], Run | Fill | Copy]


@dataclass
class _Commands:
    recorded: list[_Command] = field(default_factory=list)


@dataclass(frozen=True)
class DeviceCommands:
    """What a device does in one call of a function.

    `arguments` has the least number of bytes of each operand, then of each result. `transients` has the bytes of each
    temporary buffer. In spans, arguments are the first buffers, and temporary buffers follow.
    """

    arguments: tuple[int, ...]
    transients: tuple[int, ...]
    commands: tuple[Command, ...]


#: (names of executable, variant and kernel; number of bindings; number of constants) -> the kernel's number in `Run`.
KernelNumber = Callable[[tuple[str, ...], int, int], int]


def read_commands(module: IrModule, function: str, kernel: KernelNumber) -> DeviceCommands:
    """The commands of `function`, whose last arguments are its results. Raises NotStaticError.

    `kernel` numbers the kernels, and may raise NotStaticError.
    """
    try:
        return _Function(module, function, kernel).read()
    except _UNEXPECTED as error:
        raise NotStaticError(f"the compiler's IR is unknown: {error!r}") from error


class _Function:
    """The execution of one function."""

    def __init__(self, module: IrModule, name: str, kernel: KernelNumber) -> None:
        self._name = name
        self._module = module
        self._kernel = kernel
        self._functions = module.symbols("util.func")
        self._arguments: list[int] = []
        self._transients: list[int] = []
        self._commands: list[Command] = []
        self._handlers: dict[str, Callable[[Any, _Values], Any]] = {
            "arith.constant": lambda op, _: _constant(op),
            "util.global.load": lambda op, _: _Global(_symbol(op, "global")[0]),
            "hal.buffer_view.buffer": lambda op, values: values.buffer(op.operands[0]),
            "hal.buffer.assert": self._assert,
            "hal.buffer_view.create": self._view,
            "hal.device.queue.alloca": self._allocate,
            "hal.device.queue.execute.indirect": self._execute,
            "hal.device.queue.copy": self._queue_copy,
            "hal.executable.lookup.function": lambda op, _: _KernelEntry(_symbol(op, "entry_point")),
            _CALL: lambda op, values: self._call(
                _symbol(op, "callee")[0], [values[each] for each in op.operands]
            ),
            _CREATES: lambda op, _: _Commands(),
            f"{_PREFIX}dispatch": self._dispatch,
            f"{_PREFIX}fill_buffer": self._fill,
            f"{_PREFIX}copy_buffer": self._copy,
        }

    def read(self) -> DeviceCommands:
        """Execute the function. Raises NotStaticError."""
        count = len(self._block_of(self._name).arguments)
        self._arguments = [0] * count
        returned = self._call(self._name, [_Buffer(number) for number in range(count)])
        written = [_Buffer(number) for number in range(count - len(returned), count)]
        if returned != written:
            raise NotStaticError("it returns other buffers than its last arguments")
        return DeviceCommands(tuple(self._arguments), tuple(self._transients), tuple(self._commands))

    # -- functions ----------------------------------------------------------------------------

    def _block_of(self, name: str) -> Any:
        if name not in self._functions:
            raise NotStaticError(f"it calls {name}, which is not in the module")
        region = self._functions[name].regions[0]
        if len(region.blocks) != 1:
            raise NotStaticError(f"{name} has branches")
        return region.blocks[0]

    def _call(self, name: str, arguments: Sequence[Any]) -> Any:
        """The result of a function: a value, or the list of the views that an entry point returns."""
        block = self._block_of(name)
        values = _Values(dict(zip(block.arguments, arguments, strict=True)))
        for op in _operations(block):
            if op.name == "util.return":
                returned = [values[each] for each in op.operands]
                return returned if name == self._name else returned[0]
            if op.name in _IGNORED:
                continue
            handler = self._handlers.get(op.name)
            if handler is None:
                raise NotStaticError(f"it has the operation {op.name}")
            result = handler(op, values)
            if len(op.results) == 1:
                values.known[op.results[0]] = result
        raise NotStaticError(f"{name} does not return")

    def _assert(self, op: Any, values: _Values) -> None:
        """The least length of the buffer of an argument."""
        number, length = values.buffer(op.operands[0]).number, values.number(op.operands[2])
        if number < len(self._arguments):
            self._arguments[number] = max(self._arguments[number], length)

    def _view(self, op: Any, values: _Values) -> _Buffer:
        if values.number(op.operands[1]) != 0:
            raise NotStaticError("it returns a part of a buffer")
        return values.buffer(op.operands[0])

    def _allocate(self, op: Any, values: _Values) -> _Buffer:
        self._transients.append(values.number(op.operands[len(op.operands) - 1]))
        return _Buffer(len(self._arguments) + len(self._transients) - 1)

    def _queue_copy(self, op: Any, values: _Values) -> None:
        """A copy that is all that the function submits, as the packing of a weight that is in order already."""
        source, source_offset, target, target_offset, length = list(op.operands)[_QUEUE_OPERANDS:]
        if _flags(op):
            raise NotStaticError("it copies a buffer in an unknown way")
        places = values.place(source, source_offset, length), values.place(target, target_offset, length)
        self._commands.append(Copy(*(_span(each, ()) for each in places)))

    # -- command buffers ----------------------------------------------------------------------

    def _execute(self, op: Any, values: _Values) -> None:
        operands = list(op.operands)
        commands = values[operands[_EXECUTE_OPERANDS - 1]]
        if isinstance(commands, _Global):
            commands = self._recorded(commands.name)
        if not isinstance(commands, _Commands):
            raise NotStaticError("it executes unknown commands")
        table = _places(operands[_EXECUTE_OPERANDS:], values)
        for command in commands.recorded:
            spans = tuple(_span(place, table) for place in command.places)
            self._commands.append(command.make(spans))

    def _recorded(self, name: str) -> Any:
        """The commands that an initializer of the module stores in a global."""
        for op in self._module.top():
            blocks: list[Any] = list(op.regions[0].blocks) if op.name == "util.initializer" else []
            if len(blocks) != 1:
                continue
            for inner in _operations(blocks[0]):
                stores = inner.name == _STORE and _symbol(inner, "global")[0] == name
                made_by = inner.operands[0].owner if stores else None
                if made_by is not None and made_by.name == _CALL and not len(made_by.operands):
                    return self._call(_symbol(made_by, "callee")[0], [])
        raise NotStaticError(f"no initializer stores {name}")

    def _dispatch(self, op: Any, values: _Values) -> None:
        operands = list(op.operands)
        segments = list(op.attributes["operandSegmentSizes"])
        entry, constants = values[operands[2]], segments[_DISPATCH_OPERANDS]
        x, y, z = (values.number(each) for each in operands[3:_DISPATCH_OPERANDS])
        if (
            len(segments) != _DISPATCH_OPERANDS + 4
            or segments[:_DISPATCH_OPERANDS] != [1] * _DISPATCH_OPERANDS
        ):
            raise NotStaticError("a dispatch with unknown operands")
        if not isinstance(entry, _KernelEntry) or _flags(op):
            raise NotStaticError("a dispatch of an unknown kind")
        first = _DISPATCH_OPERANDS + constants
        numbers = tuple(values.number(each) % 2**32 for each in operands[_DISPATCH_OPERANDS:first])
        places = _places(operands[first:], values)
        kernel = self._kernel(entry.path, len(places), len(numbers))

        def make(spans: tuple[Span, ...]) -> Run:
            return Run(kernel, (x, y, z), spans, numbers)

        values.commands(operands[0]).recorded.append(_Command(places, make))

    def _fill(self, op: Any, values: _Values) -> None:
        commands, buffer, offset, length, pattern = op.operands
        width = _WIDTHS.get(str(pattern.type))
        if width is None or _flags(op):
            raise NotStaticError("it fills a buffer in an unknown way")
        value, place = values.number(pattern) % 2 ** (8 * width), values.place(buffer, offset, length)
        command = _Command((place,), lambda spans: Fill(spans[0], value, width))
        values.commands(commands).recorded.append(command)

    def _copy(self, op: Any, values: _Values) -> None:
        commands, source, source_offset, target, target_offset, length = op.operands
        if _flags(op):
            raise NotStaticError("it copies a buffer in an unknown way")
        places = values.place(source, source_offset, length), values.place(target, target_offset, length)
        command = _Command(places, lambda spans: Copy(spans[0], spans[1]))
        values.commands(commands).recorded.append(command)


class _Values:
    """The values of a function that are known."""

    def __init__(self, known: dict[Any, Any]) -> None:
        self.known = known

    def __getitem__(self, value: Any) -> Any:
        if value not in self.known:
            raise NotStaticError(
                f"{value.owner.name if hasattr(value.owner, 'name') else value} is not constant"
            )
        return self.known[value]

    def number(self, value: Any) -> int:
        found = self[value]
        if not isinstance(found, int):
            raise NotStaticError("a size or a number is not constant")
        return found

    def buffer(self, value: Any) -> _Buffer:
        found = self[value]
        if not isinstance(found, _Buffer):
            raise NotStaticError("a buffer is neither an argument nor temporary")
        return found

    def commands(self, value: Any) -> _Commands:
        found = self[value]
        if not isinstance(found, _Commands):
            raise NotStaticError("an unknown command buffer")
        return found

    def place(self, buffer: Any, offset: Any, length: Any) -> _BufferPart:
        found = self[buffer]
        if not isinstance(found, (_Buffer, int)):
            raise NotStaticError("a buffer is neither an argument nor temporary")
        return _BufferPart(found, self.number(offset), self.number(length))


def _operations(block: Any) -> Iterator[Any]:
    return (op.operation for op in block.operations)


def _constant(op: Any) -> int | None:
    """An integer; None for other constants."""
    attribute = op.attributes["value"]
    return int(attribute.value) if isinstance(attribute, (ir.IntegerAttr, ir.BoolAttr)) else None


def _symbol(op: Any, name: str) -> tuple[str, ...]:
    """The names of the symbol that an attribute refers to, from the outermost on."""
    attribute = op.attributes[name]
    value = attribute.value
    return (value,) if isinstance(value, str) else tuple(map(str, value))


def _flags(op: Any) -> int:
    return int(op.attributes["flags"].value) if "flags" in op.attributes else 0


def _places(operands: Sequence[Any], values: _Values) -> tuple[_BufferPart, ...]:
    """Buffers, then their offsets, then their lengths."""
    count = len(operands) // 3
    if len(operands) % 3:
        raise NotStaticError("a list of bindings of an unknown form")
    parts = operands[:count], operands[count : 2 * count], operands[2 * count :]
    return tuple(values.place(*each) for each in zip(*parts, strict=True))


def _span(place: _BufferPart, table: Sequence[_BufferPart]) -> Span:
    """The span of a place, whose slot is looked up in the table."""
    if isinstance(place.buffer, _Buffer):
        return Span(place.buffer.number, place.offset, place.length)
    if not 0 <= place.buffer < len(table) or place.offset + place.length > table[place.buffer].length:
        raise NotStaticError("a command outside its binding table")
    bound = table[place.buffer]
    if not isinstance(bound.buffer, _Buffer):
        raise NotStaticError("a binding that is not a buffer")
    return Span(bound.buffer.number, bound.offset + place.offset, place.length)
