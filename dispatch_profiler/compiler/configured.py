"""Reading and setting what the compiler configured, in its own IR.

At the phase `executable-configurations` every dispatch's root operation carries the tiles that code
generation will follow. Here they are compared with those that were asked for. Where the compiler
has folded unit loops away (a convolution of one image, a 1x1 filter) it drops the attribute of the
source without a word; then the tiles are set on the operation that is really there.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Sequence
from typing import Any

from iree.compiler import ir

from dispatch_profiler.compiler._base import Outcome
from dispatch_profiler.configurations import Lowering, lowering_config_text
from dispatch_profiler.errors import ToolError
from dispatch_profiler.generator import Dispatch, State
from dispatch_profiler.operations import Loop


class ConfiguredModule:
    """An IREE module between two phases. Use it as a context manager: it owns an MLIR context."""

    def __init__(self, data: bytes | str) -> None:
        self._context = ir.Context()
        self._copies = 0
        try:
            self._module = ir.Module.parse(data, self._context)
        except (ir.MLIRError, ValueError) as error:
            raise ToolError(f"cannot read the compiler's IR: {str(error).splitlines()[0]}") from error

    def bytecode(self) -> bytes:
        """The module as MLIR bytecode."""
        buffer = io.BytesIO()
        self._module.operation.write_bytecode(buffer)
        return buffer.getvalue()

    def text(self) -> str:
        return str(self._module)

    # -- functions ----------------------------------------------------------------------------

    def _top(self) -> list[Any]:
        return list(self._module.body.operations)

    def lines(self) -> dict[str, int]:
        """Function -> the line of the source on which it starts."""
        found = {}
        for op in self._top():
            line = re.search(r":(\d+):\d+", str(op.location))
            if op.operation.name == "func.func" and line:
                found[_symbol(op)] = int(line.group(1))
        return found

    def keep_functions(self, names: Sequence[str]) -> None:
        """Erase every function of a source module that is not among `names`."""
        wanted = set(names)
        present = {_symbol(op): op for op in self._top() if op.operation.name == "func.func"}
        missing = wanted - present.keys()
        if missing:
            raise ToolError(f"the source has no function {sorted(missing)[0]}", hint="run generator.py again")
        for name, op in present.items():
            if name not in wanted:
                op.operation.erase()

    def drop_dispatches(self, names: Sequence[str]) -> None:
        """Erase entry points of a configured module with the executables that only they use."""
        gone = set(names)
        used = {name: self._executables_of(name) for name in self._entry_points()}
        kept = set().union(*(exes for name, exes in used.items() if name not in gone))
        dead = set().union(*(used[name] for name in gone if name in used)) - kept
        for op in self._top():
            if _symbol(op) in gone or _symbol(op) in dead:
                op.operation.erase()

    def _entry_points(self) -> list[str]:
        return [_symbol(op) for op in self._top() if op.operation.name == "util.func"]

    def _executables_of(self, function: str) -> set[str]:
        executables = {_symbol(op) for op in self._top() if op.operation.name == "hal.executable"}
        body = next((str(op) for op in self._top() if _symbol(op) == function), "")
        return executables & set(re.findall(r"@\"?([\w.$-]+)\"?::@", body))

    # -- configurations -----------------------------------------------------------------------

    def settle(self, dispatches: Sequence[Dispatch]) -> dict[str, Outcome]:
        """See that what each dispatch asks for is what the compiler configured, or make it so.

        The answer is read from the module as it is in the end, when all have been settled.
        """
        with self._context:
            refused = {d.name: reason for d in dispatches if (reason := self._enforce(d))}
            return {
                d.name: Outcome(State.NOT_APPLIED, refused[d.name]) if d.name in refused else self._read(d)
                for d in dispatches
            }

    def _enforce(self, dispatch: Dispatch) -> str:
        """Set the tiles of `dispatch` if the compiler has dropped them; why not, if that cannot be."""
        lowering = dispatch.configuration.lowering(dispatch.operation)
        if lowering is None:
            return ""
        roots = self._roots(dispatch.name)
        if any(_carries(root, lowering.lowering_config, lowering) for _, root in roots):
            return ""
        folded = [
            (i, g) for i, (_, root) in enumerate(roots) if (g := _folding_of(root, lowering)) is not None
        ]
        if len(folded) != 1:
            return f"asked for {lowering.lowering_config}, the compiler configured {_described(roots)}"
        # Functions that differ in nothing but what was dropped have been given one executable.
        index, groups = folded[0]
        self._unshare(dispatch.name, roots[index][0])
        _, root = self._roots(dispatch.name)[index]
        return _impose(root, folded_config(lowering, groups), lowering)

    def _read(self, dispatch: Dispatch) -> Outcome:
        """What the module holds for `dispatch`, in the compiler's words."""
        roots = self._roots(dispatch.name)
        lowering = dispatch.configuration.lowering(dispatch.operation)
        if lowering is None:
            return Outcome(State.COMPILED, applied=_described(roots))
        for _, root in roots:
            groups = _folding_of(root, lowering)
            wanted = lowering.lowering_config if groups is None else folded_config(lowering, groups)
            if _carries(root, wanted, lowering):
                return Outcome(State.COMPILED, applied=wanted)
        return Outcome(State.NOT_APPLIED, f"set {lowering.lowering_config}, but found {_described(roots)}")

    def _roots(self, function: str) -> list[tuple[str, Any]]:
        """(executable, operation) of every operation that carries tiles, among those of `function`."""
        executables = self._executables_of(function)
        found: list[tuple[str, Any]] = []
        for op in self._top():
            name = _symbol(op)
            if name in executables:
                inner = _operations_in(op)
                found.extend((name, each) for each in inner if "lowering_config" in each.attributes)
        return found

    def _unshare(self, function: str, executable: str) -> None:
        """Give `function` a copy of `executable` of its own, if another function uses it too."""
        users = [name for name in self._entry_points() if executable in self._executables_of(name)]
        if users == [function]:
            return
        original = next(op for op in self._top() if _symbol(op) == executable)
        copy = original.operation.clone(ir.InsertionPoint(original))
        self._copies += 1
        suffix = f"_copy{self._copies}"
        copy.attributes["sym_name"] = ir.StringAttr.get(executable + suffix)
        _rename_entries(copy, suffix)
        body = next(op for op in self._top() if _symbol(op) == function)
        for inner in _operations_in(body):
            _redirect(inner, executable, suffix)


def _rename_entries(executable: Any, suffix: str) -> None:
    """Give the entry points of a copied executable names of their own: they are linked together."""
    inner = _operations_in(executable)
    entries = {_symbol(op) for op in inner if op.name == "hal.executable.export"}
    moved = {f'"{entry}"': f'"{entry}{suffix}"' for entry in entries}  # the entry's own name
    moved |= {f"@{entry}": f"@{entry}{suffix}" for entry in entries}  # references to it
    for op in inner:
        for name in _attribute_names(op):
            text = str(op.attributes[name])
            if text in moved:
                op.attributes[name] = ir.Attribute.parse(moved[text])


def _operations_in(op: Any) -> list[Any]:
    """`op` and every operation nested in it."""
    found: list[Any] = []

    def visit(inner: Any) -> Any:
        found.append(inner.operation)
        return ir.WalkResult.ADVANCE

    op.operation.walk(visit)
    return found


def _attribute_names(op: Any) -> list[str]:
    # The bindings give names or named attributes, depending on their version.
    return [named if isinstance(named, str) else named.name for named in op.attributes]


def _redirect(op: Any, executable: str, suffix: str) -> None:
    """Make references `@executable::@variant::@entry` of one operation those of the copy."""
    for name in _attribute_names(op):
        text = str(op.attributes[name])
        moved = re.sub(
            rf"@{re.escape(executable)}::@([\w.$-]+)::@([\w.$-]+)",
            rf"@{executable}{suffix}::@\1::@\2{suffix}",
            text,
        )
        if moved != text:
            op.attributes[name] = ir.Attribute.parse(moved)


def dispatch_commands(data: bytes) -> int:
    """How many dispatches the command buffers of a module at phase `hal` hold in all."""
    with ir.Context() as context:
        inner = _operations_in(ir.Module.parse(data, context))
        return sum(op.name == "hal.command_buffer.dispatch" for op in inner)


def _symbol(op: Any) -> str:
    attributes = op.operation.attributes
    return ir.StringAttr(attributes["sym_name"]).value if "sym_name" in attributes else ""


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


# -- folded loops ----------------------------------------------------------------------------------

Groups = tuple[tuple[int, ...], ...]


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


def fold_groups(loops: Sequence[Loop], real: Sequence[tuple[int, bool]]) -> Groups | None:
    """Which of `loops` each real loop stands for, if it is `loops` with some folded together.

    Folding keeps the order among parallel and among reduction loops; loops of extent 1 may vanish.
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


def folded_config(lowering: Lowering, groups: Groups) -> str:
    """The attribute that asks for the tiles of `lowering` on an operation with folded loops."""
    return lowering_config_text(lowering.dialect, fold_levels(lowering.levels, groups))


def fold_levels(
    levels: Sequence[tuple[str, tuple[int, ...]]], groups: Groups
) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Tiles of the real loops: the product of the tiles of the loops that were folded into each."""
    return tuple(
        (level, tuple(math.prod(tiles[i] for i in group) for group in groups)) for level, tiles in levels
    )
