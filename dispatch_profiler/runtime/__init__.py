"""Devices, programs and calls. A new kind of device is one file here and one line in `open_device`."""

from __future__ import annotations

from pathlib import Path

from dispatch_profiler.runtime._base import Arguments, Buffer, Call, Device, Program, RunError
from dispatch_profiler.runtime.device_uri import DeviceUri, device_uri
from dispatch_profiler.runtime.null import NullDevice
from dispatch_profiler.runtime.tools import ToolDevice, find_runtime_tools


def open_device(uri: str, build_dir: Path | None = None) -> Device:
    """The device with the URI `uri`, through the installed runtime or the commands in `build_dir`.

    Raises TargetError if the device does not exist.
    """
    parsed = DeviceUri.parse(uri)
    if parsed.is_null:
        return NullDevice()
    if build_dir is not None:
        return ToolDevice(parsed, build_dir)
    from dispatch_profiler.runtime.iree import IreeDevice  # imported here because it loads the runtime

    return IreeDevice(parsed)


def all_devices(uri: str) -> tuple[str, ...]:
    """Every device of the driver of `uri`: `cuda` -> `cuda://0`, `cuda://1`; for a CPU, `uri` alone.

    Raises TargetError if the driver does not exist or has no device.
    """
    parsed = DeviceUri.parse(uri)
    if not parsed.is_gpu:
        return (uri,)
    from dispatch_profiler.runtime.iree import devices_of

    return devices_of(parsed.driver)


__all__ = [
    "Arguments",
    "Buffer",
    "Call",
    "Device",
    "DeviceUri",
    "NullDevice",
    "Program",
    "RunError",
    "ToolDevice",
    "all_devices",
    "device_uri",
    "find_runtime_tools",
    "open_device",
]
