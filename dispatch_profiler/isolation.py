"""Worker processes: a crash, a hang or running out of memory only fails the current call.

A worker is a new interpreter that serves calls, one at a time, over a socket. Its standard error goes to a file; if the
worker dies, the line that says why becomes part of the message.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import operator
import os
import pickle
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from dispatch_profiler import startup
from dispatch_profiler.errors import (
    DispatchProfilerError,
    ToolError,
    WorkerCrashed,
    WorkerOutOfMemory,
    WorkerTimedOut,
    reason_of,
)
from dispatch_profiler.outside_causes import crash_of, is_held_up, run_delay

_GIB = 2**30
#: Starts all processes: the parent-death signal is sent when the *thread* that started a process ends.
_spawner = ThreadPoolExecutor(max_workers=1, thread_name_prefix="spawner")
#: Interval at which a waiting call checks that the process is alive.
_SLICE_SECONDS = 0.25
#: Exit status of a process that lacks the memory to answer.
_OUT_OF_MEMORY = 77
#: A call that waited for a core for this part of its time limit is not to blame for exceeding the limit.
_STARVED = 0.5
#: More bytes than any compilation needs, including a result in transit.
_LITTLE_MEMORY = 2 * _GIB
#: Bytes of free memory below which processes crash for lack of memory.
_LEAST_MEMORY = _GIB // 8

#: Worker processes of the parent of this forked process: kept, so that `Popen` does not wait for them.
_inherited: list[subprocess.Popen[bytes] | None] = []


def _renew_spawner() -> None:
    """Replace the spawner, whose thread does not exist in a forked process."""
    global _spawner
    _spawner = ThreadPoolExecutor(max_workers=1, thread_name_prefix="spawner")


os.register_at_fork(after_in_child=_renew_spawner)


def spawner_thread() -> int:
    """The system's number of the thread that starts all processes, which inherit its affinity mask."""
    return _spawner.submit(threading.get_native_id).result()


@dataclass(frozen=True)
class WorkerLimits:
    """Limits of one call, and of the process that serves it.

    `memory_bytes` bounds the address space beyond what is mapped at start. `start_seconds` are for starting the process and
    opening its device, `leave_seconds` for an idle process to exit.
    """

    seconds: float | None = None
    memory_bytes: int | None = None
    start_seconds: float = 120.0
    leave_seconds: float = 5.0


class Worker(contextlib.AbstractContextManager["Worker"]):
    """A process that serves calls of importable functions.

    `start` is called in the process before the first call, with `start_arguments`. Arguments,
    results and errors are pickled. `environment` extends the caller's environment. After WorkerCrashed,
    WorkerTimedOut or WorkerOutOfMemory, the next call starts a new process. So does the call after
    `max_calls` calls, which bounds memory leaks of native code.
    """

    def __init__(
        self,
        limits: WorkerLimits = WorkerLimits(),
        start: Callable[..., None] | None = None,
        start_arguments: tuple[Any, ...] = (),
        environment: Mapping[str, str] | None = None,
        max_calls: int | None = None,
    ) -> None:
        self._limits = limits
        self._start = start
        self._start_arguments = start_arguments
        self._environment = dict(environment or {})
        self._max_calls = max_calls
        self._calls = 0
        self._busy = False
        self._process: subprocess.Popen[bytes] | None = None
        #: The id of the process that started the worker.
        self._owner = 0
        self._connection: Connection | None = None
        self._log: Any = None
        #: Where the output of the current call begins.
        self._log_start = 0
        #: Run delay of the process at the start of the current call, in seconds; updated only for long calls.
        self._run_delay = 0.0

    # -- calls --------------------------------------------------------------------------------

    def call(self, function: Callable[..., Any], *arguments: Any, seconds: float | None = None) -> Any:
        """Return `function(*arguments)`, computed in the worker. `seconds` overrides the time limit.

        Raises WorkerCrashed, WorkerTimedOut or WorkerOutOfMemory, and the errors of `function`: errors of this package
        as they are, and other errors as ToolError with their traceback.
        """
        if self._calls == self._max_calls or self._is_inherited:
            self.close()
        connection = self._ready()
        self._calls += 1
        limit = seconds if seconds is not None else self._limits.seconds
        self._log_start = self._log_size()
        kind, value = self._answer_to((_locate(function), arguments), connection, limit, self._timed_out)
        if kind == "value":
            return value
        if isinstance(value, (WorkerOutOfMemory, WorkerCrashed)):
            self.close()
        raise value

    def _answer_to(
        self,
        message: tuple[object, ...],
        connection: Connection,
        limit: float | None,
        timed_out: Callable[[float], WorkerTimedOut],
    ) -> tuple[str, Any]:
        """The answer to `message`: its kind, `value` or `error`, and the value or the error.

        Raises WorkerCrashed, WorkerOutOfMemory, and the error of `timed_out` if there is no answer within `limit` seconds.
        """
        self._busy = True
        try:
            connection.send(message)
            if not self._answers_within(limit):
                raise timed_out(limit or 0.0)
            kind, value = connection.recv()
        except (EOFError, ConnectionError) as error:
            raise self._post_mortem() from error
        except BaseException:
            # Interrupted: the next call must not receive the answer of this one.
            self.close()
            raise
        self._busy = False
        return kind, value

    def _answers_within(self, limit: float | None) -> bool:
        """True if an answer has arrived, False on timeout. Raises EOFError if the process has ended."""
        assert self._connection is not None and self._process is not None
        waited = 0.0
        # In slices: after the process dies, one of its children may keep the socket open.
        while limit is None or waited < limit:
            part = _SLICE_SECONDS if limit is None else min(_SLICE_SECONDS, limit - waited)
            if self._connection.poll(part):
                return True
            if self._process.poll() is not None:
                if self._connection.poll(0):
                    return True
                raise EOFError
            if not waited:
                self._run_delay = run_delay(self._pid)
            waited += part
        return False

    def _timed_out(self, limit: float) -> WorkerTimedOut:
        """The error of a call that was not answered within `limit` seconds."""
        waited = run_delay(self._pid) - self._run_delay
        was_held_up = waited > _STARVED * limit or is_held_up(self._pid)
        self.close()
        message = f"no answer within {limit:g} s"
        if was_held_up:
            message += f", of which it waited {waited:.0f} s for a core"
        return WorkerTimedOut(message, seconds=limit, is_deterministic=not was_held_up)

    def _post_mortem(self) -> ToolError:
        assert self._process is not None
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=10)
        code, said = self._process.returncode, self.said()
        self.close()
        if code == _OUT_OF_MEMORY:
            return WorkerOutOfMemory("out of memory while passing arguments or results")
        return crash_of(code, said, has_little_memory=_is_little(self._limits.memory_bytes))

    @property
    def _pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def said(self, size: int = 64 * 2**10) -> str:
        """The last `size` bytes that the process wrote to standard error since the last call began."""
        return self.stderr_tail(min(size, self._log_size() - self._log_start))

    def stderr_tail(self, size: int = 4000) -> str:
        """The last `size` bytes that the process wrote to standard error."""
        end = self._log_size()
        if self._log is None or not size:
            return ""
        return os.pread(self._log.fileno(), size, max(0, end - size)).decode(errors="replace")

    def _log_size(self) -> int:
        return 0 if self._log is None else os.fstat(self._log.fileno()).st_size

    # -- lifetime -----------------------------------------------------------------------------

    def _ready(self) -> Connection:
        if self._connection is not None:
            return self._connection
        try:
            self._connection = self._start_process()
        except (OSError, RuntimeError) as error:  # RuntimeError: no thread can be started
            self.close()
            raise WorkerCrashed(
                f"cannot start a process: {reason_of(error)}",
                hint="check the limits of open files and processes, and the space in the folder for temporary files",
            ) from error
        self._calls = self._log_start = 0
        kind, value = self._answer_to(
            (self._limits.memory_bytes, self._start and _locate(self._start), self._start_arguments),
            self._connection,
            self._limits.start_seconds,
            lambda seconds: WorkerTimedOut(f"the worker did not start within {seconds:g} s"),
        )
        if kind != "value":
            self.close()
            raise value
        return self._connection

    def _start_process(self) -> Connection:
        """Start a process, and return the connection to it. Raises OSError or RuntimeError if resources are missing."""
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 (lives as long as the process)
        ours, theirs = socket.socketpair()
        environment = {**os.environ, **self._environment}
        environment["PYTHONPATH"] = startup.absolute_entries(environment.get("PYTHONPATH", ""))
        with theirs:
            connection = Connection(ours.detach())
            self._process = _spawner.submit(
                subprocess.Popen,
                [sys.executable, startup.__file__, str(theirs.fileno()), str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                pass_fds=[theirs.fileno()],
                env=environment,
                start_new_session=True,  # only this process handles Ctrl-C at the terminal
            ).result()
        self._owner = os.getpid()
        return connection

    def kill(self) -> None:
        """Kill the process from another thread; a call that waits for it raises WorkerCrashed."""
        process = self._process
        if process is not None and not self._is_inherited and process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def close(self) -> None:
        """End the process: an idle process exits on its own, a busy process is killed."""
        if self._connection is not None:
            self._connection.close()  # tells an idle process to exit
            self._connection = None
        if self._is_inherited:
            _inherited.append(self._process)
            self._process = None
        if self._process is not None:
            if not self._busy:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(timeout=self._limits.leave_seconds)
            self.kill()
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)  # its child processes
            self._process = None
        self._busy = False
        if self._log is not None:
            self._log.close()
            self._log = None

    @property
    def _is_inherited(self) -> bool:
        """Whether this process is a fork of the process that started the worker, which alone ends it."""
        return self._process is not None and self._owner != os.getpid()

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            self.close()


def _is_little(memory_bytes: int | None) -> bool:
    """Whether a crash may come from the limit of memory: native code often fails to check allocations."""
    own, _ = resource.getrlimit(resource.RLIMIT_AS)
    limits = [
        each for each in (memory_bytes, None if own == resource.RLIM_INFINITY else own) if each is not None
    ]
    return min(limits, default=_LITTLE_MEMORY) < _LITTLE_MEMORY or available_memory() < _LEAST_MEMORY


def _locate(function: Callable[..., Any]) -> tuple[str, str]:
    return function.__module__, function.__qualname__


# -- in the worker process -------------------------------------------------------------------------


def serve() -> None:
    """Body of a worker process. `sys.argv` has the socket and the parent's process id."""
    connection, parent = Connection(int(sys.argv[1])), int(sys.argv[2])
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _die_with_parent(parent)
    memory, start, arguments = connection.recv()

    def prepare() -> None:
        if start is not None:
            _find(start)(*arguments)
        if memory is not None:
            limit_memory(memory)

    try:
        _send(connection, _answer(prepare))
        while True:
            located, arguments = connection.recv()
            _send(connection, _answer(lambda: _find(located)(*arguments)))  # noqa: B023 (called at once)
    except EOFError:
        return
    except MemoryError:
        # Part of a message may have been sent, so this process cannot continue.
        os._exit(_OUT_OF_MEMORY)


def _send(connection: Connection, answer: tuple[str, Any]) -> None:
    try:
        connection.send(answer)
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        # Nothing has been sent yet, because pickling comes first.
        connection.send(("error", ToolError(f"the result cannot be pickled: {error}")))


def _find(located: tuple[str, str]) -> Callable[..., Any]:
    module, name = located
    function: Callable[..., Any] = operator.attrgetter(name)(importlib.import_module(module))
    return function


def _answer(call: Callable[[], Any]) -> tuple[str, Any]:
    try:
        return "value", call()
    except DispatchProfilerError as error:
        return "error", error
    except MemoryError as error:
        return "error", WorkerOutOfMemory(f"out of memory: {error}".rstrip(": "))
    except Exception as error:
        # Every error must reach the caller.
        return "error", ToolError(f"{type(error).__name__}: {error}", hint=traceback.format_exc())


def _die_with_parent(parent: int) -> None:
    """On Linux, request SIGKILL when the parent dies, even in the middle of native code.

    On other systems, an idle process ends when the socket is closed, and a busy process after its call.
    """
    with contextlib.suppress(OSError, AttributeError):
        set_parent_death_signal = 1  # PR_SET_PDEATHSIG
        ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def limit_memory(extra: int) -> None:
    """Limit the memory that this process maps from now on to `extra` bytes, but not beyond the system's limit."""
    with contextlib.suppress(OSError):
        mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        most = sys.maxsize if hard == resource.RLIM_INFINITY else hard
        resource.setrlimit(resource.RLIMIT_AS, (min(mapped + extra, most), hard))


def available_memory() -> int:
    """Available memory in bytes; 4 GiB if unknown."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return 4 * _GIB
