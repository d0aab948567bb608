"""Fills the cache of a driver that compiles: all cores load vmfbs, side by side, before anything is measured.

A CUDA vmfb holds PTX. When it is loaded the driver makes machine code of it, 70 to 115 ms a kernel on
one core (seen on an H200), and keeps that on disk, in `~/.nv/ComputeCache`. Loaded one after
another, by the process that measures, that was a large part of a run.
"""

from __future__ import annotations

import contextlib
import os
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from dispatch_profiler.cores import usable_cores
from dispatch_profiler.errors import DispatchProfilerError
from dispatch_profiler.isolation import Worker, WorkerLimits
from dispatch_profiler.profiler.evaluation import device_worker
from dispatch_profiler.profiler.evaluation.candidate import Vmfb
from dispatch_profiler.runtime import DeviceUri


def compiles_when_loaded(device: str) -> bool:
    """Does the driver of this device URI compile what is loaded, and keep it?"""
    return DeviceUri.parse(device).is_cuda and os.environ.get("CUDA_CACHE_DISABLE") != "1"


def load_side_by_side(
    vmfbs: Sequence[Vmfb],
    limits: WorkerLimits,
    device: str,
    say: Callable[[str], None] = lambda _: None,
) -> None:
    """Load all of them, each in one of as many processes as there are cores.

    `say` gets a sentence before it begins. Vmfbs that fail to load are skipped: running them reports the error.
    Raises what interrupts it.
    """
    # The largest first: it takes the longest.
    left = deque(sorted(vmfbs, key=lambda vmfb: -vmfb.size))
    count = min(len(left), len(usable_cores()))
    if count < 2:
        return
    say(f"loading {len(left)} vmfbs first, {count} at a time: the driver compiles their code")
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
