"""The kernels of a source without their bodies, while the front end runs.

The front end keeps what a `hal.executable.source` computes, but its passes go through every instruction of it: with a large
microkernel, that takes two fifths of the time of a build. So each kernel is empty there:

    source, a kernel of 10,000 lines  ->  an empty kernel  ->  front end  ->  an empty kernel  ->  the kernel

The compiler then simplifies the body when it generates its code.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from iree.compiler import ir

from dispatch_profiler.compiler.ir_module import KERNEL_SOURCE, IrModule, attribute_names, symbol_of
from dispatch_profiler.files.regular import sha256

#: The attribute of an empty kernel: the hash of its body. The front end merges kernels that are equal.
_BODY = "dispatch_profiler.body"
_FUNCTION, _MODULE, _VARIANT = "func.func", "builtin.module", "hal.executable.variant"


@dataclass(frozen=True)
class KernelBody:
    """The module of a kernel in a source: its function, called `name`, and the memory that it names."""

    name: str
    module: Any

    def in_context(self, context: Any) -> Any:
        """The module in `context`: each step of a build of IREE has its own."""
        if self.module.context == context:
            return self.module
        return ir.Operation.parse(self.module.get_asm(enable_debug_info=True), context=context)


def take_bodies(source: IrModule) -> dict[str, KernelBody]:
    """Empty the kernels of `source`, before the front end runs. Returns their bodies by hash, for `put_back`."""
    bodies = {}
    for executable in source.symbols(KERNEL_SOURCE).values():
        for module in list(_modules(executable)):
            functions = [op for op in _operations(module) if op.name == _FUNCTION]
            if len(functions) != 1:
                continue  # no template writes such a kernel
            (function,) = functions
            name = symbol_of(function)
            digest = sha256(str(module).replace(name, "kernel").encode())
            _insert_empty(module, function, digest)
            bodies[digest] = KernelBody(name, module.detach_from_parent())
    return bodies


def put_back(module: IrModule, bodies: Mapping[str, KernelBody]) -> None:
    """Fill the empty kernels of a module that the front end has made of the source of `bodies`."""
    for executable in module.symbols("hal.executable").values() if bodies else ():
        for inner in _modules(executable):
            for empty in [op for op in _operations(inner) if _BODY in op.attributes]:
                _fill(empty, bodies[ir.StringAttr(empty.attributes[_BODY]).value])


def _insert_empty(module: Any, function: Any, digest: str) -> None:
    """Insert a module before `module`, with a function that does nothing in place of its only `function`."""
    with module.location:
        outer = ir.Operation.create(_MODULE, regions=1, ip=ir.InsertionPoint(module))
        attributes = {name: function.attributes[name] for name in attribute_names(function)}
        inner = ir.Operation.create(
            _FUNCTION,
            attributes={**attributes, _BODY: ir.StringAttr.get(digest)},
            regions=1,
            loc=function.location,
            ip=ir.InsertionPoint(outer.regions[0].blocks.append()),
        )
        ir.Operation.create("func.return", ip=ir.InsertionPoint(inner.regions[0].blocks.append()))


def _fill(empty: Any, body: KernelBody) -> None:
    """Replace an empty function by the operations of `body`, with the name of the function."""
    place, name = ir.InsertionPoint(empty), symbol_of(empty)
    kernel = body.in_context(empty.context)  # operations do not keep their module alive
    for op in _operations(kernel):
        made = op.clone(place)
        if symbol_of(op) == body.name:
            made.attributes["sym_name"] = ir.StringAttr.get(name, made.context)
    empty.erase()


def _modules(executable: Any) -> Iterator[Any]:
    """The modules with code in an executable, for each of its targets."""
    for op in _operations(executable):
        if op.name == _VARIANT:
            yield from _modules(op)
        elif op.name == _MODULE:
            yield op


def _operations(op: Any) -> list[Any]:
    """The operations of the only block of `op`."""
    return [each.operation for each in op.regions[0].blocks[0].operations]
