"""The machine that this process runs on."""

from __future__ import annotations

import os
import platform
from functools import cache

from dispatch_profiler.cores import usable_cores
from dispatch_profiler.profiler.measurement.gpu_monitor import open_monitor
from dispatch_profiler.profiler.records.machine import Machine
from dispatch_profiler.runtime.cuda_driver import find_gpu
from dispatch_profiler.targets import host_cpu


@cache
def this_machine(device: str = "") -> Machine:
    """This process's machine, with the GPU of the URI `device` if that is an NVIDIA GPU."""
    gpu = find_gpu(device)
    monitor = open_monitor(device) if gpu else None
    return Machine(
        gpu=gpu.name if gpu else "",
        driver=(monitor.driver if monitor else f"CUDA {gpu.cuda}") if gpu else "",
        cpu=host_cpu().model,
        cores=len(usable_cores()),
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
    )
