"""Reading and setting the configuration of each dispatch, in the compiler's IR.

At the phase `executable-configurations` every dispatch's root operation carries the tiles that code
generation will use. This module compares them with the requested ones. If the compiler has folded
unit loops away (a convolution of one image, a 1x1 filter), it silently drops the attribute of the
source; the tiles are then set on the folded operation. For a GPU this happens before the compiler
configures anything, because the request includes the pipeline and the launch. For a CPU it happens
afterwards, because the compiler chooses the pipeline of a folded operation.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from iree.compiler import ir

from dispatch_profiler.compiler._base import BuildOutcome
from dispatch_profiler.compiler.ir_module import IrModule, operations_in
from dispatch_profiler.compiler.passes.sharing import INFO, has_info
from dispatch_profiler.configurations import Groups, Lowering, split_loops
from dispatch_profiler.dispatches import Dispatch, State
from dispatch_profiler.operations import Loop


def restore_dropped(module: IrModule, dispatches: Sequence[Dispatch], lines: Mapping[str, int]) -> None:
    """Restore attributes that the front end has dropped, in a module at phase `executable-sources`.

    `lines` maps functions to their first lines in the source. `verify_applied` checks the outcome.
    """
    with module.operation.context:
        for dispatch in dispatches:
            for lowering in dispatch.configuration.lowerings(dispatch.operation):
                if lowering.owns_translation:
                    _restore(module, dispatch.name, lowering, lines)


def _restore(module: IrModule, function: str, lowering: Lowering, lines: Mapping[str, int]) -> None:
    inner = _operations(module, function)
    if any(has_info(op) for _, op in inner):
        return
    found = [(i, folded) for i, (_, op) in enumerate(inner) if (folded := _folded_for(op, lowering))]
    if len(found) == 1:
        index, folded = found[0]
        own_executable(module, function, inner[index][0], lines)
        root = _operations(module, function)[index][1]
        root.attributes[INFO] = ir.Attribute.parse(folded.compilation_info)


def _operations(module: IrModule, function: str) -> list[tuple[str, Any]]:
    """(executable, operation) for every operation in the executables of `function`."""
    return [
        (name, op)
        for name, executable in module.executables_of(function).items()
        for op in operations_in(executable)
    ]


def own_executable(module: IrModule, function: str, executable: str, lines: Mapping[str, int]) -> None:
    """Give `function` its own copy of `executable`, whose errors refer to `function`.

    Functions that differ only in dropped attributes share one executable, which has the source locations
    of the first of them.
    """
    if module.users_of(executable) != [function]:
        shift = lines.get(function, 0) - module.start_line(executable, lines)
        module.own_executable(function, executable, line_shift=shift)


def verify_applied(
    module: IrModule, dispatches: Sequence[Dispatch], lines: Mapping[str, int]
) -> dict[str, BuildOutcome]:
    """Check that the compiler configured each dispatch as requested, and set tiles that it dropped.

    `lines` maps functions to their first lines in the source. Outcomes are read from the final module, with
    every dispatch's tiles set.
    """
    with module.operation.context:
        not_set = {
            d.name: reason
            for d in dispatches
            if (reason := _missing_kernel(module, d) or _enforce(module, d, lines))
        }
        return {
            d.name: BuildOutcome(State.NOT_APPLIED, not_set[d.name])
            if d.name in not_set
            else _outcome(module, d)
            for d in dispatches
        }


def described_unless_configured(module: IrModule, function: str, lowering: Lowering) -> str:
    """Empty if `function` has the tiles of `lowering`; otherwise the tiles that the compiler configured."""
    with module.operation.context:
        roots = _roots(module, function)
        return "" if _carried(roots, lowering, is_alone=True) else _described(roots)


def _missing_kernel(module: IrModule, dispatch: Dispatch) -> str:
    """A reason unless the IR has an operation with the loops of every kernel of the dispatch's form."""
    configuration = dispatch.configuration
    reduction = configuration.reduced(dispatch.operation)
    # A flow has other loops; its evidence is checked separately.
    if reduction is None or configuration.evidence is not None:
        return ""
    found = [loops for _, op in _operations(module, dispatch.name) if (loops := loops_of(op))]
    for kernel in dict.fromkeys(reduction.kernels):
        wanted = split_loops(kernel, configuration.kernel_configuration.slices(kernel))
        if all(loop.extent == 1 for loop in wanted if loop.iterator == "reduction"):
            continue  # The kernel multiplies elements: the compiler may fuse it with other operations.
        if all(fold_groups(wanted, loops) is None for loops in found):
            return f"the form has the kernel {kernel.name}, but the compiler's IR has no operation with its loops"
    return ""


def _enforce(module: IrModule, dispatch: Dispatch, lines: Mapping[str, int]) -> str:
    """Set the tiles of `dispatch` if the compiler has dropped them; the reason if that is impossible."""
    wanted = dispatch.configuration.lowerings(dispatch.operation)
    reasons = (_enforce_one(module, dispatch.name, each, wanted, lines) for each in dict.fromkeys(wanted))
    return next(filter(None, reasons), "")


def _enforce_one(
    module: IrModule, function: str, lowering: Lowering, wanted: Sequence[Lowering], lines: Mapping[str, int]
) -> str:
    """Set the tiles of one kernel of `function`, and of kernels with the same loops; `wanted` are all kernels' tiles."""
    roots = _roots(module, function)
    if _carried(roots, lowering, is_alone=len(wanted) == 1):
        return ""
    found = _matching(roots, lowering)
    # More operations than kernels with these loops: it is unknown which of them are the kernels.
    kernels = sum(_folded_for(roots[found[0][0]][1], each) is not None for each in wanted) if found else 0
    if not found or len(found) > kernels or lowering.owns_translation:
        return f"requested {lowering.lowering_config}, but the compiler configured {_described(roots)}"
    reasons = []
    for index, folded in found:
        own_executable(module, function, _roots(module, function)[index][0], lines)
        reasons.append(_set_tiles(_roots(module, function)[index][1], folded))
    return next(filter(None, reasons), "")


def _matching(roots: Sequence[tuple[str, Any]], lowering: Lowering) -> list[tuple[int, Lowering]]:
    """(index, `lowering` for it) of each of `roots` that has the loops of `lowering`, or their folded form.

    If operations have fewer folded loops than others, only they are returned: the folded loops of a
    convolution of 2x2 taps and 128 channels are equal to the loops of a product over 512.
    """
    found = [(i, folded) for i, (_, root) in enumerate(roots) if (folded := _folded_for(root, lowering))]
    counts = [sum(extent > 1 for extent, _ in loops_of(roots[i][1]) or ()) for i, _ in found]
    return [each for each, count in zip(found, counts, strict=True) if count == max(counts)]


def _carried(roots: Sequence[tuple[str, Any]], lowering: Lowering, *, is_alone: bool) -> Lowering | None:
    """The tiles that the kernels of `lowering` carry, if they are the requested ones; otherwise None.

    Several kernels have the same tiles for different loops, so that each must be found by its loops.
    """
    if is_alone:
        tiles = (_folded_for(root, lowering) or lowering for _, root in roots)
        fitting = zip(roots, tiles, strict=True)
        return next(
            (each for (_, root), wanted in fitting for each in (wanted, lowering) if _carries(root, each)),
            None,
        )
    found = _matching(roots, lowering)
    return found[0][1] if found and all(_carries(roots[i][1], folded) for i, folded in found) else None


def _outcome(module: IrModule, dispatch: Dispatch) -> BuildOutcome:
    """The outcome for `dispatch`, with the module's configuration in the compiler's syntax."""
    if dispatch.configuration.kernel_suffix:
        return _own_kernels(module, dispatch)
    roots = _roots(module, dispatch.name)
    wanted = dispatch.configuration.lowerings(dispatch.operation)
    if not wanted:
        return BuildOutcome(State.COMPILED, applied=_described(roots))
    found = {root.attributes["lowering_config"] for _, root in roots}
    texts: dict[str, None] = {}
    for lowering in dict.fromkeys(wanted):
        carried = _carried(roots, lowering, is_alone=len(wanted) == 1)
        missing = [text for text in lowering.others if ir.Attribute.parse(text) not in found]
        if carried is None or missing:
            requested = "; ".join((_text(lowering), *missing))
            reason = f"set {requested}, but found {_described(roots)}"
            return BuildOutcome(State.NOT_APPLIED, reason)
        texts[_text(carried)] = None
    return BuildOutcome(State.COMPILED, applied="; ".join(texts))


def _own_kernels(module: IrModule, dispatch: Dispatch) -> BuildOutcome:
    """Whether a function launches its kernels of the source, which are another function's if those are the same."""
    suffix, count = dispatch.configuration.kernel_suffix, len(dispatch.configuration.kernel_names(""))
    found = [name for name in module.executables_of(dispatch.name) if name.endswith(suffix)]
    if len(found) < count:
        return BuildOutcome(State.NOT_APPLIED, "the compiler's IR has no launch of the kernel in the source")
    names = " and ".join(f"@{name}" for name in found)
    return BuildOutcome(State.COMPILED, applied=f"the kernel {names} of the source")


def _text(lowering: Lowering) -> str:
    """The verified configuration of a dispatch: its tiles, and for a GPU its pipeline and launch."""
    parts = (lowering.lowering_config, lowering.translation_info if lowering.owns_translation else "")
    return ", ".join(filter(None, parts))


def _roots(module: IrModule, function: str) -> list[tuple[str, Any]]:
    """(executable, operation) for every operation of `function` that carries tiles."""
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


def _carries(op: Any, lowering: Lowering) -> bool:
    """Whether `op` has the tiles of `lowering`, and its function the pipeline, or at least the options."""
    if op.attributes["lowering_config"] != ir.Attribute.parse(lowering.lowering_config):
        return False
    translation = _function_of(op).attributes["translation_info"]
    if lowering.owns_translation:
        return bool(translation == ir.Attribute.parse(lowering.translation_info))
    return all(option in str(translation) for option in lowering.options)


def _set_tiles(root: Any, lowering: Lowering) -> str:
    """Set the tiles of `lowering` on `root`, with the pipeline that the compiler chose for it."""
    root.attributes["lowering_config"] = ir.Attribute.parse(lowering.lowering_config)
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


def _folded_for(op: Any, lowering: Lowering) -> Lowering | None:
    """`lowering` for `op`, if that is the folded form of its operation; otherwise None."""
    loops = loops_of(op)
    groups = None if loops is None else fold_groups(lowering.root_loops, loops)
    return None if groups is None else lowering.folded(groups)


def loops_of(op: Any) -> tuple[tuple[int, bool], ...] | None:
    """(extent, is_reduction) for each loop of a linalg operation with static shapes."""
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


# -- folding ---------------------------------------------------------------------------------------

# Finding the loops of an operation that the compiler has folded (see `Lowering.folded`).


def fold_groups(loops: Sequence[Loop], real: Sequence[tuple[int, bool]]) -> Groups | None:
    """The indices of `loops` that each of the loops `real` combines; None if they do not match.

    Folding keeps the order of parallel loops and the order of reduction loops; loops of extent 1 may vanish.
    loops n=8 oh=56 ow=56 oc=256 | kh=1 kw=1 ic=64, real 25088 256 | 64  ->  ((0, 1, 2), (3,), (6,))
    """
    groups: dict[int, tuple[int, ...]] = {}
    for reduction in (False, True):
        waiting = [i for i, loop in enumerate(loops) if (loop.iterator == "reduction") == reduction]
        for position, (extent, is_reduction) in enumerate(real):
            if is_reduction != reduction:
                continue
            taken: list[int] = []
            while waiting and (not taken or math.prod(loops[i].extent for i in taken) < extent):
                taken.append(waiting.pop(0))
            if not taken or math.prod(loops[i].extent for i in taken) != extent:
                return None
            groups[position] = tuple(taken)
        if any(loops[i].extent != 1 for i in waiting):
            return None
    return tuple(groups[position] for position in range(len(real)))
