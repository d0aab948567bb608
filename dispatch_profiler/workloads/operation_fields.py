"""The fields of an operation, as a user writes them -> the operation, or what is wrong with them in a sentence."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from functools import lru_cache
from typing import Any, get_args

from dispatch_profiler.errors import DispatchProfilerError, did_you_mean, short_repr
from dispatch_profiler.files.json_fields import FieldError, check_bounded, mapping
from dispatch_profiler.operations import KINDS, Operation, operation_from_dict, operation_kind
from dispatch_profiler.operations.geometry import Mode

_EXAMPLE = "{kind: matmul, m: 128, n: 768, k: 768}"
#: Errors that constructors raise for values that do not fit each other.
_DAMAGE = (KeyError, TypeError, ValueError, AttributeError, ArithmeticError)


@dataclass(frozen=True)
class FieldProblem:
    """What is wrong with a field, or a field of a field, at `path`; the data itself if that is empty."""

    path: Sequence[object]
    reason: str


@dataclass(frozen=True)
class _Field:
    """A field of a kind: its name, its annotation as it is written, and whether it may be left out."""

    name: str
    annotation: str
    has_default: bool


def operation_of(data: object) -> Operation | FieldProblem:
    """The operation with these fields, and with the field `kind`; or what is wrong with them."""
    try:
        given = mapping(data, "")
        check_bounded(given, "expected numbers of at most 64 bits")
    except FieldError as error:
        return FieldProblem((), f"{str(error).removeprefix(': ')}; write {_EXAMPLE}")
    if "kind" not in given:
        return FieldProblem((), f"kind is missing: available: {', '.join(KINDS)}")
    if not isinstance(given["kind"], str) or given["kind"] not in KINDS:
        hint = did_you_mean(str(given["kind"])[:100], KINDS)
        return FieldProblem(("kind",), f"unknown operation kind {short_repr(given['kind'])}: {hint}")
    return _problem(given) or _constructed(given)


def fields_of(kind: str) -> tuple[tuple[str, bool], ...]:
    """The names of the fields of a kind, each with whether it may be left out."""
    return tuple((each.name, each.has_default) for each in _fields(kind))


@lru_cache(maxsize=100)
def _fields(kind: str) -> tuple[_Field, ...]:
    type_ = operation_kind(kind)
    return tuple(
        _Field(each.name, str(each.type), each.default is not MISSING or each.default_factory is not MISSING)
        for each in fields(type_)  # type: ignore[arg-type]
        if each.init
    )


def _problem(given: Mapping[str, Any]) -> FieldProblem | None:
    """A field that is unknown, missing, or has a value of another type."""
    kind = given["kind"]
    known = {each.name: each for each in _fields(kind)}
    for name in given:
        if name != "kind" and name not in known:
            hint = did_you_mean(str(name)[:100], known)
            return FieldProblem((name,), f"{kind} has no field {short_repr(name)}: {hint}")
    needed = [each.name for each in known.values() if not each.has_default]
    if missing := [name for name in needed if name not in given]:
        return FieldProblem((), f"{missing[0]} is missing: {kind} needs {', '.join(needed)}")
    for name, value in given.items():
        if name != "kind" and (expected := _mismatch(known[name].annotation, value)):
            got = "nothing" if value is None else _shown(value)
            return FieldProblem((name,), f"{name}: expected {expected}, but got {got}")
    return None


def _mismatch(annotation: str, value: object) -> str:
    """What is expected instead of `value`, in words; empty if its type is right."""
    if annotation.endswith(" | None"):
        return "" if value is None else _mismatch(annotation.removesuffix(" | None"), value)
    check, expected = _EXPECTED.get(annotation, (lambda value: True, ""))
    return "" if check(value) else expected


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_types(value: object) -> bool:
    return isinstance(value, list) and len(value) in (0, 3, 4) and all(map(_is_text, value))


#: Annotations of fields -> a check of a value's type, and what is expected.
_EXPECTED: dict[str, tuple[Callable[[object], bool], str]] = {
    "int": (_is_whole, "a whole number"),
    "float": (_is_number, "a number"),
    "bool": (lambda value: isinstance(value, bool), "true or false"),
    "str": (_is_text, "a text"),
    "Epilogue": (_is_text, "a text such as bias+relu"),
    "ElementTypes": (_is_types, "a list of types for lhs, rhs and the result, such as [bf16, bf16, f32]"),
    "Mode": (lambda value: value in get_args(Mode), f"one of {', '.join(get_args(Mode))}"),
    "Affine": (lambda value: isinstance(value, (bool, str)), "true, false, weight or bias"),
    "tuple[int, ...]": (
        lambda value: isinstance(value, list) and all(map(_is_whole, value)),
        "a list of whole numbers, such as [1, 1]",
    ),
}


def _shown(value: object) -> str:
    if isinstance(value, str):
        return f"the text {short_repr(value)}"
    return "an object" if isinstance(value, dict) else short_repr(value)


def _constructed(given: Mapping[str, Any]) -> Operation | FieldProblem:
    """The operation, or the rule that its values break."""
    optional = {each.name: each for each in _fields(given["kind"]) if each.has_default}
    defaults = {
        name: "none" if field.annotation == "Epilogue" else []
        for name, field in optional.items()
        if field.annotation in ("Epilogue", "ElementTypes")
    }
    try:
        operation = operation_from_dict({**defaults, **given})
        _ = hash(operation), operation.name, operation.flops
    except DispatchProfilerError as error:
        # Some hints name options of the command line.
        hint = f" ({error.hint})" if error.hint and "--" not in error.hint else ""
        return FieldProblem(_named_in(str(error), given), f"{error}{hint}")
    except _DAMAGE:
        return FieldProblem((), f"these values are no {given['kind']}: docs/workloads.md shows its fields")
    return operation


def _named_in(message: str, given: Mapping[str, Any]) -> tuple[str, ...]:
    """The field of `given` that a message names, as `m=0` or `padding`, or whose value it quotes."""
    names = [name for name in given if name != "kind"]
    equal = [name for name in re.findall(r"\b([a-z_]+)=", message) if name in names]
    words = [name for name in names if len(name) > 3 and re.search(rf"\b{re.escape(name)}\b", message)]
    quoted = [name for name in names if any(repr(text) in message for text in _texts(given[name]))]
    return tuple((equal or words or quoted)[:1])


def _texts(value: object) -> list[str]:
    values = value if isinstance(value, list) else [value]
    return [each for each in values if isinstance(each, str)]
