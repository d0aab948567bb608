"""A search that is killed at random points ends as an undisturbed one: same proposals, same winner, nothing twice."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import optuna
import pytest
import yaml
from script_helpers import ROOT
from search_samples import OPERATION
from test_search import SMALL, configurations

from dispatch_profiler.configurations import Default
from dispatch_profiler.dispatches import Dispatch
from dispatch_profiler.operations import Operation
from dispatch_profiler.tuner.evaluation.evaluations import from_attributes
from dispatch_profiler.tuner.strategies import STRATEGIES
from dispatch_profiler.tuner.strategies.prior import RecordedSweep, read_sweep

SWEEPS = ROOT / "benchmarks" / "sweeps"
SCRIPT = Path(__file__).with_name("killed_search.py")
#: Of its modules, which are those of these tests.
PATH = os.pathsep.join(map(str, SCRIPT.parents[:3]))


def plant_faults() -> str:
    """Times that differ, equal kernels and every fault that costs no process. Returns the name of the winner."""
    everyone = configurations(count=30)
    faults: dict[str, dict[str, object]] = {
        Dispatch(SMALL, each).name: {"time_ms": 0.5 + (7 * at % 30) / 40} for at, each in enumerate(everyone)
    }
    names = list(faults)
    faults[names[3]] = {"time_ms": 0.01, "fault": "wrong_element"}
    faults[names[4]] = {"not_compiled": "no such tile"}
    faults[names[5]] = {"not_applied": True}
    for name in names[6:8]:
        faults[name] = {"time_ms": 0.4, "kernel": "shared"}
    faults[Dispatch(SMALL, Default()).name] = {"time_ms": 1.0}
    Path("faults.yaml").write_text(yaml.safe_dump(faults, sort_keys=False))
    return names[6]


def plant_sweep(sweep: RecordedSweep) -> None:
    """The times of a recorded sweep; what failed does not compile."""
    faults = {
        Dispatch(sweep.operation, each).name: {"time_ms": ms} if ms else {"not_compiled": "as recorded"}
        for each, ms in sweep.times.items()
    }
    assert len(faults) == len(sweep.times)
    Path("faults.yaml").write_text(yaml.safe_dump(faults, sort_keys=False))


def run(
    strategy: str, storage: str, at: int = 0, *sweep: str
) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    """(how the process ended, names of the candidates that it measured)."""
    log = Path("measured.txt")
    log.unlink(missing_ok=True)
    done = subprocess.run(
        [sys.executable, str(SCRIPT), strategy, storage, str(at), *sweep],
        env={**os.environ, "PYTHONPATH": PATH},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    return done, log.read_text().splitlines() if log.exists() else []


def stored_names(storage: str, operation: Operation) -> list[str]:
    """Names of the stored evaluations, in order."""
    if not Path(storage).exists():
        return []
    url = f"sqlite:///{storage}"
    found = [
        from_attributes(operation, trial.user_attrs).dispatch.name
        for summary in optuna.get_all_study_summaries(url)
        for trial in optuna.load_study(study_name=summary.study_name, storage=url).trials
    ]
    assert len(found) == len(set(found))
    return found


def check_killed(strategy: str, kills: int, operation: Operation, *sweep: str) -> dict[str, Any]:
    """Returns what an undisturbed search found."""
    whole, order = run(strategy, "undisturbed.db", 0, *sweep)
    undisturbed: dict[str, Any] = json.loads(whole.stdout)
    rng = random.Random(strategy)

    killed, seen, attempts = 0, 0, 0
    while killed < kills:
        attempts += 1
        assert attempts <= 5 * kills
        before = stored_names("search.db", operation)
        # Early in each run, so that the search is not done after a few of them.
        done, measured = run(strategy, "search.db", rng.randrange(1, undisturbed["calls"] // 4), *sweep)
        killed += done.returncode == -signal.SIGKILL
        assert not set(measured) & set(before)
        after = stored_names("search.db", operation)
        assert after[: len(before)] == before
        seen += len(measured)
    last, measured = run(strategy, "search.db", 0, *sweep)

    found = json.loads(last.stdout)
    assert found["outcomes"] == undisturbed["outcomes"]
    assert found["best"] == undisturbed["best"]
    assert stored_names("search.db", operation) == stored_names("undisturbed.db", operation)
    # Of each killed run, only the candidate in progress is measured again.
    assert len(order) <= seen + len(measured) <= len(order) + kills
    return undisturbed


@pytest.mark.slow
def test_a_search_that_is_killed_ends_as_an_undisturbed_one():
    plant_faults()
    check_killed("random", 2, OPERATION)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_search_that_is_killed_ten_times_ends_as_an_undisturbed_one(strategy: str):
    plant_faults()
    check_killed(strategy, 10, OPERATION)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_search_of_a_recorded_sweep_that_is_killed_ten_times_ends_as_an_undisturbed_one(strategy: str):
    """With the times of a device, of a product with one row."""
    path = SWEEPS / "matmul_1x1000x2048.jsonl.gz"
    sweep = read_sweep(path)
    plant_sweep(sweep)
    assert len(check_killed(strategy, 10, sweep.operation, str(path))["outcomes"]) == 27
