"""An MLIR module of IREE between two phases: its functions, its executables, and copies of them.

Do not keep handles to operations inside the module: passes erase and replace them.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from iree.compiler import ir

from dispatch_profiler.compiler._base import BuildError
from dispatch_profiler.errors import ToolError
from dispatch_profiler.files.regular import sha256

#: A kernel that the source contains beside its functions: see `Configuration.kernel_suffix`.
KERNEL_SOURCE = "hal.executable.source"
_OPTIMIZATION_BARRIER = "util.optimization_barrier"
#: The attribute of a barrier that stores a packed weight.
_PACKS = "dispatch_profiler.packs"
#: Operations of phase `hal` that a device executes; the others of a command buffer only order them.
COMMANDS = frozenset(
    f"hal.command_buffer.{name}"
    for name in ("dispatch", "dispatch.indirect", "fill_buffer", "copy_buffer", "update_buffer", "collective")
)


class IrModule:
    """A module, in the MLIR context that it was parsed in."""

    def __init__(self, operation: Any) -> None:
        self.operation = operation

    @classmethod
    def parse(cls, data: bytes | str, context: Any = None) -> IrModule:
        """Read MLIR as text or bytecode. Raises ToolError if it is neither."""
        try:
            return cls(ir.Module.parse(data, context or ir.Context()).operation)
        except (ir.MLIRError, ValueError) as error:
            raise ToolError(f"cannot read the compiler's IR: {_first_error(error)}") from error

    @classmethod
    def of_source(cls, text: str, context: Any = None) -> IrModule:
        """Read a generated source. Raises BuildError if it is damaged."""
        try:
            return cls(ir.Module.parse(text, context or ir.Context()).operation)
        except (ir.MLIRError, ValueError) as error:
            raise BuildError(
                f"cannot read the source: {_first_error(error)}: run generator.py again"
            ) from error

    def bytecode(self) -> bytes:
        """The module as MLIR bytecode."""
        buffer = io.BytesIO()
        self.operation.write_bytecode(buffer)
        return buffer.getvalue()

    def text(self) -> str:
        return str(self.operation)

    def clone(self) -> IrModule:
        return IrModule(self.operation.clone())

    def symbols(self, kind: str) -> dict[str, Any]:
        """Name -> operation, for the module's top-level operations of one kind such as `util.func`.

        They must not outlive the module, which the bindings do not keep alive.
        """
        return {symbol_of(op): op for op in self.top() if op.name == kind}

    def top(self) -> Iterator[Any]:
        """The module's top-level operations."""
        return (op.operation for op in self.operation.regions[0].blocks[0].operations)

    # -- before the front end: func.func --------------------------------------------------------

    def lines(self) -> dict[str, int]:
        """Function -> its first line in the source, or the first line of its own kernel, which comes before it."""
        found = {}
        kernels = self.symbols(KERNEL_SOURCE)
        for name, op in self.symbols("func.func").items():
            parts = [op, *(kernels[each] for each in _dispatched(op, kernels))]
            places = [re.search(r":(\d+):\d+", str(part.location)) for part in parts]
            if all(places):
                found[name] = min(int(place[1]) for place in places if place)
        return found

    def keep_functions(self, names: Sequence[str]) -> None:
        """Erase every function that is not in `names`, and its kernels. Raises BuildError if one of `names` is missing."""
        present = self.symbols("func.func")
        missing = set(names) - present.keys()
        if missing:
            raise BuildError(f"the source has no function {sorted(missing)[0]}: run generator.py again")
        kernels = self.symbols(KERNEL_SOURCE)
        used = {kernel for name in names for kernel in _dispatched(present[name], kernels)}
        for op in (
            *(present[each] for each in present.keys() - set(names)),
            *(kernels[each] for each in kernels.keys() - used),
        ):
            op.erase()

    # -- after the front end: util.func and the hal.executable that they dispatch ---------------

    def entry_points(self) -> list[str]:
        return list(self.symbols("util.func"))

    def executables_of(self, function: str) -> dict[str, Any]:
        """Name -> operation, for every executable that `function` dispatches."""
        executables = self.symbols("hal.executable")
        caller = self.symbols("util.func").get(function, "")
        return {name: executables[name] for name in _dispatched(caller, executables)}

    @property
    def has_barriers(self) -> bool:
        """Whether the module contains a `util.optimization_barrier`."""
        return any(op.name == _OPTIMIZATION_BARRIER for op in operations_in(self.operation))

    def drop_barriers(self) -> None:
        """Replace each `util.optimization_barrier` by its operands, apart from barriers of packed weights."""
        for op in operations_in(self.operation):
            if op.name == _OPTIMIZATION_BARRIER and _PACKS not in op.attributes:
                for result, operand in zip(op.results, op.operands, strict=True):
                    result.replace_all_uses_with(operand)
                op.erase()

    def drop_dispatches(self, names: Sequence[str]) -> None:
        """Erase entry points and the executables that only they use."""
        used = {name: set(self.executables_of(name)) for name in self.entry_points()}
        kept = set().union(*(executables for name, executables in used.items() if name not in names))
        dead = set().union(*(used.get(name, set()) for name in names)) - kept
        for op in list(self.top()):
            if symbol_of(op) in dead or symbol_of(op) in names:
                op.erase()

    def copy_function(self, name: str, copy: str, *, line_shift: int = 0) -> None:
        """Add an entry point `copy` that does what `name` does, with the same executables."""
        original = self.symbols("util.func")[name]
        made = original.clone(ir.InsertionPoint(original))
        for key in attribute_names(made):
            # The reflection attribute contains the name too.
            text = str(made.attributes[key]).replace(f"@{name}(", f"@{copy}(")
            if text != str(made.attributes[key]):
                made.attributes[key] = ir.Attribute.parse(text, self.operation.context)
        made.attributes["sym_name"] = ir.StringAttr.get(copy, self.operation.context)
        _shift_lines(made, line_shift)

    def own_executable(self, function: str, executable: str, *, line_shift: int = 0) -> Any:
        """Give `function` its own copy of an executable that others also use. Returns the copy."""
        original = self.symbols("hal.executable")[executable]
        name = self._free_name(_renamed(executable, function))
        copy = original.clone(ir.InsertionPoint(original))
        copy.attributes["sym_name"] = ir.StringAttr.get(name, self.operation.context)
        entries = _rename_entries(copy, executable, name)
        for op in operations_in(self.symbols("util.func")[function]):
            _redirect(op, executable, name, entries)
        _shift_lines(copy, line_shift)
        return copy

    def start_line(self, executable: str, lines: Mapping[str, int]) -> int:
        """First line of the function that `executable` comes from: one of `lines`, or 0."""
        for op in operations_in(self.symbols("hal.executable")[executable]):
            place = re.search(r'"[^"]*":(\d+):\d+', str(op.location))
            starts = [line for line in lines.values() if place and line <= int(place[1])]
            if starts:
                return max(starts)
        return 0

    def users_of(self, executable: str) -> list[str]:
        """Entry points that dispatch `executable`."""
        return [name for name in self.entry_points() if executable in self.executables_of(name)]

    def _free_name(self, wanted: str) -> str:
        taken = self.symbols("hal.executable")
        number, name = 1, wanted
        while name in taken:
            number, name = number + 1, f"{wanted}_copy{number}"
        return name

    def commands(self) -> int:
        """Total number of dispatches, fills and copies in the command buffers of a module at phase `hal`."""
        return sum(op.name in COMMANDS for op in operations_in(self.operation))


# -- operations ------------------------------------------------------------------------------------


def symbol_of(op: Any) -> str:
    """The name of a function or executable; empty without a name."""
    return ir.StringAttr(op.attributes["sym_name"]).value if "sym_name" in op.attributes else ""


def operations_in(op: Any) -> list[Any]:
    """`op` and every operation nested in it."""
    found: list[Any] = []

    def take_batch(inner: Any) -> Any:
        found.append(inner.operation)
        return ir.WalkResult.ADVANCE

    op.walk(take_batch)
    return found


def _dispatched(function: Any, executables: Mapping[str, Any]) -> list[str]:
    """Names of the executables that a function refers to, in the order of `executables`."""
    used = set(re.findall(r"@\"?([\w.$-]+)\"?::@", str(function))) if executables else ()
    return [name for name in executables if name in used]


def attribute_names(op: Any) -> list[str]:
    """Names of the attributes of `op`."""
    # The bindings return names or named attributes, depending on their version.
    return [named if isinstance(named, str) else named.name for named in op.attributes]


def _renamed(executable: str, function: str) -> str:
    """`<another function>_dispatch_0` -> `<function>_dispatch_0`: traces show these names."""
    return re.sub(r"^.*?(?=_dispatch_\d+)", function, executable, count=1)


def _rename_entries(executable: Any, old: str, new: str) -> dict[str, str]:
    """Rename the entry points of a copied executable, because all are linked together.

    Returns entry -> new name.
    """
    inner = operations_in(executable)
    exports = [symbol_of(op) for op in inner if op.name == "hal.executable.export"]
    entries = {
        entry: new + entry.removeprefix(old) if entry.startswith(old) else f"{entry}_{new}"
        for entry in exports
    }
    moved = {f'"{entry}"': f'"{name}"' for entry, name in entries.items()}  # the entry's own name
    moved |= {f"@{entry}": f"@{name}" for entry, name in entries.items()}  # references to it
    for op in inner:
        for key in attribute_names(op):
            text = str(op.attributes[key])
            if text in moved:
                op.attributes[key] = ir.Attribute.parse(moved[text], op.context)
    return entries


def _redirect(op: Any, old: str, new: str, entries: dict[str, str]) -> None:
    """Redirect the references `@executable::@variant::@entry` of one operation to the copy."""

    def moved(match: re.Match[str]) -> str:
        return f"@{new}::@{match[1]}::@{entries.get(match[2], match[2])}"

    for key in attribute_names(op):
        text = str(op.attributes[key])
        changed = re.sub(rf"@{re.escape(old)}::@([\w.$-]+)::@([\w.$-]+)", moved, text)
        if changed != text:
            op.attributes[key] = ir.Attribute.parse(changed, op.context)


def _first_error(error: Exception) -> str:
    """The first line with an error in MLIR's message."""
    lines = str(error).splitlines()
    return next((line for line in lines if "error:" in line), lines[0]).strip()


def _shift_lines(op: Any, lines: int) -> None:
    """Shift the locations of `op` and its nested operations: diagnostics identify functions by line."""
    if not lines:
        return
    for inner in operations_in(op):
        place = re.search(r'"([^"]*)":(\d+):(\d+)', str(inner.location))
        if place and int(place[2]):
            line, column = int(place[2]) + lines, int(place[3])
            inner.location = ir.Location.file(place[1], line, column, op.context)


# -- kernel identity -------------------------------------------------------------------------------

# The identity of the code of a dispatch: different configurations may make the compiler generate the same code.


def kernel_hashes(module: IrModule, functions: Iterable[str]) -> dict[str, str]:
    """Function -> hash of its code in a module at phase `executable-targets`.

    Covers the code and the launch of all executables that the function dispatches, but no names: functions with
    equal hashes, compiled with the same flags, execute the same instructions.
    """
    return {name: _kernel_hash(module, name) for name in functions}


def _kernel_hash(module: IrModule, function: str) -> str:
    executables = module.executables_of(function)
    body = str(module.symbols("util.func")[function])
    order = sorted(executables, key=body.index)
    text = "\n".join([body, *(str(executables[name]) for name in order)])
    # The longest first: a name may be the start of another.
    for name in sorted(order, key=len, reverse=True):
        text = text.replace(name, f"executable {order.index(name)}")
    return sha256(text.replace(function, "function").encode())
