"""Records that may be compared with one another: one operation, on one device, measured one way."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dispatch_profiler.profiler.records.record import PROVIDER
from dispatch_profiler.profiler.records.record_file import StoredRecord
from dispatch_profiler.profiler.records.speedup import is_default


@dataclass(frozen=True)
class Entry:
    """A record, and where it stands in its file (from 0), by which a page refers to it."""

    index: int
    record: StoredRecord

    @property
    def has_speed(self) -> bool:
        """Was it measured, does the figure mean something, and is the result not known to be wrong?"""
        measurement = self.record.measurement
        if measurement is None or not measurement.samples_ms or self.record.verdict.is_failure:
            return False
        return 0.0 < measurement.median_ms < math.inf

    @property
    def median_ms(self) -> float:
        """Only for an entry that has a speed."""
        assert self.record.measurement is not None
        return self.record.measurement.median_ms

    @property
    def gflops(self) -> float:
        """10**9 operations a second at the median; only for an entry that has a speed."""
        return self.record.flops / self.median_ms / 1e6

    @property
    def intensity(self) -> float:
        """Operations for each byte that must move; 0 if no bytes are known."""
        return self.record.flops / self.record.bytes if self.record.bytes > 0 else 0.0


@dataclass(frozen=True)
class Group:
    """Everything that computes one operation in one setting.

    `label` names it, with the setting (machine, device, target, compiler, mode) only if there is more than one.
    """

    label: str
    operation: str
    setting: str
    entries: tuple[Entry, ...]

    @property
    def ranked(self) -> list[Entry]:
        """Entries that have a speed, the fastest first."""
        return sorted((e for e in self.entries if e.has_speed), key=lambda entry: entry.median_ms)

    @property
    def default(self) -> Entry | None:
        """The compiler's own choice; of several runs the fastest."""
        return next((e for e in self.ranked if is_default(e.record)), None)

    @property
    def best(self) -> Entry | None:
        """The fastest configuration of IREE, the default included."""
        return next((e for e in self.ranked if e.record.provider == PROVIDER), None)

    @property
    def providers(self) -> dict[str, Entry]:
        """The fastest entry of everybody else, by name."""
        others = [e for e in self.ranked if e.record.provider != PROVIDER]
        return {e.record.provider: e for e in reversed(others)}


def grouped(records: Sequence[StoredRecord]) -> tuple[Group, ...]:
    """Groups in the order of their first record.

    A record that was not measured has no mode: it joins the group that was measured first. What a
    library computed owes nothing to IREE: it joins each compiler's group.
    """
    homes: dict[tuple[str, ...], dict[tuple[str, ...], None]] = {}
    for record in records:
        if record.provider == PROVIDER:
            homes.setdefault(_setting(record), {})[_place(record, record.provenance.iree)] = None

    def places(record: StoredRecord) -> list[tuple[str, ...]]:
        if record.provider == PROVIDER:
            return [_place(record, record.provenance.iree)]
        return list(homes.get(_setting(record), {})) or [_place(record, "")]

    modes: dict[tuple[str, ...], str] = {}
    for record in records:
        if record.measurement is not None:
            for place in places(record):
                modes.setdefault(place, record.measurement.mode)
    found: dict[tuple[str, ...], list[Entry]] = {}
    for index, record in enumerate(records):
        for place in places(record):
            mode = record.measurement.mode if record.measurement is not None else modes.get(place, "")
            found.setdefault((*place, mode), []).append(Entry(index, record))
    differs = differing([key[1:] for key in found])
    groups = []
    for (operation, *setting), entries in found.items():
        told = ", ".join(value for value, tell in zip(setting, differs, strict=True) if tell and value)
        label = f"{operation} ({told})" if told else operation
        groups.append(Group(label, operation, told, tuple(entries)))
    return tuple(groups)


def _place(record: StoredRecord, iree: str) -> tuple[str, ...]:
    return (*_setting(record), iree)


def _setting(record: StoredRecord) -> tuple[str, ...]:
    origin = record.provenance
    return (record.operation, origin.machine.name, origin.device, origin.target)


def differing(settings: Sequence[tuple[str, ...]]) -> list[bool]:
    """Which parts are not the same for all."""
    return [len(set(values)) > 1 for values in zip(*settings, strict=True)] if settings else []


def provider_names(groups: Sequence[Group]) -> list[str]:
    """Everybody but IREE, in the order of the records."""
    names: Mapping[str, None] = dict.fromkeys(
        entry.record.provider for group in groups for entry in group.entries
    )
    return [name for name in names if name != PROVIDER]
