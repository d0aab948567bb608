"""Failures with an outside cause: a lack of memory, processes, disk space or files, or a signal from another process.

Another attempt may succeed, so caches and searches do not keep these failures.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

from dispatch_profiler.errors import WorkerCrashed

#: System errors that depend on the state of the system. C libraries and Python print their messages.
_ERRORS = (
    errno.ENOMEM, errno.EAGAIN, errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.EFBIG, errno.EIO,
    errno.EROFS, errno.EINTR, errno.ETXTBSY, errno.ENOENT, errno.EACCES, errno.EPERM, errno.ESTALE, errno.ENOBUFS,
)  # fmt: skip
#: Messages about a program that failed without a reason.
MAY_LACK = "may lack memory, processes or disk space"
#: The same errors in the words of C++, LLVM, shells, the dynamic linker and Python's threads.
_WORDS = (
    r"out of memory", r"bad_alloc", r"MemoryError", r"cannot fork", r"fork: ", r"can't start new thread",
    r"failed to map segment", r"unable to allocate memory", r"(?<!register )allocation failed",
    r"failed to generate temporary file", r"mmap failed", r"cannot start a process", MAY_LACK,
    # `crash_of` writes this for a signal that a process does not cause itself.
    r"killed by (?!(?:SIGABRT|SIGSEGV|SIGILL|SIGBUS|SIGFPE|SIGTRAP|SIGSYS)\b)",
)  # fmt: skip
_OUTSIDE = re.compile("|".join([*(re.escape(os.strerror(each)) for each in _ERRORS), *_WORDS]), re.IGNORECASE)
#: Signals that a process causes itself.
_OWN = (
    signal.SIGABRT, signal.SIGSEGV, signal.SIGILL, signal.SIGBUS, signal.SIGFPE, signal.SIGTRAP, signal.SIGSYS,
)  # fmt: skip
#: The usual cause of a signal.
_HINTS: dict[int, str] = {
    signal.SIGKILL: " (the system may have run out of memory)",
    signal.SIGILL: " (this CPU probably lacks an instruction that the code was compiled with)",
}
#: Patterns of lines that state an error, the most telling kind first.
_TELLING = tuple(
    re.compile(each)
    for each in (
        r"LLVM ERROR:|Assertion .*failed|UNREACHABLE executed",
        r"terminate called|\bwhat\(\):|Fatal Python error|free\(\)|malloc\(\)|stack smashing",
        r"(?i:\berror: |cannot fork)",
        r"Linking failed",
    )
)
_LONGEST_LINE = 300
#: The folder for temporary files counts as full below this number of free bytes.
_LEAST_DISK = 2**20
#: States of a thread that is stopped, traced, or waits for a disk.
_HELD_UP = ("T", "t", "D")


def outside_cause(text: str) -> str:
    """The part of `text`, a message or a process's standard error, that names an outside cause; empty without one.

    `iree-lld: error: cannot open x.so: No space left on device` -> `No space left on device`
    """
    match = _OUTSIDE.search(text)
    return match[0] if match else ""


def is_own_signal(number: int) -> bool:
    """Whether a process that this signal killed probably caused the signal: it aborted, or made an invalid access."""
    return number in _OWN


def telling_line(text: str) -> str:
    """The line of a process's standard error that says why the process ended; empty if it wrote nothing.

    For example, `LLVM ERROR: Do not know how to split ...`, even if a stack dump and empty lines follow.
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    for pattern in _TELLING:
        if telling := [line for line in lines if pattern.search(line)]:
            return telling[-1][:_LONGEST_LINE]
    return lines[-1][:_LONGEST_LINE] if lines else ""


def crash_of(code: int, said: str, *, has_little_memory: bool = False) -> WorkerCrashed:
    """The error of a process that ended with exit code `code` (negative for a signal) after writing `said`.

    It is deterministic if the process brought about its end, and neither `said` nor the machine gives another cause.
    With `has_little_memory`, a process that crashed without a reason may have lacked memory.
    """
    line = telling_line(said)
    detail = f": {line}" if line else ""
    if code >= 0:
        return WorkerCrashed(f"the process ended with status {code}{detail}")
    traps = line and -code == signal.SIGILL  # a program that says why it ends with a trap
    hint = "" if traps else _HINTS.get(-code, "")
    was_told = "LLVM ERROR" in line or "Assertion" in line
    is_own = (
        is_own_signal(-code)
        and not outside_cause(said)
        and (was_told or not (has_little_memory or _is_disk_full()))
    )
    return WorkerCrashed(f"killed by {_signal_name(-code)}{hint}{detail}", is_deterministic=is_own)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # real-time signals have no names
        return f"signal {number}"


def _is_disk_full() -> bool:
    """Whether the folder for temporary files is full: a process that writes to a mapped file then gets SIGBUS."""
    try:
        return shutil.disk_usage(tempfile.gettempdir()).free < _LEAST_DISK
    except OSError:
        return True


def run_delay(process: int) -> float:
    """Seconds that threads of a process and its children have waited for a core; 0 if the system does not say."""
    total = 0
    for thread in _threads(process):
        with contextlib.suppress(OSError, ValueError, IndexError):
            total += int((thread / "schedstat").read_text().split()[1])
    return total / 1e9


def is_held_up(process: int) -> bool:
    """Whether a process or one of its children is stopped, traced, or waiting for a disk."""
    for thread in _threads(process):
        with contextlib.suppress(OSError):
            if (thread / "stat").read_text().rpartition(") ")[2][:1] in _HELD_UP:
                return True
    return False


def _threads(process: int) -> Iterator[Path]:
    """The folders in which Linux describes the threads of a process and of its children."""
    for thread in Path(f"/proc/{process}/task").glob("*"):
        yield thread
        with contextlib.suppress(OSError):
            for child in (thread / "children").read_text().split():
                yield from _threads(int(child))
