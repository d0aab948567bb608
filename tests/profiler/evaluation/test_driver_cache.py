"""Before anything is measured, all cores load the vmfbs whose code a driver compiles."""

from __future__ import annotations

import threading

import pytest
from worker_helpers import InProcessWorker

from dispatch_profiler.dispatches import Tree, load_manifest
from dispatch_profiler.errors import ToolError
from dispatch_profiler.isolation import WorkerLimits
from dispatch_profiler.profiler.evaluation import device_worker, driver_cache
from dispatch_profiler.profiler.evaluation.candidate import Vmfb
from dispatch_profiler.profiler.evaluation.driver_cache import compiles_when_loaded, load_in_parallel
from dispatch_profiler.profiler.evaluation.evaluator import Evaluator
from dispatch_profiler.profiler.evaluation.from_manifest import TreeCandidates
from dispatch_profiler.profiler.evaluation.options import EvaluatorOptions


class Loads:
    """Sizes of what was loaded, in which thread; `broken` are those that cannot be."""

    def __init__(self) -> None:
        self.done: list[tuple[int, int]] = []
        self.broken: dict[int, BaseException] = {}
        self.closed = 0
        #: Both threads must load at once.
        self.together = threading.Barrier(2)

    def load(self, vmfb: bytes) -> None:
        self.done.append((len(vmfb), threading.get_ident()))
        if len(self.done) <= 2:
            self.together.wait(timeout=60)
        if len(vmfb) in self.broken:
            raise self.broken[len(vmfb)]


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> Loads:
    found = Loads()

    class Process(InProcessWorker):
        def close(self) -> None:
            found.closed += 1

        def kill(self) -> None:
            """There is no process to kill."""

    monkeypatch.setattr(driver_cache, "Worker", Process)
    monkeypatch.setattr(driver_cache, "usable_cores", lambda: [0, 1])
    monkeypatch.setattr(device_worker, "load", found.load)
    return found


def vmfbs(*sizes: int) -> list[Vmfb]:
    """Of so many bytes."""
    return [Vmfb.of(bytes(size)) for size in sizes]


def test_all_are_loaded_side_by_side_the_largest_first(loads: Loads):
    said: list[str] = []

    load_in_parallel(vmfbs(10, 30, 20, 5), WorkerLimits(), "null", said.append)

    sizes = [size for size, _ in loads.done]
    assert set(sizes[:2]) == {30, 20} and set(sizes[2:]) == {10, 5}
    assert len({thread for _, thread in loads.done[:2]}) == 2
    assert said == ["loading 4 vmfbs first, 2 at a time: the driver compiles their code"]
    assert loads.closed == 2


def test_what_cannot_be_loaded_is_passed_over(loads: Loads):
    """Who runs it will tell."""
    found = vmfbs(10, 30, 20)
    loads.broken = {30: ToolError("no PTX"), 20: MemoryError()}

    load_in_parallel(found, WorkerLimits(), "null")

    assert len(loads.done) == 3 and loads.closed == 2


def test_an_interruption_ends_it(loads: Loads):
    """The processes are gone, and what was not begun is not."""
    found = vmfbs(*range(10, 30))
    loads.broken = {each.size: KeyboardInterrupt() for each in found}

    with pytest.raises(KeyboardInterrupt):
        load_in_parallel(found, WorkerLimits(), "null")

    assert len(loads.done) < 20 and loads.closed == 2


@pytest.mark.parametrize("cores", [[0], [0, 1, 2]])
def test_one_of_either_is_loaded_by_who_runs_it(loads: Loads, monkeypatch, cores: list[int]):
    monkeypatch.setattr(driver_cache, "usable_cores", lambda: cores)

    load_in_parallel(vmfbs(10, 30)[: len(cores)][:1], WorkerLimits(), "null", pytest.fail)

    assert loads.done == []


def test_only_drivers_that_compile_are_served(monkeypatch):
    """And only if they keep what they made."""
    monkeypatch.delenv("CUDA_CACHE_DISABLE", raising=False)
    assert compiles_when_loaded("cuda") and compiles_when_loaded("cuda://1")
    assert not any(map(compiles_when_loaded, ("local-task", "null", "hip", "vulkan")))
    monkeypatch.setenv("CUDA_CACHE_DISABLE", "1")
    assert not compiles_when_loaded("cuda")


def test_an_evaluator_loads_the_verify_vmfbs_of_what_was_compiled(null_tree, monkeypatch):
    """Each of them once; what did not compile has none."""
    asked: list[Vmfb] = []
    monkeypatch.setattr(
        "dispatch_profiler.profiler.evaluation.evaluator.compiles_when_loaded", lambda _: True
    )
    monkeypatch.setattr(
        "dispatch_profiler.profiler.evaluation.evaluator.load_in_parallel",
        lambda vmfbs, *_: asked.extend(vmfbs),
    )
    folder = null_tree("--problem-m=16,32", "--problem-n=32", "--problem-k=8", "--lhs=f32")
    manifest = load_manifest(Tree(folder))
    with Evaluator(EvaluatorOptions("null")) as evaluator:
        evaluator.load_ahead(TreeCandidates(manifest.tree).candidates(manifest.dispatches()), print)

    there = {path.read_bytes() for path in folder.rglob("*_verify.vmfb")}
    assert len(there) > 2 and sorted(vmfb.load() for vmfb in asked) == sorted(there)
