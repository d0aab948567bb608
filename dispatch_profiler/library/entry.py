"""An entry of a library: the configuration to use for an operation, its speed and provenance; and the choice of entries."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import NamedTuple

from dispatch_profiler.configurations import Tuned, refused_flag
from dispatch_profiler.configurations._base import KINDS
from dispatch_profiler.console.plurals import counted
from dispatch_profiler.cores import usable_threads
from dispatch_profiler.dispatches import Dispatch
from dispatch_profiler.errors import TargetError, UsageError
from dispatch_profiler.operations import Operation
from dispatch_profiler.operations.size_range import SizeRange
from dispatch_profiler.profiler.measurement.measure import Measurement
from dispatch_profiler.profiler.records.record import Confirmation, Provenance, Record, StoredRecord, Verdict
from dispatch_profiler.profiler.records.speedup import SpeedupsOfRuns, is_default
from dispatch_profiler.profiler.statistics.comparison import Ratio
from dispatch_profiler.targets import LEVELS, CpuTarget, Target, parse_target


@dataclass(frozen=True)
class Estimate:
    """A value with its 95 % interval; an end that the samples do not determine is 0 or infinite."""

    value: float
    low: float
    high: float

    def __post_init__(self) -> None:
        if not 0.0 <= self.low <= self.value <= self.high:
            raise ValueError(f"expected 0 <= low <= value <= high, but got {self}")


def confirmed_speedup(confirmation: Confirmation) -> Estimate | None:
    """The speedup over the default by paired sampling; None if it is unknown."""
    value = confirmation.speed
    if value is None or value <= 0.0:
        return None
    return Estimate(
        value, max(0.0, min(confirmation.low or 0.0, value)), max(confirmation.high or math.inf, value)
    )


def measured_gflops(measurement: Measurement, flops: int) -> Estimate:
    """The speed in GFLOP/s of a `measurement` of `flops` operations."""
    low_ms, high_ms = measurement.interval_ms
    return Estimate(
        measurement.gflops(flops), flops / high_ms / 1e6, flops / low_ms / 1e6 if low_ms else math.inf
    )


#: The speed of an entry that any other entry replaces (`merge --no_eff`).
NO_SPEED = Estimate(0.0, 0.0, 0.0)


#: An operation, whether its weight may be packed at load time, and the sizes of an entry for several.
Purpose = tuple[Operation, bool, SizeRange | None]


#: Numbers of threads are similar if their ratio is at most this power of 2.
_SIMILAR = 1.0


class Hardware(NamedTuple):
    """What the fastest configuration depends on besides the operation: a CPU's level, and the threads of a kernel.

    `cpu` is one of `targets.LEVELS`. Empty and 0 on GPUs and if unknown, as in libraries of version 1.
    """

    cpu: str = ""
    threads: int = 0

    @classmethod
    def here(cls, target: Target) -> Hardware:
        """The hardware for which kernels of `target` are chosen in this process."""
        if not isinstance(target, CpuTarget):
            return cls()
        return cls(target.level, usable_threads() if target.host else 0)

    @classmethod
    def of(cls, origin: Provenance) -> Hardware:
        """The hardware that a measurement is of; unknown if its target is."""
        machine = origin.machine
        threads = 1 if origin.device == "local-sync" else machine.threads or machine.cores
        return _measured_on(origin.target, machine.cpu_level, threads)

    def runs(self, other: Hardware) -> bool:
        """Whether this CPU has the instructions that entries for `other` may use."""
        levels = list(LEVELS)
        if self.cpu not in levels or other.cpu not in levels:
            return True
        return levels.index(other.cpu) <= levels.index(self.cpu)

    def distance(self, other: Hardware) -> tuple[int, float]:
        """Orders hardware by its similarity to this one: the same level, an unknown one, others; then by threads."""
        if self.cpu and other.cpu:
            level = 0 if self.cpu == other.cpu else 2
        else:
            level = 1
        ratio = self.threads / other.threads if self.threads and other.threads else 1.0
        return level, abs(math.log2(ratio))

    def shares_otherwise(self, other: Hardware) -> bool:
        """Whether the numbers of threads differ so much that work which is divided for one suits the other badly."""
        return self.distance(other)[1] > _SIMILAR

    @property
    def text(self) -> str:
        """`x86-64-v4, 2 threads`; empty if unknown."""
        threads = counted(self.threads, "thread") if self.threads else ""
        return ", ".join(filter(None, (self.cpu, threads)))


#: A target and an IREE version.
Software = tuple[str, str]


@cache
def _measured_on(target_name: str, level: str, threads: int) -> Hardware:
    try:
        target = parse_target(target_name)
    except TargetError:
        return Hardware()
    if not isinstance(target, CpuTarget):
        return Hardware()
    return Hardware(level if target.host else target.level, threads)


class SizeTime(NamedTuple):
    """Milliseconds at one size, of an entry for several sizes and of the kernel that launches use without the entry."""

    size: int
    milliseconds: float
    untuned: float


@dataclass(frozen=True)
class Entry:
    """A tuned dispatch.

    `gflops` is its speed in GFLOP/s, `speedup` its speedup over the compiler's default (2 is twice as fast).
    `provenance` has the machine, the target, the IREE version, all compiler flags and the content key of the
    module that was measured.

    An entry for several numbers of rows or images has their `sizes`, and the operation has the largest one. Its speed and
    speedup are geometric means over the sizes in `measured`, over the kernel for any number of rows or images.
    """

    dispatch: Dispatch
    gflops: Estimate
    speedup: Estimate
    provenance: Provenance
    sizes: SizeRange | None = None
    measured: tuple[SizeTime, ...] = ()

    @property
    def operation(self) -> Operation:
        return self.dispatch.operation

    @property
    def packs_weight(self) -> bool:
        """Whether its weight is packed at load time, so that it must be constant."""
        return self.dispatch.configuration.packs_weight

    @property
    def purpose(self) -> Purpose:
        """What the entry is for. A library has at most one entry for each purpose and hardware."""
        return self.operation, self.packs_weight, self.sizes

    @property
    def title(self) -> str:
        """The operation's name, and the sizes of an entry for several: `matmul_256x512x128_... m=17:256`."""
        return f"{self.operation.name} {self.sizes.text}" if self.sizes else self.operation.name

    @property
    def hardware(self) -> Hardware:
        """The hardware that the entry was measured on."""
        return Hardware.of(self.provenance)

    @property
    def software(self) -> Software:
        """The target and the IREE version that the entry is for."""
        return self.provenance.target, self.provenance.iree

    @property
    def family(self) -> str:
        """The family of its target: `cuda` of `cuda:sm_90`."""
        return self.provenance.target.partition(":")[0]

    @property
    def extra_flags(self) -> tuple[str, ...]:
        """Flags that it was compiled with, besides the flags of its target and of its configuration.

        Raises TargetError if the target is unknown.
        """
        own = (*parse_target(self.provenance.target).compile_flags, *self.dispatch.configuration.flags)
        names = {flag.partition("=")[0] for flag in own}
        return tuple(flag for flag in self.provenance.flags if flag.partition("=")[0] not in names)

    def is_of_compiler(self, revision: str) -> bool:
        """Whether it was measured with the compiler of this revision."""
        return f"{self.provenance.iree},".startswith(f"compiler {revision},")

    def without_speed(self) -> Entry:
        """A copy that every other entry replaces when libraries are merged."""
        return replace(self, gflops=NO_SPEED)


def best_for(entries: Iterable[Entry], hardware: Hardware) -> tuple[Entry, ...]:
    """For each purpose, the entry whose hardware is the most similar to `hardware`; none with instructions it lacks."""
    best: dict[Purpose, Entry] = {}
    for each in entries:
        known = best.get(each.purpose)
        if not hardware.runs(each.hardware):
            continue
        if known is None or hardware.distance(each.hardware) < hardware.distance(known.hardware):
            best[each.purpose] = each
    return tuple(best.values())


def for_one_size(entries: Iterable[Entry]) -> tuple[Entry, ...]:
    """The entries for one size. Others are compared with other kernels, by `tune --range` only."""
    return tuple(each for each in entries if each.sizes is None)


def software_text(software: Iterable[Software]) -> str:
    """`llvm-cpu with compiler 3.13.0; cuda:sm_90 with compiler 3.13.0`"""
    return "; ".join(f"{target} with {iree}" for target, iree in software)


# -- choice ----------------------------------------------------------------------------------------

# The choice of entries: for each operation the fastest verified dispatch that beats the default.


@dataclass(frozen=True)
class KeepRule:
    """Keeps a dispatch if the lower end of its speedup over the default exceeds 1 + `threshold`."""

    threshold: float = 0.0

    def keeps(self, speedup: Estimate) -> bool:
        """Whether the whole interval lies above the threshold."""
        return speedup.low > 1.0 + self.threshold

    def best(self, speedups: Sequence[Estimate]) -> int | None:
        """The index of the fastest speedup that is kept, by its value; None if the default stays.

        A faster speedup whose interval is too wide is skipped.
        """
        kept = [at for at, each in enumerate(speedups) if self.keeps(each)]
        return max(kept, key=lambda at: speedups[at].value, default=None)


@dataclass(frozen=True)
class Choice:
    """The choice for an operation: an entry, or None, which leaves the operation to the compiler; and the reason."""

    operation: str
    entry: Entry | None
    reason: str


@dataclass(frozen=True)
class _Tried:
    dispatch: Dispatch
    record: StoredRecord
    speedup: Estimate


def choose(
    records: Iterable[Record | StoredRecord],
    dispatches: Iterable[Dispatch] = (),
    rule: KeepRule | None = None,
) -> tuple[Choice, ...]:
    """The choice for each operation in `records`, in order.

    Stored records have names only: `dispatches` has the measured dispatches, for example the dispatches of a
    tree's manifest. A paired comparison with the default (`Confirmation`) takes precedence over the speedup
    of separate runs. If a dispatch was measured several times, its last record counts. Packed weights do not
    count: the time of the default includes more.

    Raises UsageError if the chosen records are of several targets or IREE versions.
    """
    every = list(records)
    known = _known([*dispatches, *(each.dispatch for each in every if isinstance(each, Record))])
    tried: dict[str, dict[Dispatch, _Tried]] = {}
    for record, speedups in SpeedupsOfRuns(records=every).all():
        of_operation = tried.setdefault(record.operation, {})
        dispatch = _dispatch_of(record, known)
        if dispatch is None or is_default(record) or dispatch.configuration.packs_weight:
            continue
        of_operation.pop(dispatch, None)
        speedup = _speedup(record, speedups.vs_default)
        if speedup is not None and record.verdict is Verdict.SUCCESS and not record.was_interrupted:
            of_operation[dispatch] = _Tried(dispatch, record, speedup)
    choices = tuple(
        _choice(name, list(of_operation.values()), rule or KeepRule()) for name, of_operation in tried.items()
    )
    _check_software([each.entry for each in choices if each.entry is not None])
    return choices


def _known(dispatches: Iterable[Dispatch]) -> Mapping[str, Dispatch]:
    """Dispatches by name. Raises UsageError if two dispatches share a name."""
    known: dict[str, Dispatch] = {}
    for dispatch in dispatches:
        if known.setdefault(dispatch.name, dispatch) != dispatch:
            raise UsageError(f"two dispatches have the name {dispatch.name}, so its records are ambiguous")
    return known


def _dispatch_of(record: StoredRecord, known: Mapping[str, Dispatch]) -> Dispatch | None:
    """The dispatch that `record` measured; None if it is unknown or a library's function."""
    dispatch = known.get(record.dispatch)
    if dispatch is None or dispatch.configuration.kind not in KINDS:
        return None
    is_same = (
        record.provider == dispatch.configuration.provider
        and dict(record.arguments) == dict(dispatch.arguments())
        and dict(record.configuration_fields) == dict(dispatch.configuration.fields())
    )
    return dispatch if is_same else None


def _speedup(record: StoredRecord, ratio: Ratio | None) -> Estimate | None:
    if record.confirmed is not None:
        return confirmed_speedup(record.confirmed)
    return None if ratio is None else Estimate(ratio.value, ratio.low, ratio.high)


def _choice(operation: str, tried: Sequence[_Tried], rule: KeepRule) -> Choice:
    if not tried:
        return Choice(operation, None, "no verified configuration was measured together with the default")
    best = rule.best([each.speedup for each in tried])
    if best is not None:
        entry, text = _entry(tried[best]), _text(tried[best])
        refused = refused_flag(entry.extra_flags)
        if refused is not None:
            return Choice(operation, None, f"{text}, but a library may not set {refused}")
        if entry.dispatch.configuration.names_code:
            return Choice(operation, None, f"{text}, but a library may not name an object file")
        return Choice(operation, entry, text)
    fastest = max(tried, key=lambda each: each.speedup.value)
    limit = f"{1.0 + rule.threshold:g}x"
    return Choice(
        operation, None, f"the lower end of no speedup exceeds {limit}; the fastest is {_text(fastest)}"
    )


def _text(tried: _Tried) -> str:
    speedup = tried.speedup
    return f"{tried.record.configuration}: {speedup.value:.2f}x ({speedup.low:.2f}-{speedup.high:.2f})"


def _entry(tried: _Tried) -> Entry:
    measurement = tried.record.measurement
    assert measurement is not None  # it has a speedup
    gflops = measured_gflops(measurement, tried.dispatch.operation.flops)
    return Entry(_untuned(tried.dispatch), gflops, tried.speedup, tried.record.provenance)


def _untuned(dispatch: Dispatch) -> Dispatch:
    """`dispatch`; a dispatch from another library gets the configuration that it has in that library."""
    configuration = dispatch.configuration
    return Dispatch(dispatch.operation, configuration.inner) if isinstance(configuration, Tuned) else dispatch


def _check_software(entries: Sequence[Entry]) -> None:
    software = dict.fromkeys(entry.software for entry in entries)
    if len(software) > 1:
        raise UsageError(
            f"the records are of {counted(len(software), 'target')} or IREE versions: {software_text(software)}",
            hint="a library is for one target and one IREE version: pass the records of one",
        )
