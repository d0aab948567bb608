"""Record files: JSON lines beside the CSV file, one record per line with all its samples.

`data.csv` comes with `data.jsonl`. A last line that is incomplete, because the process that wrote it was
killed, is skipped.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dispatch_profiler.closing import Closing
from dispatch_profiler.console.plurals import counted
from dispatch_profiler.errors import UsageError, short_repr
from dispatch_profiler.files.json_fields import (
    FieldError,
    mapping,
    number,
    numbers,
    parse_json,
    scalars,
    text,
    text_values,
    texts,
    whole,
    wholes,
    within,
)
from dispatch_profiler.files.regular import read_bounded
from dispatch_profiler.profiler.measurement.gpu_monitor import GpuState
from dispatch_profiler.profiler.measurement.measure import Included, Measurement, Mode
from dispatch_profiler.profiler.measurement.peaks import Peaks
from dispatch_profiler.profiler.records.machine import Machine
from dispatch_profiler.profiler.records.record import (
    Confirmation,
    Provenance,
    Record,
    StoredRecord,
    Verdict,
    as_stored,
)

# Versions of the record format, and the conversion of older rows to the current version.
#
# | version | written by | differs from the next in |
# |---|---|---|
# | 1 | 0.1 and before | `provenance` has no `module_key` and no `flags`; peaks are called ceilings, batches visits, and may be absent, as may `provenance.machine` |
# | 2 | this version | |


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


#: The start of every line, in every version.
_BEGINS = f'{{"format": "{FORMAT}", "version": '.encode()
#: Far above any real file: a record with 400 samples takes 10 kB.
_LARGEST_FILE = 2**32


def to_line(record: StoredRecord) -> str:
    """One line of JSON. Includes statistics of the samples under `derived`, for other programs.

    The interval of a single sample is unknown: null.
    """
    row = {"format": FORMAT, "version": VERSION, **asdict(record), "verdict": record.verdict.value}
    measurement = record.measurement
    if measurement is not None:
        row["derived"] = {
            "median_ms": measurement.median_ms,
            "min_ms": measurement.min_ms,
            "p20_ms": measurement.p20_ms,
            "p80_ms": measurement.p80_ms,
            "interval_ms": list(measurement.interval_ms) if measurement.has_interval else None,
            "gflops": measurement.gflops(record.flops),
        }
    return json.dumps(row)


def from_line(line: str | bytes) -> StoredRecord:
    """Inverse of `to_line`. Raises FieldError."""
    return _from_row(current_row(mapping(parse_json(line))))


def beside_csv(path: Path) -> Path:
    """The file for the samples of `data.csv`: `data.jsonl`. Raises UsageError if `path` is that file."""
    beside = path.with_suffix(".jsonl")
    if beside == path:
        raise UsageError(f"--output: {path} is the name of the sample file", hint="name the CSV: FILE.csv")
    return beside


class JsonLines(Closing):
    """Writes records one by one. Use as a context manager."""

    def __init__(self, path: Path, *, append: bool = False, tags: Mapping[str, str] | None = None) -> None:
        self._tags = dict(tags or {})
        if append and path.exists():
            _finish_last_line(path)
        self._file = path.open("a" if append else "w", encoding="utf-8")

    def add(self, record: Record | StoredRecord) -> None:
        """Write one line and flush it, before the next dispatch begins.

        A stored record keeps its own tags.
        """
        self._file.write(to_line(as_stored(record, self._tags)) + "\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def _finish_last_line(path: Path) -> None:
    """Remove an incomplete last record; add the line feed that a complete one lacks."""
    data = read_bounded(path, _LARGEST_FILE)
    start = data.rfind(b"\n") + 1
    if _is_torn(data[start:]):
        os.truncate(path, start)
    elif data[start:]:
        with path.open("ab") as file:
            file.write(b"\n")


def earlier_records(option: str, csv_path: Path) -> tuple[StoredRecord, ...]:
    """The records of the file that `option` extends, from the JSON lines beside the CSV.

    Raises UsageError if the CSV exists without them, because its rows could not be kept.
    """
    beside = beside_csv(csv_path)
    if beside.exists():
        return read_records(beside)
    if csv_path.exists() and csv_path.stat().st_size:
        raise UsageError(
            f"{option}: {csv_path} exists, but {beside} does not, and rows are derived from it",
            hint=f"restore {beside}, or name another --output",
        )
    return ()


def read_records(path: Path) -> tuple[StoredRecord, ...]:
    """Every record of a file, in order.

    An incomplete last line is skipped: the process that wrote it was killed. Raises UsageError if the file cannot
    be read or if any other line is not a record.
    """
    lines = read_bounded(path, _LARGEST_FILE).split(b"\n")
    torn = lines.pop()
    if torn and not _is_torn(torn):
        lines.append(torn)
    return tuple(_read_line(path, number, line) for number, line in enumerate(lines, start=1))


def _is_torn(line: bytes) -> bool:
    """True if `line` is the incomplete start of a record."""
    begins = _BEGINS.startswith(line) or line.startswith(_BEGINS)
    if not begins:
        return False
    try:
        parse_json(line)
    except FieldError:
        return True
    return False  # complete: an editor removed the final line feed


def _read_line(path: Path, number: int, line: bytes) -> StoredRecord:
    try:
        return from_line(line)
    except FieldError as error:
        raise UsageError(
            f"{path}, line {number}: not a dispatch_profiler record ({error})",
            hint="pass the .jsonl file that profiler.py --output wrote beside the CSV",
        ) from error


def _from_row(row: Mapping[str, Any]) -> StoredRecord:
    measured, peaks, confirmed = row.get("measurement"), row.get("peaks"), row.get("confirmed")
    return StoredRecord(
        dispatch=text(row, "dispatch"),
        provider=text(row, "provider"),
        op_kind=text(row, "op_kind"),
        operation=text(row, "operation"),
        configuration=text(row, "configuration"),
        arguments=scalars(row, "arguments"),
        configuration_fields=scalars(row, "configuration_fields"),
        verdict=_verdict(row),
        reason=text(row, "reason"),
        flops=whole(row, "flops"),
        bytes=whole(row, "bytes"),
        measurement=None
        if measured is None
        else within("measurement", lambda: _measurement(mapping(measured, "measurement"))),
        limit_ms=number(row, "limit_ms", least=0.0),
        reproduce=text(row, "reproduce"),
        provenance=within(
            "provenance", lambda: read_provenance(mapping(row.get("provenance"), "provenance"))
        ),
        tags=text_values(row, "tags"),
        peaks=None if peaks is None else within("peaks", lambda: Peaks.from_dict(mapping(peaks, "peaks"))),
        confirmed=None
        if confirmed is None
        else within("confirmed", lambda: _confirmed(mapping(confirmed, "confirmed"))),
    )


def _confirmed(row: Mapping[str, Any]) -> Confirmation:
    ends = {name: number(row, name) for name in ("speed", "low", "high") if row.get(name) is not None}
    return Confirmation(text(row, "outcome"), text(row, "reason"), **ends)


def _verdict(row: Mapping[str, Any]) -> Verdict:
    try:
        return Verdict(text(row, "verdict"))
    except ValueError:
        raise FieldError(f"verdict: {short_repr(row.get('verdict'))} is not a verdict") from None


def read_provenance(row: Mapping[str, Any]) -> Provenance:
    """The provenance in a JSON object. Raises FieldError."""
    return Provenance(
        device=text(row, "device"),
        target=text(row, "target"),
        iree=text(row, "iree"),
        seed=whole(row, "seed"),
        when=text(row, "when", ""),
        machine=_machine(mapping(row.get("machine", {}), "machine")),
        library=text(row, "library", ""),
        module_key=text(row, "module_key"),
        flags=texts(row, "flags"),
    )


def _machine(row: Mapping[str, Any]) -> Machine:
    return Machine(
        cpu=text(row, "cpu", ""),
        cores=whole(row, "cores", default=0),
        memory_bytes=whole(row, "memory_bytes", default=0),
        system=text(row, "system", ""),
        gpu=text(row, "gpu", ""),
        driver=text(row, "driver", ""),
        threads=whole(row, "threads", default=0),
        cpu_level=text(row, "cpu_level", ""),
    )


def _measurement(row: Mapping[str, Any]) -> Measurement:
    samples, gpu = numbers(row, "samples_ms"), row.get("gpu")
    if not samples:
        raise FieldError("samples_ms: expected at least one sample")
    return Measurement(
        samples_ms=samples,
        executions=whole(row, "executions", least=1),
        mode=text(row, "mode", Mode.WARM.value),
        overhead_ms=number(row, "overhead_ms", default=0.0),
        ended_by=text(row, "ended_by", "count"),
        warnings=texts(row, "warnings", ()),
        dropped_ms=numbers(row, "dropped_ms", ()),
        places=_of_samples(wholes(row, "places", default=()), samples, "places"),
        batches=_batches(wholes(row, "batches", default=()), samples),
        gpu=None if gpu is None else within("gpu", lambda: _gpu(mapping(gpu, "gpu"))),
        eager_ms=number(row, "eager_ms", least=0.0, default=0.0),
        library_call_ms=number(row, "library_call_ms", least=0.0, default=0.0),
        overhead_error_ms=number(row, "overhead_error_ms", least=0.0, default=0.0),
        includes=_included(texts(row, "includes", ())),
    )


def _included(names: tuple[str, ...]) -> tuple[Included, ...]:
    try:
        return tuple(map(Included, names))
    except ValueError:
        known = ", ".join(part.value for part in Included)
        raise FieldError(f"includes: expected some of {known}, but got {short_repr(list(names))}") from None


def _of_samples(places: tuple[int, ...], samples: tuple[float, ...], name: str) -> tuple[int, ...]:
    if len(places) not in (0, len(samples)):
        raise FieldError(
            f"{name}: expected one for each of the {counted(len(samples), 'sample')}, but got {len(places)}"
        )
    return places


def _batches(batches: tuple[int, ...], samples: tuple[float, ...]) -> tuple[int, ...]:
    if batches and sum(batches) != len(samples):
        raise FieldError(
            f"batches: expected {counted(len(samples), 'sample')} in all, but got {sum(batches)}"
        )
    return batches


def _gpu(row: Mapping[str, Any]) -> GpuState:
    return GpuState(
        sm_mhz=whole(row, "sm_mhz", default=0),
        max_sm_mhz=whole(row, "max_sm_mhz", default=0),
        memory_mhz=whole(row, "memory_mhz", default=0),
        watts=number(row, "watts", default=0.0),
        limit_watts=number(row, "limit_watts", default=0.0),
        celsius=whole(row, "celsius", least=-(2**31), default=0),
        slowed_by_power=number(row, "slowed_by_power", default=-1.0),
        slowed_by_heat=number(row, "slowed_by_heat", default=-1.0),
    )
