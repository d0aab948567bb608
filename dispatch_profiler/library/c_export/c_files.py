"""Kernels of C -> the files of an export: header, source, objects, CMakeLists.txt, example.c and README.txt."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from dispatch_profiler.generator.render import environment
from dispatch_profiler.library.c_export.functions import ALIGNMENT, CFunction, CKernel, Parameter
from dispatch_profiler.library.c_export.kernels import LeftOut
from dispatch_profiler.version import __version__

#: Type of an element -> (1 in C, format of printf).
_ONES = {
    "f64": ("1.0", "%g"),
    "f32": ("1.0f", "%g"),
    "f16": ("0x3c00", "0x%04x"),
    "bf16": ("0x3f80", "0x%04x"),
}
_INTEGER = ("1", "%d")


#: Names that other files of the folder, headers of C and targets of CMake have.
_TAKEN = frozenset(
    [
        "all",
        "clean",
        "example",
        "help",
        "install",
        "package",
        "stdatomic",
        "stddef",
        "stdint",
        "stdio",
        "stdlib",
        "string",
        "test",
    ]
)


def library_name(folder: Path) -> str:
    """The name of header, source and CMake target: the folder's name as an identifier of C."""
    name = re.sub(r"\W", "_", folder.resolve().name, flags=re.ASCII)
    is_usable = re.match(r"[A-Za-z_]", name) and name.lower() not in _TAKEN
    return name if is_usable else f"kernels_{name}"


def c_files(
    name: str,
    kernels: Sequence[CKernel],
    *,
    origin: str,
    compiler: str,
    cpus: str,
    left_out: Sequence[LeftOut] = (),
) -> dict[str, bytes]:
    """The files, by name. `origin` is the library that the kernels are of; `cpus` what they are compiled for, in words."""
    names = {
        "library": name,
        "guard": f"{name.upper()}_H",
        "kernels": kernels,
        "origin": _in_comment(origin),
        "version": __version__,
        "compiler": compiler,
        "cpus": cpus,
        "alignment": ALIGNMENT,
        "left_out": left_out,
        "queries": sorted({kernel.query for kernel in kernels}),
        "has_fills": any(
            step.kind == "fill"
            for kernel in kernels
            for function in kernel.functions
            for step in function.steps
        ),
    }
    texts = {
        f"{name}.h": _render("c_export.h.j2", names),
        f"{name}.c": _render("c_export.c.j2", names),
        "CMakeLists.txt": _render("c_export_CMakeLists.txt.j2", names),
        "README.txt": _render("c_export_README.txt.j2", names),
        "example.c": _render("c_export_example.c.j2", {"library": name, **_example(kernels[0])}),
    }
    objects = {kernel.object_file: kernel.data for kernel in kernels}
    return {**{file: text.encode() for file, text in texts.items()}, **objects}


def _render(template: str, names: dict[str, object]) -> str:
    # Lines that only have a statement leave no line in the result.
    lines = environment().overlay(trim_blocks=True, lstrip_blocks=True)
    return lines.get_template(template).render(**names)


def _example(kernel: CKernel) -> dict[str, object]:
    operation = kernel.operation
    ones = {
        each.name: _ONES.get(each.type.name, _INTEGER) for each in (*operation.operands, *operation.results)
    }
    result = operation.results[0]
    return {
        "function": kernel.compute,
        "functions": kernel.functions,
        "pointers": _pointers(kernel.functions),
        "filled": [(each.name, each.elements, ones[each.name][0]) for each in operation.operands],
        "result": result,
        "format": ones[result.name][1],
    }


def _pointers(functions: Sequence[CFunction]) -> list[Parameter]:
    """Each parameter of the functions once."""
    found: dict[str, Parameter] = {}
    for function in functions:
        for each in function.parameters:
            found.setdefault(each.name, each)
    return list(found.values())


def _in_comment(text: str) -> str:
    return " ".join(text.replace("*/", "* /").split())
