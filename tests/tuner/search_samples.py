"""Evaluations of one operation, without a compiler or a device."""

from __future__ import annotations

from dispatch_profiler.configurations import Configuration, CpuTiles, Default
from dispatch_profiler.dispatches import Dispatch
from dispatch_profiler.operations import Matmul
from dispatch_profiler.profiler.measurement.measure import Measurement
from dispatch_profiler.profiler.records.record import Provenance, Record, Verdict
from dispatch_profiler.profiler.records.record_file import stored
from dispatch_profiler.tuner.evaluation.evaluations import Evaluation

OPERATION = Matmul(16, 32, 8)
TILES = tuple(CpuTiles((16, 32), (8, each, 1)) for each in (4, 8, 16, 32))
ORIGIN = Provenance(
    "null", "null", "compiler null, runtime 3.13", 7, "2026-11-22T14:00:00+00:00", flags=("--x",)
)


def evaluation(
    configuration: Configuration = Default(), milliseconds: float = 1.0, kernel: str = ""
) -> Evaluation:
    measurement = Measurement((milliseconds, 1.1 * milliseconds, milliseconds), 10)
    record = Record(Dispatch(OPERATION, configuration), ORIGIN, Verdict.SUCCESS, measurement=measurement)
    return Evaluation(record.dispatch, stored(record), kernel, 0.5)


def failure(configuration: Configuration, verdict: Verdict, reason: str) -> Evaluation:
    record = Record(Dispatch(OPERATION, configuration), ORIGIN, verdict, reason)
    return Evaluation(record.dispatch, stored(record))
