"""Which devices share a search."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dispatch_profiler.errors import TargetError
from dispatch_profiler.profiler.evaluation.machine import this_machine
from dispatch_profiler.runtime import DeviceUri, all_devices


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
