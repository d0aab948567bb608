"""Hardware peaks of a device, and the process that measures them."""

from __future__ import annotations

import contextlib
import os
import platform
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

from dispatch_profiler.cores import usable_cores, usable_threads
from dispatch_profiler.errors import DispatchProfilerError
from dispatch_profiler.isolation import Worker
from dispatch_profiler.profiler.evaluation import device_worker
from dispatch_profiler.profiler.measurement.gpu_monitor import open_monitor
from dispatch_profiler.profiler.measurement.peaks import (
    Peaks,
    PeaksFile,
    cpu_key,
    environments,
    gpu_key,
    measure_flops,
    measure_peaks,
    stated_peaks,
)
from dispatch_profiler.profiler.records.machine import Machine
from dispatch_profiler.runtime import DeviceUri
from dispatch_profiler.runtime.cuda_driver import find_gpu
from dispatch_profiler.targets import host_cpu

# -- machine ---------------------------------------------------------------------------------------

# The machine that this process runs on.


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
        threads=usable_threads(),
        cpu_level=host_cpu().level,
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
    )


def peaks_file(folder: Path, device: str) -> PeaksFile | None:
    """The peaks of a device URI, cached in `folder`; None if unknown."""
    if DeviceUri.parse(device).is_local:
        return PeaksFile(folder, cpu_key(), _of_cpu)
    gpu = find_gpu(device)
    return PeaksFile(folder, gpu_key(gpu), partial(_of_gpu, device)) if gpu else None


def _of_cpu() -> Peaks:
    """The best of two turns of all processes: a disturbance rarely lasts for both."""
    with contextlib.ExitStack() as stack:
        workers = [
            stack.enter_context(Worker(start=device_worker.ready, environment=each))
            for each in environments()
        ]
        with ThreadPoolExecutor(len(workers)) as pool:
            # They start at once, but measure one after the other.
            list(pool.map(lambda worker: worker.call(device_worker.ready), workers))
        found: Peaks = workers[0].call(measure_peaks)
        for worker in (*workers[1:], *workers):
            found = found.best_of(replace(found, flops_per_second=worker.call(measure_flops)))
    return found


def gpu_peaks(device: str) -> Peaks:
    """Peaks of the GPU with the URI `device`, in some seconds. Raises ValueError if it is no NVIDIA GPU."""
    gpu = find_gpu(device)
    if gpu is None:
        raise ValueError(f"{device} is not an NVIDIA GPU of this machine")
    try:
        from dispatch_profiler.profiler.providers.torch_gpu import peak_rates  # imports torch

        flops, bytes_per_second = peak_rates(device)
    except DispatchProfilerError:  # no torch, or one without CUDA
        return stated_peaks(gpu)
    stated = stated_peaks(gpu)
    source = f"cuBLAS and copies on {gpu.name}"
    return Peaks({**stated.flops_per_second, **flops}, bytes_per_second, source)


def _of_gpu(device: str) -> Peaks:
    with Worker() as worker:  # torch is imported there
        found: Peaks = worker.call(gpu_peaks, device)
    return found
