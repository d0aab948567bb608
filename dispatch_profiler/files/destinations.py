"""Files that users name for results. Where the name leads decides how they are written.

A regular file is replaced at once by the complete content, and a symbolic link to it stays. A device, a pipe or an open
descriptor, such as `/dev/stdout` or `>(command)`, is written into.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from dispatch_profiler.files.regular import atomic_file

#: The most links that Linux follows.
_MOST_LINKS = 40


def destination(path: Path) -> Path | None:
    """The regular file that `path` leads to, which need not exist; None for a device, a pipe or a descriptor.

    Raises OSError if its links form a loop, or if a folder cannot be searched.
    """
    if _descriptor(path) is not None:
        return None
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return Path(os.path.realpath(path))
    is_replaced = stat.S_ISREG(mode) or stat.S_ISDIR(mode)
    return Path(os.path.realpath(path)) if is_replaced else None


def open_stream(path: Path) -> BinaryIO:
    """Open the device, pipe or descriptor that `path` leads to, for writing. A named pipe waits for its reader."""
    number = _descriptor(path)
    if number is None:
        return os.fdopen(os.open(path, os.O_WRONLY | os.O_NOCTTY | os.O_CLOEXEC), "wb")
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()  # earlier output comes first
    return os.fdopen(os.dup(number), "wb")


@contextlib.contextmanager
def output_file(path: Path) -> Iterator[BinaryIO]:
    """A file whose content is written to where `path` leads once it is complete, or not at all."""
    place = destination(path)
    if place is not None:
        with atomic_file(place) as file:
            yield file
        return
    with tempfile.TemporaryFile() as whole:
        yield whole
        whole.seek(0)
        with open_stream(path) as stream:
            shutil.copyfileobj(whole, stream)


def write_output(path: Path, data: bytes | str) -> None:
    """Write `data` to where `path` leads. Text is encoded as by `write_atomic`."""
    with output_file(path) as file:
        file.write(data.encode("utf-8", "backslashreplace") if isinstance(data, str) else data)


def _descriptor(path: Path) -> int | None:
    """The number of the open descriptor that `path` leads to: 1 for `/dev/stdout`; None if it leads elsewhere."""
    ours = re.compile(rf"/proc/{os.getpid()}(?:/task/\d+)?/fd/(\d+)")
    place = os.path.abspath(path)
    for _ in range(_MOST_LINKS):
        folder, name = os.path.split(place)
        place = os.path.join(os.path.realpath(folder), name)
        if (match := ours.fullmatch(place)) is not None:
            return int(match[1])
        if not os.path.islink(place):
            return None
        place = os.path.normpath(os.path.join(os.path.dirname(place), os.readlink(place)))
    return None
