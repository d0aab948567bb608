"""Builds in parallel, on this machine or others, each isolated in its own process.

joblib distributes the modules to threads of this process or to worker processes (loky); with `dask`
the scheduler of a cluster does (see `cluster`). Each passes its module to a compiler process
(`isolation.Worker`), so that a crash, a hang or a lack of memory fails only that module.

Compiler processes import this module, too, and start sooner without joblib: functions import it.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Generic, TypeVar

from dispatch_profiler.closing import Closing
from dispatch_profiler.compiler._base import BuildError, BuildOutcome, BuildRequest, Built, Compiler
from dispatch_profiler.compiler.workers.cluster import Cluster, Warn, cluster_results, connect
from dispatch_profiler.console.plurals import counted
from dispatch_profiler.dispatches import Dispatch, State
from dispatch_profiler.errors import ToolError, UsageError, WorkerCrashed, WorkerTimedOut
from dispatch_profiler.isolation import Worker, WorkerLimits
from dispatch_profiler.outside_causes import MAY_LACK, outside_cause, telling_line

Key = TypeVar("Key")
Value = TypeVar("Value")
Flags = tuple[str, ...]

#: Time limit in seconds for a compiler to load and to read its flags.
_FLAGS_SECONDS = 120.0
#: Seconds that a module may take longer for each dispatch after its first.
_FURTHER_SECONDS = 10.0
#: Maximum attempts if worker processes of joblib are killed.
_ATTEMPTS = 3


class WorkerSet:
    """Compiler processes of this process, one for each building thread.

    With `most`, at most so many build at once, and further threads wait. The processes run on `cores`, by default on
    all. A process ends after `builds` calls: each module leaks 0.02 to 0.05 MiB, a new MLIR context more.
    """

    def __init__(self, most: int | None = None, cores: tuple[int, ...] = (), builds: int = 500) -> None:
        self._builds = builds
        self._free = threading.Semaphore(most) if most is not None else contextlib.nullcontext()
        self._cores = cores
        self._idle: list[tuple[WorkerLimits, Worker]] = []
        self._all: list[Worker] = []
        self._lock = threading.Lock()
        self._closed = False

    @contextlib.contextmanager
    def borrow(self, limits: WorkerLimits) -> Iterator[Worker]:
        """A process with these limits, reserved for the caller until the block ends."""
        with self._free:
            self.check_open()
            worker = self._take(limits)
            try:
                yield worker
            finally:
                with self._lock:
                    self._idle.append((limits, worker))

    def _take(self, limits: WorkerLimits) -> Worker:
        with self._lock:
            for index, (own_limits, worker) in enumerate(self._idle):
                if own_limits == limits:
                    del self._idle[index]
                    return worker
            worker = Worker(limits, start=_load, start_arguments=(self._cores,), max_calls=self._builds)
            self._all.append(worker)
            return worker

    def check_open(self) -> None:
        """Raise ToolError after `close`."""
        if self._closed:
            raise ToolError("interrupted")

    def close(self) -> None:
        """Kill every process, even during a build."""
        self._closed = True
        for worker in self._all:
            worker.kill()


#: The compiler processes of a process of joblib or Dask, which outlives one call.
_PROCESS_WORKERS = WorkerSet()


def _load(cores: tuple[int, ...]) -> None:
    """Import this package, so that the time limit of the first dispatch does not include it; move to `cores`."""
    if cores:
        os.sched_setaffinity(0, cores)


def build_with(compiler: Compiler, request: BuildRequest) -> Built:
    """Build all of `request` in this process. A function of a module, so that `Worker` can call it."""
    return compiler.build(request)


def _read_flags(compiler: Compiler, given: Sequence[Flags]) -> None:
    for flags in given:
        compiler.check_flags(flags)


def _read_flags_in(worker: Worker, compiler: Compiler, given: tuple[Flags, ...]) -> None:
    try:
        worker.call(_read_flags, compiler, given, seconds=_FLAGS_SECONDS)
    except UsageError as error:
        # LLVM explains the values of a flag on standard error only.
        details = re.findall(r"(for the -.* option: .*)", worker.stderr_tail())
        raise UsageError(error.message, hint="; ".join([*details, error.hint])) from error
    except ToolError as error:
        raise ToolError(
            f"the compiler failed before it read its flags: {error.message}",
            hint="check the flags after --; a low --memory-limit is another possible cause",
        ) from error


def build_task(
    key: Any,
    request: BuildRequest,
    compiler: Compiler,
    limits: WorkerLimits,
    workers: WorkerSet | None = None,
) -> tuple[Any, Built]:
    """Build as much of `request` as compiles, and return it with `key`. It may run on any machine."""
    borrowed_from = workers or _PROCESS_WORKERS
    with borrowed_from.borrow(limits) as worker:

        def call(part: BuildRequest) -> Built:
            borrowed_from.check_open()
            # A module of several dispatches may take longer than one, but not without bound.
            seconds = (limits.seconds or 0.0) + _FURTHER_SECONDS * (len(part.dispatches) - 1)
            try:
                built: Built = worker.call(build_with, compiler, part, seconds=seconds)
            except BuildError as error:
                raise with_cause(error, worker.said()) from error
            return built

        return key, isolate_failures(request, call)


def _ignore_interrupts() -> None:
    """Ctrl-C at the terminal also reaches joblib's processes, but this process handles it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


@contextlib.contextmanager
def _safe_path() -> Iterator[None]:
    """Keep the current directory off the path of joblib's processes, which start as `python -m`.

    Raises UsageError if this version of Python does not support it.
    """
    if not hasattr(sys.flags, "safe_path"):
        raise UsageError(
            "--executor=loky needs Python 3.11: with older ones joblib's processes import from the current directory",
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
    """Distributes the modules: `threads`, `loky`, or `dask` with a cluster.

    `workers` is the number of concurrent builds; for a cluster it is the threads of its workers. With `threads`, the
    compilers run on `cores`, by default on all.
    """

    kind: str = "threads"
    workers: int = 1
    cluster: Cluster | None = None
    cores: tuple[int, ...] = ()

    @property
    def uses_threads(self) -> bool:
        """Whether threads of this process wait for the compilers."""
        # A single worker needs no joblib process in addition to its compiler process.
        return self.kind == "threads" or (self.kind == "loky" and self.workers == 1)


class BuildPool(Closing, Generic[Key]):
    """Builds modules with `executor`. `limits` apply to one dispatch; `warn` receives security warnings.

    Several threads may call `results` at once; they share the compiler processes.
    """

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
        self._threads = WorkerSet(executor.workers, executor.cores)
        self._open = contextlib.ExitStack()
        self._client: Any = None
        self._connecting = threading.Lock()
        #: Flags that were read -> the flags that they resolve to.
        self._flags: dict[Flags, Flags] = {}

    def results(self, requests: Mapping[Key, BuildRequest]) -> Iterator[tuple[Key, Built]]:
        """Yield the result of every request as it completes, with its key.

        Raises UsageError if the compiler does not know one of the flags, ToolError if it crashes on them
        or if workers are lost repeatedly.
        """
        self.read_flags(request.flags for request in requests.values())
        left = {key: replace(request, flags=self._flags[request.flags]) for key, request in requests.items()}
        if self._executor.kind == "dask":
            task = partial(build_task, compiler=self._compiler, limits=self._limits)
            yield from cluster_results(self._connected(), left, task)
            return
        with contextlib.nullcontext() if self._executor.uses_threads else _safe_path():
            yield from self._build_with_retries(left)

    def map(self, function: Callable[..., Value], each: Sequence[tuple[Any, ...]]) -> list[Value]:
        """`function(*arguments)` for each of `each`, in order, in the compiler processes of this machine.

        Raises the errors of `function`, and ToolError if a process ends.
        """

        def call(arguments: tuple[Any, ...]) -> Value:
            with self._threads.borrow(self._limits) as worker:
                found: Value = worker.call(function, *arguments)
                return found

        with ThreadPoolExecutor(self._executor.workers) as threads:
            try:
                return list(threads.map(call, each))
            except BaseException:
                self._threads.close()
                raise

    def read_flags(self, given: Iterable[Flags]) -> None:
        """Have a compiler process check `given`, so that `results` need not wait for it to start.

        Raises UsageError if the compiler does not know one of the flags, ToolError if it crashes on them.
        """
        if unread := [flags for flags in dict.fromkeys(given) if flags not in self._flags]:
            self._flags |= self._resolved_flags(unread)

    def _connected(self) -> Any:
        """The client of the cluster. Raises the errors of `connect`."""
        with self._connecting:
            if self._client is None:
                assert self._executor.cluster is not None
                connection = connect(self._executor.cluster, self._compiler, self._warn)
                self._client = self._open.enter_context(connection)
            return self._client

    def _build_with_retries(self, left: dict[Key, BuildRequest]) -> Iterator[tuple[Key, Built]]:
        from joblib.externals.loky.process_executor import TerminatedWorkerError

        for attempt in range(_ATTEMPTS):
            try:
                for key, built in self._build_locally(left):
                    del left[key]
                    yield key, built
                return
            except TerminatedWorkerError as error:
                # A joblib process was killed, not a compiler process.
                if attempt == _ATTEMPTS - 1:
                    raise ToolError(
                        f"joblib's processes were killed {_ATTEMPTS} times with {counted(len(left), 'module')} left",
                        hint="use fewer workers (--jobs), or --executor=threads",
                    ) from error

    def _resolved_flags(self, given: Iterable[Flags]) -> dict[Flags, Flags]:
        """Flags that mean the same on the building machine as `given` on this one.

        A compiler process reads them, because some invalid flags end the process.
        """
        # With threads, this compiler process is used for building too.
        workers = self._threads if self._executor.uses_threads else WorkerSet()
        try:
            with workers.borrow(self._limits) as worker:
                _read_flags_in(worker, self._compiler, tuple(given))
            # On another machine, `host` is another CPU.
            return {flags: self._compiler.resolve(flags) for flags in given}
        finally:
            if workers is not self._threads:
                workers.close()

    def _build_locally(self, requests: Mapping[Key, BuildRequest]) -> Iterator[tuple[Key, Built]]:
        import joblib

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
            # The caller reports unfinished modules; suppress joblib's warning, from any of its threads.
            warnings.filterwarnings("ignore", message=r"\d+ tasks ", category=UserWarning)
            # Kill running compilers first: joblib waits for its threads.
            self.close()
            with contextlib.suppress(Exception):
                results.close()
            raise

    def close(self) -> None:
        """Kill the builds of this process, and leave the cluster."""
        self._threads.close()
        self._open.close()


# -- failed builds ---------------------------------------------------------------------------------

# Reasons of failed builds that IREE only prints to standard error: messages of its linker and of the system.


#: How IREE reports that its linker failed, whatever the reason.
_NOT_LINKED = "failed to link executable"
#: The linker's only message about the code: of a truncated file it says instead that it is no object file.
_UNDEFINED = "undefined symbol"


def with_cause(error: BuildError, said: str) -> BuildError:
    """`error` of a build during which its process wrote `said` to standard error: with the cause, and whether the cause is the code.

    `failed to link executable ...` -> `failed to link executable ...: sh: 1: Cannot fork`
    """
    cause = outside_cause(f"{error.message}\n{said}")
    is_not_linked = _NOT_LINKED in error.message
    line = _line_with(said, cause) if cause else telling_line(said) if is_not_linked else ""
    message = f"{error.message}: {line}" if line and line not in error.message else error.message
    is_deterministic = not cause and (not is_not_linked or _UNDEFINED in said)
    if not is_deterministic and not cause:
        message += f"; the linker {MAY_LACK}"
    found = BuildError(
        message, diagnostics="\n".join(filter(None, [said, error.diagnostics])), culprits=error.culprits
    )
    found.is_deterministic = is_deterministic
    return found


def _line_with(text: str, part: str) -> str:
    return next((line.strip() for line in text.splitlines() if part in line), "")


# -- isolate failures ------------------------------------------------------------------------------

# Finding the dispatches that do not compile, so that they do not affect others of their module.


Build = Callable[[BuildRequest], Built]


def isolate_failures(request: BuildRequest, build: Build) -> Built:
    """Build as much of `request` as compiles; every other dispatch gets a reason.

    The whole module is tried first. If the compiler names dispatches, these are tried alone, and the others
    without them. If it fails again, every dispatch is tried alone, and all dispatches that compile are built
    together. This takes at most about three times as long as a module without failures, however many fail. A
    dispatch is reported as `not compiled` only if it failed alone, because the compiler may name the wrong
    one. If it crashed the compiler, it is tried once more: a crash may have another cause.
    """
    failed = {name: BuildOutcome(State.NOT_COMPILED, reason) for name, reason in request.rejected}
    isolation = _Isolation(request, build, failed)
    rest = [d for d in request.dispatches if d.name not in failed]
    for _ in range(2):
        if len(rest) <= 1:
            return isolation.build_one(rest)
        try:
            return isolation.build_together(rest)
        except ToolError as error:
            isolation.note(error)
            named = error.culprits if isinstance(error, BuildError) else ()
            guilty = [d for d in rest if d.name in named and not isolation.compiles_alone(d)]
            rest = [d for d in rest if d.name not in isolation.failed]
            if not guilty:
                break
    return isolation.build_largest([d for d in rest if isolation.compiles_alone(d)])


class _Isolation:
    """The outcomes so far of the dispatches of one module."""

    def __init__(self, request: BuildRequest, build: Build, failed: dict[str, BuildOutcome]) -> None:
        self._request = request
        self._build = build
        #: Every dispatch that did not compile, or was not applied, alone.
        self.failed = failed
        self._compiled: set[str] = set()
        self._messages: list[str] = []

    def note(self, error: ToolError) -> None:
        """Keep the compiler's message."""
        self._messages.append(error.diagnostics if isinstance(error, BuildError) else error.message)

    def build_nothing(self) -> Built:
        """The result if no dispatch compiles."""
        return self._with_failures(Built(b"", b"", {}))

    def build_one(self, dispatches: Sequence[Dispatch]) -> Built:
        """The result if at most one dispatch is left."""
        for dispatch in dispatches:
            try:
                return self._with_failures(self._build_alone(dispatch))
            except ToolError as error:
                self.note(error)
                self.failed[dispatch.name] = _failure(error)
        return self.build_nothing()

    def _build_alone(self, dispatch: Dispatch) -> Built:
        """Build a module of one dispatch; after a crash, once more. Raises ToolError."""
        request = replace(self._request, dispatches=(dispatch,))
        try:
            return self._build(request)
        except WorkerCrashed as error:
            if not error.is_deterministic:
                raise
            self.note(error)
            return self._build(request)

    def build_together(self, dispatches: Sequence[Dispatch]) -> Built:
        """Build one module of `dispatches`. Raises ToolError."""
        return self._with_failures(self._build(replace(self._request, dispatches=tuple(dispatches))))

    def compiles_alone(self, dispatch: Dispatch) -> bool:
        """Whether `dispatch` compiles in its own module; it is tried once."""
        if dispatch.name in self._compiled:
            return True
        try:
            built = self._build_alone(dispatch)
        except ToolError as error:
            self.note(error)
            self.failed[dispatch.name] = _failure(error)
            return False
        outcome = built.outcomes[dispatch.name]
        if outcome.state is not State.COMPILED:
            self.failed[dispatch.name] = outcome
            return False
        self._compiled.add(dispatch.name)
        return True

    def build_largest(self, dispatches: Sequence[Dispatch]) -> Built:
        """Build a module of as many of `dispatches`, which all compile alone, as compile together.

        After a failure, the first half is tried, then a quarter: they include the compiler's default.
        """
        kept = sorted(dispatches, key=_has_lowering)
        while kept:
            try:
                return self.build_together(kept)
            except ToolError as error:
                self.note(error)
                left_out = kept[len(kept) // 2 :]
                kept = kept[: len(kept) // 2]
                reason = f"compiles alone, but not with the others of its module: {error.message}"
                self.failed |= {d.name: replace(_failure(error), reason=reason) for d in left_out}
        return self.build_nothing()

    def _with_failures(self, built: Built) -> Built:
        diagnostics = "\n".join(text for text in [*self._messages, built.diagnostics] if text)
        return replace(built, outcomes={**built.outcomes, **self.failed}, diagnostics=diagnostics)


def _has_lowering(dispatch: Dispatch) -> bool:
    return bool(dispatch.configuration.lowerings(dispatch.operation))


def _failure(error: ToolError) -> BuildOutcome:
    limit = error.seconds if isinstance(error, WorkerTimedOut) else None
    return BuildOutcome(
        State.NOT_COMPILED,
        error.message if limit is None else f"the compiler gave {error.message}",
        is_transient=not (isinstance(error, BuildError) and error.is_deterministic),
        is_deterministic=error.is_deterministic,
        seconds=limit or 0.0,
    )
