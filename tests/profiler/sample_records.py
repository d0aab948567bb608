"""Invented records, as a run would leave them: the same ones for the same arguments."""

from __future__ import annotations

import random
from itertools import product
from pathlib import Path

from dispatch_profiler.configurations import Configuration, CpuTiles, Default, Flow
from dispatch_profiler.dispatches import Dispatch
from dispatch_profiler.operations import BatchMatmul, Conv2d, ElementTypes, Matmul, Operation
from dispatch_profiler.profiler.measurement.measure import Measurement
from dispatch_profiler.profiler.measurement.peaks import Peaks
from dispatch_profiler.profiler.records.machine import Machine
from dispatch_profiler.profiler.records.record import Provenance, Record, StoredRecord, Verdict, stored
from dispatch_profiler.profiler.records.record_file import to_line

DEVICE = "local-task"
IREE = "compiler 3.13.0, runtime 3.13.0"
F16 = ElementTypes("f16", "f16", "f32")
MACHINE = Machine("Invented CPU", 2, 8 * 2**30, "Linux 6.1.0 x86_64")
#: 220 GFLOP/s in f32, twice as many in f16, 24 GB/s.
PEAKS = Peaks({"f32": 220e9, "f64": 110e9}, 24e9)
REASONS = {
    Verdict.FAILED: "3 of 65536 elements differ; worst at [12, 7]: got 1.5, expected 1.25, allowed 0.001",
    Verdict.NOT_VERIFIED: "no memory for the reference",
    Verdict.NOT_APPLIED: "the compiler replaced the tiles [64, 128] by [64, 64]",
    Verdict.NOT_COMPILED: "error: 'vector.contract' op failed to vectorize <unknown>:0:0",
    Verdict.CRASHED: "the worker died of SIGSEGV",
    Verdict.TIMED_OUT: "no answer within 120 s",
}


def operations(count: int) -> list[Operation]:
    """`count` of them, of every kind and two types."""
    sizes = [100, 128, 256, 384, 512, 768, 1024]
    found: list[Operation] = []
    for position, (m, n, k) in enumerate(product(sizes, sizes, (128, 512, 2048))):
        types = F16 if position % 3 == 1 else ElementTypes("f32", "f32", "f32")
        found.append(Matmul(m, n, k, types))
        if position % 4 == 0:
            found.append(BatchMatmul(4 + position, m, 64, k, types))
        if position % 5 == 0:
            found.append(Conv2d(1, 28 + position, 28, 64, 64, 3, 3, padding=(1, 1)))
    return found[:count]


def configurations(operation: Operation, count: int) -> list[Configuration]:
    """The default, two flows, and tiles."""
    axes = len(operation.parallel_axes)
    front, reductions = (1,) * (axes - 2), len(operation.reduction_axes)
    tiles = product(
        ((16, 64), (32, 64), (64, 64), (64, 128), (128, 128)), ((8, 32), (8, 64), (16, 16), (4, 16), (1, 32))
    )
    found: list[Configuration] = [Default(), Flow("data_tiling"), Flow("ukernels")]
    for distribution, vector in tiles:
        inner = (*front, *vector, *(1,) * (reductions - 1), 4)
        found.append(CpuTiles((*front, *distribution), inner, peel=vector[0] == 1))
    return found[:count]


def _record(
    operation: Operation, configuration: Configuration, provider: str, draw: random.Random, samples: int
) -> Record:
    limit_ms = PEAKS.limit_ms(operation)
    dispatch = Dispatch(operation, configuration)
    when = f"2026-11-20T10:{draw.randrange(60):02}:{draw.randrange(60):02}+00:00"
    origin = Provenance(DEVICE, "llvm-cpu", IREE, 7, when, MACHINE)
    command = f"python profiler.py --dispatches='{dispatch.name}'"
    verdict = Verdict.SUCCESS
    if not isinstance(configuration, Default) and provider == "IREE Codegen" and draw.random() < 0.1:
        verdict = draw.choice(list(REASONS))
    reason = REASONS.get(verdict, "")
    if verdict is not Verdict.SUCCESS and verdict is not Verdict.NOT_VERIFIED:
        return Record(dispatch, origin, verdict, reason, None, provider, limit_ms, command, PEAKS)
    centre = limit_ms * (1.15 + draw.expovariate(1.2)) + 0.004
    taken = tuple(centre * (1 + 0.02 * draw.expovariate(1.0)) for _ in range(samples))
    warnings = ("samples drift by 3 %",) if draw.random() < 0.02 else ()
    ended = draw.choice(["interval", "interval", "budget"])
    measurement = Measurement(taken, draw.choice([8, 64, 512]), "warm", 0.0003, ended, warnings)
    return Record(dispatch, origin, verdict, reason, measurement, provider, limit_ms, command, PEAKS)


def invented(count: int = 1000, *, each: int = 25, samples: int = 20, seed: int = 1) -> list[StoredRecord]:
    """`count` records: `each` configurations of an operation, and two other providers beside them."""
    draw = random.Random(seed)
    found: list[StoredRecord] = []
    for operation in operations(-(-count // each)):
        for configuration in configurations(operation, each - 2):
            found.append(
                stored(_record(operation, configuration, "IREE Codegen", draw, samples), {"run": "1"})
            )
        for provider in ("numpy", "torch"):
            found.append(stored(_record(operation, Default(), provider, draw, samples), {"run": "1"}))
    return found[:count]


def written(path: Path, records: list[StoredRecord]) -> Path:
    """The file that `profiler.py` would have left."""
    path.write_text("".join(to_line(record) + "\n" for record in records))
    return path
