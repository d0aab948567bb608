"""Chooses the entries of a library: for each operation the fastest verified dispatch that beats the default."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from dispatch_profiler.configurations import Tuned, refused_flag
from dispatch_profiler.configurations.registry import KINDS
from dispatch_profiler.console.plurals import counted
from dispatch_profiler.dispatches import Dispatch
from dispatch_profiler.errors import UsageError
from dispatch_profiler.library.entry import Entry, Estimate, confirmed_speedup, measured_gflops, software_text
from dispatch_profiler.profiler.records.record import Record, Verdict
from dispatch_profiler.profiler.records.record_file import StoredRecord
from dispatch_profiler.profiler.records.speedup import SpeedupsOfRuns, is_default
from dispatch_profiler.profiler.statistics.comparison import Ratio


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
