"""This package's Triton sources -> PTX, ahead of time: this needs Triton, but no GPU and no driver."""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import importlib.util
import io
import os
import re
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from dispatch_profiler.compiler._base import BuildError, KernelBinary
from dispatch_profiler.configurations import KernelSource
from dispatch_profiler.errors import MissingDependency

#: The PTX version to write: the oldest with everything that the kernels use (descriptor copies came
#: with 8.6), so that drivers since 560 (CUDA 12.6) accept it.
_PTX_VERSION = 86
#: The parameter of a kernel that is a tuple of pointers.
_TUPLE = "operands"
#: The files of the kernels, which only this module imports.
SOURCES = tuple(sorted((Path(__file__).parents[2] / "templates").glob("triton_*.py")))


def triton_version() -> str:
    """`3.9.0`; empty if Triton is not installed. Nothing is imported."""
    try:
        return importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:
        return ""


@cache
def kernel_sources() -> SimpleNamespace:
    """Every kernel, by its name. Raises MissingDependency without Triton."""
    if importlib.util.find_spec("triton") is None:
        raise MissingDependency("Triton kernels need triton", hint="python -m pip install 'triton>=3.9'")
    # Triton 3.9 warns about its default, which fuses multiplications with additions, as intended here.
    os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")
    modules = [importlib.import_module(f"dispatch_profiler.templates.{path.stem}") for path in SOURCES]
    return SimpleNamespace(**{name: each for module in modules for name, each in vars(module).items()})


def compile_kernel(source: KernelSource, capability: int) -> KernelBinary:
    """PTX for a GPU of compute capability `capability` (90 for sm_90).

    Raises MissingDependency without Triton, BuildError with Triton's message if it rejects the kernel.
    """
    kernels = kernel_sources()
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    function = getattr(kernels, source.kernel)
    types, constants = dict(source.types), dict(source.constants)
    constants["ACCUMULATOR"] = getattr(triton.language, _LANGUAGE[str(constants["ACCUMULATOR"])])
    pointers = {name: f"*{type_}" for name, type_ in types.items()}
    tuples = {_TUPLE: tuple(pointers[name] for name in source.operands)}
    signature = {name: (tuples | pointers).get(name, "constexpr") for name in function.arg_names}
    attributes = {place: [["tt.divisibility", 16]] for place in _places(signature)}
    options = {
        "num_warps": source.warps,
        "num_stages": source.stages,
        "ptx_version": _PTX_VERSION,
    }
    output = io.StringIO()
    with _quiet(triton, output):
        try:
            made = triton.compile(
                ASTSource(function, signature=signature, constexprs=constants, attrs=attributes),
                target=GPUTarget("cuda", capability, 32),
                options=options,
            )
        except Exception as error:
            # The errors of Triton, LLVM and ptxas have no common base class.
            raise BuildError(_reason(error), diagnostics=f"{error}\n{output.getvalue()}") from error
    return _kernel(made, source, capability)


def _places(signature: Mapping[str, str | tuple[str, ...]]) -> Iterator[tuple[int, ...]]:
    """The positions of the pointers among Triton's arguments. All are aligned to 64 bytes, like IREE's tensors."""
    for i, kind in enumerate(signature.values()):
        if isinstance(kind, tuple):
            yield from ((i, j) for j in range(len(kind)))
        elif kind != "constexpr":
            yield (i,)


_LANGUAGE = {"fp32": "float32", "i32": "int32"}


def _kernel(made: Any, source: KernelSource, capability: int) -> KernelBinary:
    metadata = made.metadata
    text = made.asm["ptx"]
    if source.counters:
        text = with_counters(text, source.kernel, _parameter(source, COUNTERS), source.counters)
    ptx = text.encode()
    if source.l1:
        # Triton has no option for it: its copies of 16 bytes bypass the L1 cache.
        ptx = ptx.replace(b"cp.async.cg.", b"cp.async.ca.")
    major, minor = divmod(_PTX_VERSION, 10)
    mma_count = len(re.findall(rb"wgmma\.mma_async|mma\.sync|tcgen05\.mma", ptx))
    origin = (
        f"Triton {triton_version()}, {source.kernel} for sm_{capability}: {metadata.shared} B of shared memory, "
        f"PTX {major}.{minor}, {mma_count} tensor-core instructions"
    )
    return KernelBinary(
        source.kernel, ptx, int(metadata.shared), origin, int(metadata.global_scratch_size) * source.programs
    )


def _parameter(source: KernelSource, name: str) -> int:
    """The position of the pointer `name` among the pointers that are passed."""
    return [each for each, _ in source.types].index(name)


@contextlib.contextmanager
def _quiet(triton: Any, output: io.StringIO) -> Any:
    """No line tables, which name files of this machine; no cache of Triton's; no PTX on standard output."""
    with (
        tempfile.TemporaryDirectory() as folder,
        triton.knobs.cache.scope(),
        triton.knobs.compilation.scope(),
        contextlib.redirect_stdout(output),
        contextlib.redirect_stderr(output),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        triton.knobs.cache.dir = folder
        triton.knobs.compilation.disable_line_info = True
        yield


def _reason(error: Exception) -> str:
    """`Triton: ...`: the first line of `error` that gives the cause."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    cause = next((x for x in lines if re.search(r"error\s*:|must|out of", x, re.IGNORECASE)), "")
    found = cause or (lines[-1] if lines else type(error).__name__)
    return f"Triton: {type(error).__name__}: {found}"[:300]


# -- triton ptx ------------------------------------------------------------------------------------

# Changes to the PTX that Triton writes.


#: The pointer that is not passed, but replaced by counters of the module, which the driver sets to zero.
COUNTERS = "arrivals"


def with_counters(ptx: str, kernel: str, parameter: int, count: int) -> str:
    """`ptx` with an array of `count` counters in place of the kernel's parameter number `parameter`.

    Raises ValueError if the kernel does not have this parameter, or does not load it once.
    """
    name = f"{kernel}_param_{parameter}"
    declared = re.compile(rf"^\t\.param [^\n]*\b{name},?\n", re.MULTILINE)
    loaded = re.compile(rf"ld\.param\.b64 \t(%rd\d+), \[{name}\];")
    if len(declared.findall(ptx)) != 1 or not loaded.search(ptx):
        raise ValueError(f"the PTX of {kernel} does not load {name}")
    ptx = loaded.sub(rf"mov.b64 \t\1, {COUNTERS};", declared.sub("", ptx))
    array = f".global .align 4 .b32 {COUNTERS}[{count}];"
    return ptx.replace(".address_size 64\n", f".address_size 64\n\n{array}\n", 1)
