"""The compiler of the tests: in a process of its own, so that an abort of it fails one test and not the whole run.

`IreeCompiler` compiles in a worker that the tests of a process of pytest share, and `call` runs any function there.
A test that works on the compiler's IR itself, which cannot be passed between processes, is marked `works_on_ir`: see
`expendable`.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from dispatch_profiler.compiler import IreeCompiler
from dispatch_profiler.compiler.backends import in_process
from dispatch_profiler.isolation import Worker, WorkerLimits

#: Calls after which a worker is replaced, as in `pool`.
_CALLS = 500
_SECONDS = 600.0
#: Where the functions that tests call in the worker are.
_TESTS = (str(Path(__file__).parent), str(Path(__file__).parent / "compiler"))
#: What runs in the worker.
_METHODS = {name: getattr(IreeCompiler, name) for name in ("build", "check_flags")}


#: The one that is installed.
shared: SharedCompiler | None = None


class SharedCompiler:
    """Forwards the calls of compilers in this process to a worker; a forked process compiles by itself."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self._turn = threading.Lock()
        self._worker = Worker(
            WorkerLimits(_SECONDS),
            environment={"PYTHONPATH": os.pathsep.join([*_TESTS, *_search_path()])},
            max_calls=_CALLS,
        )

    def install(self, patch: pytest.MonkeyPatch) -> None:
        """Let nothing compile in this process."""
        patch.setattr(sys.modules[__name__], "shared", self)
        for name in _METHODS:
            patch.setattr(IreeCompiler, name, self._forwarding(name))
        patch.setattr(in_process, "session_of", self._guarded(in_process.session_of))

    def close(self) -> None:
        self._worker.close()

    def call(self, function: Callable[..., Any], *arguments: object) -> Any:
        """What an importable function returns in the worker."""
        with self._turn:
            return self._worker.call(_run, str(Path.cwd()), dict(os.environ), function, *arguments)

    def _forwarding(self, name: str) -> Callable[..., Any]:
        def method(compiler: IreeCompiler, *arguments: object) -> Any:
            if os.getpid() != self.process:
                return _METHODS[name](compiler, *arguments)
            return self.call(_run_method, name, compiler, *arguments)

        return method

    def _guarded(self, session: Callable[..., Any]) -> Callable[..., Any]:
        def guarded(flags: tuple[str, ...]) -> Any:
            assert os.getpid() != self.process, (
                "this would compile in the process of the tests: mark the test `works_on_ir`"
            )
            return session(flags)

        return guarded


def _search_path() -> list[str]:
    given = os.environ.get("PYTHONPATH", "")
    return [given] if given else []


def _run(
    folder: str, environment: Mapping[str, str], function: Callable[..., Any], *arguments: object
) -> Any:
    """In the worker: call `function` in the folder and the environment of the caller."""
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    return function(*arguments)


def _run_method(name: str, compiler: IreeCompiler, *arguments: object) -> Any:
    return _METHODS[name](compiler, *arguments)


def call(function: Callable[..., Any], *arguments: object) -> Any:
    """What an importable function returns in the worker; where tests may compile themselves, in this process."""
    return shared.call(function, *arguments) if shared is not None else function(*arguments)
