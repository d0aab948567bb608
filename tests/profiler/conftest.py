"""What tests of the profiler share: trees that are made once, and a worker without a process."""

from __future__ import annotations

import json
import shutil
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dispatch_profiler.errors import DispatchProfilerError, ToolError, WorkerOutOfMemory
from dispatch_profiler.profiler.evaluation import device_worker, hardware, workers

_made: dict[str, Path] = {}


@pytest.fixture
def tree(null_tree: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """As `null_tree`, but a tree that was asked for before is copied from the last time."""

    def make(*arguments: str, faults: dict[str, dict[str, object]] | None = None) -> Path:
        key = json.dumps([arguments, faults])
        if key not in _made:
            made = null_tree(*arguments, faults=faults)
            _made[key] = tmp_path_factory.mktemp("tree")
            shutil.copytree(made / "generated", _made[key] / "generated")
            return made
        shutil.copytree(_made[key] / "generated", Path.cwd() / "generated")
        return Path.cwd()

    return make


class InProcess:
    """A worker that calls in this process what the real one calls in another."""

    def __init__(
        self,
        limits: object = None,
        start: Callable[..., None] | None = None,
        start_arguments: tuple[Any, ...] = (),
        environment: object = None,
    ) -> None:
        self._start = None if start is None else lambda: start(*start_arguments)

    def call(self, function: Callable[..., Any], *arguments: Any, **_: object) -> Any:
        if self._start is not None:
            self._start()
            self._start = None
        try:
            return function(*arguments)
        except MemoryError as error:
            raise WorkerOutOfMemory(f"out of memory: {error}") from error
        except DispatchProfilerError:
            raise
        except Exception as error:
            raise ToolError(f"{type(error).__name__}: {error}") from error

    def close(self) -> None:
        """There is no process to end."""

    def __enter__(self) -> InProcess:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """No worker processes: for tests that need no crash, hang or memory limit."""
    for room in (workers, hardware):
        monkeypatch.setattr(room, "Worker", InProcess)
    monkeypatch.setattr(device_worker, "_device", None)
    monkeypatch.setattr(device_worker, "_sentinel", None)
    monkeypatch.setattr(device_worker, "_vmfbs", OrderedDict())
    device_worker._program.cache_clear()
    device_worker._places.cache_clear()
