"""A search on the null target that kills itself: `killed_search.py STRATEGY STORAGE CALL [SWEEP]`.

`CALL` is the number of the call of a function, of the tuner or of what it stores with, at which the process ends
with SIGKILL; 0: never. `SWEEP` is a recorded sweep: only its configurations are searched, and `faults.yaml` has their
times. Names of candidates that are measured are appended to `measured.txt`. At the end it prints
the number of calls, and what the search found.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
from test_search import OPTIONS, outcomes, task
from worker_helpers import use_in_process_workers

from dispatch_profiler.operations.contraction import reference as contraction_reference
from dispatch_profiler.profiler.evaluation.evaluator import Evaluator
from dispatch_profiler.targets import NullTarget
from dispatch_profiler.tuner.search.operation_search import SearchTask
from dispatch_profiler.tuner.search.search import SearchResult, search
from dispatch_profiler.tuner.spaces.seeds import baselines
from dispatch_profiler.tuner.storage.storage import open_storage
from dispatch_profiler.tuner.strategies.prior import read_sweep

#: Parts of the paths of files whose functions count.
_COUNTED = ("/tuner/", "/optuna/", "/sqlalchemy/", "/evaluator.py")


def searched(strategy: str, storage: str, evaluations: int, sweep: str) -> SearchResult:
    if sweep:
        recorded = read_sweep(Path(sweep))
        first = baselines(recorded.operation, recorded.target)
        wanted = SearchTask(
            recorded.search_space(), first, strategy=strategy, evaluations=evaluations, descend_after=20
        )
    else:
        wanted = task(count=30, evaluations=evaluations, strategy=strategy)
    with open_storage(storage) as opened:
        return search([wanted], NullTarget("faults.yaml"), opened, OPTIONS)


def killer(at: int) -> tuple[Callable[[FrameType, str, Any], None], list[int]]:
    """(what `sys.setprofile` calls, the number of calls so far)."""
    calls = [0]

    def count(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call" and any(part in frame.f_code.co_filename for part in _COUNTED):
            calls[0] += 1
            if calls[0] == at:
                os.kill(os.getpid(), signal.SIGKILL)

    return count, calls


def log_measured() -> None:
    """Write the names of candidates before they are measured."""
    whole = Evaluator.records

    def records(self: Evaluator, candidates: Any) -> Any:
        for candidate in candidates:
            with Path("measured.txt").open("a") as file:
                file.write(f"{candidate.dispatch.name}\n")
            yield from whole(self, [candidate])

    Evaluator.records = records  # type: ignore[method-assign]


def remember_references() -> None:
    """Compute the reference of the same inputs once: a null device computes it for every candidate."""
    whole, known = contraction_reference.reference, {}

    def reference(operation: Any, inputs: Sequence[np.ndarray], **options: Any) -> Any:
        samples = (each.ravel()[::97].tobytes() for each in inputs)
        key = (operation, *samples, *options.values())
        if key not in known:
            known[key] = whole(operation, inputs, **options)
        return known[key]

    contraction_reference.reference = reference


def main(strategy: str, storage: str, at: str, sweep: str = "") -> None:
    use_in_process_workers(pytest.MonkeyPatch())
    remember_references()
    # Everything is imported once it has run: modules that are being imported do not count.
    searched(strategy, f"warm_{os.getpid()}.db", 1, sweep)
    log_measured()
    count, calls = killer(int(at))
    sys.setprofile(count)
    found = searched(strategy, storage, 27, sweep)
    sys.setprofile(None)
    rows = [
        [dispatch.name, verdict.value, reason, milliseconds, same]
        for dispatch, verdict, reason, milliseconds, same in outcomes(found)
    ]
    best = found.operations[0].best
    assert best is not None
    print(json.dumps({"calls": calls[0], "outcomes": rows, "best": best.dispatch.name}))


if __name__ == "__main__":
    main(*sys.argv[1:])
