"""Versions of the record format, and the conversion of older rows to the current version.

| version | written by | differs from the next in |
|---|---|---|
| 1 | 0.1 and before | `provenance` has no `module_key` and no `flags`; peaks are called ceilings, batches visits, and may be absent, as may `provenance.machine` |
| 2 | this version | |
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dispatch_profiler.files.json_fields import FieldError, mapping

FORMAT = "dispatch_profiler record"
VERSION = 2


def current_row(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """`row` in version 2. Raises FieldError for another format or a later version."""
    if row.get("format") != FORMAT:
        raise FieldError(f'expected "format": "{FORMAT}"')
    version = row.get("version")
    if version not in (1, VERSION):
        raise FieldError(f"unsupported version {version!r}; this program reads versions 1 and {VERSION}")
    return _from_version_1(row) if version == 1 else row


def _from_version_1(row: Mapping[str, Any]) -> Mapping[str, Any]:
    current = {"peaks": row.get("ceilings"), **row, "version": VERSION}
    origin = mapping(current.get("provenance"), "provenance")
    current["provenance"] = {"machine": {}, "module_key": "", "flags": [], **origin}
    measured = current.get("measurement")
    if isinstance(measured, dict) and "visits" in measured:
        current["measurement"] = {"batches": measured["visits"], **measured}
    return current
