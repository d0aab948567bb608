"""HAL devices of this process: each is opened once and kept until the process ends, because buffers that outlive their device crash.

A forked child has its parent's devices, but not the threads that run their work. It opens devices of its own.
"""

from __future__ import annotations

import ctypes
import os
import re
import threading
from collections.abc import Mapping
from typing import Any, NamedTuple

import iree.runtime as rt
from iree.runtime._binding import create_hal_driver, disable_leak_checker

from dispatch_profiler.errors import TargetError
from dispatch_profiler.runtime.device_uri import DeviceUri


class _Key(NamedTuple):
    uri: DeviceUri
    workers: int | None
    graphs: bool


class _HalProcess:
    """The devices of one process. `lost` are GPUs that only its parent can use."""

    def __init__(self, is_forked: bool = False, lost: frozenset[DeviceUri] = frozenset()) -> None:
        self.lock = threading.Lock()
        self.opened: dict[_Key, Any] = {}
        self.is_forked = is_forked
        self.lost = lost


_process = _HalProcess()


def hal_device(uri: DeviceUri, *, workers: int | None = None, graphs: bool = True) -> Any:
    """The HAL device with the URI `uri`.

    `workers` is the number of threads of a `local-task` device, which then differs from the default device;
    None means one per physical core. With `graphs`, a CUDA device executes recorded commands as CUDA graphs.
    Raises TargetError if no such device can be opened.
    """
    key = _Key(uri, workers, graphs)
    with _process.lock:
        if key not in _process.opened:
            _process.opened[key] = _opened(key)
        return _process.opened[key]


def devices_of(driver: str) -> tuple[str, ...]:
    """URIs of all devices of a driver. Raises TargetError if it has no device."""
    try:
        found = rt.get_driver(driver).query_available_devices()
    except (ValueError, RuntimeError) as error:
        raise TargetError(f"no {driver} device on this machine: {_why(error)}") from error
    if not found:
        raise TargetError(f"no {driver} device on this machine")
    return tuple(f"{driver}://{index}" for index in range(len(found)))


def _opened(key: _Key) -> Any:
    uri, flags = key.uri, _flags(key)
    if uri in _process.lost:
        raise TargetError(
            f"{uri} was opened before this process was forked, and cannot be used in a forked process",
            hint='start processes with the method "spawn": multiprocessing.set_start_method("spawn")',
        )
    try:
        if not flags and not _process.is_forked:
            return rt.get_device(str(uri))  # shared with other users of IREE in this process
        try:
            _set_flags({name: value for name, (value, _) in flags.items()})
            return create_hal_driver(uri.driver).create_device_by_uri(str(uri))
        finally:
            # Flags apply to the whole process: drivers that other code creates later get the defaults again.
            _set_flags({name: default for name, (_, default) in flags.items()})
    except (ValueError, RuntimeError) as error:
        drivers = ", ".join(rt.query_available_drivers())
        raise TargetError(
            f"no device {str(uri)!r} on this machine: {_why(error)}",
            hint=f"choose another with --device; available drivers: {drivers}",
        ) from error


def _flags(key: _Key) -> dict[str, tuple[str, str]]:
    """Flags of IREE that a device's driver is created with: name -> (value, default)."""
    if key.uri.is_cuda and key.graphs:
        return {"cuda_use_streams": ("false", "true")}
    if key.uri.has_workers and key.workers is not None:
        return {"task_topology_group_count": (str(key.workers), "0")}
    return {}


def _set_flags(values: Mapping[str, str]) -> None:
    rt.flags.parse_flags(*(f"--{name}={value}" for name, value in values.items()))


def _why(error: Exception) -> str:
    """`...: libvulkan.c:641: NOT_FOUND; Vulkan loader library not found; ensure ...` -> its third clause."""
    first = str(error).splitlines()[0]
    reason = re.sub(r"^.*?: [A-Z_]+; ", "", first)
    return re.split(r"; |: please ", reason)[0].strip()


def _after_fork() -> None:
    """In a forked child: forget the parent's devices, but never destroy them, which would wait for their threads."""
    global _process
    for device in _process.opened.values():
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(device))
    disable_leak_checker()  # it would report the devices when the child ends
    gpus = {key.uri for key in _process.opened if key.uri.is_gpu}
    _process = _HalProcess(is_forked=True, lost=_process.lost | gpus)


os.register_at_fork(after_in_child=_after_fork)
