"""A record: the outcome of one dispatch with its provenance, as objects and in the form in which files store it."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from dispatch_profiler.configurations import Configuration
from dispatch_profiler.dispatches import Dispatch
from dispatch_profiler.profiler.measurement.measure import Measurement
from dispatch_profiler.profiler.measurement.peaks import Peaks
from dispatch_profiler.profiler.records.machine import Machine

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
