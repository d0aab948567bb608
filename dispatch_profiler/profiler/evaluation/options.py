"""Options of an `Evaluator`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dispatch_profiler.operations import DEFAULT_SEED
from dispatch_profiler.profiler.measurement.measure import MeasureOptions


@dataclass(frozen=True)
class EvaluatorOptions:
    """What to do with each candidate. `seconds` is the time limit of one step of one candidate.

    `peaks` is the folder that caches hardware peaks; without it, no result is implausible. `references` is
    the folder that caches references; without it, each process computes them again.
    """

    device: str
    verify: bool = True
    profile: bool = True
    measure: MeasureOptions = MeasureOptions()
    seed: int = DEFAULT_SEED
    seconds: float = 120.0
    memory_bytes: int | None = None
    build_dir: Path | None = None
    peaks: Path | None = None
    references: Path | None = None
