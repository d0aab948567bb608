"""Which process a search belongs to, and whether the process may still be alive."""

from __future__ import annotations

import os
import platform
import secrets
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from functools import cache
from pathlib import Path

from dispatch_profiler.errors import StorageError
from dispatch_profiler.files.json_fields import FieldError, mapping, text, whole

#: A process of another machine that showed no sign of life for this long counts as dead. Each evaluation is
#: one; compiling a round, with time limits, takes minutes.
_LEASE = timedelta(minutes=30)


@dataclass(frozen=True)
class Owner:
    """A process: its machine, its number, and when the system started it, because numbers are used again.

    `token` tells searches of one process apart. `seen` is its last sign of life, in ISO 8601.
    """

    host: str
    process: int
    started: str
    token: str
    seen: str = ""

    @classmethod
    def parse(cls, value: object) -> Owner:
        """Read the fields of an owner. Raises StorageError."""
        try:
            row = mapping(value, "owner")
            names = ("host", "started", "token", "seen")
            return cls(process=whole(row, "process"), **{name: text(row, name) for name in names})
        except FieldError as error:
            raise StorageError(
                f"the owner of a search is damaged ({error})", hint="use another storage"
            ) from error

    def now(self) -> Owner:
        """With a sign of life."""
        return replace(self, seen=datetime.now(timezone.utc).isoformat(timespec="seconds"))

    @property
    def text(self) -> str:
        """`process 1234 on node7`"""
        return f"process {self.process} on {self.host}"

    @property
    def may_be_alive(self) -> bool:
        """Whether it may still search: known on its own machine, assumed for a while on others."""
        if self.host == host_name():
            return _start_of(self.process) == self.started
        return datetime.now(timezone.utc) < self._lease_end()

    @property
    def remedy(self) -> str:
        """What to do while it may be alive."""
        if self.host == host_name():
            return "wait for it, end it, or use another storage"
        return (
            "wait for it, or use another storage; if that machine has failed, "
            f"the search continues here after {self._lease_end():%Y-%m-%d %H:%M} UTC"
        )

    def _lease_end(self) -> datetime:
        try:
            seen = datetime.fromisoformat(self.seen)
        except ValueError:
            return datetime.now(timezone.utc)
        return (seen if seen.tzinfo else seen.replace(tzinfo=timezone.utc)) + _LEASE


def this_process() -> Owner:
    """A new owner for this process."""
    return Owner(host_name(), os.getpid(), _start_of(os.getpid()), secrets.token_hex(8))


@cache
def host_name() -> str:
    """The name of this machine in the network."""
    return platform.node()


def _start_of(process: int) -> str:
    """When the system started a process, in its clock's ticks since it booted; empty if it is not running."""
    try:
        status = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return ""
    # The command before the last parenthesis may contain anything; the start is the 22nd field in all.
    state, *fields = status.rpartition(")")[2].split()
    return "" if state in "ZX" else fields[18]
