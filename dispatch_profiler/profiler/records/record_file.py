"""Records on disk: JSON lines, one record a line with all its samples, beside the CSV.

`data.csv` has its `data.jsonl`. A line that was cut off by a kill is left out when read.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dispatch_profiler.errors import UsageError
from dispatch_profiler.profiler.measurement.gpu_monitor import GpuState
from dispatch_profiler.profiler.measurement.measure import Measurement
from dispatch_profiler.profiler.measurement.peaks import Peaks
from dispatch_profiler.profiler.records.machine import Machine
from dispatch_profiler.profiler.records.record import Provenance, Record, Verdict, is_failure

_FORMAT = "dispatch_profiler record"
_VERSION = 1


@dataclass(frozen=True)
class StoredRecord:
    """A record as a file holds it: names and numbers, without the objects that they came from.

    `configuration_fields` are the tiles and options by name, `arguments` the extents and types.
    `measurement` is None if it was not measured.
    """

    dispatch: str
    provider: str
    op_kind: str
    operation: str
    configuration: str
    arguments: Mapping[str, Any]
    configuration_fields: Mapping[str, Any]
    verdict: Verdict
    reason: str
    flops: int
    bytes: int
    measurement: Measurement | None
    limit_ms: float
    reproduce: str
    provenance: Provenance
    tags: Mapping[str, str]
    peaks: Peaks | None = None

    @property
    def is_failure(self) -> bool:
        """As `Record.is_failure`."""
        return is_failure(self.verdict, self.reason)


def stored(record: Record, tags: Mapping[str, str] | None = None) -> StoredRecord:
    """What a file holds of `record`."""
    operation, configuration = record.dispatch.operation, record.dispatch.configuration
    return StoredRecord(
        dispatch=record.dispatch.name,
        provider=record.provider,
        op_kind=record.op_kind,
        operation=operation.name,
        configuration=configuration.name,
        arguments=dict(record.dispatch.arguments()),
        configuration_fields=dict(configuration.fields()),
        verdict=record.verdict,
        reason=record.reason,
        flops=operation.flops,
        bytes=operation.bytes,
        measurement=record.measurement,
        limit_ms=record.limit_ms,
        reproduce=record.reproduce,
        provenance=record.provenance,
        tags=dict(tags or {}),
        peaks=record.peaks,
    )


def as_stored(record: Record | StoredRecord, tags: Mapping[str, str] | None = None) -> StoredRecord:
    """`stored(record, tags)` of one that is made now; one that was stored before as it is."""
    return stored(record, tags) if isinstance(record, Record) else record


def to_line(record: StoredRecord) -> str:
    """One line of JSON. What follows from the samples stands beside them, for other programs."""
    row = {"format": _FORMAT, "version": _VERSION, **asdict(record), "verdict": record.verdict.value}
    measurement = record.measurement
    if measurement is not None:
        low, high = measurement.interval_ms
        row["derived"] = {
            "median_ms": measurement.median_ms,
            "min_ms": measurement.min_ms,
            "p20_ms": measurement.p20_ms,
            "p80_ms": measurement.p80_ms,
            "interval_ms": [low, high],
            "gflops": measurement.gflops(record.flops),
        }
    return json.dumps(row)


def beside_csv(path: Path) -> Path:
    """Where the samples of `data.csv` go: `data.jsonl`. UsageError if that is the same file."""
    beside = path.with_suffix(".jsonl")
    if beside == path:
        raise UsageError(f"--output: {path} is where the samples go", hint="name the CSV: FILE.csv")
    return beside


class JsonLines:
    """Writes records as they come. Use as a context manager."""

    def __init__(self, path: Path, *, append: bool = False, tags: Mapping[str, str] | None = None) -> None:
        self._tags = dict(tags or {})
        if append and path.exists():
            whole = path.read_bytes()
            os.truncate(path, whole.rfind(b"\n") + 1)  # whoever was killed while it wrote left half a line
        self._file = path.open("a" if append else "w")

    def add(self, record: Record | StoredRecord) -> None:
        """Write one line, so that it is on disk before the next dispatch begins.

        One that was stored before keeps its own tags.
        """
        self._file.write(to_line(as_stored(record, self._tags)) + "\n")
        self._file.flush()

    def __enter__(self) -> JsonLines:
        return self

    def __exit__(self, *exception: object) -> None:
        self._file.close()


def read_records(path: Path) -> tuple[StoredRecord, ...]:
    """Every record of a file, in its order.

    Raises UsageError if there is no such file, or if a line other than the last is no record.
    """
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read the records {path}: {error}") from error
    found = []
    for number, line in enumerate(lines, start=1):
        try:
            found.append(_from_dict(json.loads(line)))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            if number == len(lines) and found:
                break  # whoever wrote it was killed
            raise UsageError(
                f"{path}, line {number}: no record of dispatch_profiler ({error!r})",
                hint="give the .jsonl file that profiler.py --output wrote beside the CSV",
            ) from error
    return tuple(found)


def _with_todays_names(row: dict[str, Any]) -> dict[str, Any]:
    """`row` as this version writes it: files written before 0.2 call peaks ceilings, and batches visits."""
    measured = row["measurement"]
    if "ceilings" in row:
        row = {**row, "peaks": row["ceilings"]}
    if measured and "visits" in measured:
        others = {name: value for name, value in measured.items() if name != "visits"}
        row = {**row, "measurement": {**others, "batches": measured["visits"]}}
    return row


def _from_dict(row: dict[str, Any]) -> StoredRecord:
    if row["format"] != _FORMAT or row["version"] != _VERSION:
        raise ValueError(f"{row['format']} {row['version']}")
    row = _with_todays_names(row)
    measured = row["measurement"]
    # Files of earlier versions lack what came later.
    later = {"peaks": None}
    values = {name: {**later, **row}[name] for name in StoredRecord.__dataclass_fields__}
    values["verdict"] = Verdict(row["verdict"])
    machine = Machine(**row["provenance"].get("machine", {}))
    values["provenance"] = Provenance(**{**row["provenance"], "machine": machine})
    if values["peaks"] is not None:
        values["peaks"] = Peaks.from_dict(values["peaks"])
    if measured is not None:
        lists = ("samples_ms", "warnings", "dropped_ms", "places", "batches")
        tuples = {name: tuple(measured[name]) for name in lists if name in measured}
        gpu = {"gpu": GpuState(**measured["gpu"])} if measured.get("gpu") else {}
        values["measurement"] = Measurement(**{**measured, **tuples, **gpu})
    return StoredRecord(**values)
