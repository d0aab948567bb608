"""How fast a record is against the compiler's default, against a reference, and against the hardware."""

from __future__ import annotations

import math
from dataclasses import dataclass

from dispatch_profiler.configurations import Default
from dispatch_profiler.profiler.records.record import PROVIDER, Provenance, Record
from dispatch_profiler.profiler.records.record_file import StoredRecord, as_stored

#: What speeds are relative to if it is no library: the compiler's own choice.
DEFAULT_REFERENCE = "default"
_BASELINE = Default().name


@dataclass(frozen=True)
class Speedup:
    """Speeds as ratios, 2 is twice as fast; None where a side has no figure, or none yet.

    `of_limit` is relative to the roofline at the operation's arithmetic intensity.
    """

    vs_default: float | None
    vs_reference: float | None
    of_limit: float | None


class Speedups:
    """Fed records in the order they come; each is judged against what came before it, or is it.

    `reference` is `default` or the name of a provider. Of several records of one baseline the last
    counts, and one without a figure clears it: what is wrong is no measure.
    """

    def __init__(self, reference: str = DEFAULT_REFERENCE) -> None:
        self.reference = reference
        self._default: dict[_Key, float] = {}
        self._reference: dict[_Key, float] = {}

    def learn(self, record: Record | StoredRecord) -> None:
        """Remember it, if others are compared with it."""
        row = as_stored(record)
        is_default = row.provider == PROVIDER and row.configuration == _BASELINE
        if is_default:
            _set(self._default, row)
        if row.provider == self.reference or (is_default and self.reference == DEFAULT_REFERENCE):
            _set(self._reference, row)

    def of(self, record: Record | StoredRecord) -> Speedup:
        """Where a record stands against what is known."""
        row = as_stored(record)
        median, key = _median(record), _key(row.operation, record.provenance)
        return Speedup(
            _ratio(self._default.get(key), median),
            _ratio(self._reference.get(key), median),
            _ratio(row.roofline_ms or None, median),
        )


#: An operation on a device of a machine: what is measured elsewhere is no measure for it.
_Key = tuple[str, str, str]


def _key(operation: str, provenance: Provenance) -> _Key:
    return operation, provenance.device, provenance.machine.name


def _set(known: dict[_Key, float], record: StoredRecord) -> None:
    median, key = _median(record), _key(record.operation, record.provenance)
    if median is None:
        known.pop(key, None)
    else:
        known[key] = median


def _median(record: Record | StoredRecord) -> float | None:
    """Milliseconds; None if there is no figure to compare."""
    if record.measurement is None or record.verdict.is_failure:
        return None
    median = record.measurement.median_ms
    return median if 0.0 < median < math.inf else None


def _ratio(base_ms: float | None, median_ms: float | None) -> float | None:
    return None if base_ms is None or median_ms is None else base_ms / median_ms
