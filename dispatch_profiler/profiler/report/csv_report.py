"""Records as CSV: one row each, derived from the JSON lines beside the file."""

from __future__ import annotations

import csv
import io
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO

from dispatch_profiler.command import writable
from dispatch_profiler.configurations import Default, report_columns
from dispatch_profiler.dispatches import Dispatch
from dispatch_profiler.errors import UsageError
from dispatch_profiler.files.destinations import destination, open_stream
from dispatch_profiler.files.regular import write_atomic
from dispatch_profiler.operations import KINDS as OPERATION_KINDS
from dispatch_profiler.profiler.measurement.included import included_text
from dispatch_profiler.profiler.records.record import Confirmation, Record, arguments_text
from dispatch_profiler.profiler.records.record_file import StoredRecord, as_stored
from dispatch_profiler.profiler.records.speedup import DEFAULT_REFERENCE, Speedup, SpeedupsOfRuns
from dispatch_profiler.profiler.statistics.comparison import Ratio

_MAIN = (
    "Dispatch", "Provider", "OpKind", "Operation", "Configuration", "Arguments",
    "Verification", "Runtime(ms)", "GFLOPs",
)  # fmt: skip
#: State of the GPU after the last sample.
_GPU = ("sm_mhz", "memory_mhz", "watts", "celsius")
_MEASURED = (
    "min(ms)", "p20(ms)", "p80(ms)", "max(ms)", "low(ms)", "high(ms)", "spread", "samples",
    "executions_per_sample", "mode", "includes", "overhead(ms)", "eager(ms)", "library_call(ms)", "ended_by", "warnings", "limit(ms)", *_GPU,
)  # fmt: skip
_SPEEDUP = (
    "vs_default", "vs_default_low", "vs_default_high", "vs_reference", "vs_reference_low", "vs_reference_high",
    "reference", "of_limit", "confirmed", "confirmed_speed", "confirmed_low", "confirmed_high",
)  # fmt: skip
_ORIGIN = (
    "gpu", "driver", "cpu", "cores", "memory_bytes", "system", "device", "target", "iree", "library", "seed", "when",
    "flags", "module_key", "reason", "reproduce",
)  # fmt: skip


def columns() -> tuple[str, ...]:
    """All columns after the tags; the same for every run, so that runs can be appended."""
    samples = [kind.smallest() for kind in OPERATION_KINDS.values()]
    arguments = dict.fromkeys(
        name
        for operation in samples
        for name in (*Dispatch(operation, Default()).arguments(), *operation.argument_names())
    )
    return (*_MAIN, "bytes", "flops", *arguments, *report_columns(), *_MEASURED, *_SPEEDUP, *_ORIGIN)


def row(record: StoredRecord) -> dict[str, Any]:
    """A record as CSV values; missing values are empty."""
    measurement = record.measurement
    measured = {} if measurement is None else {
        "Runtime(ms)": repr(measurement.median_ms),
        "GFLOPs": repr(measurement.gflops(record.flops)),
        "min(ms)": repr(measurement.min_ms),
        "p20(ms)": repr(measurement.p20_ms),
        "p80(ms)": repr(measurement.p80_ms),
        "max(ms)": repr(measurement.max_ms),
        "low(ms)": repr(measurement.interval_ms[0]),
        "high(ms)": repr(measurement.interval_ms[1]),
        "spread": repr(measurement.spread),
        "samples": len(measurement.samples_ms),
        "executions_per_sample": measurement.executions,
        "mode": measurement.mode,
        "includes": included_text(measurement.includes),
        "overhead(ms)": repr(measurement.overhead_ms),
        "eager(ms)": repr(measurement.eager_ms) if measurement.eager_ms else "",
        "library_call(ms)": repr(measurement.library_call_ms) if measurement.library_call_ms else "",
        "ended_by": measurement.ended_by,
        "limit(ms)": repr(record.limit_ms) if record.limit_ms else "",
        "warnings": "; ".join(measurement.warnings),
        **{name: getattr(measurement.gpu, name, "") for name in _GPU},
    }  # fmt: skip
    return {
        "Dispatch": record.dispatch,
        "Provider": record.provider,
        "OpKind": record.op_kind,
        "Operation": record.operation,
        "Configuration": record.configuration,
        "Arguments": arguments_text(record.arguments),
        "Verification": record.verdict.value,
        "bytes": record.bytes,
        "flops": record.flops,
        **record.arguments,
        **record.configuration_fields,
        **measured,
        **{name: value or "" for name, value in asdict(record.provenance.machine).items()},
        "device": record.provenance.device,
        "target": record.provenance.target,
        "iree": record.provenance.iree,
        "library": record.provenance.library,
        "seed": record.provenance.seed,
        "when": record.provenance.when,
        **_confirmed_columns(record.confirmed),
        "flags": " ".join(record.provenance.flags),
        "module_key": record.provenance.module_key,
        "reason": record.reason,
        "reproduce": record.reproduce,
    }


def _speedup_columns(speedup: Speedup, reference: str) -> dict[str, Any]:
    return {
        **_ratio_columns("vs_default", speedup.vs_default),
        **_ratio_columns("vs_reference", speedup.vs_reference),
        "reference": reference,
        "of_limit": "" if speedup.of_limit is None else repr(speedup.of_limit),
    }


def _confirmed_columns(confirmation: Confirmation | None) -> dict[str, str]:
    if confirmation is None:
        return {}
    figures = {
        "confirmed_speed": confirmation.speed,
        "confirmed_low": confirmation.low,
        "confirmed_high": confirmation.high,
    }
    return {
        "confirmed": confirmation.outcome,
        **{name: repr(value) for name, value in figures.items() if value},
    }


def _ratio_columns(name: str, ratio: Ratio | None) -> dict[str, str]:
    """A ratio and the ends of its interval; unknown values are omitted."""
    if ratio is None:
        return {}
    ends = {f"{name}_low": ratio.low, f"{name}_high": ratio.high}
    return {
        name: repr(ratio.value),
        **{end: repr(value) for end, value in ends.items() if 0 < value < math.inf},
    }


class CsvReport:
    """Writes rows one by one, tags first. Use as a context manager.

    The file is atomically replaced by one with the `earlier` records. For speedups see
    `SpeedupsOfRuns`: rows are updated when their baseline arrives, but not in a device or a pipe.

    Raises UsageError if the folder is missing, or if a tag has the name of a column.
    """

    def __init__(
        self,
        path: Path,
        reference: str = DEFAULT_REFERENCE,
        *,
        tags: Mapping[str, str] | None = None,
        earlier: Sequence[StoredRecord] = (),
    ) -> None:
        self._tags = dict(tags or {})
        writable("--output", str(path))
        known = columns()
        for name in self._tags:
            if name in known:
                raise UsageError(f"--tags: {name!r} is already the name of a column")
        names = dict.fromkeys([*(name for record in earlier for name in record.tags), *self._tags])
        self._header = [*(name for name in names if name not in known), *known]
        self._speedups = SpeedupsOfRuns(reference, earlier)
        place = destination(path)
        #: Whether rows that were written can be updated: not in a pipe.
        self._updates = place is not None
        rows = self._first_rows()
        if place is not None:
            write_atomic(place, rows)
            self._file: BinaryIO = place.open("r+b")
            self._file.seek(0, os.SEEK_END)
        else:
            self._file = open_stream(path)
            self._file.write(rows)
            self._file.flush()

    def _first_rows(self) -> bytes:
        """The header and a row for each earlier record."""
        lines = [self._line(dict(zip(self._header, self._header, strict=True)))]
        #: The offset of each row.
        self._offsets = [len(lines[0])]
        for record, speedup in self._speedups.all():
            lines.append(self._row(record, speedup))
            self._offsets.append(self._offsets[-1] + len(lines[-1]))
        return b"".join(lines)

    def add(self, record: Record | StoredRecord) -> None:
        """Write one row and flush it, before the next dispatch begins.

        A stored record keeps its own tags.
        """
        first = self._speedups.add(as_stored(record, self._tags))
        count = len(self._speedups.records)
        if not self._updates:
            first = count - 1
        else:
            self._file.seek(self._offsets[first])
            self._file.truncate()
            del self._offsets[first + 1 :]
        for index in range(first, count):
            line = self._row(self._speedups.records[index], self._speedups.of(index))
            self._file.write(line)
            if self._updates:
                self._offsets.append(self._offsets[-1] + len(line))
        self._file.flush()

    def _row(self, record: StoredRecord, speedup: Speedup) -> bytes:
        speeds = _speedup_columns(speedup, self._speedups.reference)
        return self._line({**record.tags, **row(record), **speeds})

    def _line(self, values: Mapping[str, object]) -> bytes:
        text = io.StringIO()
        csv.DictWriter(text, self._header, extrasaction="ignore").writerow(values)
        return text.getvalue().encode("utf-8", "backslashreplace")

    def __enter__(self) -> CsvReport:
        return self

    def __exit__(self, *exception: object) -> None:
        self._file.close()
