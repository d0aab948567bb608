"""Groups of comparable records: one operation in one run, on one device, measured in one mode."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dispatch_profiler.configurations import Default
from dispatch_profiler.profiler.records.record import PROVIDER, StoredRecord
from dispatch_profiler.profiler.records.speedup import is_default, packs_weight

# -- runs ------------------------------------------------------------------------------------------

# The runs that the records of a report belong to.


_BASELINE = Default().name


@dataclass(frozen=True)
class ReportedRun:
    """Distinguishes a run from the others of a report; fields that are equal in all runs are empty.

    `tags` has the tags that differ, `began` the time of the first record.
    """

    file: str = ""
    tags: str = ""
    began: str = ""

    @property
    def parts(self) -> tuple[str, str, str]:
        return self.file, self.tags, self.began

    @property
    def text(self) -> str:
        """`monday.jsonl, machine: a`"""
        return ", ".join(filter(None, self.parts))


def has_figure(record: StoredRecord) -> bool:
    """True if it was measured completely and its result is not known to be wrong."""
    taken = record.measurement
    return taken is not None and not record.verdict.is_failure and not taken.was_interrupted


def file_names(paths: Sequence[Path]) -> list[str]:
    """The shortest unique suffix of each path: `data.jsonl`, or `monday/data.jsonl`."""
    different = set(paths)

    def name(path: Path) -> str:
        for count in range(1, len(path.parts) + 1):
            tail = path.parts[-count:]
            if sum(other.parts[-count:] == tail for other in different) == 1:
                return str(Path(*tail))
        return str(path)

    return [name(path) for path in paths]


def runs(records: Sequence[StoredRecord], files: Sequence[str] = ()) -> list[ReportedRun]:
    """The run of each record. `files` has the file name of each record.

    A run consists of records of a file with the same tags. A new run begins where an operation's
    default was measured again, for example with `--append`.
    """
    named = list(files) or [""] * len(records)
    tags = _differing_tags(records)
    streams = list(zip(named, tags, strict=True))
    numbers = list(_numbers(records, streams))
    keys = [(*stream, number) for stream, number in zip(streams, numbers, strict=True)]
    began = _beginnings(records, keys)
    has_files = len(set(named)) > 1
    return [ReportedRun(key[0] if has_files else "", key[1], began[key]) for key in keys]


def _differing_tags(records: Sequence[StoredRecord]) -> list[str]:
    names = dict.fromkeys(name for record in records for name in record.tags)
    differ = [name for name in names if len({record.tags.get(name) for record in records}) > 1]
    return [
        ", ".join(f"{name}: {record.tags[name]}" for name in differ if name in record.tags)
        for record in records
    ]


def _numbers(records: Sequence[StoredRecord], streams: Sequence[tuple[str, ...]]) -> Iterator[int]:
    """For each record, the number of earlier runs of its operation in the same file and on the same device."""
    current: dict[tuple[str, ...], int] = {}
    seen: dict[tuple[str, ...], dict[tuple[str, str], bool]] = {}
    for record, stream in zip(records, streams, strict=True):
        origin = record.provenance
        home = (*stream, record.operation, origin.machine.name, origin.device, origin.target)
        mode = record.measurement.mode if record.measurement is not None else ""
        made = (record.dispatch, record.provider)
        part = (*home, origin.software, mode)
        known = seen.setdefault(part, {})
        # --resume repeats what its run did not finish.
        has_default = (f"{record.operation}_{_BASELINE}", PROVIDER) in known
        if known.get(made) and (is_default(record) or not has_default):
            current[home] = current.get(home, 0) + 1
            seen[part] = known = {}
        known[made] = has_figure(record)
        yield current.get(home, 0)


def _beginnings(
    records: Sequence[StoredRecord], keys: Sequence[tuple[str, str, int]]
) -> dict[tuple[str, str, int], str]:
    """The minute in which each run began; empty for the only run of a file."""
    first: dict[tuple[str, str, int], str] = {}
    for record, key in zip(records, keys, strict=True):
        when = record.provenance.when
        first[key] = min(filter(None, (first.get(key, ""), when)), default="")
    several = {key[:2] for key in keys if key[2] > 0}
    minutes = {key: when[:16].replace("T", " ") for key, when in first.items()}
    beginnings = {}
    for key, minute in minutes.items():
        alone = sum(other[:2] == key[:2] and minutes[other] == minute for other in minutes) == 1
        text = minute if alone and minute else f"{minute} run {key[2] + 1}".strip()
        beginnings[key] = text if key[:2] in several else ""
    return beginnings


#: The run of an operation whose default was measured in only one run.
_ONLY = ReportedRun()


@dataclass(frozen=True)
class ReportEntry:
    """A record and its index, by which the page refers to it."""

    index: int
    record: StoredRecord

    @property
    def has_speed(self) -> bool:
        """True if it has a median above 0 and its result is not known to be wrong."""
        measurement = self.record.measurement
        if measurement is None or not measurement.samples_ms or self.record.verdict.is_failure:
            return False
        return 0.0 < measurement.median_ms < math.inf

    @property
    def median_ms(self) -> float:
        """The median in milliseconds. Requires `has_speed`."""
        assert self.record.measurement is not None
        return self.record.measurement.median_ms

    @property
    def gflops(self) -> float:
        """GFLOP/s at the median. Requires `has_speed`."""
        return self.record.flops / self.median_ms / 1e6

    @property
    def intensity(self) -> float:
        """Arithmetic intensity in FLOP/byte; 0 if the bytes are unknown."""
        return self.record.flops / self.record.bytes if self.record.bytes > 0 else 0.0


@dataclass(frozen=True)
class Group:
    """All records of one operation in one setting.

    `label` is the operation and the `setting`: the run, machine, device, target, compiler and mode, as far as
    they differ between groups; empty if nothing differs.
    """

    label: str
    operation: str
    setting: str
    entries: tuple[ReportEntry, ...]

    @property
    def ranked(self) -> list[ReportEntry]:
        """Entries with a speed, the fastest first."""
        return sorted((e for e in self.entries if e.has_speed), key=lambda entry: entry.median_ms)

    @property
    def default(self) -> ReportEntry | None:
        """The compiler's own choice; the fastest if there are several."""
        return next((e for e in self.ranked if is_default(e.record)), None)

    @property
    def best(self) -> ReportEntry | None:
        """IREE's fastest configuration, including the default, apart from packed weights."""
        own = (e for e in self.ranked if e.record.provider == PROVIDER)
        return next((e for e in own if not packs_weight(e.record)), None)

    @property
    def providers(self) -> dict[str, ReportEntry]:
        """The fastest entry of each other provider, by name."""
        others = [e for e in self.ranked if e.record.provider != PROVIDER]
        return {e.record.provider: e for e in reversed(others)}


#: Operation, run (3 fields), machine, device, target, compiler. Records of one place are comparable.
_Place = tuple[str, ...]


def grouped(records: Sequence[StoredRecord], files: Sequence[str] = ()) -> tuple[Group, ...]:
    """Groups in the order of their first record. `files` has the file name of each record.

    Each run that measured an operation's default is a separate group. A record that was not measured
    has no mode, and belongs to the group that was measured first. A library's result does not depend
    on the compiler, so it belongs to the groups of all compilers.
    """
    places = list(_places(records, runs(records, files)))
    modes: dict[_Place, str] = {}
    for record, some in zip(records, places, strict=True):
        if record.measurement is not None:
            for place in some:
                modes.setdefault(place, record.measurement.mode)
    entries_by_place: dict[_Place, list[ReportEntry]] = {}
    for index, (record, some) in enumerate(zip(records, places, strict=True)):
        for place in some:
            mode = record.measurement.mode if record.measurement is not None else modes.get(place, "")
            entries_by_place.setdefault((*place, mode), []).append(ReportEntry(index, record))
    differs = differing([key[1:] for key in entries_by_place])
    groups = []
    for (operation, *setting), entries in entries_by_place.items():
        shown = ", ".join(value for value, differ in zip(setting, differs, strict=True) if differ and value)
        label = f"{operation} ({shown})" if shown else operation
        groups.append(Group(label, operation, shown, tuple(entries)))
    return tuple(groups)


def _places(records: Sequence[StoredRecord], of_runs: Sequence[ReportedRun]) -> Iterator[list[_Place]]:
    """The places of each record: one, or possibly several for a library."""
    defaults: dict[_Place, set[ReportedRun]] = {}
    libraries: dict[_Place, set[ReportedRun]] = {}
    for record, run in zip(records, of_runs, strict=True):
        if is_default(record):
            defaults.setdefault(_place(record, _ONLY, record.provenance.iree), set()).add(run)
        if record.provider != PROVIDER:
            libraries.setdefault(_library(record), set()).add(run)

    def home(record: StoredRecord, run: ReportedRun) -> _Place:
        iree = record.provenance.iree
        several = len(defaults.get(_place(record, _ONLY, iree), ())) > 1
        return _place(record, run if several else _ONLY, iree)

    homes: dict[_Place, dict[_Place, ReportedRun]] = {}
    for record, run in zip(records, of_runs, strict=True):
        if record.provider == PROVIDER:
            homes.setdefault(_setting(record), {})[home(record, run)] = run
    for record, run in zip(records, of_runs, strict=True):
        if record.provider == PROVIDER:
            yield [home(record, run)]
            continue
        measured = libraries[_library(record)]
        # A library also belongs to the runs that did not measure it.
        some = [
            place
            for place, other in homes.get(_setting(record), {}).items()
            if place[1:4] == _ONLY.parts or other == run or other not in measured
        ]
        yield some or [_place(record, _ONLY, "")]


def _place(record: StoredRecord, run: ReportedRun, iree: str) -> _Place:
    operation, *where = _setting(record)
    return (operation, *run.parts, *where, iree)


def _setting(record: StoredRecord) -> tuple[str, ...]:
    origin = record.provenance
    return (record.operation, origin.machine.name, origin.device, origin.target)


def _library(record: StoredRecord) -> _Place:
    return (*_setting(record), record.provider)


def differing(settings: Sequence[tuple[str, ...]]) -> list[bool]:
    """For each field, whether it has more than one value."""
    return [len(set(values)) > 1 for values in zip(*settings, strict=True)] if settings else []


def provider_names(groups: Sequence[Group]) -> list[str]:
    """The providers other than IREE, in the order of the records."""
    names: Mapping[str, None] = dict.fromkeys(
        entry.record.provider for group in groups for entry in group.entries
    )
    return [name for name in names if name != PROVIDER]
