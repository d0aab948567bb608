"""A worker without a process, for tests that are not about processes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest

from dispatch_profiler.compiler import pool
from dispatch_profiler.errors import DispatchProfilerError, ToolError, WorkerOutOfMemory
from dispatch_profiler.profiler.evaluation import device_worker, hardware, workers


class InProcessWorker:
    """Calls in this process what an `isolation.Worker` calls in another."""

    def __init__(
        self,
        limits: object = None,
        start: Callable[..., None] | None = None,
        start_arguments: tuple[Any, ...] = (),
        environment: object = None,
        max_calls: object = None,
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

    kill = close

    def __enter__(self) -> InProcessWorker:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def use_in_process_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compilers and devices work in this process until the test ends."""
    for module in (pool, workers, hardware):
        monkeypatch.setattr(module, "Worker", InProcessWorker)
    monkeypatch.setattr(device_worker, "_device", None)
    monkeypatch.setattr(device_worker, "_sentinel", None)
    monkeypatch.setattr(device_worker, "_vmfbs", OrderedDict())
    device_worker._program.cache_clear()
    device_worker._held.clear()
