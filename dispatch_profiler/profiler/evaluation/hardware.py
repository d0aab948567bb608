"""Hardware peaks of a device, and the process that measures them."""

from __future__ import annotations

from functools import partial, reduce
from pathlib import Path

from dispatch_profiler.errors import DispatchProfilerError
from dispatch_profiler.isolation import Worker
from dispatch_profiler.profiler.evaluation import device_worker
from dispatch_profiler.profiler.measurement.gpu_peaks import gpu_key, stated_peaks
from dispatch_profiler.profiler.measurement.peaks import (
    Peaks,
    PeaksFile,
    cpu_key,
    environments,
    measure_peaks,
)
from dispatch_profiler.runtime import DeviceUri
from dispatch_profiler.runtime.cuda_driver import find_gpu


def peaks_file(folder: Path, device: str) -> PeaksFile | None:
    """The peaks of a device URI, cached in `folder`; None if unknown."""
    if DeviceUri.parse(device).is_local:
        return PeaksFile(folder, cpu_key(), _of_cpu)
    gpu = find_gpu(device)
    return PeaksFile(folder, gpu_key(gpu), partial(_of_gpu, device)) if gpu else None


def _of_cpu() -> Peaks:
    found = []
    for environment in environments():
        with Worker(start=device_worker.ready, environment=environment) as worker:
            found.append(worker.call(measure_peaks))
    return reduce(Peaks.best_of, found)


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
