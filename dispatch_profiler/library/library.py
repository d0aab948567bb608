"""A library: for each operation, a configuration that is faster than the compiler's default; its JSON; merges; shipped libraries."""

from __future__ import annotations

import contextlib
import gc
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import Enum
from importlib import resources
from pathlib import Path
from typing import Any

from dispatch_profiler.configurations import check_flags, configuration_from_dict
from dispatch_profiler.dispatches import Dispatch
from dispatch_profiler.errors import (
    ConfigurationError,
    DispatchProfilerError,
    TargetError,
    UsageError,
    did_you_mean,
)
from dispatch_profiler.files.destinations import write_output
from dispatch_profiler.files.json_fields import (
    FieldError,
    check_bounded,
    mapping,
    parse_json,
    rows,
    text,
    texts,
    whole,
    within,
)
from dispatch_profiler.files.regular import read_bounded
from dispatch_profiler.library.entry import (
    Entry,
    Estimate,
    Hardware,
    KeepRule,
    Purpose,
    Software,
    best_for,
    choose,
    software_text,
)
from dispatch_profiler.operations import Operation, operation_from_dict
from dispatch_profiler.profiler.records.record import Provenance, Record, StoredRecord
from dispatch_profiler.profiler.records.record_file import read_provenance
from dispatch_profiler.targets import CpuTarget, Target, host_cpu

# -- writing ---------------------------------------------------------------------------------------

# The JSON of a library.
#
# | field | holds |
# |---|---|
# | `origins` | where entries were measured: device, target, IREE version, seed, machine; each once |
# | `entries` | one line each: operation, configuration with its form, compiler flags, speeds with intervals, and the index of the origin |
#
# An interval is `[value, low, high]`; `null` is an end that the samples do not determine.


FORMAT = "dispatch_profiler library"
VERSION = 2
#: In version 1, the machine of an origin has neither `threads` nor `cpu_level`.
_READABLE = (1, VERSION)
#: Fields of a provenance that differ between entries; the others are in `origins`.
_OWN = ("when", "module_key", "flags")
#: Errors that constructors raise for invalid values.
_DAMAGE = (KeyError, TypeError, ValueError, AttributeError, ArithmeticError, DispatchProfilerError)


def to_text(entries: Iterable[Entry]) -> str:
    """The text of a library, with entries in order of their operations' names."""
    origins: dict[Provenance, int] = {}
    lines = [
        json.dumps(_row(entry, origins.setdefault(_origin(entry), len(origins))))
        for entry in sorted(entries, key=lambda each: (each.operation.name, each.packs_weight, each.hardware))
    ]
    places = [
        json.dumps({name: value for name, value in asdict(origin).items() if name not in _OWN})
        for origin in origins
    ]
    return (
        f'{{"format": "{FORMAT}", "version": {VERSION}, "origins": [\n{_listed(places)}], '
        f'"entries": [\n{_listed(lines)}]}}\n'
    )


def exported(entry: Entry) -> dict[str, Any]:
    """One entry by itself, as plain data."""
    row = _row(entry, 0)
    del row["origin"]
    return {**row, "provenance": asdict(entry.provenance)}


def _listed(lines: Sequence[str]) -> str:
    return "".join(f"{line}{',' if at < len(lines) else ''}\n" for at, line in enumerate(lines, 1))


def _origin(entry: Entry) -> Provenance:
    return replace(entry.provenance, when="", module_key="", flags=())


def _row(entry: Entry, origin: int) -> dict[str, Any]:
    return {
        "name": entry.operation.name,
        "operation": entry.operation.to_dict(),
        "configuration": entry.dispatch.configuration.to_dict(),
        "flags": list(entry.provenance.flags),
        "gflops": _interval_row(entry.gflops),
        "speedup": _interval_row(entry.speedup),
        "origin": origin,
        "module_key": entry.provenance.module_key,
        "when": entry.provenance.when,
    }


def _interval_row(estimate: Estimate) -> list[float | None]:
    return [each if math.isfinite(each) else None for each in (estimate.value, estimate.low, estimate.high)]


# -- reading ---------------------------------------------------------------------------------------


def check_header(data: Mapping[str, Any]) -> None:
    """Raise FieldError unless `data` is a library of a version that this program reads."""
    if data.get("format") != FORMAT:
        raise FieldError(f'expected "format": "{FORMAT}"')
    if data.get("version") not in _READABLE:
        known = " and ".join(map(str, _READABLE))
        raise FieldError(f"unsupported version {data.get('version')!r}; this program reads versions {known}")


def origins_of(data: Mapping[str, Any]) -> tuple[Provenance, ...]:
    """Where the entries were measured. Raises FieldError."""
    return tuple(
        within("origins", lambda row=row: read_provenance({**row, "module_key": "", "flags": []}))  # type: ignore[misc]
        for row in rows(data, "origins")
    )


def entry_of(row: Mapping[str, Any], origins: Sequence[Provenance]) -> Entry:
    """Parse one entry. Raises FieldError."""
    at = whole(row, "origin", most=len(origins) - 1)
    entry = Entry(
        _dispatch(row),
        _interval(row, "gflops"),
        _interval(row, "speedup"),
        replace(
            origins[at],
            when=text(row, "when"),
            module_key=text(row, "module_key"),
            flags=texts(row, "flags"),
        ),
    )
    _check_flags(entry)
    if entry.operation.name != text(row, "name"):
        raise FieldError(f"name: expected {entry.operation.name}, but got {text(row, 'name')[:100]!r}")
    return entry


def _check_flags(entry: Entry) -> None:
    """Raise FieldError if the flags may do more than configure an operation."""
    try:
        check_flags(entry.extra_flags)
    except TargetError:
        return  # of a target that another version knows: the entry is shown, and never used
    except ConfigurationError as error:
        raise FieldError(f"flags: {error}") from error


def _dispatch(row: Mapping[str, Any]) -> Dispatch:
    parts = {name: mapping(row.get(name), name) for name in ("operation", "configuration")}
    for name, data in parts.items():
        check_bounded(data, name)
    try:
        dispatch = Dispatch(
            operation_from_dict(parts["operation"]), configuration_from_dict(parts["configuration"])
        )
        _ = hash(dispatch), dispatch.name, dispatch.operation.flops
    except _DAMAGE as error:
        reason = str(error) if isinstance(error, DispatchProfilerError) else repr(error)
        raise FieldError(f"operation or configuration: {reason}") from error
    if dispatch.configuration.names_code:
        raise FieldError("configuration: it names an object file, which a library may not")
    return dispatch


def _interval(row: Mapping[str, Any], name: str) -> Estimate:
    values = row.get(name)
    if not isinstance(values, list) or len(values) != 3:
        raise FieldError(f"{name}: expected [value, low, high]")
    ends = [math.inf if at == 2 and each is None else each for at, each in enumerate(values)]
    if any(isinstance(each, bool) or not isinstance(each, (int, float)) for each in ends):
        raise FieldError(f"{name}: expected three numbers")
    try:
        value, low, high = map(float, ends)
        if not math.isfinite(value):
            raise ValueError("the value is not finite")
        return Estimate(value, low, high)
    except (ValueError, OverflowError) as error:
        raise FieldError(f"{name}: {error}") from None


_Key = tuple[Purpose, Hardware]

#: The file in a library's folder that everything else is derived from.
LIBRARY_FILE = "library.json"
#: The tuning spec beside it.
SPEC_FILE = "spec.mlir"
#: Far above any library: ten thousand entries take 8 MB.
_LARGEST_FILE = 2**28


@dataclass(frozen=True)
class DamagedEntry:
    """An entry of a library that cannot be read: `reason` says where and why, `row` is its text in the file."""

    name: str
    reason: str
    row: Mapping[str, Any]


class Library:
    """Entries: for each operation and hardware at most one, and one that packs its weight at load time.

    Read from a file, an entry is constructed and checked when it is first used, so that a large library
    loads quickly. Raises UsageError then if it is damaged.
    """

    def __init__(self, entries: Iterable[Entry] = ()) -> None:
        self._items: list[Entry | Mapping[str, Any]] = list(entries)
        self._where = "the library"
        #: The file that it was read from; None if it was made in this process.
        self.file: Path | None = None
        self._origins: tuple[Provenance, ...] = ()
        names = (entry.operation.name for entry in self._items if isinstance(entry, Entry))
        self._places = _places(names)
        _ = self.entries

    @classmethod
    def from_records(
        cls,
        records: Iterable[Record | StoredRecord],
        dispatches: Iterable[Dispatch] = (),
        rule: KeepRule | None = None,
    ) -> Library:
        """The best verified record of each operation that is faster than the default by its interval.

        See `choose`, which also returns why an operation has no entry.
        """
        choices = choose(records, dispatches, rule or KeepRule())
        return cls(each.entry for each in choices if each.entry is not None)

    @classmethod
    def load(cls, path: Path) -> Library:
        """Read a folder with `library.json`, or such a file. Raises UsageError."""
        file = library_file(path)
        library = cls()
        library._where, library.file = str(file), file
        try:
            content = read_bounded(file, _LARGEST_FILE)
            with _without_collection():
                data = mapping(parse_json(content))
            check_header(data)
            library._origins = origins_of(data)
            items = rows(data, "entries")
            library._items = list(items)
            library._places = _places(text(row, "name") for row in items)
        except FieldError as error:
            raise UsageError(
                f"{file}: not a library ({error})", hint="name a folder with a library.json"
            ) from error
        return library

    def save(self, path: Path) -> Path:
        """Write `library.json` atomically to the folder `path`, or to the file `path`; returns the file."""
        file = library_file(path)
        write_output(file, to_text(self.entries))
        return file

    def find(
        self, operation: Operation, *, packed_weights: bool = False, hardware: Hardware = Hardware()
    ) -> Entry | None:
        """The entry of `operation` for the hardware that is the most similar to `hardware`; None without an entry.

        With `packed_weights`, for a constant weight: the entry that packs the weight, unless the entry that
        does not pack is faster, like some kernels that read the weight as it is stored. Without it: the entry
        that does not pack.
        """
        every = (self._entry(at) for at in self._places.get(operation.name, ()))
        own = best_for((entry for entry in every if entry.operation == operation), hardware)
        by_packing = {entry.packs_weight: entry for entry in own}
        packed, plain = by_packing.get(True) if packed_weights else None, by_packing.get(False)
        if packed is None or plain is None:
            return packed or plain
        return plain if plain.gflops.value > packed.gflops.value else packed

    @property
    def entries(self) -> tuple[Entry, ...]:
        """All entries. Raises UsageError if one is damaged, or if two have the same purpose and hardware."""
        for each in self.damaged:
            raise UsageError(each.reason)
        return self.sound

    @property
    def damaged(self) -> tuple[DamagedEntry, ...]:
        """The entries that cannot be read, in order."""
        return tuple(each for each in map(self._read, range(len(self._items))) if not isinstance(each, Entry))

    @property
    def sound(self) -> tuple[Entry, ...]:
        """The entries that can be read. Raises UsageError if two have the same purpose and hardware."""
        entries = tuple(self.readable())
        seen: set[_Key] = set()
        for entry in entries:
            key = entry.purpose, entry.hardware
            if key in seen:
                packed = " with packed weights" if entry.packs_weight else ""
                text = f" for {entry.hardware.text}" if entry.hardware.text else ""
                raise UsageError(f"{self._where}: {entry.operation.name} has two entries{packed}{text}")
            seen.add(key)
        return entries

    def readable(self, prefix: str = "") -> Iterator[Entry]:
        """The entries that are not damaged, of operations whose names begin with `prefix`; others are not parsed."""
        places = [at for name, every in self._places.items() if name.startswith(prefix) for at in every]
        for entry in map(self._read, sorted(places)):
            if isinstance(entry, Entry):
                yield entry

    @property
    def software(self) -> tuple[Software, ...]:
        """Each (target, IREE version) that entries were measured with; damaged entries do not count."""
        return tuple(dict.fromkeys(entry.software for entry in self.readable()))

    @property
    def machines(self) -> tuple[str, ...]:
        """The names of the machines that entries were measured on; damaged entries do not count."""
        return tuple(dict.fromkeys(entry.provenance.machine.name for entry in self.readable()))

    def __len__(self) -> int:
        return len(self._items)

    def _entry(self, at: int) -> Entry:
        """Raises UsageError if the entry is damaged."""
        entry = self._read(at)
        if not isinstance(entry, Entry):
            raise UsageError(entry.reason)
        return entry

    def _read(self, at: int) -> Entry | DamagedEntry:
        item = self._items[at]
        if isinstance(item, Entry):
            return item
        try:
            entry = entry_of(item, self._origins)
        except FieldError as error:
            name = " ".join(str(item.get("name"))[:100].split())  # a message is one line
            return DamagedEntry(name, f"{self._where}, entry {at + 1} ({name}): {error}", item)
        self._items[at] = entry
        return entry


@contextlib.contextmanager
def _without_collection() -> Iterator[None]:
    """Pause the garbage collector, which would search the objects of a large document several times in vain."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def library_file(path: Path) -> Path:
    """`path` if it names a JSON file, otherwise the library's file in the folder `path`."""
    return path if path.suffix == ".json" and not path.is_dir() else path / LIBRARY_FILE


def spec_file(path: Path) -> Path:
    """The tuning spec beside the library `path`."""
    return library_file(path).with_name(SPEC_FILE)


def old_spec_hint(path: Path) -> str:
    """After a change of the library `path`: how to renew the tuning spec beside it; empty if it has none."""
    spec = spec_file(path)
    return f"hint: {spec} has earlier entries: dispatch-profiler library spec {path}" if spec.exists() else ""


def _places(names: Iterable[str]) -> Mapping[str, Sequence[int]]:
    """Name of an operation -> the indices of its entries."""
    places: dict[str, list[int]] = {}
    for at, name in enumerate(names):
        places.setdefault(name, []).append(at)
    return places


# -- shipped ---------------------------------------------------------------------------------------

# Libraries of tuned kernels that come with the package.


_SHIPPED = Path(str(resources.files("dispatch_profiler.library") / "shipped"))


def _is_host_with_avx512(target: Target) -> bool:
    return target.name == CpuTarget().name and "avx512f" in host_cpu().features


def _has_avx2(target: Target) -> bool:
    return isinstance(target, CpuTarget) and target.level == "x86-64-v3"


#: Name of each library -> whether it was measured on the kind of hardware that a target is for.
_FITS: Mapping[str, Callable[[Target], bool]] = {
    "epyc-avx2": _has_avx2,
    "h200": lambda target: target.name == "cuda:sm_90",
    "xeon-avx512": _is_host_with_avx512,
}


def shipped_libraries() -> tuple[str, ...]:
    """Their names: the processors that they were measured on."""
    return tuple(sorted(each.name for each in _SHIPPED.iterdir() if each.is_dir()))


def shipped_for(target: Target) -> Path | None:
    """The folder of the shipped library for the hardware of `target`; None if no library is shipped for it."""
    return next((_SHIPPED / name for name, fits in _FITS.items() if fits(target)), None)


def shipped_name(folder: Path) -> str:
    """The name of the shipped library in `folder`; empty for other folders."""
    return folder.name if folder.parent == _SHIPPED else ""


def is_shipped(path: Path) -> bool:
    """Whether `path` is the name of a shipped library, and nothing else has that name."""
    return str(path) in shipped_libraries() and not path.exists()


def find_library(path: Path) -> Path:
    """`path`, or the folder of the shipped library with that name. Raises UsageError if neither exists."""
    if is_shipped(path):
        return _SHIPPED / path
    if not path.exists():
        raise UsageError(
            f"{path}: no such library",
            hint=f"name a folder with a library.json, or a shipped library; {did_you_mean(str(path), shipped_libraries())}",
        )
    if path.is_dir() and not library_file(path).exists():
        inside = sorted(each.parent for each in path.glob(f"*/{library_file(path).name}"))
        hint = f"{inside[0]} has one" if inside else "tune and merge write libraries (docs/library.md)"
        raise UsageError(f"{path} is no library: it has no {library_file(path).name}", hint=hint)
    return path


# -- merge -----------------------------------------------------------------------------------------

# Merges two libraries: for each operation, which entry the result has and why.


class MergeOutcome(str, Enum):
    """The outcome of an entry of the incremental library."""

    #: The operation had no entry.
    ADDED = "added"
    #: It is faster than the known entry, or the known entry has no speed.
    REPLACED = "replaced"
    #: It is not faster, and replaced the known entry nevertheless.
    FORCED = "forced"
    #: It is not faster; the known entry stays.
    KEPT = "kept"


def merge_outcome(known: float | None, new: float, *, force: bool) -> MergeOutcome:
    """The outcome for an entry of `new` GFLOP/s; `known` is None without an entry, 0 for an entry without a speed.

    With `force`, every incremental entry replaces the known one.
    """
    if known is None:
        return MergeOutcome.ADDED
    if known == 0.0 or new > known:
        return MergeOutcome.REPLACED
    return MergeOutcome.FORCED if force else MergeOutcome.KEPT


@dataclass(frozen=True)
class Change:
    """One entry of the incremental library, the known entry of its operation, if any, and the outcome."""

    outcome: MergeOutcome
    new: Entry
    known: Entry | None


@dataclass(frozen=True)
class Merged:
    """The merged library, and a change for each entry of the incremental library."""

    library: Library
    changes: tuple[Change, ...]

    def count(self, outcome: MergeOutcome) -> int:
        """How many entries had this outcome."""
        return sum(change.outcome is outcome for change in self.changes)


def merge(
    base: Library,
    incremental: Library,
    *,
    force: bool = True,
    keep_speeds: bool = True,
    allow_mismatch: bool = False,
) -> Merged:
    """Merge `incremental` into `base`; neither is changed.

    Entries of operations that only one side has are taken over. An entry neither replaces, nor is replaced by, an entry
    for other hardware, or one that differs in whether it packs its weight. Without `keep_speeds`, merged entries have speed
    0, so that any later entry replaces them. Speeds are compared before that.

    Raises UsageError if `incremental` is for a target or an IREE version that `base` is not for, unless
    `allow_mismatch`.
    """
    if not allow_mismatch:
        _check_software(base, incremental)
    entries: dict[_Key, Entry] = {(entry.purpose, entry.hardware): entry for entry in base.entries}
    changes = [_change(entries, new, force=force) for new in incremental.entries]
    for change in changes:
        if change.outcome is not MergeOutcome.KEPT:
            new = change.new if keep_speeds else change.new.without_speed()
            if change.known is not None:
                del entries[change.known.purpose, change.known.hardware]
            entries[new.purpose, new.hardware] = new
    return Merged(Library(entries.values()), tuple(changes))


def _change(entries: Mapping[_Key, Entry], new: Entry, *, force: bool) -> Change:
    # In version 1, the CPU is unknown: its entries are replaced as if they were for the same.
    unknown = new.hardware._replace(cpu="")
    known = entries.get((new.purpose, new.hardware)) or entries.get((new.purpose, unknown))
    speed = None if known is None else known.gflops.value
    return Change(merge_outcome(speed, new.gflops.value, force=force), new, known)


def _check_software(base: Library, incremental: Library) -> None:
    known = base.software
    foreign = [each for each in incremental.software if each not in known]
    if known and foreign:
        raise UsageError(
            f"ORIGINAL is for {software_text(known)}, but INCREMENTAL has entries for {software_text(foreign)}",
            hint="tune again for the target and the IREE version of ORIGINAL, or add --allow-mismatch",
        )
