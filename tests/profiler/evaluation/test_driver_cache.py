"""Before anything is measured, all cores load the vmfbs whose code a driver compiles."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from dispatch_profiler.dispatches import Tree, load_manifest
from dispatch_profiler.errors import ToolError
from dispatch_profiler.isolation import WorkerLimits
from dispatch_profiler.profiler.evaluation import device_worker, driver_cache
from dispatch_profiler.profiler.evaluation.driver_cache import compiles_when_loaded, load_side_by_side
from dispatch_profiler.profiler.evaluation.session import ProfileOptions, Session
from tests.profiler.conftest import InProcess


class Loads:
    """What was loaded, in which thread; `broken` names what cannot be."""

    def __init__(self) -> None:
        self.done: list[tuple[str, int]] = []
        self.broken: dict[str, BaseException] = {}
        self.closed = 0
        #: Both threads must load at once.
        self.together = threading.Barrier(2)

    def load(self, module: device_worker.Module) -> None:
        self.done.append((Path(module.path).name, threading.get_ident()))
        if len(self.done) <= 2:
            self.together.wait(timeout=60)
        if module.path in self.broken:
            raise self.broken[module.path]


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> Loads:
    found = Loads()

    class Process(InProcess):
        def close(self) -> None:
            found.closed += 1

        def kill(self) -> None:
            """There is no process to kill."""

    monkeypatch.setattr(driver_cache, "Worker", Process)
    monkeypatch.setattr(driver_cache, "usable_cores", lambda: [0, 1])
    monkeypatch.setattr(device_worker, "load", found.load)
    return found


def modules(folder: Path, *sizes: int) -> list[device_worker.Module]:
    """Files of so many bytes."""
    paths = [folder / f"{size}.vmfb" for size in sizes]
    for path, size in zip(paths, sizes, strict=True):
        path.write_bytes(bytes(size))
    return [device_worker.Module(str(path), "", 1) for path in paths]


def test_all_are_loaded_side_by_side_the_largest_first(loads: Loads, tmp_path: Path):
    said: list[str] = []

    load_side_by_side(modules(tmp_path, 10, 30, 20, 5), WorkerLimits(), "null", said.append)

    names = [name for name, _ in loads.done]
    assert set(names[:2]) == {"30.vmfb", "20.vmfb"} and set(names[2:]) == {"10.vmfb", "5.vmfb"}
    assert len({thread for _, thread in loads.done[:2]}) == 2
    assert said == ["loading 4 vmfbs first, 2 at a time: the driver compiles their code"]
    assert loads.closed == 2


def test_what_cannot_be_loaded_is_passed_over(loads: Loads, tmp_path: Path):
    """Who runs it will tell."""
    found = modules(tmp_path, 10, 30, 20)
    loads.broken = {found[1].path: ToolError("no PTX"), found[2].path: MemoryError()}

    load_side_by_side(found, WorkerLimits(), "null")

    assert len(loads.done) == 3 and loads.closed == 2


def test_an_interruption_ends_it(loads: Loads, tmp_path: Path):
    """The processes are gone, and what was not begun is not."""
    found = modules(tmp_path, *range(10, 30))
    loads.broken = {each.path: KeyboardInterrupt() for each in found}

    with pytest.raises(KeyboardInterrupt):
        load_side_by_side(found, WorkerLimits(), "null")

    assert len(loads.done) < 20 and loads.closed == 2


@pytest.mark.parametrize("cores", [[0], [0, 1, 2]])
def test_one_of_either_is_loaded_by_who_runs_it(loads: Loads, tmp_path: Path, monkeypatch, cores: list[int]):
    monkeypatch.setattr(driver_cache, "usable_cores", lambda: cores)

    load_side_by_side(modules(tmp_path, 10, 30)[: len(cores)][:1], WorkerLimits(), "null", pytest.fail)

    assert loads.done == []


def test_only_drivers_that_compile_are_served(monkeypatch):
    """And only if they keep what they made."""
    monkeypatch.delenv("CUDA_CACHE_DISABLE", raising=False)
    assert compiles_when_loaded("cuda") and compiles_when_loaded("cuda://1")
    assert not any(map(compiles_when_loaded, ("local-task", "null", "hip", "vulkan")))
    monkeypatch.setenv("CUDA_CACHE_DISABLE", "1")
    assert not compiles_when_loaded("cuda")


def test_a_session_loads_the_verify_vmfbs_of_what_was_compiled(null_tree, monkeypatch):
    """Each of them once; what did not compile has none."""
    asked: list[device_worker.Module] = []
    monkeypatch.setattr("dispatch_profiler.profiler.evaluation.session.compiles_when_loaded", lambda _: True)
    monkeypatch.setattr(
        "dispatch_profiler.profiler.evaluation.session.load_side_by_side",
        lambda modules, *_: asked.extend(modules),
    )
    folder = null_tree("--problem-m=16,32", "--problem-n=32", "--problem-k=8", "--lhs=f32")
    manifest = load_manifest(Tree(folder))
    with Session(manifest.tree, ProfileOptions("null")) as session:
        session.load_ahead(manifest.dispatches(), print)

    there = set(map(str, folder.rglob("*_verify.vmfb")))
    assert len(there) > 2 and sorted(module.path for module in asked) == sorted(there)
