"""Results as a pandas DataFrame, with a type for each column."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dispatch_profiler.errors import MissingDependency, UsageError
from dispatch_profiler.files.regular import read_bounded
from dispatch_profiler.profiler.records.record_file import read_records
from dispatch_profiler.profiler.report.csv_columns import FLOATS, TEXTS, columns, csv_rows

if TYPE_CHECKING:
    import pandas

#: Far above any real file.
_LARGEST_FILE = 2**32
_TRUTHS = {"true": True, "false": False}


def read_dataframe(path: str | Path) -> pandas.DataFrame:
    """The rows of a CSV of results, or the records of a `data.jsonl`, as a DataFrame with a row for each dispatch.

    Times, speeds and ratios are float64; extents and counts Int64; true and false boolean; `when` a time in UTC; all
    else string. Missing values are NaN in float64, otherwise NA. From a `.jsonl` file, there is every column of
    `profile --columns=all`; speedups are relative to the compiler's default. Results of `tune` (`raw_results.csv`) can be
    read too. Raises MissingDependency without pandas, and UsageError if the file cannot be read or has no header.
    """
    try:
        import pandas
    except ImportError as error:
        raise MissingDependency(
            "read_dataframe needs pandas, which is not installed", hint="python -m pip install pandas"
        ) from error
    place = Path(path)
    header, rows = _records_of(place) if place.suffix == ".jsonl" else _rows_of(place)
    texts = pandas.DataFrame(rows, columns=header, dtype="string")
    return pandas.DataFrame({name: _typed(pandas, name, texts[name]) for name in header})


def _rows_of(path: Path) -> tuple[list[str], list[list[str | None]]]:
    """The header and the rows of a CSV; None for empty cells."""
    text = read_bounded(path, _LARGEST_FILE).decode("utf-8-sig", "replace")
    try:
        lines = list(csv.reader(io.StringIO(text, newline="")))
    except csv.Error:
        lines = []
    header, rows = (lines[0], lines[1:]) if lines else ([], [])
    if len({*header}) < max(1, len(header)) or (len(header) == 1 and header[0] not in columns()):
        raise UsageError(
            f"{path} is not a CSV of results: its first line does not name columns",
            hint="pass the CSV that profile --output wrote, or the .jsonl file beside it",
        )
    return header, [_padded(row, len(header)) for row in rows if row]


def _padded(row: Sequence[str], count: int) -> list[str | None]:
    """A row of `count` values; the last row of a program that was killed may be short."""
    return [*(value or None for value in row[:count]), *[None] * (count - len(row))]


def _records_of(path: Path) -> tuple[list[str], list[list[str | None]]]:
    """The columns of records, tags first, and a row for each; None for missing values."""
    records = read_records(path)
    known = columns()
    tags = dict.fromkeys(name for record in records for name in record.tags if name not in known)
    header = [*tags, *known]
    texts = [{name: str(value) for name, value in row.items()} for row in csv_rows(records)]
    return header, [[row.get(name) or None for name in header] for row in texts]


def _typed(pandas: Any, name: str, values: pandas.Series[Any]) -> pandas.Series[Any]:
    """`values`, which are text, in the type of the column `name`; of others, in the first type that fits them all."""
    if name in TEXTS:
        return values
    if name in FLOATS or name.endswith(("(ms)", "(%)")):
        return pandas.to_numeric(values, errors="coerce").astype("float64")
    if name == "when":
        return pandas.to_datetime(values, errors="coerce", utc=True, format="ISO8601")
    present = values.dropna()
    if not present.empty and present.isin(list(_TRUTHS)).all():
        return values.map(_TRUTHS).astype("boolean")
    if not present.empty and present.str.fullmatch(r"-?[0-9]{1,18}").all():
        return values.astype("Int64")
    numbers = pandas.to_numeric(present, errors="coerce")
    if not present.empty and numbers.notna().all():
        return pandas.to_numeric(values).astype("float64")
    return values
