"""Ends the threads that torch's operators leave spinning, which would take cores from ours.

Torch computes its operators with OpenMP. After each one, the threads of libgomp spin for some milliseconds, in case that
another one follows: on two cores, half of what a chain of launches could use. `omp_pause_resource_all` (OpenMP 5.0) ends
them, which takes some 65 us while they spin, and next to nothing once they are gone; torch's next parallel operator
starts new ones in another 70 us. Only the threads of the calling thread are concerned, and no setting changes.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path

import torch

from dispatch_profiler.boo.environment import releases_torch_threads

#: `omp_pause_soft`: what is released is made again when it is needed.
_SOFT = 1
_LIBRARIES = ("libtorch_cpu.so", "libtorch_cpu.dylib")


def release_torch_threads() -> None:
    """End the OpenMP threads that compute the calling thread's operators, unless BOO_RELEASE_TORCH_THREADS is 0.

    Does nothing where OpenMP has no such function, inside a parallel region, and in a forked process, which has none of
    these threads. Raises UsageError for an invalid value of the variable.
    """
    if not _is_forked and releases_torch_threads():
        pause = _pause()
        if pause is not None:
            pause(_SOFT)


@cache
def _pause() -> Callable[[int], int] | None:
    """`omp_pause_resource_all` of the OpenMP library that torch is linked with; None if it has none."""
    folder = Path(torch.__file__).parent / "lib"
    for name in _LIBRARIES:
        try:
            found = ctypes.CDLL(str(folder / name)).omp_pause_resource_all
        except (OSError, AttributeError):
            continue
        found.argtypes, found.restype = (ctypes.c_int,), ctypes.c_int
        return found
    return None


def _after_fork() -> None:
    # The child inherits the library's list of threads but not the threads, for which the library would wait.
    global _is_forked
    _is_forked = True


_is_forked = False
os.register_at_fork(after_in_child=_after_fork)
