"""Files and folders that no other user may write to. Caches need them, because they hold code that is executed.

The rule is ssh's: a file, its folder and every folder above belong to this user or to root, and no other user
may write to them. In a folder with the sticky bit, such as `/tmp`, other users cannot replace this user's
files.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pwd
import stat
from functools import cache
from pathlib import Path

from dispatch_profiler.errors import UsageError
from dispatch_profiler.files.regular import read_bounded, write_atomic

#: The most links that Linux follows.
_MOST_LINKS = 40
_WRITABLE = stat.S_IWGRP | stat.S_IWOTH
_FILE, _FOLDER = 0o644, 0o755
_log = logging.getLogger("dispatch_profiler")


class NotPrivate(UsageError):
    """Another user may write to a file."""


def others_reason(folder: Path) -> str | None:
    """Why other users can change the content of `folder`, which need not exist; None if they cannot.

    Links are followed one by one, because a user who may change a link decides where it leads.
    """
    left = list(reversed(Path(os.path.abspath(folder)).parts[1:]))
    current, links = Path("/"), 0
    while True:
        try:
            status = os.lstat(current)
        except (FileNotFoundError, NotADirectoryError):
            return None  # this user creates it, or fails to
        except OSError as error:
            return f"{current} cannot be read: {error.strerror}"
        if stat.S_ISLNK(status.st_mode):
            links += 1
            target = Path(os.readlink(current))
            left += reversed(target.parts[1:] if target.is_absolute() else target.parts)
            following = Path("/") if target.is_absolute() else current.parent
        else:
            following = current
        is_sticky = bool(left) and bool(status.st_mode & stat.S_ISVTX)
        reason = _reason(current, status, is_sticky=is_sticky)
        if reason is not None or links > _MOST_LINKS:
            return reason or f"{folder} has more than {_MOST_LINKS} links"
        if not left and following == current:
            return None
        current = _child(following, left.pop()) if left else following


def _child(folder: Path, name: str) -> Path:
    return folder.parent if name == ".." else folder / name


def _reason(path: Path, status: os.stat_result, *, is_sticky: bool = False) -> str | None:
    if status.st_uid not in (0, os.geteuid()):
        return f"{path} belongs to {_user(status.st_uid)}"
    if status.st_mode & _WRITABLE and not is_sticky and not stat.S_ISLNK(status.st_mode):
        return f"other users may write to {path} (mode {stat.S_IMODE(status.st_mode):o})"
    return None


def _user(number: int) -> str:
    with contextlib.suppress(KeyError):
        return pwd.getpwuid(number).pw_name
    return f"user {number}"


def read_private(path: Path, limit: int) -> bytes:
    """`read_bounded`, of a file that others cannot write to. Raises NotPrivate if they can, or may change where it leads."""
    # Path.is_symlink raises where the folder may not be searched; reading then reports that.
    if os.path.islink(path) and (reason := others_reason(path)) is not None:
        raise NotPrivate(reason)

    def check(status: os.stat_result) -> None:
        reason = _reason(path, status)
        if reason is not None:
            raise NotPrivate(reason)

    return read_bounded(path, limit, check)


def write_private(path: Path, data: bytes | str, *, scratch: Path | None = None) -> None:
    """`write_atomic`, of a file and folders that others cannot write to, whatever the umask."""
    for each in (path.parent, scratch):
        if each is not None:
            make_private_folder(each)
    write_atomic(path, data, scratch=scratch, mode=_FILE)


def make_private_folder(folder: Path) -> None:
    """Create `folder` and missing folders above, so that others cannot write to them."""
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    for each in reversed(missing):
        with contextlib.suppress(FileExistsError):  # another process was faster
            each.mkdir(_FOLDER)


def is_private(folder: Path, purpose: str, hint: str) -> bool:
    """Whether others cannot write to `folder`; logs a warning, once in a process, if they can.

    `purpose` is its first words: `the cache x is not used: ...`.
    """
    reason = others_reason(folder)
    if reason is not None:
        warn_once(f"{purpose} is not used: {reason}; {hint}")
    return reason is None


@cache
def warn_once(message: str) -> None:
    """Log a warning that was not logged before in this process, or since `warn_once.cache_clear()`."""
    _log.warning("%s", message)
