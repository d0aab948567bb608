"""The other forms of a hipBLASLt log: `hipblaslt-bench` command lines (mask 32) and CSV, as fields.

Both give the field names of the YAML form (see `flow_lines`).
"""

from __future__ import annotations

import csv
import re

from dispatch_profiler.console.plurals import counted
from dispatch_profiler.errors import WorkloadError

BENCH = "hipblaslt-bench"
#: Names in command lines and CSV -> fields of the YAML form.
_RENAMED = {
    **{name: letter for letter in "MNK" for name in (letter.lower(), f"size{letter.lower()}")},
    **{name.lower(): name for name in ("transA", "transB", "scaleA", "scaleB", "scaleC", "scaleD")},
    **{name.lower(): name for name in ("swizzleA", "swizzleB", "amaxD", "scaleAlpha_vector")},
    "f": "function",
    "r": "precision",
    "batch": "batch_count",
}
_NUMBER = re.compile(r"-\.?\d.*")
_REQUIRED_COLUMNS = {"transA", "transB", "M", "N", "K"}
#: hipblaslt-bench numbers its rows: `[0]:transA,transB,...`.
_ROW_NUMBER = re.compile(r"\s*\[\d+\]:")


def bench_fields(line: str) -> dict[str, str]:
    """`hipblaslt-bench -m 768 --transA T --bias_vector ...` -> {"M": "768", "transA": "T", "bias_vector": "true"}.

    Options that are not given have the program's defaults, except for the shape, which is required.
    """
    words = line.partition(BENCH)[2].split()
    fields: dict[str, str] = {}
    at = 0
    while at < len(words):
        word = words[at]
        if not word.startswith("-") or not word.lstrip("-"):
            raise WorkloadError(f"expected an option of {BENCH}, but got {word[:40]!r}")
        name, _, value = word.lstrip("-").partition("=")
        following = words[at + 1] if at + 1 < len(words) else "-"
        if not value and (not following.startswith("-") or _NUMBER.fullmatch(following)):
            value = following
            at += 1
        fields[_renamed(name)] = value or "true"
        at += 1
    precision = fields.get("precision", "f32_r")
    defaults = {f"{operand}_type": precision for operand in "abd"}
    return {"transA": "N", "transB": "N", "batch_count": "1", "compute_type": "f32_r", **defaults, **fields}


def csv_columns(line: str) -> tuple[str, ...]:
    """The fields that the header of a CSV log names; empty if `line` is no such header."""
    if "," not in line:
        return ()
    columns = tuple(_renamed(name) for name in _values(line))
    return columns if set(columns) >= _REQUIRED_COLUMNS else ()


def csv_fields(line: str, columns: tuple[str, ...]) -> dict[str, str]:
    """The fields of a row; empty cells are left out."""
    values = _values(line)
    if len(values) != len(columns):
        raise WorkloadError(
            f"the row has {counted(len(values), 'value')}, but the header has {counted(len(columns), 'column')}"
        )
    return {name: value for name, value in zip(columns, values, strict=True) if value}


def _values(line: str) -> list[str]:
    try:
        return [value.strip() for value in next(csv.reader([_ROW_NUMBER.sub("", line)]), [])]
    except csv.Error as error:
        raise WorkloadError(f"not a row of CSV: {error}") from error


def _renamed(name: str) -> str:
    name = name.strip()
    return _RENAMED.get(name.lower(), name)
