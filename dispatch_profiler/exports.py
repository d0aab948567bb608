"""Lets a package export names that are loaded on first use."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def exported(
    package: str, provided: Mapping[str, tuple[str, ...]]
) -> tuple[list[str], Callable[[str], object], Callable[[], list[str]]]:
    """`__all__`, `__getattr__` and `__dir__` for `package`, which exports names of its modules.

    `provided` maps modules, relative to the package, to the names that they provide. Type checkers do not see these
    names, so the package also imports them under `TYPE_CHECKING`.
    """
    modules = {name: module for module, names in provided.items() for name in names}
    every = sorted(modules)

    def load(name: str) -> object:
        """Load the class or function `name` from its module."""
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(f"{package}.{modules[name]}"), name)
        setattr(sys.modules[package], name, value)
        return value

    def names() -> list[str]:
        """The names that `dir` lists, including names that are not loaded yet."""
        return sorted({*vars(sys.modules[package]), *every})

    return every, load, names
