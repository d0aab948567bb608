"""Entries of a library as JSON: one file has the entries of a device and a family of operations, or all.

| field | holds |
|---|---|
| `origins` | where entries were measured: device, target, IREE version, seed, machine; each once, by a hash of its content |
| `entries` | three lines each: the name and the speeds with intervals; the configuration with its form, and compiler flags; the operation, the origin, and which module was measured when. Entries for several sizes have them after the name, and a fourth line: `[size, milliseconds, milliseconds untuned]` of each measured size |

An interval is `[value, low, high]` with five digits; `null` is an end that the samples do not determine. An entry is on
lines of its own and names its origin by content, so that an entry that is added or replaced changes no other line.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from dispatch_profiler.configurations import check_flags, configuration_from_dict
from dispatch_profiler.dispatches import Dispatch
from dispatch_profiler.errors import (
    ConfigurationError,
    DispatchProfilerError,
    OperationError,
    TargetError,
)
from dispatch_profiler.files.json_fields import (
    FieldError,
    check_bounded,
    mapping,
    rows,
    text,
    texts,
    whole,
    within,
)
from dispatch_profiler.library.entry import Entry, Estimate, Hardware, SizeTime
from dispatch_profiler.operations import Operation, operation_from_dict
from dispatch_profiler.operations.size_range import SizeRange
from dispatch_profiler.profiler.records.record import Provenance
from dispatch_profiler.profiler.records.record_file import read_provenance

FORMAT = "dispatch_profiler library"
VERSION = 3
#: In version 1, the machine of an origin has neither `threads` nor `cpu_level`; until version 2, origins are a list.
READABLE = (1, 2, VERSION)
#: Fields of a provenance that differ between entries; the others are in `origins`.
_OWN = ("when", "module_key", "flags")
#: Errors that constructors raise for invalid values.
_DAMAGE = (KeyError, TypeError, ValueError, AttributeError, ArithmeticError, DispatchProfilerError)
#: Measured sizes of an entry at most.
_MOST_SIZES = 1000
#: Digits of the hash that names an origin.
_DIGITS = 10

# -- writing ---------------------------------------------------------------------------------------


def header(version: int = VERSION) -> str:
    """The first fields of every file of a library."""
    return f'"format": "{FORMAT}", "version": {version}'


def in_order(entry: Entry) -> tuple[str, str, bool, Hardware]:
    """What orders the entries of a library."""
    sizes = entry.sizes.text if entry.sizes else ""
    return entry.operation.name, sizes, entry.packs_weight, entry.hardware


def to_text(entries: Iterable[Entry]) -> str:
    """The text of a file with these entries, in order of their operations' names."""
    origins: dict[str, str] = {}
    items = []
    for entry in sorted(entries, key=in_order):
        key, content = _origin(entry.provenance)
        origins[key] = content
        items.append(_item(_row(entry, key)))
    places = [f"{json.dumps(key)}: {origins[key]}" for key in sorted(origins)]
    return f'{{{header()}, "origins": {{\n{_listed(places)}}}, "entries": [\n{_listed(items)}]}}\n'


def exported(entry: Entry) -> dict[str, Any]:
    """One entry by itself, as plain data."""
    row = _row(entry, "")
    del row["origin"]
    return {**row, "provenance": asdict(entry.provenance)}


def _listed(lines: Sequence[str]) -> str:
    return "".join(f"{line}{',' if at < len(lines) else ''}\n" for at, line in enumerate(lines, 1))


def _origin(provenance: Provenance) -> tuple[str, str]:
    """The name of an origin, and its text."""
    fields = {name: value for name, value in asdict(provenance).items() if name not in _OWN}
    content = json.dumps(fields)
    return hashlib.sha256(content.encode()).hexdigest()[:_DIGITS], content


def _row(entry: Entry, origin: str) -> dict[str, Any]:
    return {
        "name": entry.operation.name,
        **({"sizes": entry.sizes.text} if entry.sizes else {}),
        "speedup": _interval_row(entry.speedup),
        "gflops": _interval_row(entry.gflops),
        "configuration": entry.dispatch.configuration.to_dict(),
        "flags": list(entry.provenance.flags),
        "operation": entry.operation.to_dict(),
        "origin": origin,
        "module_key": entry.provenance.module_key,
        "when": entry.provenance.when,
        **({"measured": [_size_row(each) for each in entry.measured]} if entry.sizes else {}),
    }


#: The fields that begin a line of an entry.
_FIRST_OF_LINE = ("configuration", "operation", "measured")


def _item(row: Mapping[str, Any]) -> str:
    parts: list[str] = []
    for name, value in row.items():
        between = "" if not parts else ",\n " if name in _FIRST_OF_LINE else ", "
        parts.append(f'{between}"{name}": {json.dumps(value)}')
    return f"{{{''.join(parts)}}}"


def _size_row(time: SizeTime) -> list[float]:
    return [time.size, _rounded(time.milliseconds), _rounded(time.untuned)]


def _interval_row(estimate: Estimate) -> list[float | None]:
    ends = (estimate.value, estimate.low, estimate.high)
    return [_rounded(each) if math.isfinite(each) else None for each in ends]


def _rounded(value: float) -> float:
    return float(f"{value:.5g}")


# -- reading ---------------------------------------------------------------------------------------


def check_header(data: Mapping[str, Any]) -> None:
    """Raise FieldError unless `data` is a library of a version that this program reads."""
    if data.get("format") != FORMAT:
        raise FieldError(f'expected "format": "{FORMAT}"')
    if data.get("version") not in READABLE:
        known = ", ".join(map(str, READABLE))
        raise FieldError(f"unsupported version {data.get('version')!r}; this program reads versions {known}")


#: How an entry names its origin -> the origin.
Origins = Callable[[Mapping[str, Any]], Provenance]


def origins_of(data: Mapping[str, Any]) -> Origins:
    """Where the entries were measured. Raises FieldError."""
    if isinstance(data.get("origins"), dict):
        named = {key: _provenance(value) for key, value in mapping(data["origins"], "origins").items()}

        def by_name(row: Mapping[str, Any]) -> Provenance:
            name = text(row, "origin")
            if name not in named:
                raise FieldError(f"origin: {name[:40]!r} is not among the origins")
            return named[name]

        return by_name
    listed = tuple(map(_provenance, rows(data, "origins")))
    return lambda row: listed[whole(row, "origin", most=len(listed) - 1)]


def _provenance(row: Any) -> Provenance:
    read = lambda: read_provenance({**mapping(row, "origins"), "module_key": "", "flags": []})  # noqa: E731
    return within("origins", read)


def entry_of(row: Mapping[str, Any], origins: Origins) -> Entry:
    """Parse one entry. Raises FieldError."""
    origin = origins(row)
    dispatch = _dispatch(row)
    entry = Entry(
        dispatch,
        _interval(row, "gflops"),
        _interval(row, "speedup"),
        replace(
            origin, when=text(row, "when"), module_key=text(row, "module_key"), flags=texts(row, "flags")
        ),
        *_sizes(row, dispatch.operation),
    )
    _check_flags(entry)
    if entry.operation.name != text(row, "name"):
        raise FieldError(f"name: expected {entry.operation.name}, but got {text(row, 'name')[:100]!r}")
    return entry


def _sizes(row: Mapping[str, Any], operation: Operation) -> tuple[SizeRange | None, tuple[SizeTime, ...]]:
    """The sizes of an entry for several, and their times. Raises FieldError."""
    if "sizes" not in row:
        return None, ()
    try:
        sizes = SizeRange.parse(text(row, "sizes"))
        if sizes.largest_of(operation) != operation:
            raise FieldError(f"sizes: {sizes.text} does not end with the operation's {sizes.dimension}")
    except OperationError as error:
        raise FieldError(f"sizes: {error.message}") from error
    measured = row.get("measured")
    if not isinstance(measured, list) or len(measured) > _MOST_SIZES:
        raise FieldError(f"measured: expected at most {_MOST_SIZES} of [size, milliseconds, milliseconds]")
    times = tuple(map(_size_time, measured))
    if any(each.size not in sizes for each in times):
        raise FieldError(f"measured: a size is outside {sizes.text}")
    return sizes, times


def _size_time(row: Any) -> SizeTime:
    is_triple = isinstance(row, list) and len(row) == 3 and type(row[0]) is int
    if not is_triple or any(type(each) not in (int, float) or not 0.0 < each < math.inf for each in row[1:]):
        raise FieldError("measured: expected [size, milliseconds, milliseconds]")
    return SizeTime(row[0], float(row[1]), float(row[2]))


def _check_flags(entry: Entry) -> None:
    """Raise FieldError if the flags may do more than configure an operation."""
    try:
        check_flags(entry.extra_flags)
    except TargetError:
        return  # of a target that another version knows: the entry is shown, and never used
    except ConfigurationError as error:
        raise FieldError(f"flags: {error}") from error


def _dispatch(row: Mapping[str, Any]) -> Dispatch:
    parts = {name: mapping(row.get(name), name) for name in ("operation", "configuration")}
    for name, data in parts.items():
        check_bounded(data, name)
    try:
        dispatch = Dispatch(
            operation_from_dict(parts["operation"]), configuration_from_dict(parts["configuration"])
        )
        _ = hash(dispatch), dispatch.name, dispatch.operation.flops
    except _DAMAGE as error:
        reason = str(error) if isinstance(error, DispatchProfilerError) else repr(error)
        raise FieldError(f"operation or configuration: {reason}") from error
    if dispatch.configuration.names_code:
        raise FieldError("configuration: it names an object file, which a library may not")
    return dispatch


def _interval(row: Mapping[str, Any], name: str) -> Estimate:
    values = row.get(name)
    if not isinstance(values, list) or len(values) != 3:
        raise FieldError(f"{name}: expected [value, low, high]")
    ends = [math.inf if at == 2 and each is None else each for at, each in enumerate(values)]
    if any(isinstance(each, bool) or not isinstance(each, (int, float)) for each in ends):
        raise FieldError(f"{name}: expected three numbers")
    try:
        value, low, high = map(float, ends)
        if not math.isfinite(value):
            raise ValueError("the value is not finite")
        return Estimate(value, low, high)
    except (ValueError, OverflowError) as error:
        raise FieldError(f"{name}: {error}") from None
