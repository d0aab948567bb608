"""What the workers of test_isolation.py do: an importable module, because workers import it."""

from __future__ import annotations

import atexit
import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from dispatch_profiler.errors import CompilerError, ConfigurationError

STARTED_WITH: list[object] = []


def echo(value: object) -> object:
    return value


def pid() -> int:
    return os.getpid()


def variable(name: str) -> str | None:
    return os.environ.get(name)


def started_with() -> list[object]:
    return STARTED_WITH


# -- errors ----------------------------------------------------------------------------------------


def refuse(message: str, hint: str) -> None:
    raise CompilerError(message, diagnostics="all that was said", hint=hint)


def divide(a: int, b: int) -> float:
    return a / b


def not_picklable() -> object:
    return lambda: None


def many_bytes(size: int) -> bytes:
    return b"x" * size


def size_of_allocation(size: int) -> int:
    return len(bytearray(size))


# -- deaths ----------------------------------------------------------------------------------------


def die_of(number: int) -> None:
    os.kill(os.getpid(), number)
    signal.pause()


def leave(status: int) -> None:
    os._exit(status)


def leave_politely(status: int) -> None:
    sys.exit(status)


def leave_with(words: str) -> None:
    print("something before", words, sep="\n", file=sys.stderr, flush=True)
    os._exit(1)


def leave_a_child(note: str, inherited: bool) -> None:
    """Die while a child of ours lives on, which may hold what was open."""
    child = subprocess.Popen(["sleep", "100"], close_fds=not inherited)
    Path(note).write_text(str(child.pid))
    os._exit(3)


def leave_a_note_at_exit(note: str) -> int:
    """Register what an orderly end does, and tell our process id."""
    atexit.register(Path(note).touch)
    return os.getpid()


def hang_at_exit() -> int:
    """Register an end that never comes, and tell our process id."""
    atexit.register(hang)
    return os.getpid()


# -- waiting ---------------------------------------------------------------------------------------


def hang(note: str = "") -> None:
    """Never answer; with `note`, write our process id there first."""
    if note:
        os.replace(_written(f"{note}.new"), note)
    while True:
        time.sleep(100)


def hang_in_native_code(note: str) -> None:
    """Never answer, in native code that lets no other Python thread run, as some bindings do."""
    os.replace(_written(f"{note}.new"), note)
    ctypes.PyDLL(None).sleep(100)


def _written(path: str) -> str:
    Path(path).write_text(str(os.getpid()))
    return path


# -- noise -----------------------------------------------------------------------------------------


def make_noise() -> str:
    print("printed")
    os.write(1, b"written to 1\n" * 10_000)
    os.write(2, b"written to 2\n")
    return "the answer"


# -- start functions -------------------------------------------------------------------------------


def remember(*values: object) -> None:
    STARTED_WITH.extend(values)


def fail_to_start() -> None:
    raise ConfigurationError("cannot start", hint="start otherwise")


# -- a compiler that fails -------------------------------------------------------------------------


def abort_with(words: str) -> None:
    """End as LLVM does: with words, a stack dump and an empty line."""
    print(
        words, "Stack dump:", "0.\tProgram arguments: iree-compile", "", sep="\n", file=sys.stderr, flush=True
    )
    os.abort()


def say(words: str) -> None:
    print(words, file=sys.stderr, flush=True)


def stop() -> None:
    """Stop, as a shell's Ctrl-Z does."""
    os.kill(os.getpid(), signal.SIGSTOP)
    hang()
