"""Keeps processors from idling, so that a thread that waits for a GPU wakes up immediately.

A call waits for the GPU in one thread and IREE's threads in others. While they wait, Linux puts their
processors to sleep, and on a virtual machine these take 50 to 400 microseconds to wake up: on an H200,
calls of 12 ms measured 3 % too long, some 30 %. Threads that run only on idle processors (SCHED_IDLE)
keep them awake: then a call costs the same 20 microseconds however long it takes.
"""

from __future__ import annotations

import hashlib
import os
import threading

from dispatch_profiler.cores import usable_cores

#: For the thread that calls, IREE's threads and the driver's.
_PROCESSORS = 4
#: OpenSSL's maximum: it takes minutes, during which the thread does not hold the GIL.
_ROUNDS = 2**31 - 1


def prevent_cpu_idle(first: int = 0) -> tuple[int, ...]:
    """Move this thread and all that it starts to a few processors, and keep these awake from now on.

    The process of each GPU passes another number, `first`, so that they share as few processors as possible.
    Returns the processors; empty if the system has no such threads.
    """
    if not hasattr(os, "SCHED_IDLE"):
        return ()
    chosen = processors_of(first)
    for processor in chosen:
        threading.Thread(target=_spin, args=(processor,), daemon=True, name="awake").start()
    os.sched_setaffinity(0, chosen)
    return chosen


def processors_of(first: int) -> tuple[int, ...]:
    """The processors that `prevent_cpu_idle(first)` moves its threads to."""
    usable = usable_cores()
    begin = _PROCESSORS * first
    return tuple(
        dict.fromkeys(usable[(begin + each) % len(usable)] for each in range(min(_PROCESSORS, len(usable))))
    )


def yield_to_workers() -> None:
    """Put the calling thread into the batch class, so that threads that run kernels get its core.

    A thread that waits for a call spins for up to a millisecond. `local-task` has a worker for every core,
    so the spinning thread keeps one worker from its core until the scheduler's next tick: one call in
    four took 3 ms longer. A thread of the batch class yields to any thread that wakes up.
    """
    if hasattr(os, "SCHED_BATCH"):
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def _spin(processor: int) -> None:
    os.sched_setaffinity(0, {processor})
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    while True:
        hashlib.pbkdf2_hmac("sha256", b"", b"", _ROUNDS)
