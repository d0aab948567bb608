"""Evaluations of one operation, without a compiler or a device."""

from __future__ import annotations

import optuna

from dispatch_profiler.configurations import Configuration, CpuTiles, Default
from dispatch_profiler.dispatches import Dispatch
from dispatch_profiler.operations import Matmul
from dispatch_profiler.profiler.measurement.measure import Measurement
from dispatch_profiler.profiler.records.record import Provenance, Record, Verdict, stored
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


def change_owner(where: str, **fields: str) -> dict[str, object]:
    """Change the process that the only study in the file `where` belongs to, as another program would; returns all fields."""
    storage = f"sqlite:///{where}"
    if where.endswith(".log"):
        storage = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(where))
    study = optuna.load_study(study_name=None, storage=storage)
    study.set_user_attr("owner", {**study.user_attrs["owner"], **fields})
    return study.user_attrs["owner"]
