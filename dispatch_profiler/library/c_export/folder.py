"""The folder of an export: which of its files may be replaced, and their writing.

The folder has a list of its files with their hashes. Files that are not in it, or that differ, are of others.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from dispatch_profiler.errors import UsageError
from dispatch_profiler.files.json_fields import FieldError, mapping, parse_json, text, text_values
from dispatch_profiler.files.regular import hash_file, read_bounded, sha256, write_atomic

#: The list in the folder.
LIST = "export.json"
_FORMAT = "dispatch_profiler export"
_LARGEST_LIST = 2**20


def check_folder(folder: Path) -> None:
    """Raise UsageError unless `folder` is a folder or can become one."""
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"--output: {folder} is a file", hint="name a folder; it need not exist")
    if not folder.absolute().parent.is_dir():
        raise UsageError(f"--output: there is no folder {folder.absolute().parent}", hint="create it first")


def write_folder(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write `files`, by name, to `folder`. Files of an earlier export that are not among them are removed.

    Raises UsageError, and changes nothing, if another file has one of their names.
    """
    earlier = _earlier(folder)
    own = {name for name, known in earlier.items() if _has_hash(folder / name, known)}
    foreign = sorted(name for name in (*files, LIST) if _exists(folder / name) and name not in own)
    if earlier and LIST in foreign:
        foreign.remove(LIST)
    if foreign:
        raise UsageError(
            f"{folder} has files that no export wrote, or that were changed since: {', '.join(foreign)}",
            hint="name another folder, or move them away",
        )
    folder.mkdir(exist_ok=True)
    hashes = {name: sha256(data) for name, data in files.items()}
    # What the list names is either missing or as it says at any time, so that a run after a crash continues.
    for name in own:
        (folder / name).unlink(missing_ok=True)
    _write_list(folder, hashes)
    for name, data in files.items():
        write_atomic(folder / name, data)


def _write_list(folder: Path, hashes: Mapping[str, str]) -> None:
    content = {"format": _FORMAT, "files": dict(sorted(hashes.items()))}
    write_atomic(folder / LIST, json.dumps(content, indent=1) + "\n")


def _earlier(folder: Path) -> dict[str, str]:
    """Name -> hash of the files of the export in `folder`; empty without one, or if the list is of another kind."""
    try:
        data = mapping(parse_json(read_bounded(folder / LIST, _LARGEST_LIST)))
        if text(data, "format") != _FORMAT:
            return {}
        files = text_values(data, "files")
    except (FieldError, UsageError):
        return {}
    return {name: known for name, known in files.items() if Path(name).name == name and name != LIST}


def _exists(path: Path) -> bool:
    return path.exists() or path.is_symlink()


def _has_hash(path: Path, known: str) -> bool:
    try:
        return not path.is_symlink() and hash_file(path) == known
    except (OSError, UsageError):
        return False
