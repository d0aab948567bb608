"""A worker without a process, for tests that are not about processes."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any

import pytest

from dispatch_profiler.compiler import Compiler, NullCompiler
from dispatch_profiler.compiler.workers import pool
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

    def said(self) -> str:
        """Nothing: the standard error of this process is that of the tests."""
        return ""

    def close(self) -> None:
        """There is no process to end."""

    kill = close

    def __enter__(self) -> InProcessWorker:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class InProcessCompiler(InProcessWorker):
    """The same for compilers. Threads share the worker of `compiler_worker`, so they take turns.

    Those of the null compiler share nothing, and tests have them wait for each other.
    """

    _turn = threading.Lock()

    def call(self, function: Callable[..., Any], compiler: Compiler, *arguments: Any, **options: Any) -> Any:
        with contextlib.nullcontext() if isinstance(compiler, NullCompiler) else self._turn:
            return super().call(function, compiler, *arguments, **options)


def use_fresh_device_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until the test ends, this process is a device worker that has nothing of other tests, which get nothing of it."""
    monkeypatch.setattr(device_worker, "STATE", device_worker.WorkerState())


def use_in_process_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compilers and devices work in this process until the test ends."""
    monkeypatch.setattr(pool, "Worker", InProcessCompiler)
    for module in (workers, hardware):
        monkeypatch.setattr(module, "Worker", InProcessWorker)
    use_fresh_device_worker(monkeypatch)
