"""Attributes of a frozen model's modules that a program may change, compared in one check of Dynamo instead of hundreds.

Dynamo finds each attribute on a way from the model through all modules around it, with an object of its own for each
step. Other data displaces these objects from the caches while kernels run. Modules that were found once are asked for their
attributes directly: a call of a RegNetX-400MF took 4.95 ms on two cores, 0.76 of them outside of its kernels, and takes 4.87
and 0.65.
"""

from __future__ import annotations

import operator
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import nn

#: Types of values that are compared; Dynamo knows more.
_PLAIN = (bool, int, float, str, type(None))
_TORCH = "torch.nn."


def is_of_torch(module: object, name: str) -> bool:
    """Whether an attribute is one of torch's own modules, or one that a module has from torch's, such as `eps`."""
    bases = [each for each in type(module).__mro__ if each.__module__.startswith(_TORCH)]
    return type(module) in bases or any(name in vars(each).get("__constants__", ()) for each in bases)


@dataclass(frozen=True)
class Attribute:
    """An attribute in the `__dict__` of a module, and the value that it had when the model was compiled."""

    module: nn.Module
    name: str
    value: object

    @classmethod
    def of(cls, module: object, name: str) -> Attribute | None:
        """None if it is not found in the `__dict__` of a module, or is not a plain constant."""
        if not isinstance(module, nn.Module) or name not in vars(module) or hasattr(type(module), name):
            return None
        value = vars(module)[name]
        return cls(module, name, value) if type(value) in _PLAIN else None


class AttributeCheck:
    """`check(model)`: whether all attributes have their values. It keeps no module alive."""

    def __init__(self, attributes: Iterable[Attribute]) -> None:
        by_name: dict[str, dict[int, Attribute]] = {}
        for each in attributes:
            by_name.setdefault(each.name, {})[id(each.module)] = each
        self._found: list[tuple[Callable[[object], object], Sequence[Any], list[object]]] = [
            (
                operator.attrgetter(name),
                [weakref.proxy(each.module) for each in of_name.values()],
                [each.value for each in of_name.values()],
            )
            for name, of_name in by_name.items()
        ]

    def __call__(self, _: object) -> bool:
        # After kernels, code is no longer in the caches: this is written so that most of it runs in C.
        try:
            for get, modules, values in self._found:
                found = list(map(get, modules))
                if not all(map(operator.is_, found, values)) and not _are_equal(found, values):
                    return False
        except (AttributeError, ReferenceError):  # it was deleted, or the module was
            return False
        return True


def _are_equal(found: Sequence[object], values: Sequence[object]) -> bool:
    """Whether objects that are not the same are equal, and of the same types: 1 and True are not."""
    return list(map(type, found)) == list(map(type, values)) and found == values


def guard_of(source: Any, attributes: Sequence[Attribute], guards: Iterable[Any]) -> Any:
    """A guard of Dynamo for the model at `source` that checks `attributes` instead of `guards`.

    If this version of torch is organized differently, it checks the guards.
    """
    return source.make_guard(partial(_check_attributes, check=AttributeCheck(attributes), guards=guards))


def _check_attributes(builder: Any, guard: Any, *, check: AttributeCheck, guards: Iterable[Any]) -> None:
    reason = [f"the attributes of the modules of {guard.name} are the same"]
    try:
        manager = builder.get_guard_manager(guard)
        try:
            manager.add_lambda_guard(check, reason, guard.user_stack)
        except (AttributeError, TypeError):  # before torch 2.10
            manager.add_lambda_guard(check, reason)
    except Exception:  # all of this is private to torch
        for each in guards:
            each.create(builder)
