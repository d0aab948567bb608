"""Which devices share a search."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dispatch_profiler.cores import usable_cores
from dispatch_profiler.errors import TargetError
from dispatch_profiler.profiler.evaluation.hardware import this_machine
from dispatch_profiler.profiler.measurement.cpu_idle import processors_of
from dispatch_profiler.runtime import DeviceUri, all_devices
from dispatch_profiler.runtime.cuda_driver import find_gpu


@dataclass(frozen=True)
class SharedDevices:
    """Devices that share a search, and devices of their driver that are left out because they differ."""

    devices: tuple[str, ...]
    left_out: tuple[str, ...] = ()


def usual_devices(device: str) -> SharedDevices:
    """The devices that search for a tuning file with `device`, unless an option names others.

    A driver, `hip`, stands for all of its devices that are like the first one. `hip://1` is that device
    alone. A device that does not exist also stands for itself: the search reports why.
    """
    if DeviceUri.parse(device).path:
        return SharedDevices((device,))
    try:
        devices = all_devices(device)
    except TargetError:
        return SharedDevices((device,))
    return alike(devices)


def alike(devices: Sequence[str]) -> SharedDevices:
    """The devices with the hardware of the first one."""
    if len(devices) == 1:
        return SharedDevices(tuple(devices))
    kinds = {device: this_machine(device).gpu for device in devices}
    first = kinds[devices[0]]
    return SharedDevices(
        tuple(each for each in devices if kinds[each] == first),
        tuple(each for each in devices if kinds[each] != first),
    )


# -- core shares -----------------------------------------------------------------------------------

# Which cores the compiler uses while GPUs measure.


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
