"""Launch programs: the commands of a function that a CUDA device executes, read from the compiler's IR.

A function whose commands are not constant has no program: it is then called through IREE's runtime.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from dataclasses import dataclass

from dispatch_profiler.compiler.device_commands import DeviceCommands, NotStaticError, read_commands
from dispatch_profiler.compiler.ir_module import IrModule, operations_in, symbol_of
from dispatch_profiler.dispatches.launch_program import KernelCode, LaunchProgram, no_program

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


def program_text(module: IrModule, function: str) -> Callable[[bytes], str]:
    """A function from the module's vmfb to the program, as text, of `function` in a module at phase `hal`."""
    kernels = _LaunchedKernels(module)
    try:
        commands = read_commands(module, function, kernels.number)
    except NotStaticError as error:
        reason = str(error)
        return lambda vmfb: no_program(reason)
    return lambda vmfb: _text(commands, kernels, vmfb)


def _text(commands: DeviceCommands, kernels: _LaunchedKernels, vmfb: bytes) -> str:
    images = [(vmfb.find(image), len(image)) for image in kernels.images]
    if any(offset < 0 for offset, _ in images):
        return no_program("the vmfb does not have the code of the kernels as it is")
    return LaunchProgram(
        tuple(images),
        tuple(kernels.kernels),
        commands.arguments,
        commands.transients,
        commands.commands,
    ).to_text()


class _LaunchedKernels:
    """The kernels that a function launches."""

    def __init__(self, module: IrModule) -> None:
        self._module = module
        self._executables: dict[tuple[str, ...], Executable] = {}
        self.images: list[bytes] = []
        self.kernels: list[KernelCode] = []

    def number(self, path: tuple[str, ...], bindings: int, constants: int) -> int:
        """The number of a kernel in the program. Raises NotStaticError unless its parameters match the arguments."""
        executable, name = self._executable(path[:-1]), path[-1]
        found = [each for each in executable.exports if each.entry == name]
        if len(found) != 1:
            raise NotStaticError(f"the executable has {len(found)} kernels with the name {name}")
        export, code = found[0], executable.modules[found[0].module]
        declared = parameters(_ptx(code)).get(name)
        if declared != (64,) * bindings + (32,) * constants or export.constants != constants:
            raise NotStaticError(f"the kernel {name} has other parameters than {bindings} buffers")
        if has_variables(_ptx(code)):
            raise NotStaticError(f"the kernel {name} keeps data from one launch to the next")
        if code not in self.images:
            self.images.append(code)
        kernel = KernelCode(self.images.index(code), name, export.block, export.shared_bytes)
        if kernel not in self.kernels:
            self.kernels.append(kernel)
        return self.kernels.index(kernel)

    def _executable(self, path: tuple[str, ...]) -> Executable:
        if path not in self._executables:
            named = self._module.symbols("hal.executable").get(path[0])
            variants = [each for each in operations_in(named) if symbol_of(each) == path[-1]] if named else []
            if len(variants) != 1 or "data" not in variants[0].attributes:
                raise NotStaticError(f"the executable {'::'.join(path)} has no code")
            try:
                self._executables[path] = read_executable(bytes(memoryview(variants[0].attributes["data"])))
            except (ValueError, BufferError, TypeError) as error:
                raise NotStaticError(f"the executable {'::'.join(path)} cannot be read: {error}") from error
        return self._executables[path]


def _ptx(code: bytes) -> str:
    """Code as text. Raises NotStaticError for machine code, whose parameters cannot be checked."""
    try:
        return code.rstrip(b"\0").decode("ascii")
    except UnicodeDecodeError as error:
        raise NotStaticError("a kernel is machine code") from error
