"""Cache sizes of this machine."""

from __future__ import annotations

from pathlib import Path

from dispatch_profiler.cores import usable_cores

_CPUS = Path("/sys/devices/system/cpu")
_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30}


def last_level_cache_bytes(folder: Path = _CPUS) -> int:
    """Total bytes of the last-level caches that the cores of this process use; 0 if unknown.

    `folder` is where Linux describes the cores.
    """
    found = dict(filter(None, (_last_level(folder / f"cpu{core}" / "cache") for core in usable_cores())))
    return sum(found.values())


def _last_level(folder: Path) -> tuple[str, int] | None:
    """The cores that share the last cache of a core, and its bytes; None if it cannot be read."""
    try:
        levels = {int((index / "level").read_text()): index for index in folder.glob("index*")}
        last = levels[max(levels)]
        size = (last / "size").read_text().strip()
        return (last / "shared_cpu_list").read_text().strip(), int(size[:-1]) * _UNITS[size[-1]]
    except (OSError, ValueError, LookupError):
        return None
