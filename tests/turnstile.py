"""Lets a test run while the other workers of pytest-xdist run none.

    worker 0:  --test--|--test--|           (waits)           |--test--
    worker 1:  --test--|  waits |--a test marked `alone`------|--test--

A test that waits to be alone holds the turnstile, so that no other test starts before it.
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path


@contextmanager
def _locked(path: Path, kind: int) -> Iterator[None]:
    """A lock that the system releases if this process dies."""
    with path.open("a") as file:
        fcntl.flock(file, kind)
        try:
            yield
        finally:
            # Closing is not enough: a child process may have inherited the file.
            fcntl.flock(file, fcntl.LOCK_UN)


@contextmanager
def turn(folder: Path, *, alone: bool) -> Iterator[None]:
    """Wait until this process may run a test; `folder` is shared by all processes that take turns."""
    running, turnstile = folder / "running.lock", folder / "turnstile.lock"
    if alone:
        with _locked(turnstile, fcntl.LOCK_EX), _locked(running, fcntl.LOCK_EX):
            yield
        return
    with ExitStack() as stack:
        with _locked(turnstile, fcntl.LOCK_SH):
            stack.enter_context(_locked(running, fcntl.LOCK_SH))
        yield
