"""Writing files so that nobody ever sees half of one, and hashing them."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from dispatch_profiler.errors import UsageError


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


#: Read once: it can only be read by setting it, which other threads would notice.
_UMASK = _umask()
#: Where an IREE build, an install tree or a folder of tools keeps its commands.
_PLACES = ("", "tools", "bin", "install/bin")


def find_tools(build_dir: Path, names: Sequence[str]) -> list[Path]:
    """The commands called `names`, all in one place of `build_dir`.

    Raises UsageError, which names the places that were looked at.
    """
    for place in _PLACES:
        tools = [build_dir / place / name for name in names]
        if all(tool.is_file() for tool in tools):
            return tools
    looked = ", ".join(str(build_dir / place) for place in _PLACES)
    raise UsageError(
        f"there is no {' with '.join(names)} in {build_dir}",
        hint=f"looked in {looked}; leave --build-dir out to use the installed wheels",
    )


def sha256(data: bytes) -> str:
    """Hexadecimal SHA-256 of `data`."""
    return hashlib.sha256(data).hexdigest()


def write_atomic(path: Path, data: bytes | str) -> None:
    """Write `path` whole or not at all: to a temporary file beside it, then rename.

    Makes the folder if it is missing. Text is written as UTF-8.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    raw = data.encode() if isinstance(data, str) else data
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:40]}.", suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(raw)
        # mkstemp makes files that only their owner reads; these are for everyone who shares the tree.
        os.chmod(temporary, 0o666 & ~_UMASK)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on `path` among processes; the system lets go if we die."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)
