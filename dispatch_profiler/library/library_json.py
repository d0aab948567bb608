"""The JSON of a library.

| field | holds |
|---|---|
| `origins` | where entries were measured: device, target, IREE version, seed, machine; each once |
| `entries` | one line each: operation, configuration with its form, compiler flags, speeds with intervals, and the index of the origin |

An interval is `[value, low, high]`; `null` is an end that the samples do not determine.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from dispatch_profiler.configurations import check_flags, configuration_from_dict
from dispatch_profiler.dispatches import Dispatch
from dispatch_profiler.errors import ConfigurationError, DispatchProfilerError, TargetError
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
from dispatch_profiler.library.entry import Entry, Estimate
from dispatch_profiler.operations import operation_from_dict
from dispatch_profiler.profiler.records.record import Provenance
from dispatch_profiler.profiler.records.record_file import read_provenance

FORMAT = "dispatch_profiler library"
VERSION = 1
#: Fields of a provenance that differ between entries; the others are in `origins`.
_OWN = ("when", "module_key", "flags")
#: Errors that constructors raise for invalid values.
_DAMAGE = (KeyError, TypeError, ValueError, AttributeError, ArithmeticError, DispatchProfilerError)


def to_text(entries: Iterable[Entry]) -> str:
    """The text of a library, with entries in order of their operations' names."""
    origins: dict[Provenance, int] = {}
    lines = [
        json.dumps(_row(entry, origins.setdefault(_origin(entry), len(origins))))
        for entry in sorted(entries, key=lambda entry: (entry.operation.name, entry.packs_weight))
    ]
    places = [json.dumps(_without_own(asdict(origin))) for origin in origins]
    return (
        f'{{"format": "{FORMAT}", "version": {VERSION}, "origins": [\n{_listed(places)}], '
        f'"entries": [\n{_listed(lines)}]}}\n'
    )


def exported(entry: Entry) -> dict[str, Any]:
    """One entry by itself, as plain data."""
    row = _row(entry, 0)
    del row["origin"]
    return {**row, "provenance": asdict(entry.provenance)}


def _listed(lines: Sequence[str]) -> str:
    return "".join(f"{line}{',' if at < len(lines) else ''}\n" for at, line in enumerate(lines, 1))


def _origin(entry: Entry) -> Provenance:
    return replace(entry.provenance, when="", module_key="", flags=())


def _without_own(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in _OWN}


def _row(entry: Entry, origin: int) -> dict[str, Any]:
    return {
        "name": entry.operation.name,
        "operation": entry.operation.to_dict(),
        "configuration": entry.dispatch.configuration.to_dict(),
        "flags": list(entry.provenance.flags),
        "gflops": _interval_row(entry.gflops),
        "speedup": _interval_row(entry.speedup),
        "origin": origin,
        "module_key": entry.provenance.module_key,
        "when": entry.provenance.when,
    }


def _interval_row(estimate: Estimate) -> list[float | None]:
    return [each if math.isfinite(each) else None for each in (estimate.value, estimate.low, estimate.high)]


# -- reading ---------------------------------------------------------------------------------------


def check_header(data: Mapping[str, Any]) -> None:
    """Raise FieldError unless `data` is a library of this version."""
    if data.get("format") != FORMAT:
        raise FieldError(f'expected "format": "{FORMAT}"')
    if data.get("version") != VERSION:
        raise FieldError(f"unsupported version {data.get('version')!r}; this program reads version {VERSION}")


def origins_of(data: Mapping[str, Any]) -> tuple[Provenance, ...]:
    """Where the entries were measured. Raises FieldError."""
    return tuple(
        within("origins", lambda row=row: read_provenance({**row, "module_key": "", "flags": []}))  # type: ignore[misc]
        for row in rows(data, "origins")
    )


def entry_of(row: Mapping[str, Any], origins: Sequence[Provenance]) -> Entry:
    """Parse one entry. Raises FieldError."""
    at = whole(row, "origin", most=len(origins) - 1)
    entry = Entry(
        _dispatch(row),
        _interval(row, "gflops"),
        _interval(row, "speedup"),
        replace(
            origins[at],
            when=text(row, "when"),
            module_key=text(row, "module_key"),
            flags=texts(row, "flags"),
        ),
    )
    _check_flags(entry)
    if entry.operation.name != text(row, "name"):
        raise FieldError(f"name: expected {entry.operation.name}, but got {text(row, 'name')[:100]!r}")
    return entry


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
