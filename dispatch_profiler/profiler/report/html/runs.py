"""The runs that the records of a report belong to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from dispatch_profiler.configurations import Default
from dispatch_profiler.profiler.records.record import PROVIDER
from dispatch_profiler.profiler.records.record_file import StoredRecord
from dispatch_profiler.profiler.records.speedup import is_default

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
