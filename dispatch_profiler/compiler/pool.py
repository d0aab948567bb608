"""Builds in parallel: a joblib thread for each worker process, which is where the compiler runs."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

import joblib

from dispatch_profiler.compiler._base import Built, Compiler, ModuleJob
from dispatch_profiler.compiler.settle import settle
from dispatch_profiler.errors import ToolError
from dispatch_profiler.isolation import Worker, WorkerLimits

Key = TypeVar("Key")


def _build(compiler: Compiler, job: ModuleJob) -> Built:
    return compiler.build(job)


class BuildPool(Generic[Key]):
    """`workers` processes that build modules; a module that kills its process costs only itself.

    `seconds` is the time limit of one dispatch, `memory_bytes` the memory limit of one process.
    """

    def __init__(
        self, compiler: Compiler, workers: int, seconds: float, memory_bytes: int | None = None
    ) -> None:
        self._compiler = compiler
        self._workers = workers
        self._seconds = seconds
        self._memory = memory_bytes
        self._idle: list[Worker] = []
        self._all: list[Worker] = []
        self._lock = threading.Lock()
        self._closed = False

    def results(self, jobs: Iterable[tuple[Key, ModuleJob]]) -> Iterator[tuple[Key, Built]]:
        """Every job's result as it comes, with the key that it was given under."""
        parallel = joblib.Parallel(
            n_jobs=self._workers,
            backend="threading",
            return_as="generator_unordered",
            pre_dispatch="2*n_jobs",
        )
        results = parallel(joblib.delayed(self._do)(key, job) for key, job in jobs)
        try:
            yield from results
        except BaseException:
            # Kill what is running first: joblib waits for its threads.
            self.close()
            with contextlib.suppress(Exception):
                results.close()
            raise

    def _do(self, key: Key, job: ModuleJob) -> tuple[Key, Built]:
        worker = self._take()
        try:
            return key, settle(job, lambda part: self._call(worker, part))
        finally:
            with self._lock:
                self._idle.append(worker)

    def _call(self, worker: Worker, job: ModuleJob) -> Built:
        if self._closed:
            raise ToolError("interrupted")
        # A module of many dispatches may take longer than one, but not without bound.
        seconds = self._seconds + 10.0 * (len(job.dispatches) - 1)
        built: Built = worker.call(_build, self._compiler, job, seconds=seconds)
        return built

    def _take(self) -> Worker:
        with self._lock:
            if self._idle:
                return self._idle.pop()
            worker = Worker(WorkerLimits(self._seconds, self._memory))
            self._all.append(worker)
            return worker

    def close(self) -> None:
        """End every worker process."""
        self._closed = True
        for worker in self._all:
            worker.kill()

    def __enter__(self) -> BuildPool[Key]:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
