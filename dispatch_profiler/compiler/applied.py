"""Reading and setting what the compiler configured, in its own IR.

At the phase `executable-configurations` every dispatch's root operation carries the tiles that code
generation will follow. Here they are compared with those that were asked for. Where the compiler
has folded unit loops away (a convolution of one image, a 1x1 filter) it drops the attribute of the
source without a word; then the tiles are set on the operation that is really there.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from iree.compiler import ir

from dispatch_profiler.compiler._base import Outcome
from dispatch_profiler.compiler.folding import Groups, fold_groups, folded_config
from dispatch_profiler.compiler.module import Module, operations_in
from dispatch_profiler.configurations import Lowering
from dispatch_profiler.generator import Dispatch, State


def settle_configurations(module: Module, dispatches: Sequence[Dispatch]) -> dict[str, Outcome]:
    """See that what each dispatch asks for is what the compiler configured, or make it so.

    The answer is read from the module as it is in the end, when all have been settled.
    """
    with module.operation.context:
        refused = {d.name: reason for d in dispatches if (reason := _enforce(module, d))}
        return {
            d.name: Outcome(State.NOT_APPLIED, refused[d.name]) if d.name in refused else _read(module, d)
            for d in dispatches
        }


def _enforce(module: Module, dispatch: Dispatch) -> str:
    """Set the tiles of `dispatch` if the compiler has dropped them; why not, if that cannot be."""
    lowering = dispatch.configuration.lowering(dispatch.operation)
    if lowering is None:
        return ""
    roots = _roots(module, dispatch.name)
    if any(_carries(root, lowering.lowering_config, lowering) for _, root in roots):
        return ""
    folded = [(i, g) for i, (_, root) in enumerate(roots) if (g := _folding_of(root, lowering)) is not None]
    if len(folded) != 1:
        return f"asked for {lowering.lowering_config}, the compiler configured {_described(roots)}"
    index, groups = folded[0]
    executable, root = roots[index]
    if module.users_of(executable) != [dispatch.name]:
        # Functions that differ in nothing but what was dropped have been given one executable.
        module.own_executable(dispatch.name, executable)
        _, root = _roots(module, dispatch.name)[index]
    return _impose(root, folded_config(lowering, groups), lowering)


def _read(module: Module, dispatch: Dispatch) -> Outcome:
    """What the module holds for `dispatch`, in the compiler's words."""
    roots = _roots(module, dispatch.name)
    lowering = dispatch.configuration.lowering(dispatch.operation)
    if lowering is None:
        return Outcome(State.COMPILED, applied=_described(roots))
    for _, root in roots:
        groups = _folding_of(root, lowering)
        wanted = lowering.lowering_config if groups is None else folded_config(lowering, groups)
        if _carries(root, wanted, lowering):
            return Outcome(State.COMPILED, applied=wanted)
    return Outcome(State.NOT_APPLIED, f"set {lowering.lowering_config}, but found {_described(roots)}")


def _roots(module: Module, function: str) -> list[tuple[str, Any]]:
    """(executable, operation) of every operation that carries tiles, among those of `function`."""
    return [
        (name, op)
        for name, executable in module.executables_of(function).items()
        for op in operations_in(executable)
        if "lowering_config" in op.attributes
    ]


def _described(roots: Sequence[tuple[str, Any]]) -> str:
    texts = dict.fromkeys(str(root.attributes["lowering_config"]) for _, root in roots)
    return "; ".join(texts) or "no tiles"


def _function_of(op: Any) -> Any:
    while op.name != "func.func":
        op = op.parent.operation
    return op


def _carries(op: Any, wanted: str, lowering: Lowering) -> bool:
    """Has `op` the tiles `wanted`, in a function with the options of `lowering`?"""
    if op.attributes["lowering_config"] != ir.Attribute.parse(wanted):
        return False
    translation = str(_function_of(op).attributes["translation_info"])
    return all(option in translation for option in lowering.options)


def _impose(root: Any, wanted: str, lowering: Lowering) -> str:
    """Set the tiles `wanted` on `root`, with the pipeline that the compiler chose for it."""
    root.attributes["lowering_config"] = ir.Attribute.parse(wanted)
    if not lowering.options:
        return ""
    function = _function_of(root)
    pipeline = re.search(r"pipeline = (#\w+\.pipeline<\w+>)", str(function.attributes["translation_info"]))
    if pipeline is None:
        return f"the compiler chose no pipeline to add {', '.join(lowering.options)} to"
    function.attributes["translation_info"] = ir.Attribute.parse(
        f"#iree_codegen.translation_info<pipeline = {pipeline.group(1)}, {{{', '.join(lowering.options)}}}>"
    )
    return ""


def _folding_of(op: Any, lowering: Lowering) -> Groups | None:
    loops = _loops_of(op)
    return None if loops is None else fold_groups(lowering.loops, loops)


def _loops_of(op: Any) -> tuple[tuple[int, bool], ...] | None:
    """(extent, is it a reduction) of each loop of a linalg operation with static shapes."""
    if "indexing_maps" not in op.attributes:
        return None
    maps = re.findall(r"affine_map<\(([^)]*)\) -> \(([^>]*)\)>", str(op.attributes["indexing_maps"]))
    types = [str(value.type) for value in op.operands]
    if not maps or len(maps) != len(types):
        return None
    dims = [d.strip() for d in maps[0][0].split(",")]
    extents: dict[str, int] = {}
    for (_, results), type_ in zip(maps, types, strict=True):
        shape = re.findall(r"(\d+)x", re.sub(r".*?<", "", type_, count=1))
        for result, size in zip(results.split(","), shape, strict=False):
            if result.strip() in dims:
                extents[result.strip()] = int(size)
    if any(d not in extents for d in dims):
        return None
    parallel = {result.strip() for result in maps[-1][1].split(",")}
    return tuple((extents[d], d not in parallel) for d in dims)
