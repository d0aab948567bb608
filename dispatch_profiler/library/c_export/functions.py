"""Compiled kernels -> functions of C: parameters, workspaces and the steps of a call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dispatch_profiler.compiler import launch_request
from dispatch_profiler.compiler.backends.iree import IreeCompiler
from dispatch_profiler.compiler.backends.static_library import StaticLibrary, build_static
from dispatch_profiler.compiler.device_commands import DeviceCommands
from dispatch_profiler.configurations import packed_by
from dispatch_profiler.dispatches.launch_program import Command, Copy, Fill, Run, Span
from dispatch_profiler.library.c_export.kernels import ExportedKernel
from dispatch_profiler.operations import Operation, Tensor

#: Alignment in bytes of all pointers: IREE's code loads whole vectors from the beginning of a buffer.
ALIGNMENT = 64
#: Element type -> type in C. Types that C lacks are their bits.
_C_TYPES = {
    "f64": "double", "f32": "float", "f16": "uint16_t", "bf16": "uint16_t", "i1": "uint8_t", "i8": "int8_t",
    "i16": "int16_t", "i32": "int32_t", "i64": "int64_t",
}  # fmt: skip
_BITS = "uint8_t"
#: The weight's position among the operands.
_WEIGHT = 1


@dataclass(frozen=True)
class Parameter:
    """A pointer that a function takes: its declaration, its bytes, and what it points to, in words."""

    name: str
    type: str
    bytes: int
    text: str
    is_written: bool = False

    @property
    def declaration(self) -> str:
        """`const float *lhs`"""
        return f"{'' if self.is_written else 'const '}{self.type} *{self.name}"


@dataclass(frozen=True)
class CallStep:
    """One step of a call: `kind` is `run`, `fill` or `copy`; `places` are C expressions of pointers, with their bytes.

    `kernel` is the name of a kernel in its object, `grid` its workgroups, and `constants` its 32-bit arguments. `fill`
    repeats `pattern`, of `width` bytes.
    """

    kind: str
    places: tuple[tuple[str, int], ...]
    kernel: str = ""
    grid: tuple[int, int, int] = (1, 1, 1)
    constants: tuple[int, ...] = ()
    pattern: int = 0
    width: int = 1


@dataclass(frozen=True)
class CFunction:
    """A function of the header, its workspace in bytes (0: it has none), and the query function of its object."""

    name: str
    parameters: tuple[Parameter, ...]
    workspace: int
    steps: tuple[CallStep, ...]
    query: str

    @property
    def pointers(self) -> tuple[str, ...]:
        """The names of all pointers to memory that it takes."""
        return (*(each.name for each in self.parameters), *(("workspace",) if self.workspace else ()))

    @property
    def prototype(self) -> str:
        """Its declaration in C, without the semicolon."""
        declarations = [each.declaration for each in self.parameters]
        declarations += ["void *workspace"] if self.workspace else []
        return (
            f"int {self.name}({', '.join([*declarations, 'dp_parallel_for parallel_for', 'void *context'])})"
        )


@dataclass(frozen=True)
class CKernel:
    """A kernel in C: `compute` and, for a kernel with a packed weight, `pack`, which writes `packed_bytes` bytes."""

    name: str
    operation: Operation
    configuration: str
    data: bytes
    query: str
    compute: CFunction
    pack: CFunction | None
    packed_bytes: int = 0

    @property
    def functions(self) -> tuple[CFunction, ...]:
        return (self.compute,) if self.pack is None else (self.pack, self.compute)

    @property
    def object_file(self) -> str:
        return f"{self.name}.o"


@dataclass(frozen=True)
class _Address:
    """A pointer of C: a parameter, and an offset in bytes."""

    base: str
    offset: int = 0

    def at(self, offset: int) -> str:
        return f"at({self.base}, {self.offset + offset})"


def compiled(kernel: ExportedKernel) -> CKernel:
    """Compile a kernel for C. Raises CompilerError."""
    compiler, dispatch, operation = kernel.compiler, kernel.dispatch, kernel.dispatch.operation
    assert isinstance(compiler, IreeCompiler)  # its target is a CPU
    library = build_static(
        compiler, launch_request(dispatch, kernel.target, kernel.flags), f"dp_{kernel.name}"
    )
    packing = dispatch.configuration.packing(operation)
    operands = [_parameter(operation, each) for each in operation.operands]
    results = [_parameter(operation, each, is_written=True) for each in operation.results]
    passed = [_Address(each.name) for each in (*operands, *results)]
    pack = None
    packed = _parts([each.bytes for each in packed_by(packing)])
    packed_bytes = packed.bytes
    if packing:
        base = kernel.operation_name
        text = f"{packed_bytes} bytes, as {base}_pack writes them"
        written = Parameter("packed", "void", packed_bytes, f"{packed_bytes} bytes", is_written=True)
        pack = _function(
            f"{base}_pack",
            (operands[_WEIGHT], written),
            (passed[_WEIGHT], *packed.places("packed")),
            library.functions[dispatch.packing_function],
            library,
        )
        operands[_WEIGHT] = Parameter("packed", "void", packed_bytes, text)
        passed[_WEIGHT : _WEIGHT + 1] = packed.places("packed")
    compute = _function(
        kernel.name, (*operands, *results), tuple(passed), library.functions[dispatch.name], library
    )
    return CKernel(
        kernel.name, operation, dispatch.configuration.name, library.data, library.query, compute, pack, packed_bytes
    )  # fmt: skip


@dataclass(frozen=True)
class _Parts:
    """Buffers that share a block of memory, each aligned: their offsets, and the bytes of the block."""

    offsets: tuple[int, ...]
    bytes: int

    def places(self, base: str) -> tuple[_Address, ...]:
        return tuple(_Address(base, offset) for offset in self.offsets)


def _parts(sizes: Sequence[int]) -> _Parts:
    offsets = [0]
    for size in sizes:
        offsets.append(offsets[-1] + -(-size // ALIGNMENT) * ALIGNMENT)
    return _Parts(tuple(offsets[:-1]), offsets[-1])


def _function(
    name: str,
    parameters: tuple[Parameter, ...],
    arguments: tuple[_Address, ...],
    commands: DeviceCommands,
    library: StaticLibrary,
) -> CFunction:
    """A function of C that executes `commands`, whose buffers are `arguments`, then the parts of its workspace."""
    workspace = _parts(commands.transients)
    buffers = (*arguments, *workspace.places("workspace"))
    steps = tuple(_step(each, buffers, library) for each in commands.commands)
    return CFunction(name, parameters, workspace.bytes, steps, library.query)


def _step(command: Command, buffers: Sequence[_Address], library: StaticLibrary) -> CallStep:
    def places(*spans: Span) -> tuple[tuple[str, int], ...]:
        return tuple((buffers[each.buffer].at(each.offset), each.length) for each in spans)

    if isinstance(command, Run):
        kernel = library.kernels[command.kernel]
        return CallStep("run", places(*command.bindings), kernel, command.grid, command.constants)
    if isinstance(command, Fill):
        return CallStep("fill", places(command.target), pattern=command.pattern, width=command.width)
    assert isinstance(command, Copy)
    return CallStep("copy", places(command.target, command.source))


def _parameter(operation: Operation, tensor: Tensor, *, is_written: bool = False) -> Parameter:
    shape = "".join(f"[{extent}]" for extent in tensor.shape)
    axes = _axes(operation, tensor)
    text = f"{tensor.type.name} {shape or 'scalar'}{f', {axes}' if axes else ''}"
    return Parameter(tensor.name, _C_TYPES.get(tensor.type.name, _BITS), tensor.bytes, text, is_written)


def _axes(operation: Operation, tensor: Tensor) -> str:
    """The axes of a tensor of a product or a convolution in words; empty for other tensors."""
    position = {each.name: at for at, each in enumerate((*operation.operands[:2], *operation.results))}.get(
        tensor.name
    )
    product, convolution = operation.product, operation.convolution
    if position is None or (product is None and convolution is None):
        return ""
    if product is not None:
        layouts = ("m x k", "k x n", "m x n"), ("k x m", "n x k", "m x n")
        is_stored_transposed = (product.lhs_layout == "n", product.rhs_layout == "n", False)[position]
        return f"{'batch x ' if product.is_batched else ''}{layouts[is_stored_transposed][position]}"
    assert convolution is not None
    layouts_of = {
        "forward": (convolution.input_layout, convolution.filter_layout, convolution.output_layout),
        "input_backward": (convolution.output_layout, convolution.filter_layout, convolution.input_layout),
        "weight_backward": (convolution.input_layout, convolution.output_layout, convolution.filter_layout),
    }.get(convolution.mode)
    return layouts_of[position] if layouts_of else ""
