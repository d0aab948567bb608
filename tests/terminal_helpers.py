"""A command on a terminal of any width, as its user sees it."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import sys
from pathlib import Path
from typing import IO

ROOT = Path(__file__).parents[1]


def on_a_terminal(
    columns: int, command: str, *arguments: str, stdout: IO[bytes] | None = None
) -> tuple[int, str]:
    """Exit status, and what a terminal that is so wide got; without standard output if that goes to a file."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "COLUMNS": str(columns), "TERM": "xterm", "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        [sys.executable, str(ROOT / command), *arguments],
        stdin=theirs,
        stdout=stdout or theirs,
        stderr=theirs,
        env=environment,
    )
    os.close(theirs)
    shown = b""
    while True:
        ready, _, _ = select.select([ours], [], [], 60)
        try:
            part = os.read(ours, 65536) if ready else b""
        except OSError:  # so Linux tells that the other end is closed
            part = b""
        if not part:
            break
        shown += part
    os.close(ours)
    return process.wait(timeout=60), shown.decode()


def plain(shown: str) -> str:
    """Without colours and movements of the cursor."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown)
