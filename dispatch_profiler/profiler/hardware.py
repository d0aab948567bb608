"""Whose ceilings bound the figures of a device, and in which process they are measured."""

from __future__ import annotations

from functools import partial, reduce
from pathlib import Path

from dispatch_profiler.isolation import Worker
from dispatch_profiler.profiler import job
from dispatch_profiler.profiler.ceilings import (
    CeilingFile,
    Ceilings,
    cpu_key,
    environments,
    measure_ceilings,
)
from dispatch_profiler.profiler.gpu_ceilings import gpu_ceilings, gpu_key
from dispatch_profiler.runtime.cuda_driver import find_gpu


def ceiling_file(folder: Path, device: str) -> CeilingFile | None:
    """The ceilings of a device URI, kept in `folder`; None if nobody knows how to find them."""
    if device.startswith("local-"):
        return CeilingFile(folder, cpu_key(), _of_cpu)
    gpu = find_gpu(device)
    return CeilingFile(folder, gpu_key(gpu), partial(_of_gpu, device)) if gpu else None


def _of_cpu() -> Ceilings:
    found = []
    for environment in environments():
        with Worker(start=job.ready, environment=environment) as worker:
            found.append(worker.call(measure_ceilings))
    return reduce(Ceilings.best_of, found)


def _of_gpu(device: str) -> Ceilings:
    with Worker() as worker:  # torch is imported there
        found: Ceilings = worker.call(gpu_ceilings, device)
    return found
