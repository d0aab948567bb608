"""Families of operations, found by name: a package's code for one family is in a module named after the family.

    operations   Operation.family = "layer_norm"
    in_numpy/    layer_norm.py, with FAMILY = an object that computes layer norms in numpy
    in_torch/    layer_norm.py, with FAMILY = an object that computes layer norms in torch

A package that lacks the module does not support the family.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator
from functools import cache
from importlib import import_module, util
from typing import TypeVar

T = TypeVar("T")


def find_family(package: str, family: str, type_: type[T]) -> T | None:
    """`FAMILY` of the module `family` in `package`, of the type `type_`; None without such a module."""
    return _family(package, family, type_) if _exists(f"{package}.{family}") else None


def families(package: str, type_: type[T]) -> Iterator[tuple[str, T]]:
    """The name and `FAMILY` of each module in `package` whose name has no leading underscore, sorted by name."""
    for name in sorted(each.name for each in pkgutil.iter_modules(import_module(package).__path__)):
        if not name.startswith("_"):
            yield name, _family(package, name, type_)


@cache
def _exists(module: str) -> bool:
    return util.find_spec(module) is not None


def _family(package: str, name: str, type_: type[T]) -> T:
    family = import_module(f"{package}.{name}").FAMILY
    if not isinstance(family, type_):
        raise TypeError(f"{package}.{name}.FAMILY is no {type_.__name__}")
    return family
