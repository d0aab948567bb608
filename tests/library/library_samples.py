"""Invented entries and records of libraries."""

from __future__ import annotations

from collections.abc import Iterable

from dispatch_profiler.configurations import Configuration, CpuTiles, Default
from dispatch_profiler.dispatches import Dispatch
from dispatch_profiler.library import Entry, Estimate
from dispatch_profiler.operations import Matmul, Operation
from dispatch_profiler.profiler.measurement.measure import Measurement
from dispatch_profiler.profiler.records.machine import Machine
from dispatch_profiler.profiler.records.record import Provenance, Record, Verdict

IREE = "compiler 3.13.0 @ 89ece87b, runtime 3.13.0"
HERE = Provenance(
    "local-task", "llvm-cpu", IREE, 7, "2026-11-22T10:00:00+00:00", Machine("A", 2, 8 * 2**30, "L"),
    module_key="k1", flags=("--iree-llvmcpu-target-cpu=host", "-O2"),
)  # fmt: skip
TILES = CpuTiles((64, 128), (8, 32, 4))
OTHER = CpuTiles((32, 64), (8, 32, 4))
FIRST, SECOND, THIRD = (Matmul(size, 64, 32) for size in (64, 128, 256))


def entry(
    operation: Operation = FIRST,
    gflops: float = 100.0,
    configuration: Configuration = TILES,
    origin: Provenance = HERE,
) -> Entry:
    """10 % more and less is the interval of its speed; twice as fast as the default."""
    speed = Estimate(gflops, 0.9 * gflops, round(1.1 * gflops, 9))
    return Entry(Dispatch(operation, configuration), speed, Estimate(2.0, 1.9, 2.1), origin)


def record(
    configuration: Configuration = TILES,
    milliseconds: float = 1.0,
    *,
    operation: Operation = FIRST,
    noise: float = 0.001,
    verdict: Verdict = Verdict.SUCCESS,
    origin: Provenance = HERE,
) -> Record:
    """24 samples around `milliseconds`, off by `noise` of that."""
    samples = tuple(milliseconds * (1.0 + noise * off) for off in (0, 1, -1, 0.5, -0.5, 0) * 4)
    return Record(Dispatch(operation, configuration), origin, verdict, "", Measurement(samples, 10))


def default(milliseconds: float = 2.0, **more) -> Record:
    return record(Default(), milliseconds, **more)


def speeds(entries: Iterable[Entry]) -> dict[str, float]:
    """Name of each operation -> GFLOP/s of its entry."""
    return {each.operation.name: each.gflops.value for each in entries}
