"""Threads of libraries: as many as IREE uses, and idle while others are measured."""

from __future__ import annotations

import time
from pathlib import Path

from dispatch_profiler.cores import usable_cores
from dispatch_profiler.runtime import DeviceUri

#: A process sleeps if it uses less than this part of a core for so many steps in a row: threads that
#: spin give way to others, so that on a busy machine they look asleep for a step or two.
_ASLEEP = 0.05
_QUIET_STEPS = 10
_STEP_SECONDS = 5e-3
_LONGEST_WAIT_SECONDS = 2.0


def environment(threads: int) -> dict[str, str]:
    """What a process that holds a library needs before it starts: as many threads as IREE has."""
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    return dict.fromkeys(names, str(threads))


def iree_threads(device: str) -> int:
    """Cores that IREE's device computes on: one for `local-sync`, else every physical core we may use.

    IREE has one worker for each physical core and none for its other hardware threads.
    """
    return 1 if DeviceUri.parse(device).driver == "local-sync" else len(_physical_cores())


def _physical_cores(system: Path = Path("/sys/devices/system/cpu")) -> set[str]:
    cores = set()
    for number in usable_cores():
        try:
            cores.add((system / f"cpu{number}/topology/thread_siblings_list").read_text().strip())
        except OSError:
            cores.add(str(number))
    return cores


def wait_until_asleep() -> bool:
    """Wait until the threads of this process use no core any more; False if they go on for too long.

    BLAS and OpenMP keep theirs spinning for a while after each product: that is how the next one
    starts sooner, and beside them everything else looks slower than it is.
    """
    quiet = 0
    for _ in range(round(_LONGEST_WAIT_SECONDS / _STEP_SECONDS)):
        used, start = time.process_time(), time.perf_counter()
        time.sleep(_STEP_SECONDS)
        is_quiet = time.process_time() - used < _ASLEEP * (time.perf_counter() - start)
        quiet = quiet + 1 if is_quiet else 0
        if quiet == _QUIET_STEPS:
            return True
    return False
