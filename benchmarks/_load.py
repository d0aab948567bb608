"""Another process that loads the machine."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator
from contextlib import contextmanager


def _work_and_sleep() -> None:
    """50 ms of work, 50 ms of sleep, forever."""
    while True:
        end = time.monotonic() + 0.05
        while time.monotonic() < end:
            pass
        time.sleep(0.05)


@contextmanager
def load() -> Iterator[None]:
    """Run another process that uses one core half of the time."""
    process = multiprocessing.get_context("spawn").Process(target=_work_and_sleep, daemon=True)
    process.start()
    try:
        yield
    finally:
        process.kill()
        process.join()
