"""The compiler of the tests: in a process of its own, so that an abort of it fails one test and not the whole run.

`IreeCompiler` compiles in a worker that the tests of a process of pytest share. A test that works on the compiler's IR
itself, which cannot be passed between processes, is marked `forked`: it runs in a copy of the process.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import pickle
import signal
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

import pytest

from dispatch_profiler.compiler import IreeCompiler, in_process
from dispatch_profiler.isolation import Worker, WorkerLimits
from dispatch_profiler.outside_causes import crash_of

#: Calls after which a worker is replaced, as in `pool`.
_CALLS = 500
_SECONDS = 600.0
#: A copy of a process that uses no processor for so long is stuck; how often one is made.
_STUCK_SECONDS, _ATTEMPTS = 15.0, 2
#: What runs in the worker.
_METHODS = {name: getattr(IreeCompiler, name) for name in ("build", "check_flags")}


class SharedCompiler:
    """Forwards the calls of compilers in this process to a worker; a forked process compiles by itself."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self._turn = threading.Lock()
        self._worker = Worker(
            WorkerLimits(_SECONDS),
            environment={"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *_search_path()])},
            max_calls=_CALLS,
        )

    def install(self, patch: pytest.MonkeyPatch) -> None:
        """Let nothing compile in this process."""
        for name in _METHODS:
            patch.setattr(IreeCompiler, name, self._forwarding(name))
        patch.setattr(in_process, "_session", self._guarded(in_process._session))

    def close(self) -> None:
        self._worker.close()

    def _forwarding(self, name: str) -> Callable[..., Any]:
        def method(compiler: IreeCompiler, *arguments: object) -> Any:
            if os.getpid() != self.process:
                return _METHODS[name](compiler, *arguments)
            with self._turn:
                return self._worker.call(
                    run_method, str(Path.cwd()), dict(os.environ), name, compiler, *arguments
                )

        return method

    def _guarded(self, session: Callable[..., Any]) -> Callable[..., Any]:
        def guarded(flags: tuple[str, ...]) -> Any:
            assert os.getpid() != self.process, (
                "this would compile in the process of the tests: mark the test `forked`"
            )
            return session(flags)

        return guarded


def _search_path() -> list[str]:
    given = os.environ.get("PYTHONPATH", "")
    return [given] if given else []


def run_method(
    folder: str, environment: Mapping[str, str], name: str, compiler: IreeCompiler, *arguments: object
) -> Any:
    """In the worker: call a method of `compiler` in the folder and the environment of the caller."""
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    return _METHODS[name](compiler, *arguments)


def forked(function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """As `_forked`, tried again if the copy waits for what another thread had when it was made."""
    for _ in range(_ATTEMPTS - 1):
        with contextlib.suppress(StuckError):
            return _forked(function, *arguments, **named)
    return _forked(function, *arguments, **named)


def _forked(function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """What `function` returns, computed in a fork of this process. Raises what it raises, if that can be pickled.

    If the process dies, the test fails with the compiler's last line. Raises StuckError if it uses no processor.
    """
    with tempfile.TemporaryFile() as answer, tempfile.TemporaryFile() as said:
        sys.stdout.flush()
        sys.stderr.flush()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of threads, which are not used in the copy
            process = os.fork()
        if process == 0:
            os.dup2(said.fileno(), 2)
            faulthandler.disable()  # it would write to what pytest keeps
            _answer(answer, lambda: function(*arguments, **named))
        code = _exit_code(process)
        if code is None:
            raise StuckError
        answer.seek(0)
        said.seek(0)
        text = said.read().decode(errors="replace")
        sys.stderr.write(text)
        if code:
            pytest.fail(f"the process of this test: {crash_of(code, text)}", pytrace=False)
        kind, value = pickle.load(answer)
    if kind == "value":
        return value
    raise value


class StuckError(Exception):
    """A copy of this process waits for a lock that a thread held when it was copied, and that nothing releases."""


def _exit_code(process: int) -> int | None:
    """Wait for a process, which does not outlive a test that is interrupted; None if it is stuck."""
    before, idle_since = -1.0, time.monotonic()
    try:
        while True:
            found, status = os.waitpid(process, os.WNOHANG)
            if found:
                return os.waitstatus_to_exitcode(status)
            used = _processor_seconds(process)
            if used is None or used > before + 0.01:
                before, idle_since = used or before, time.monotonic()
            elif time.monotonic() - idle_since > _STUCK_SECONDS:
                os.kill(process, signal.SIGKILL)
                os.waitpid(process, 0)
                return None
            time.sleep(0.01)
    except BaseException:
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
        raise


def _processor_seconds(process: int) -> float | None:
    """The time that a process has used; None while it has processes of its own, or if that is not known."""
    try:
        if Path(f"/proc/{process}/task/{process}/children").read_text().strip():
            return None
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _answer(file: Any, call: Callable[[], Any]) -> NoReturn:
    """Write what `call` returns or raises to `file`, and end the process at once: nothing of the parent is closed."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        answer = ("value", call())
    except BaseException as error:
        answer = ("error", _portable(error))
    try:
        pickle.dump(answer, file)
    except (pickle.PicklingError, TypeError, AttributeError):
        file.seek(0)
        pickle.dump(("value", None), file)
    file.flush()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _portable(error: BaseException) -> BaseException:
    """An error that can be pickled: skips stay skips, failures have the traceback as their text."""
    if isinstance(error, pytest.skip.Exception):
        return error
    return AssertionError("".join(traceback.format_exception(error)))
