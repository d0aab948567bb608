"""Launch programs: the commands of a function that a CUDA device executes, read from the compiler's IR.

At phase `hal` the functions of a module only compute sizes, allocate temporary memory and submit command
buffers. This module executes the functions with symbols for buffers. A value that is not constant, or an
operation that this module does not know, means that the function has no program: it is then called through
IREE's runtime.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from iree.compiler import ir

from dispatch_profiler.compiler.ir_module import IrModule, operations_in, symbol_of
from dispatch_profiler.dispatches.launch_program import (
    Copy,
    Fill,
    KernelCode,
    LaunchProgram,
    Run,
    Span,
    no_program,
)

# -- executables -----------------------------------------------------------------------------------

# Executables of IREE for CUDA: their kernels and modules of code, as the runtime reads them.
#
# An executable is a FlatBuffer (format `cuda-nvptx-fb`, `cuda_executable_def.fbs` in IREE's sources) behind a header of
# 64 bytes. Its root has a list of exports and a list of modules:
#
#     export: 0 module, 1 kernel's name, 2 threads of a workgroup (x, y, z), 3 bytes of shared memory,
#             4 number of 32-bit constants, 5 flags of each binding
#     module: 0 PTX, or machine code
#
# Only little-endian machines have CUDA devices.


#: The header: its magic, which is the FlatBuffer's identifier, too, version and size.
_MAGIC = b"CDA1"
_HEADER = 64
#: Far above the kernels and modules of any executable.
_MOST = 2**16

_ENTRY = re.compile(r"\.entry\s+([\w$.]+)\s*\((.*?)\)", re.DOTALL)
_PARAMETER = re.compile(r"\.param\s+(?:\.align\s+\d+\s+)?\.[a-z](\d+)\b")
#: A variable of a module without an initial value. Tables and strings, which kernels only read, have values.
_VARIABLE = re.compile(r"^\s*(?:\.(?:visible|weak|common|extern)\s+)*\.global\b[^=;]*;", re.MULTILINE)


@dataclass(frozen=True)
class Export:
    """A kernel of an executable: the name of its entry in `module`, and the resources of a launch."""

    module: int
    entry: str
    block: tuple[int, int, int]
    shared_bytes: int
    constants: int
    bindings: int


@dataclass(frozen=True)
class Executable:
    """Kernels, and the modules of code that contain them."""

    exports: tuple[Export, ...]
    modules: tuple[bytes, ...]


def read_executable(data: bytes) -> Executable:
    """Read an executable. Raises ValueError if it is damaged."""
    if data[:4] != _MAGIC or data[_HEADER + 4 : _HEADER + 8] != _MAGIC:
        raise ValueError("not an executable for CUDA")
    reader = _Reader(data[_HEADER:])
    root = reader.table(reader.reference(0))
    exports = tuple(_export(reader, reader.table(each)) for each in reader.references(root.get(0)))
    images = [reader.table(each) for each in reader.references(root.get(1))]
    modules = tuple(reader.bytes_at(each.get(0)) for each in images)
    if any(each.module >= len(modules) for each in exports):
        raise ValueError("an export without a module")
    return Executable(exports, modules)


def parameters(ptx: str) -> dict[str, tuple[int, ...]]:
    """Kernel -> bits of each of its parameters, as its PTX declares them."""
    return {
        entry: tuple(
            int(_PARAMETER.findall(each)[0]) if _PARAMETER.search(each) else 0 for each in _list(names)
        )
        for entry, names in _ENTRY.findall(ptx)
    }


def has_variables(ptx: str) -> bool:
    """Whether kernels of a PTX module keep data from one launch to the next: launches then must not overlap."""
    return bool(_VARIABLE.search(ptx))


def _list(text: str) -> list[str]:
    return [each for each in text.split(",") if each.strip()]


def _export(reader: _Reader, fields: dict[int, int]) -> Export:
    block = fields.get(2)
    if block is None:
        raise ValueError("an export without a workgroup size")
    x, y, z = (reader.number(block + 4 * axis) for axis in range(3))
    return Export(
        module=reader.number(fields.get(0)),
        entry=reader.bytes_at(fields.get(1)).decode(),
        block=(x, y, z),
        shared_bytes=reader.number(fields.get(3)),
        constants=reader.number(fields.get(4)),
        bindings=reader.length(fields.get(5)),
    )


class _Reader:
    """A FlatBuffer. Every access outside of it raises ValueError; positions are counted from its beginning."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def _unpack(self, format_: str, at: int) -> int:
        if not 0 <= at <= len(self._data) - struct.calcsize(format_):
            raise ValueError("a position outside the executable")
        (value,) = struct.unpack_from(format_, self._data, at)
        return int(value)

    def number(self, at: int | None) -> int:
        """The 32-bit number at a position; 0, the default of a field, without a position."""
        return 0 if at is None else self._unpack("<I", at)

    def reference(self, at: int) -> int:
        """The position that the reference at `at` points to."""
        return at + self._unpack("<I", at)

    def table(self, at: int) -> dict[int, int]:
        """Field -> position, for the fields that the table at `at` has."""
        layout = at - self._unpack("<i", at)
        count = (self._unpack("<H", layout) - 4) // 2
        offsets = (self._unpack("<H", layout + 4 + 2 * field) for field in range(count))
        return {field: at + offset for field, offset in enumerate(offsets) if offset}

    def length(self, at: int | None) -> int:
        """The number of elements of the vector that `at` refers to; 0 without a position."""
        return 0 if at is None else self._unpack("<I", self.reference(at))

    def references(self, at: int | None) -> list[int]:
        """The positions that the elements of a vector refer to."""
        count = self.length(at)
        if at is None or count > _MOST:
            raise ValueError("a list that is missing or too long")
        first = self.reference(at) + 4
        return [self.reference(first + 4 * index) for index in range(count)]

    def bytes_at(self, at: int | None) -> bytes:
        """The string that `at` refers to."""
        if at is None:
            raise ValueError("a text that is missing")
        start, size = self.reference(at) + 4, self.length(at)
        if start + size > len(self._data):
            raise ValueError("a text outside the executable")
        return self._data[start : start + size]


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
_WIDTHS = {"i8": 1, "i16": 2, "i32": 4}

#: Errors of the bindings for operations in another form, such as the form of another release of the compiler.
_UNEXPECTED = (AttributeError, IndexError, KeyError, TypeError, ValueError)


class _NotStaticError(Exception):
    """The function does what a launch program cannot express."""


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


def program_text(module: IrModule, function: str) -> Callable[[bytes], str]:
    """A function from the module's vmfb to the program, as text, of `function` in a module at phase `hal`."""
    try:
        reader = _Function(module, function)
        reader.read()
    except (_NotStaticError, *_UNEXPECTED) as error:
        reason = (
            str(error) if isinstance(error, _NotStaticError) else f"the compiler's IR is unknown: {error!r}"
        )
        return lambda vmfb: no_program(reason)
    return reader.text


class _Function:
    """The execution of one function."""

    def __init__(self, module: IrModule, name: str) -> None:
        self._name = name
        self._module = module
        self._functions = module.symbols("util.func")
        self._executables: dict[tuple[str, ...], Executable] = {}
        self._images: list[bytes] = []
        self._kernels: list[KernelCode] = []
        self._arguments: list[int] = []
        self._transients: list[int] = []
        self._commands: list[Run | Fill | Copy] = []
        self._handlers: dict[str, Callable[[Any, _Values], Any]] = {
            "arith.constant": lambda op, _: _constant(op),
            "util.global.load": lambda op, _: _Global(_symbol(op, "global")[0]),
            "hal.buffer_view.buffer": lambda op, values: values.buffer(op.operands[0]),
            "hal.buffer.assert": self._assert,
            "hal.buffer_view.create": self._view,
            "hal.device.queue.alloca": self._allocate,
            "hal.device.queue.execute.indirect": self._execute,
            "hal.executable.lookup.function": lambda op, _: _KernelEntry(_symbol(op, "entry_point")),
            _CALL: lambda op, values: self._call(
                _symbol(op, "callee")[0], [values[each] for each in op.operands]
            ),
            _CREATES: lambda op, _: _Commands(),
            f"{_PREFIX}dispatch": self._dispatch,
            f"{_PREFIX}fill_buffer": self._fill,
            f"{_PREFIX}copy_buffer": self._copy,
        }

    def read(self) -> None:
        """Execute the function. Raises _NotStaticError."""
        count = len(self._block_of(self._name).arguments)
        self._arguments = [0] * count
        returned = self._call(self._name, [_Buffer(number) for number in range(count)])
        written = [_Buffer(number) for number in range(count - len(returned), count)]
        if returned != written:
            raise _NotStaticError("it returns other buffers than its last arguments")

    def text(self, vmfb: bytes) -> str:
        """See `program_text`."""
        images = [(vmfb.find(image), len(image)) for image in self._images]
        if any(offset < 0 for offset, _ in images):
            return no_program("the vmfb does not have the code of the kernels as it is")
        return LaunchProgram(
            tuple(images),
            tuple(self._kernels),
            tuple(self._arguments),
            tuple(self._transients),
            tuple(self._commands),
        ).to_text()

    # -- functions ----------------------------------------------------------------------------

    def _block_of(self, name: str) -> Any:
        if name not in self._functions:
            raise _NotStaticError(f"it calls {name}, which is not in the module")
        region = self._functions[name].regions[0]
        if len(region.blocks) != 1:
            raise _NotStaticError(f"{name} has branches")
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
                raise _NotStaticError(f"it has the operation {op.name}")
            result = handler(op, values)
            if len(op.results) == 1:
                values.known[op.results[0]] = result
        raise _NotStaticError(f"{name} does not return")

    def _assert(self, op: Any, values: _Values) -> None:
        """The least length of the buffer of an argument."""
        number, length = values.buffer(op.operands[0]).number, values.number(op.operands[2])
        if number < len(self._arguments):
            self._arguments[number] = max(self._arguments[number], length)

    def _view(self, op: Any, values: _Values) -> _Buffer:
        if values.number(op.operands[1]) != 0:
            raise _NotStaticError("it returns a part of a buffer")
        return values.buffer(op.operands[0])

    def _allocate(self, op: Any, values: _Values) -> _Buffer:
        self._transients.append(values.number(op.operands[len(op.operands) - 1]))
        return _Buffer(len(self._arguments) + len(self._transients) - 1)

    # -- command buffers ----------------------------------------------------------------------

    def _execute(self, op: Any, values: _Values) -> None:
        operands = list(op.operands)
        commands = values[operands[_EXECUTE_OPERANDS - 1]]
        if isinstance(commands, _Global):
            commands = self._recorded(commands.name)
        if not isinstance(commands, _Commands):
            raise _NotStaticError("it executes unknown commands")
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
        raise _NotStaticError(f"no initializer stores {name}")

    def _dispatch(self, op: Any, values: _Values) -> None:
        operands = list(op.operands)
        segments = list(op.attributes["operandSegmentSizes"])
        entry, constants = values[operands[2]], segments[_DISPATCH_OPERANDS]
        x, y, z = (values.number(each) for each in operands[3:_DISPATCH_OPERANDS])
        if (
            len(segments) != _DISPATCH_OPERANDS + 4
            or segments[:_DISPATCH_OPERANDS] != [1] * _DISPATCH_OPERANDS
        ):
            raise _NotStaticError("a dispatch with unknown operands")
        if not isinstance(entry, _KernelEntry) or _flags(op):
            raise _NotStaticError("a dispatch of an unknown kind")
        first = _DISPATCH_OPERANDS + constants
        numbers = tuple(values.number(each) % 2**32 for each in operands[_DISPATCH_OPERANDS:first])
        places = _places(operands[first:], values)
        kernel = self._kernel(entry, len(places), len(numbers))

        def make(spans: tuple[Span, ...]) -> Run:
            return Run(kernel, (x, y, z), spans, numbers)

        values.commands(operands[0]).recorded.append(_Command(places, make))

    def _fill(self, op: Any, values: _Values) -> None:
        commands, buffer, offset, length, pattern = op.operands
        width = _WIDTHS.get(str(pattern.type))
        if width is None or _flags(op):
            raise _NotStaticError("it fills a buffer in an unknown way")
        value, place = values.number(pattern) % 2 ** (8 * width), values.place(buffer, offset, length)
        command = _Command((place,), lambda spans: Fill(spans[0], value, width))
        values.commands(commands).recorded.append(command)

    def _copy(self, op: Any, values: _Values) -> None:
        commands, source, source_offset, target, target_offset, length = op.operands
        if _flags(op):
            raise _NotStaticError("it copies a buffer in an unknown way")
        places = values.place(source, source_offset, length), values.place(target, target_offset, length)
        command = _Command(places, lambda spans: Copy(spans[0], spans[1]))
        values.commands(commands).recorded.append(command)

    # -- kernels ------------------------------------------------------------------------------

    def _kernel(self, entry: _KernelEntry, bindings: int, constants: int) -> int:
        """The number of a kernel in the program. Raises _NotStaticError unless its parameters match the arguments."""
        executable, name = self._executable(entry.path[:-1]), entry.path[-1]
        found = [each for each in executable.exports if each.entry == name]
        if len(found) != 1:
            raise _NotStaticError(f"the executable has {len(found)} kernels with the name {name}")
        export, code = found[0], executable.modules[found[0].module]
        declared = parameters(_ptx(code)).get(name)
        if declared != (64,) * bindings + (32,) * constants or export.constants != constants:
            raise _NotStaticError(f"the kernel {name} has other parameters than {bindings} buffers")
        if has_variables(_ptx(code)):
            raise _NotStaticError(f"the kernel {name} keeps data from one launch to the next")
        if code not in self._images:
            self._images.append(code)
        kernel = KernelCode(self._images.index(code), name, export.block, export.shared_bytes)
        if kernel not in self._kernels:
            self._kernels.append(kernel)
        return self._kernels.index(kernel)

    def _executable(self, path: tuple[str, ...]) -> Executable:
        if path not in self._executables:
            named = self._module.symbols("hal.executable").get(path[0])
            variants = [each for each in operations_in(named) if symbol_of(each) == path[-1]] if named else []
            if len(variants) != 1 or "data" not in variants[0].attributes:
                raise _NotStaticError(f"the executable {'::'.join(path)} has no code")
            try:
                self._executables[path] = read_executable(bytes(memoryview(variants[0].attributes["data"])))
            except (ValueError, BufferError, TypeError) as error:
                raise _NotStaticError(f"the executable {'::'.join(path)} cannot be read: {error}") from error
        return self._executables[path]


class _Values:
    """The values of a function that are known."""

    def __init__(self, known: dict[Any, Any]) -> None:
        self.known = known

    def __getitem__(self, value: Any) -> Any:
        if value not in self.known:
            raise _NotStaticError(
                f"{value.owner.name if hasattr(value.owner, 'name') else value} is not constant"
            )
        return self.known[value]

    def number(self, value: Any) -> int:
        found = self[value]
        if not isinstance(found, int):
            raise _NotStaticError("a size or a number is not constant")
        return found

    def buffer(self, value: Any) -> _Buffer:
        found = self[value]
        if not isinstance(found, _Buffer):
            raise _NotStaticError("a buffer is neither an argument nor temporary")
        return found

    def commands(self, value: Any) -> _Commands:
        found = self[value]
        if not isinstance(found, _Commands):
            raise _NotStaticError("an unknown command buffer")
        return found

    def place(self, buffer: Any, offset: Any, length: Any) -> _BufferPart:
        found = self[buffer]
        if not isinstance(found, (_Buffer, int)):
            raise _NotStaticError("a buffer is neither an argument nor temporary")
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
        raise _NotStaticError("a list of bindings of an unknown form")
    parts = operands[:count], operands[count : 2 * count], operands[2 * count :]
    return tuple(values.place(*each) for each in zip(*parts, strict=True))


def _span(place: _BufferPart, table: Sequence[_BufferPart]) -> Span:
    """The span of a place, whose slot is looked up in the table."""
    if isinstance(place.buffer, _Buffer):
        return Span(place.buffer.number, place.offset, place.length)
    if not 0 <= place.buffer < len(table) or place.offset + place.length > table[place.buffer].length:
        raise _NotStaticError("a command outside its binding table")
    bound = table[place.buffer]
    if not isinstance(bound.buffer, _Buffer):
        raise _NotStaticError("a binding that is not a buffer")
    return Span(bound.buffer.number, bound.offset + place.offset, place.length)


def _ptx(code: bytes) -> str:
    """Code as text. Raises _NotStaticError for machine code, whose parameters cannot be checked."""
    try:
        return code.rstrip(b"\0").decode("ascii")
    except UnicodeDecodeError as error:
        raise _NotStaticError("a kernel is machine code") from error
