"""What a command did: its exit status and its outputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Ran:
    status: int
    out: str
    err: str

    def checked(self, status: int = 0) -> Ran:
        """Fail with what the command said, unless it ended with this exit status."""
        assert self.status == status, f"{self.out}\n{self.err}"
        return self


Run = Callable[..., Ran]
