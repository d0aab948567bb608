"""Record files: JSON lines beside the CSV file, one record per line with all its samples.

`data.csv` comes with `data.jsonl`. A last line that is incomplete, because the process that wrote it was
killed, is skipped.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any

from dispatch_profiler.closing import Closing
from dispatch_profiler.configurations import Configuration
from dispatch_profiler.console.plurals import counted
from dispatch_profiler.dispatches import Dispatch
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

# -- versions --------------------------------------------------------------------------------------

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


# -- record ----------------------------------------------------------------------------------------

# A record: the outcome of one dispatch, with its provenance.


#: Default provider: the compiler's own kernels.
PROVIDER = Configuration.provider


class Verdict(str, Enum):
    """The outcome of verification, or why it did not take place."""

    SUCCESS = "SUCCESS"
    FAILED = "FAILED"
    NOT_VERIFIED = "Not verified"
    NOT_APPLIED = "Not applied"
    NOT_COMPILED = "Not compiled"
    #: The library has no function that computes the operation as defined.
    NOT_SUPPORTED = "Not supported"
    IMPLAUSIBLE = "Implausible"
    CRASHED = "Crashed"
    TIMED_OUT = "Timed out"

    @property
    def is_failure(self) -> bool:
        """True if the result is wrong or the dispatch could not run."""
        return self not in (Verdict.SUCCESS, Verdict.NOT_VERIFIED, Verdict.NOT_SUPPORTED)


def is_failure(verdict: Verdict, reason: str) -> bool:
    """True for a failing verdict, and for a dispatch whose verification was requested but not possible."""
    return verdict.is_failure or (verdict is Verdict.NOT_VERIFIED and bool(reason))


def kernel_name(configuration: str, provider: str) -> str:
    """The configuration, followed by the provider if that is not IREE and the name does not include it."""
    is_clear = provider == PROVIDER or configuration.startswith(f"{provider.lower()}_")
    return configuration if is_clear else f"{configuration} ({provider})"


def arguments_text(arguments: Mapping[str, object]) -> str:
    """`{"m": 256, "n": 64}` -> `--m=256 --n=64`, quoted for a shell where that is needed."""
    return shlex.join(f"--{name}={value}" for name, value in arguments.items())


@dataclass(frozen=True)
class Provenance:
    """The device, software and settings with which a record was made."""

    device: str
    target: str
    #: Revisions of compiler and runtime; empty if IREE was not involved.
    iree: str
    seed: int
    #: Creation time in ISO 8601, with the offset from UTC.
    when: str = ""
    machine: Machine = Machine()
    #: The library that computed the results, with its version and the versions of its backends; empty for IREE.
    library: str = ""
    #: Content hash of everything that the dispatch's vmfbs depend on, including compiler and flags
    #: (`ModuleEntry.key`). Empty for a library, for a dispatch that was never compiled, and in version 1.
    module_key: str = ""
    #: The compiler flags of the module.
    flags: tuple[str, ...] = ()

    @property
    def origin(self) -> tuple[str, str, str, int, str, str]:
        """Everything except the time: records of the same dispatch and origin are interchangeable."""
        return self.device, self.target, self.software, self.seed, self.machine.name, self.module_key

    @property
    def software(self) -> str:
        """IREE or the library that provided the kernel, with its version."""
        return self.library or self.iree


@dataclass(frozen=True)
class Confirmation:
    """The comparison of a dispatch with the compiler's default by paired sampling, after the run.

    `outcome` is an outcome of `compare`: faster, slower, same, unclear, failed or not measured. `speed` is
    the speedup over the default (2 is twice as fast), with its interval `low` to `high`; None if unknown.
    """

    outcome: str
    reason: str
    speed: float | None = None
    low: float | None = None
    high: float | None = None

    @property
    def text(self) -> str:
        """`confirmed by paired sampling: 1.45x (1.42-1.48)`"""
        if self.speed is None:
            return f"not confirmed by paired sampling: {self.outcome} ({self.reason})"
        ends = f" ({self.low:.2f}-{self.high:.2f})" if self.low and self.high else ""
        verdict = "confirmed" if self.outcome == "faster" else "not confirmed"
        rest = "" if self.outcome == "faster" else f", {self.outcome}"
        return f"{verdict} by paired sampling: {self.speed:.2f}x{ends}{rest}"


@dataclass(frozen=True)
class Record:
    """The outcome of one dispatch: a verdict with its reason, and a measurement if the dispatch was measured.

    `reason` is empty for SUCCESS, and for Not verified if verification was not requested.
    `provider` is the origin of the kernel, by default the configuration's. `limit_ms` is the least time
    that the hardware allows, computed from `peaks`; 0 if unknown. `reproduce` is the command line that
    recreates the record.
    """

    dispatch: Dispatch
    provenance: Provenance
    verdict: Verdict
    reason: str = ""
    measurement: Measurement | None = None
    provider: str = ""
    limit_ms: float = 0.0
    reproduce: str = ""
    peaks: Peaks | None = None

    def __post_init__(self) -> None:
        if not self.provider:
            object.__setattr__(self, "provider", self.dispatch.configuration.provider)

    def failed(self, verdict: Verdict, reason: str) -> Record:
        """A copy with a failing verdict and without the measurement: a wrong kernel has no speed."""
        return replace(self, verdict=verdict, reason=reason, measurement=None)

    @property
    def is_failure(self) -> bool:
        """True if this record makes the exit status 1."""
        return is_failure(self.verdict, self.reason)

    @property
    def op_kind(self) -> str:
        return self.dispatch.operation.label

    def arguments_text(self) -> str:
        """`--batch_count=1 --m=256 ...`, as in the console block of the IREE dispatch profiler."""
        return arguments_text(self.dispatch.arguments())


#: The start of every line, in every version.
_BEGINS = f'{{"format": "{FORMAT}", "version": '.encode()
#: Far above any real file: a record with 400 samples takes 10 kB.
_LARGEST_FILE = 2**32


@dataclass(frozen=True)
class StoredRecord:
    """A record as stored in a file: names and numbers instead of objects.

    `configuration_fields` has the tiles and options by name, `arguments` the extents and types.
    `measurement` is None if the dispatch was not measured.
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
    confirmed: Confirmation | None = None

    @property
    def is_failure(self) -> bool:
        """See `Record.is_failure`."""
        return is_failure(self.verdict, self.reason)

    @property
    def was_interrupted(self) -> bool:
        """Was its measurement interrupted?"""
        return self.measurement is not None and self.measurement.was_interrupted

    @property
    def outcome(self) -> str:
        """`matmul_16x32x8_f32t_f32t_f32t_tile_config_default: SUCCESS, 0.25 ms`, for a line of progress."""
        measured = "" if self.measurement is None else f", {self.measurement.median_ms:.4g} ms"
        return f"{self.dispatch}: {self.verdict.value}{measured}"

    @property
    def roofline_ms(self) -> float:
        """Milliseconds at the roofline: all FLOP at the peak rate, all bytes from memory; 0 if unknown.

        Unlike `limit_ms`, this includes the bytes of warm operands, so a kernel whose operands stay in
        the caches can be faster.
        """
        if self.peaks is None:
            return self.limit_ms
        return max(self.limit_ms, 1e3 * self.bytes / self.peaks.bytes_per_second)


def stored(record: Record, tags: Mapping[str, str] | None = None) -> StoredRecord:
    """`record` in the form in which files store it."""
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
    """`stored(record, tags)` for a new record; a stored record is returned unchanged."""
    return stored(record, tags) if isinstance(record, Record) else record


def to_line(record: StoredRecord) -> str:
    """One line of JSON. Includes statistics of the samples under `derived`, for other programs."""
    row = {"format": FORMAT, "version": VERSION, **asdict(record), "verdict": record.verdict.value}
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


def without_interrupted(records: Iterable[StoredRecord]) -> list[StoredRecord]:
    """`records` without interrupted measurements that were made again later, as `--resume` does."""
    kept = list(records)
    last = {_made(record): at for at, record in enumerate(kept)}
    return [each for at, each in enumerate(kept) if not each.was_interrupted or last[_made(each)] == at]


def _made(record: StoredRecord) -> tuple[object, ...]:
    return record.dispatch, record.provider, record.provenance.origin


def distinct(records: Iterable[StoredRecord]) -> list[int]:
    """Positions of `records` without duplicates: a file may be passed twice, or be part of another."""
    first: dict[str, int] = {}
    for at, record in enumerate(records):
        first.setdefault(repr(record), at)
    return list(first.values())


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
