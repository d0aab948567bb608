"""Train the priors that ship with the tuner from recorded sweeps and searches: `python scripts/train_priors.py`.

Writes dispatch_profiler/tuner/strategies/priors/BACKEND.npz for every code generator in benchmarks/sweeps and
benchmarks/searches. Run it after these or the features have changed. Requires scikit-learn.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from dispatch_profiler.tuner.strategies.prior import RecordedSweep, read_sweep, train

ROOT = Path(__file__).resolve().parent.parent
RECORDED = ROOT / "benchmarks"
PRIORS = ROOT / "dispatch_profiler" / "tuner" / "strategies" / "priors"


def main() -> None:
    """Train, write and list them."""
    sweeps: defaultdict[str, list[RecordedSweep]] = defaultdict(list)
    for path in [*sorted(RECORDED.glob("sweeps/*.jsonl.gz")), *sorted(RECORDED.glob("searches/*.jsonl.gz"))]:
        sweep = read_sweep(path)
        sweeps[sweep.target.limits.backend].append(sweep)
    PRIORS.mkdir(exist_ok=True)
    for backend, found in sweeps.items():
        path = PRIORS / f"{backend}.npz"
        train(found).save(path)
        print(f"{path.relative_to(ROOT)}: {len(found)} sweeps, {path.stat().st_size / 1024:.0f} KiB")


if __name__ == "__main__":
    main()
