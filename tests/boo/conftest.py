"""Kernels of these tests are compiled in their own process: a compiler process takes longer to start than most kernels
to compile. That compilers have processes of their own is tested in tests/compiler."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dispatch_profiler.boo.session import SESSION
from dispatch_profiler.compiler import BuildRequest, Built, NullCompiler


@pytest.fixture(autouse=True)
def _compile_in_this_process(in_process: None) -> None:
    pass


@pytest.fixture(autouse=True)
def _nothing_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models are compiled with the first kernel of each region, which nothing is measured for: this is faster, and the
    same in each run. Tests of `autotune` set BOO_AUTOTUNE themselves."""
    monkeypatch.setenv("BOO_AUTOTUNE", "0")


@pytest.fixture(autouse=True)
def _nothing_compiled_by_dynamo(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dynamo knows no code that another test compiled.

    It does not measure how long guards take, for its own statistics: it empties the caches of the processor first, which
    takes a sixth of the time of a small graph.
    """
    if (dynamo := sys.modules.get("torch._dynamo")) is not None:
        dynamo.reset()
        guards = sys.modules["torch._dynamo.guards"]
        if hasattr(guards, "profile_guard_manager"):
            monkeypatch.setattr(guards, "profile_guard_manager", lambda *_: 0.0)


@pytest.fixture
def plans_of_this_test(shared_cache: None) -> Iterator[None]:
    """No plan of a convolution that another test made, whose kernels are in the cache of the run."""
    SESSION.clear("convolutions")
    yield
    SESSION.clear("convolutions")


@pytest.fixture
def kernels_of_this_run(shared_builds: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Launches take their kernels from the cache of the run."""
    monkeypatch.setenv("BOO_CACHE_DIR", str(shared_builds))


@pytest.fixture
def backward_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradients are computed by our kernels where these can."""
    monkeypatch.setenv("BOO_USE_BACKWARD_KERNELS", "1")


@pytest.fixture(params=["0", "1"])
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The tests with this fixture compute gradients by torch's kernels, and by ours."""
    monkeypatch.setenv("BOO_USE_BACKWARD_KERNELS", request.param)
    return str(request.param)


@pytest.fixture
def builds(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The dispatches that the null compiler builds, in order."""
    built, build = [], NullCompiler.build

    def record(self: NullCompiler, request: BuildRequest) -> Built:
        built.extend(dispatch.name for dispatch in request.dispatches)
        return build(self, request)

    monkeypatch.setattr(NullCompiler, "build", record)
    return built


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the operations that compiled models launch."""
    from dispatch_profiler.boo.fusion.execute.calls import RunCall  # it needs torch

    names: list[str] = []
    launch = RunCall.__call__

    def note(self: Any, *inputs: Any) -> Any:
        names.extend(step.operation.name for step, _ in self.spec.steps)
        return launch(self, *inputs)

    monkeypatch.setattr(RunCall, "__call__", note)
    return names
