"""The best result of each operation so far, over everything that one evaluator has measured."""

from __future__ import annotations

import math

from dispatch_profiler.operations import Operation
from dispatch_profiler.profiler.providers.library_calls import LibraryCall
from dispatch_profiler.profiler.records.record import PROVIDER, Record

#: Minimum number of sample batches for an interval to count.
_SEVERAL = 2


class BestSoFar:
    """Takes records as they grow. Of several records of one dispatch, the last counts.

    With `by_decile`, the time that a dispatch reaches is the lowest decile of its samples.
    """

    def __init__(self, by_decile: bool = False) -> None:
        self._by_decile = by_decile
        self._records: dict[Operation, Record] = {}
        #: Operation -> dispatch -> the time that it reaches in ms, and whether it packs the weight.
        self._reached: dict[Operation, dict[str, tuple[float, bool]]] = {}

    def learn(self, record: Record, *, is_done: bool) -> None:
        """Update with the current record of a dispatch."""
        # A single batch may reflect a temporary state of the machine.
        if is_done or (record.measurement is not None and len(record.measurement.batches) >= _SEVERAL):
            self._learn_bound(record)
        if is_done:
            self._learn_record(record)

    def record(self, operation: Operation) -> Record | None:
        """The fastest finished record by median; None without finished records.

        Library calls do not count, nor do packed weights, whose times include less.
        """
        return self._records.get(operation)

    def bound_ms(self, operation: Operation, *, packs_weight: bool = False) -> float | None:
        """The time that the compiler's best dispatch reaches with 95 % confidence, or its decile, in ms; None if unknown.

        A dispatch that packs its weight is no reason to abandon a dispatch that does not. With
        `packs_weight`, both kinds count.
        """
        reached = self._reached.get(operation, {}).values()
        # Of a single sample, no time is known that the dispatch reaches.
        known = (ms for ms, packs in reached if (packs_weight or not packs) and math.isfinite(ms))
        return min(known, default=None)

    def _learn_bound(self, record: Record) -> None:
        if record.provider != PROVIDER:
            return  # a fast library is no reason to abandon IREE's dispatches
        reached = self._reached.setdefault(record.dispatch.operation, {})
        if record.measurement is None or record.is_failure:
            reached.pop(record.dispatch.name, None)
        else:
            packs, measured = record.dispatch.configuration.packs_weight, record.measurement
            time_ms = measured.p10_ms if self._by_decile else measured.interval_ms[1]
            reached[record.dispatch.name] = time_ms, packs

    def _learn_record(self, record: Record) -> None:
        configuration = record.dispatch.configuration
        if isinstance(configuration, LibraryCall) or configuration.packs_weight:
            return
        if record.measurement is None or record.is_failure:
            return
        operation = record.dispatch.operation
        best = self._records.get(operation)
        if (
            best is None
            or best.measurement is None
            or best.dispatch == record.dispatch
            or record.measurement.median_ms < best.measurement.median_ms
        ):
            self._records[operation] = record
