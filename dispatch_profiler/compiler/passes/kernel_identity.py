"""The identity of the code of a dispatch: different configurations may make the compiler generate the same code."""

from __future__ import annotations

from collections.abc import Iterable

from dispatch_profiler.compiler.ir_module import IrModule
from dispatch_profiler.files.regular import sha256


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
