"""Typed values from untrusted JSON: each function checks one field.

Every function raises `FieldError`, with the field, what was expected and the actual value.
A field with a `default` is optional.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from dispatch_profiler.errors import reason_of, short_repr

Value = TypeVar("Value")
#: This package writes no larger integers.
_LARGEST = 2**63 - 1
_SCALARS = (str, int, float, bool, type(None))


class FieldError(ValueError):
    """A document is not JSON, or one of its fields is missing or has the wrong type or value."""


def parse_json(text: str | bytes) -> object:
    """Parse a JSON document. Raises FieldError for malformed text and deep nesting."""
    try:
        return json.loads(text)
    except RecursionError:
        raise FieldError("the JSON is nested too deeply") from None
    except ValueError as error:  # includes invalid UTF-8 and integers with too many digits
        raise FieldError(f"not JSON: {reason_of(error)}") from error


def mapping(value: object, name: str = "the JSON") -> Mapping[str, Any]:
    """`value`, checked to be a JSON object."""
    if not isinstance(value, dict):
        raise FieldError(f"{name}: expected an object, but got {_shown(value)}")
    return value


def rows(row: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    """A list of JSON objects."""
    return [mapping(each, name) for each in _list(row, name, None)]


def text(row: Mapping[str, Any], name: str, default: str | None = None) -> str:
    """A string."""
    return _text(_field(row, name, default), name)


def flag(row: Mapping[str, Any], name: str, default: bool | None = None) -> bool:
    """`true` or `false`."""
    value = _field(row, name, default)
    if not isinstance(value, bool):
        raise FieldError(f"{name}: expected true or false, but got {_shown(value)}")
    return value


def whole(
    row: Mapping[str, Any], name: str, *, least: int = 0, most: int = _LARGEST, default: int | None = None
) -> int:
    """An integer from `least` to `most`."""
    return _whole(_field(row, name, default), name, least, most)


def number(
    row: Mapping[str, Any], name: str, *, least: float = -math.inf, default: float | None = None
) -> float:
    """A finite number of at least `least`."""
    return _number(_field(row, name, default), name, least)


def texts(row: Mapping[str, Any], name: str, default: tuple[str, ...] | None = None) -> tuple[str, ...]:
    """A list of strings."""
    return tuple(_text(value, name) for value in _list(row, name, default))


def wholes(
    row: Mapping[str, Any], name: str, *, least: int = 0, default: tuple[int, ...] | None = None
) -> tuple[int, ...]:
    """A list of integers of at least `least`."""
    return tuple(_whole(value, name, least, _LARGEST) for value in _list(row, name, default))


def numbers(row: Mapping[str, Any], name: str, default: tuple[float, ...] | None = None) -> tuple[float, ...]:
    """A list of finite numbers."""
    return tuple(_number(value, name, -math.inf) for value in _list(row, name, default))


def scalars(row: Mapping[str, Any], name: str) -> dict[str, Any]:
    """An object whose values are strings, numbers, booleans, null, or lists of these."""
    values = mapping(_field(row, name, None), name)
    for key, value in values.items():
        for each in value if isinstance(value, list) else [value]:
            if not isinstance(each, _SCALARS):
                raise FieldError(f"{name}.{key}: expected a string or a number, but got {_shown(each)}")
            if isinstance(each, (int, float)) and not isinstance(each, bool):
                _number(each, f"{name}.{key}", -math.inf)
    return dict(values)


def text_values(row: Mapping[str, Any], name: str) -> dict[str, str]:
    """An object whose values are strings."""
    values = mapping(_field(row, name, None), name)
    return {key: _text(value, f"{name}.{key}") for key, value in values.items()}


def check_bounded(value: object, name: str) -> None:
    """Raise FieldError if any number in `value` is not finite or exceeds 64 bits."""
    if isinstance(value, (dict, list)):
        for each in value.values() if isinstance(value, dict) else value:
            check_bounded(each, name)
    elif isinstance(value, int) and abs(value) > _LARGEST:
        raise FieldError(f"{name}: expected numbers, but got {_shown(value)}")
    elif isinstance(value, float) and not math.isfinite(value):
        raise FieldError(f"{name}: expected numbers, but got {value}")


def within(name: str, read: Callable[[], Value]) -> Value:
    """Return `read()`; prefixes the field in its FieldErrors with `name`."""
    try:
        return read()
    except FieldError as error:
        raise FieldError(f"{name}.{error}") from error


def _float_of(value: float) -> float:
    """`value` as a float; infinity for an integer that is too large."""
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _field(row: Mapping[str, Any], name: str, default: object) -> object:
    if name in row:
        return row[name]
    if default is None:
        raise FieldError(f"{name}: missing")
    return default


def _list(row: Mapping[str, Any], name: str, default: object) -> list[Any] | tuple[Any, ...]:
    value = _field(row, name, default)
    if not isinstance(value, (list, tuple)):
        raise FieldError(f"{name}: expected a list, but got {_shown(value)}")
    return value


def _text(value: object, name: str) -> str:
    if not isinstance(value, str):
        raise FieldError(f"{name}: expected a string, but got {_shown(value)}")
    return value


def _whole(value: object, name: str, least: int, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        rule = f"from {least} to {most}" if most < _LARGEST else f"of at least {least}"
        raise FieldError(f"{name}: expected a whole number {rule}, but got {_shown(value)}")
    return value


def _number(value: object, name: str, least: float) -> float:
    checked = (
        _float_of(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else math.nan
    )
    if not math.isfinite(checked) or checked < least:
        rule = "" if least == -math.inf else f" of at least {least:g}"
        raise FieldError(f"{name}: expected a number{rule}, but got {_shown(value)}")
    return checked


def _shown(value: object) -> str:
    if isinstance(value, int) and abs(value) > _LARGEST:
        return "an integer beyond 64 bits"  # Python refuses to print one with 5000 digits
    if isinstance(value, dict):
        return "an object"
    return "a list" if isinstance(value, (list, tuple)) else short_repr(value)
