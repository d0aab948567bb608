"""One run of the compiler's front end for all configurations of an operation.

The front end compiles functions that differ only in their `compilation_info` to the same code. It
therefore compiles one of them, and each of the others gets a copy of the output with its own
`compilation_info`:

    source a, b, c  ->  a  ->  front end  ->  a  ->  a, b, c

A function without `compilation_info`, which leaves the choice to the compiler, is always compiled
separately.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from iree.compiler import ir

from dispatch_profiler.compiler.ir_module import IrModule, operations_in

#: The attribute that specifies how to compile an operation.
INFO = "compilation_info"


@dataclass(frozen=True)
class SharedBody:
    """Functions with the same body. `infos`: function -> its `compilation_info`."""

    representative: str
    infos: dict[str, str]


def share(source: IrModule) -> list[SharedBody]:
    """Keep one function of each group in `source`. Returns the groups with more than one function."""
    groups: dict[str, SharedBody] = {}
    for name, function in source.symbols("func.func").items():
        infos = [str(op.attributes[INFO]) for op in operations_in(function) if INFO in op.attributes]
        if len(infos) == 1:
            group = groups.setdefault(_body(function), SharedBody(name, {}))
            group.infos[name] = infos[0]
    shared = [group for group in groups.values() if len(group.infos) > 1]
    removed = {name for group in shared for name in group.infos if name != group.representative}
    source.keep_functions([name for name in source.symbols("func.func") if name not in removed])
    return shared


def _body(function: Any) -> str:
    """The text of a function without its name and its `compilation_info`."""
    copy = function.clone()
    copy.attributes["sym_name"] = ir.StringAttr.get("function", function.context)
    for op in operations_in(copy):
        if INFO in op.attributes:
            del op.attributes[INFO]
    return str(copy)


def fan_out(module: IrModule, groups: Sequence[SharedBody], lines: dict[str, int]) -> None:
    """Add the functions that `share` has removed to a module at phase `executable-sources`.

    `lines` maps functions to their first lines in the source. If the front end has dropped the
    `compilation_info`, the copies lack it too, and share the executable (see `applied`).
    """
    for group in groups:
        first = group.representative
        marked = [
            name for name, op in module.executables_of(first).items() if any(map(has_info, operations_in(op)))
        ]
        for member, info in group.infos.items():
            if member == first:
                continue
            shift = lines.get(member, 0) - lines.get(first, 0)
            module.copy_function(first, member, line_shift=shift)
            for executable in marked:
                copy = module.own_executable(member, executable, line_shift=shift)
                for op in filter(has_info, operations_in(copy)):
                    op.attributes[INFO] = ir.Attribute.parse(info, op.context)


def has_info(op: Any) -> bool:
    """Whether `op` has a `compilation_info`."""
    return INFO in op.attributes
