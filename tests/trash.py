"""Removes folders in a process of its own, because each one is waited for: some 4 ms on ext4, without any use of a core. A
test has five, which together take longer than most tests."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from itertools import count
from os import rename  # tests replace functions of `os`
from pathlib import Path

#: Removes what is named, line by line, in the folder of its argument.
_REMOVE = """
import shutil, sys
for name in sys.stdin:
    shutil.rmtree(f"{sys.argv[1]}/{name.strip()}", ignore_errors=True)
"""


class Trash:
    """A folder whose contents are removed soon. It is on the file system of what is put into it."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._folder, self._numbers = folder, count()
        self._process = subprocess.Popen(
            [sys.executable, "-IS", "-c", _REMOVE, str(folder)],
            stdin=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C is for the tests
        )

    def put(self, path: Path) -> None:
        """Move `path` away. What cannot be moved stays, and is removed with the folders of the whole run."""
        name = str(next(self._numbers))
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            rename(path, self._folder / name)
            self._process.stdin.write(f"{name}\n")
            self._process.stdin.flush()

    def close(self) -> None:
        """Wait until all is removed."""
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            self._process.communicate(timeout=60)
        self._process.kill()
        self._process.wait()
