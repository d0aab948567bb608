"""How long the threads of this process had to wait for a core that others had.

Linux counts it for each thread (`schedstat`, its second number). A sample in which they waited is one
of the machine's other work, whatever it says of the kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

_TASKS = Path("/proc/self/task")


def core_waits() -> Callable[[], float] | None:
    """A clock in seconds that runs only while a thread waits for a core; None where nobody counts it."""
    return _waited if _read(_TASKS) is not None else None


def _waited() -> float:
    return _read(_TASKS) or 0.0


def _read(tasks: Path) -> float | None:
    """Seconds that all threads described under `tasks` have waited together."""
    try:
        found = [(thread / "schedstat").read_text().split() for thread in tasks.iterdir()]
        return 1e-9 * sum(int(numbers[1]) for numbers in found)
    except (OSError, ValueError, IndexError):  # among others a thread that ended meanwhile
        return None
