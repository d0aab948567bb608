"""Builds in threads and processes, and the dialect of IREE's importer in a worker: what dies costs itself."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
from pool_helpers import Deadly, DiesOfFlags, KillsItsParent, TellsItsCores, TellsItsProcess

from dispatch_profiler.compiler import BuildOutcome, BuildRequest
from dispatch_profiler.compiler.source.torch_dialect import lowered
from dispatch_profiler.compiler.workers import pool
from dispatch_profiler.compiler.workers.cluster import Cluster
from dispatch_profiler.compiler.workers.pool import BuildPool, Executor, WorkerSet, build_task
from dispatch_profiler.configurations import Default
from dispatch_profiler.dispatches import Dispatch, State
from dispatch_profiler.errors import ToolError, UsageError
from dispatch_profiler.isolation import WorkerLimits
from dispatch_profiler.operations import Matmul

LIMITS = WorkerLimits(seconds=20.0)
needs_safe_path = pytest.mark.skipif(sys.version_info < (3, 11), reason="loky is rejected before Python 3.11")
DISPATCH = Dispatch(Matmul(8, 8, 8), Default())


@pytest.fixture(autouse=True)
def _helpers_are_importable(monkeypatch):
    from joblib.externals.loky import get_reusable_executor

    path = os.pathsep.join(filter(None, [str(Path(__file__).parent), os.environ.get("PYTHONPATH")]))
    monkeypatch.setenv("PYTHONPATH", path)
    get_reusable_executor().shutdown(wait=True)  # those of other tests have another path
    yield
    get_reusable_executor().shutdown(wait=True)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["threads", pytest.param("loky", marks=needs_safe_path)])
def test_a_compiler_that_kills_its_process_costs_only_its_dispatch(kind: str):
    """Three modules, of which one takes its worker process down whenever it is built."""
    requests = {i: BuildRequest(str(i), (), (), 1) for i in range(3)}
    requests[1] = BuildRequest("die", (DISPATCH,), (), 1)

    with BuildPool[int](Deadly(), Executor(kind, 2), LIMITS) as pool:
        results = dict(pool.results(requests))

    (outcome,) = results[1].outcomes.values()
    assert outcome == BuildOutcome(State.NOT_COMPILED, "killed by SIGABRT", is_transient=True)
    assert set(results) == {0, 1, 2}


@pytest.mark.slow
@needs_safe_path
def test_what_a_killed_process_of_joblib_had_in_hand_is_done_by_another(tmp_path: Path):
    requests = {i: BuildRequest("die" if i == 1 else str(i), (DISPATCH,), (), 1) for i in range(6)}
    compiler = KillsItsParent(counter=str(tmp_path / "killed"), times=2)

    with BuildPool[int](compiler, Executor("loky", 2), LIMITS) as pool:
        results = list(pool.results(requests))

    assert sorted(key for key, _ in results) == [0, 1, 2, 3, 4, 5]
    assert all(built.verify == b"v" for _, built in results)


@pytest.mark.slow
@needs_safe_path
def test_processes_that_are_killed_again_and_again_end_the_run_with_a_sentence(tmp_path: Path):
    requests = {i: BuildRequest("die" if i == 1 else str(i), (DISPATCH,), (), 1) for i in range(3)}
    compiler = KillsItsParent(counter=str(tmp_path / "killed"), times=99)

    with (
        BuildPool[int](compiler, Executor("loky", 2), LIMITS) as pool,
        pytest.raises(ToolError, match="joblib's processes were killed 3 times") as caught,
    ):
        list(pool.results(requests))

    assert "--executor=threads" in caught.value.hint


@pytest.mark.parametrize("kind", ["threads", "loky", "dask"])
def test_flags_that_the_compiler_dies_of_end_the_run_with_a_sentence(kind: str):
    """And not this process; nothing is handed out, so no cluster is needed either."""
    requests = {i: BuildRequest(str(i), (DISPATCH,), ("die",) if i == 1 else (), 1) for i in range(2)}

    with (
        BuildPool[int](DiesOfFlags(), Executor(kind, 2, Cluster("tcp://127.0.0.1:1")), LIMITS) as builds,
        pytest.raises(ToolError, match="failed before it read its flags: killed by SIGABRT") as caught,
    ):
        list(builds.results(requests))

    assert "the flags after --" in caught.value.hint


@pytest.mark.slow
def test_a_compiler_process_is_renewed_after_so_many_builds():
    """What a module leaves behind in it would add up over ten thousand."""
    request, workers = BuildRequest("", (DISPATCH,), (), 1), WorkerSet(builds=2)

    processes = [build_task(i, request, TellsItsProcess(), LIMITS, workers)[1].verify for i in range(7)]
    workers.close()

    assert sorted(Counter(processes).values()) == [1, 2, 2, 2]


def test_concurrent_calls_share_the_processes_and_their_cores():
    """Three calls at once, but no more compilers than one caller would have."""
    core = min(os.sched_getaffinity(0))
    requests = {i: BuildRequest(str(i), (DISPATCH,), (), 1) for i in range(2)}
    with (
        BuildPool[int](TellsItsCores(), Executor("threads", 1, cores=(core,)), LIMITS) as builds,
        ThreadPoolExecutor(3) as callers,
    ):
        found = list(callers.map(lambda _: dict(builds.results(requests)), range(3)))

    assert [set(each) for each in found] == [{0, 1}] * 3
    assert len({built.verify for each in found for built in each.values()}) == 1
    assert {built.profile for each in found for built in each.values()} == {f"[{core}]".encode()}


def test_a_closed_set_of_workers_builds_nothing_more():
    workers = WorkerSet()
    workers.close()

    with pytest.raises(ToolError, match="interrupted"):
        workers.check_open()


def test_loky_is_rejected_where_its_processes_would_import_from_the_current_directory(monkeypatch):
    """Before Python 3.11 there is no way to tell them."""
    monkeypatch.setattr(pool, "sys", SimpleNamespace(flags=object()))

    with (
        BuildPool[int](TellsItsProcess(), Executor("loky", 2), LIMITS) as builds,
        pytest.raises(UsageError, match=r"--executor=loky needs Python 3\.11") as caught,
    ):
        list(builds.results({1: BuildRequest("", (DISPATCH,), (), 1)}))

    assert "--executor=threads" in caught.value.hint


@pytest.mark.slow
@needs_safe_path
def test_the_environment_is_as_before_when_loky_has_ended(monkeypatch):
    for before in ("", None):
        if before is None:
            monkeypatch.delenv("PYTHONSAFEPATH")
        else:
            monkeypatch.setenv("PYTHONSAFEPATH", before)
        with BuildPool[int](TellsItsProcess(), Executor("loky", 2), LIMITS) as builds:
            list(builds.results({1: BuildRequest("", (DISPATCH,), (), 1)}))
        assert os.environ.get("PYTHONSAFEPATH") == before


def test_one_worker_needs_no_process_around_its_compiler():
    assert Executor("loky", 1).uses_threads
    assert not Executor("loky", 2).uses_threads
    assert not Executor("dask", 1).uses_threads


RELU = """func.func @f(%x: !torch.vtensor<[2,3],f32>) -> !torch.vtensor<[2,3],f32> {
  %y = torch.aten.relu %x : !torch.vtensor<[2,3],f32> -> !torch.vtensor<[2,3],f32>
  return %y : !torch.vtensor<[2,3],f32>
}
"""


def test_operators_become_linalg_and_what_cannot_be_parsed_costs_only_its_call():
    with pytest.raises(ToolError, match="relu"):
        lowered(RELU.replace("aten.relu", "aten.no_relu"))

    found = lowered(RELU)

    assert "linalg.generic" in found and "torch.aten" not in found


def test_this_process_does_not_load_the_compiler_for_it():
    script = (
        "import sys\nfrom dispatch_profiler.compiler.source.torch_dialect import lowered\n"
        f"print('linalg' in lowered({RELU!r}), [each for each in sys.modules if each.startswith('iree.compiler')])\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=200)
    assert done.stdout == "True []\n", done.stderr
