"""Kernels for CPUs as object files, which run without IREE's runtime, and the commands of the functions that use them."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from dispatch_profiler.compiler._base import BuildError, BuildRequest
from dispatch_profiler.compiler.backends.iree import IreeCompiler
from dispatch_profiler.compiler.device_commands import DeviceCommands, NotStaticError, read_commands
from dispatch_profiler.compiler.ir_module import IrModule, operations_in, symbol_of
from dispatch_profiler.dispatches import State

#: The compiler appends it to a library's name: the function that describes the object.
_QUERY = "_library_query"
_IDENTIFIER = re.compile(r"[A-Za-z_]\w*", re.ASCII)


@dataclass(frozen=True)
class StaticLibrary:
    """An object file and what calls it.

    `query` is the only symbol that the object defines for others: IREE's function that describes its kernels.
    `kernels` has their names. `functions` has the commands of each function of the request, whose `Run.kernel` are
    indices of `kernels`.
    """

    data: bytes
    query: str
    kernels: tuple[str, ...]
    functions: Mapping[str, DeviceCommands]


def build_static(compiler: IreeCompiler, request: BuildRequest, name: str) -> StaticLibrary:
    """Compile the dispatch of a `launch_request` for a CPU into an object file.

    `name` becomes the module's name, and tells apart the query functions of objects that are linked together.

    Raises BuildError if the compiler rejects the dispatch, if its configuration is not applied, or if its functions do
    more than run kernels, fill and copy memory of constant sizes.
    """
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "kernels.o")
        flags = (*compiler.resolve(request.flags), *_static_flags(file))
        outcome, module = compiler.lowered(replace(request, flags=flags), name)
        if module is None or outcome.state is not State.COMPILED:
            raise BuildError(f"{outcome.state.value}: {outcome.reason}")
        if not file.exists():
            raise BuildError("it has no code")
        data = file.read_bytes()
    kernels = _NamedKernels(module)
    names = (*request.helpers, request.dispatches[0].name)
    try:
        functions = {each: read_commands(module, each, kernels.number) for each in names}
    except NotStaticError as error:
        raise BuildError(f"its commands are not constant: {error}") from error
    return StaticLibrary(data, f"{_library_name(module)}{_QUERY}", tuple(kernels.names), functions)


class _NamedKernels:
    """The kernels that functions run, in the order of their first use."""

    def __init__(self, module: IrModule) -> None:
        self._executables = module.symbols("hal.executable")
        self.names: list[str] = []

    def number(self, path: tuple[str, ...], bindings: int, constants: int) -> int:
        """See `KernelNumber`."""
        if path[0] not in self._executables:
            raise NotStaticError(f"it runs {'::'.join(path)}, which is not in the module")
        if path[-1] not in self.names:
            self.names.append(path[-1])
        return self.names.index(path[-1])


def _library_name(module: IrModule) -> str:
    """The name of the only library. Raises BuildError if there are several: the last object replaces the others."""
    binaries = [
        each
        for executable in module.symbols("hal.executable").values()
        for each in operations_in(executable)
        if each.name == "hal.executable.binary"
    ]
    if [symbol_of(each) for each in binaries] != ["static"]:
        raise BuildError(f"the compiler wrote {len(binaries)} libraries instead of one")
    # Instead of code, the module has the name, which ends in a NUL.
    name = bytes(memoryview(binaries[0].attributes["data"])).rstrip(b"\0").decode(errors="replace")
    if not _IDENTIFIER.fullmatch(name):
        raise BuildError(f"{name!r} cannot be a part of a name in C")
    return name


def _static_flags(file: Path) -> tuple[str, ...]:
    return (
        "--iree-llvmcpu-link-embedded=false",
        "--iree-llvmcpu-link-static",
        f"--iree-llvmcpu-static-library-output-path={file}",
    )
