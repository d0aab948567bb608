"""Ends the threads that torch's operators leave spinning, since they take cores from our threads.

torch computes operators with OpenMP. After each operator, the threads of libgomp spin for some milliseconds in case another
operator follows. On two cores, that takes half of the time of a chain of launches. `omp_pause_resource_all` (OpenMP 5.0) ends
the threads, in about 65 us while they spin, and in next to no time otherwise. torch's next parallel operator starts new threads
in about 70 us. Only the threads of the calling thread are ended, and no setting changes.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path

import torch

from dispatch_profiler.boo.environment import releases_torch_threads

#: `omp_pause_soft`: OpenMP acquires released resources again when they are needed.
_SOFT = 1
_LIBRARIES = ("libtorch_cpu.so", "libtorch_cpu.dylib")


def release_torch_threads() -> None:
    """End the OpenMP threads that compute the calling thread's operators, unless BOO_RELEASE_TORCH_THREADS is 0.

    Does nothing if OpenMP lacks the function, inside a parallel region, and in a forked process, which does not have
    these threads. Raises UsageError for an invalid value of the variable.
    """
    if not _is_forked and releases_torch_threads():
        pause = _pause()
        if pause is not None:
            pause(_SOFT)


@cache
def _pause() -> Callable[[int], int] | None:
    """`omp_pause_resource_all` of the OpenMP library that torch is linked with; None if the library lacks it."""
    folder = Path(torch.__file__).parent / "lib"
    for name in _LIBRARIES:
        try:
            pause = ctypes.CDLL(str(folder / name)).omp_pause_resource_all
        except (OSError, AttributeError):
            continue
        pause.argtypes, pause.restype = (ctypes.c_int,), ctypes.c_int
        return pause
    return None


def _after_fork() -> None:
    # The child inherits the library's list of threads, but not the threads. The library would wait for them forever.
    global _is_forked
    _is_forked = True


_is_forked = False
os.register_at_fork(after_in_child=_after_fork)
