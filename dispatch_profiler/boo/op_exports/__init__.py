"""Signatures of what can be launched. A new kind is one module here: it is found by itself.

A signature is an operation as PyTorch's users describe it: shapes, layouts and options of one call, and a mode.
"""

from __future__ import annotations

import pkgutil
from functools import cache
from importlib import import_module

from dispatch_profiler.boo.op_exports._base import Mode, OpSignature


@cache
def signature_classes() -> dict[str, type[OpSignature]]:
    """The word that MIOpen's commands of a kind begin with -> its signature class, from all modules of this package."""
    names = [each.name for each in pkgutil.iter_modules(__path__) if not each.name.startswith("_")]
    modules = [import_module(f"{__name__}.{name}") for name in sorted(names)]
    classes = [
        each
        for module in modules
        for each in vars(module).values()
        if isinstance(each, type) and issubclass(each, OpSignature) and each.__module__ == module.__name__
    ]
    return {each.problem_type.kind: each for each in classes}


__all__ = ["Mode", "OpSignature", "signature_classes"]
