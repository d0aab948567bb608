"""Which cores the compiler uses while GPUs measure."""

from __future__ import annotations

from collections.abc import Sequence

from dispatch_profiler.cores import usable_cores
from dispatch_profiler.profiler.measurement.cpu_idle import processors_of
from dispatch_profiler.runtime import DeviceUri
from dispatch_profiler.runtime.cuda_driver import find_gpu


def cores_beside(devices: Sequence[str]) -> tuple[int, ...]:
    """The cores that the processes of these devices leave alone."""
    taken = {core for device in devices for core in _cores_of(device)}
    return tuple(core for core in usable_cores() if core not in taken)


def compiles_beside(devices: Sequence[str]) -> bool:
    """Whether the compiler may run while these devices measure: GPUs that leave it half of the cores."""
    are_gpus = all(DeviceUri.parse(device).is_gpu for device in devices)
    return are_gpus and 2 * len(cores_beside(devices)) >= len(usable_cores())


def _cores_of(device: str) -> tuple[int, ...]:
    """The cores that `prevent_cpu_idle` keeps for a GPU; another driver's threads need as many."""
    uri = DeviceUri.parse(device)
    if uri.is_remote or not uri.is_gpu:
        return ()
    gpu = find_gpu(device)
    return processors_of(gpu.ordinal if gpu else uri.ordinal or 0)
