"""Threads of libraries: as many as IREE uses, and idle while others are measured."""

from __future__ import annotations

import time

from dispatch_profiler.cores import usable_threads
from dispatch_profiler.runtime import DeviceUri

#: A process is asleep if it uses less than this fraction of a core for several steps in a row. Spinning
#: threads yield to others, so on a busy machine they look asleep for a step or two.
_ASLEEP = 0.05
_QUIET_STEPS = 10
_STEP_SECONDS = 5e-3
_LONGEST_WAIT_SECONDS = 2.0


def environment(threads: int) -> dict[str, str]:
    """Environment variables for a process that uses a library: as many threads as IREE uses."""
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    return dict.fromkeys(names, str(threads))


def iree_threads(device: str) -> int:
    """Threads that IREE's device uses: one for `local-sync`, else `usable_threads`."""
    return 1 if DeviceUri.parse(device).driver == "local-sync" else usable_threads()


def wait_until_asleep() -> bool:
    """Wait until the threads of this process are idle; returns False if they are still busy after 2 s.

    BLAS and OpenMP keep their threads spinning for a while after each product, so that the next one
    starts sooner. Meanwhile, everything else runs slower.
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
