"""Builds in parallel, here or on other machines, each isolated in its own process.

joblib distributes the modules to threads of this process or to processes of its own (loky); with
`dask` the scheduler of a cluster does (see `cluster`). Each passes its module to a compiler process
(`isolation.Worker`), so that a crash, a hang or a lack of memory fails only that module.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
import threading
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Generic, TypeVar

import joblib
from joblib.externals.loky.process_executor import TerminatedWorkerError

from dispatch_profiler.compiler._base import BuildRequest, Built, Compiler
from dispatch_profiler.compiler.cluster import Cluster, Warn, cluster_results
from dispatch_profiler.compiler.isolate_failures import isolate_failures
from dispatch_profiler.errors import ToolError, UsageError
from dispatch_profiler.isolation import Worker, WorkerLimits

Key = TypeVar("Key")
Flags = tuple[str, ...]

#: What one compiler process builds: each module leaves 0.02 to 0.05 MiB behind in it, and a fresh
#: MLIR context leaves more.
_BUILDS = 500
#: How long a compiler may take to load and to read its flags, in seconds.
_FLAGS_SECONDS = 120.0
#: How often what a lost worker had in hand is given to another before we give up.
_ATTEMPTS = 3


class WorkerSet:
    """Compiler processes of this process, one for each of its threads that builds."""

    def __init__(self) -> None:
        self._idle: list[tuple[WorkerLimits, Worker]] = []
        self._all: list[Worker] = []
        self._lock = threading.Lock()
        self._closed = False

    @contextlib.contextmanager
    def borrow(self, limits: WorkerLimits) -> Iterator[Worker]:
        """A process with these limits, reserved for the caller until the block ends."""
        worker = self._take(limits)
        try:
            yield worker
        finally:
            with self._lock:
                self._idle.append((limits, worker))

    def _take(self, limits: WorkerLimits) -> Worker:
        with self._lock:
            for index, (has, worker) in enumerate(self._idle):
                if has == limits:
                    del self._idle[index]
                    return worker
            worker = Worker(limits, start=_load, max_calls=_BUILDS)
            self._all.append(worker)
            return worker

    def check_open(self) -> None:
        """ToolError after `close`."""
        if self._closed:
            raise ToolError("interrupted")

    def close(self) -> None:
        """End every process, also in the middle of a build."""
        self._closed = True
        for worker in self._all:
            worker.kill()


#: For joblib's own processes and for Dask's, which live longer than one call.
_OF_THIS_PROCESS = WorkerSet()


def _load() -> None:
    """Import this package: the time that it takes is not that of the first dispatch."""


def _build(compiler: Compiler, request: BuildRequest) -> Built:
    return compiler.build(request)


def _read_flags(compiler: Compiler, asked: Sequence[Flags], travel: bool) -> dict[Flags, Flags]:
    for flags in asked:
        compiler.check_flags(flags)
    return {flags: compiler.resolve(flags) if travel else flags for flags in asked}


def _ask(worker: Worker, compiler: Compiler, asked: tuple[Flags, ...], *, travel: bool) -> dict[Flags, Flags]:
    try:
        answer: dict[Flags, Flags] = worker.call(_read_flags, compiler, asked, travel, seconds=_FLAGS_SECONDS)
        return answer
    except UsageError as error:
        # What a flag takes LLVM writes to standard error only.
        said = re.findall(r"(for the -.* option: .*)", worker.stderr_tail())
        raise UsageError(error.message, hint="; ".join([*said, error.hint])) from error
    except ToolError as error:
        raise ToolError(
            f"the compiler did not get as far as reading its flags: {error.message}",
            hint="look at what stands behind --; a low --memory-limit does this too",
        ) from error


def build_task(
    key: Any,
    request: BuildRequest,
    compiler: Compiler,
    limits: WorkerLimits,
    workers: WorkerSet | None = None,
) -> tuple[Any, Built]:
    """Build `request`, as much of it as compiles, wherever this is done; `key` comes back with it."""
    ours = workers or _OF_THIS_PROCESS
    with ours.borrow(limits) as worker:

        def call(part: BuildRequest) -> Built:
            ours.check_open()
            # A module of many dispatches may take longer than one, but not without bound.
            seconds = (limits.seconds or 0.0) + 10.0 * (len(part.dispatches) - 1)
            built: Built = worker.call(_build, compiler, part, seconds=seconds)
            return built

        return key, isolate_failures(request, call)


def _ignore_interrupts() -> None:
    """Ctrl-C at the terminal reaches joblib's processes too, but it is ours to handle."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


@contextlib.contextmanager
def _safe_path() -> Iterator[None]:
    """Keep the current directory off the path of joblib's processes, which it starts as `python -m`.

    Raises UsageError where Python cannot do that.
    """
    if not hasattr(sys.flags, "safe_path"):
        raise UsageError(
            "--executor=loky needs Python 3.11: before, joblib's processes import from the current directory",
            hint="use --executor=threads, which is as fast",
        )
    before = os.environ.get("PYTHONSAFEPATH")
    os.environ["PYTHONSAFEPATH"] = "1"
    try:
        yield
    finally:
        del os.environ["PYTHONSAFEPATH"]
        if before is not None:
            os.environ["PYTHONSAFEPATH"] = before


@dataclass(frozen=True)
class Executor:
    """Who is handed the modules: `threads`, `loky`, or `dask` with a cluster.

    `workers` is how many build at once; a cluster has as many as its workers have threads.
    """

    kind: str = "threads"
    workers: int = 1
    cluster: Cluster | None = None

    @property
    def uses_threads(self) -> bool:
        """Do threads of this process wait for the compilers?"""
        # A single worker needs no process around its compiler's process.
        return self.kind == "threads" or (self.kind == "loky" and self.workers == 1)


class BuildPool(Generic[Key]):
    """Builds modules as `executor` says. `limits` are those of one dispatch; `warn` is told of dangers."""

    def __init__(
        self,
        compiler: Compiler,
        executor: Executor,
        limits: WorkerLimits,
        warn: Warn = lambda message: None,
    ) -> None:
        self._compiler = compiler
        self._executor = executor
        self._limits = limits
        self._warn = warn
        self._threads = WorkerSet()

    def results(self, requests: Mapping[Key, BuildRequest]) -> Iterator[tuple[Key, Built]]:
        """Every request's result as it comes, with the key that it was given under.

        Raises UsageError if the compiler does not know one of the flags, ToolError if it does not
        survive them, or if workers are lost again and again.
        """
        known = self._known_flags({request.flags: None for request in requests.values()})
        left = {key: replace(request, flags=known[request.flags]) for key, request in requests.items()}
        if self._executor.kind == "dask":
            task = partial(build_task, compiler=self._compiler, limits=self._limits)
            assert self._executor.cluster is not None
            yield from cluster_results(self._executor.cluster, self._compiler, left, task, self._warn)
            return
        with contextlib.nullcontext() if self._executor.uses_threads else _safe_path():
            yield from self._here_until_done(left)

    def _here_until_done(self, left: dict[Key, BuildRequest]) -> Iterator[tuple[Key, Built]]:
        for attempt in range(_ATTEMPTS):
            try:
                for key, built in self._here(left):
                    del left[key]
                    yield key, built
                return
            except TerminatedWorkerError as error:
                # A process of joblib was killed, not the compiler's, which is separate.
                if attempt == _ATTEMPTS - 1:
                    raise ToolError(
                        f"processes of joblib were killed {_ATTEMPTS} times; {len(left)} modules are left",
                        hint="try fewer at once (--num-cpu), or --executor=threads",
                    ) from error

    def _known_flags(self, asked: Iterable[Flags]) -> dict[Flags, Flags]:
        """Flags that mean where they are built what `asked` mean here.

        A compiler process is asked: odd flags may end the process that reads them.
        """
        travel = self._executor.kind == "dask"  # another machine's `host` is another CPU
        # Who builds in threads goes on with this process.
        workers = self._threads if self._executor.uses_threads else WorkerSet()
        try:
            with workers.borrow(self._limits) as worker:
                return _ask(worker, self._compiler, tuple(asked), travel=travel)
        finally:
            if workers is not self._threads:
                workers.close()

    def _here(self, requests: Mapping[Key, BuildRequest]) -> Iterator[tuple[Key, Built]]:
        workers = (self._threads,) if self._executor.uses_threads else ()
        processes = {"backend": "loky", "initializer": _ignore_interrupts}
        parallel = joblib.Parallel(
            n_jobs=self._executor.workers,
            return_as="generator_unordered",
            pre_dispatch="2*n_jobs",
            batch_size=1,
            **({"backend": "threading"} if workers else processes),
        )
        results = parallel(
            joblib.delayed(build_task)(key, request, self._compiler, self._limits, *workers)
            for key, request in list(requests.items())
        )
        try:
            # Not `yield from`: that would close joblib's generator before the clause below runs.
            for result in results:  # noqa: UP028
                yield result
        except BaseException:
            # The caller reports what is unfinished; joblib would warn of it, from any of its threads.
            warnings.filterwarnings("ignore", message=r"\d+ tasks ", category=UserWarning)
            # Kill what is running first: joblib waits for its threads.
            self.close()
            with contextlib.suppress(Exception):
                results.close()
            raise

    def close(self) -> None:
        """End what this process builds."""
        self._threads.close()

    def __enter__(self) -> BuildPool[Key]:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
