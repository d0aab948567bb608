"""Fills the cache of a driver that compiles: all cores load vmfbs in parallel before measuring starts.

A CUDA vmfb holds PTX. When loading it, the driver compiles it to machine code, in 70 to 115 ms per kernel
on one core (seen on an H200), and caches that in `~/.nv/ComputeCache`. Loading one after another in the
measuring process took a large part of a run.
"""

from __future__ import annotations

import contextlib
import os
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from dispatch_profiler.console.plurals import counted
from dispatch_profiler.cores import usable_cores
from dispatch_profiler.errors import DispatchProfilerError
from dispatch_profiler.isolation import Worker, WorkerLimits
from dispatch_profiler.profiler.evaluation import device_worker
from dispatch_profiler.profiler.evaluation.candidate import Vmfb
from dispatch_profiler.runtime import DeviceUri


def compiles_when_loaded(device: str) -> bool:
    """Whether the driver of this device URI compiles code when loading it, and caches the result."""
    return DeviceUri.parse(device).is_cuda and os.environ.get("CUDA_CACHE_DISABLE") != "1"


def load_in_parallel(
    vmfbs: Sequence[Vmfb],
    limits: WorkerLimits,
    device: str,
    say: Callable[[str], None] = lambda _: None,
) -> None:
    """Load all vmfbs, each in one of as many processes as there are cores.

    `say` receives a sentence first. Vmfbs that fail to load are skipped: running them reports the error.
    An exception in between ends the processes and is re-raised.
    """
    # The largest first, because it takes the longest.
    left = deque(sorted(vmfbs, key=lambda vmfb: -vmfb.size))
    count = min(len(left), len(usable_cores()))
    if count < 2:
        return
    say(f"loading {counted(len(left), 'vmfb')} first, {count} at a time: the driver compiles their code")
    workers = [Worker(limits, device_worker.start_loading, (device,)) for _ in range(count)]

    def work(worker: Worker) -> None:
        while left:
            with contextlib.suppress(DispatchProfilerError, IndexError):
                worker.call(device_worker.load, left.popleft().load())

    with contextlib.ExitStack() as open_workers, ThreadPoolExecutor(count) as pool:
        for worker in workers:
            open_workers.callback(worker.close)
        try:
            list(pool.map(work, workers))
        except BaseException:
            left.clear()
            for worker in workers:
                worker.kill()
            raise
