"""The targets that kernels for devices are compiled for, and the devices of this machine."""

from __future__ import annotations

from dispatch_profiler.boo.environment import launch_settings
from dispatch_profiler.errors import TargetError
from dispatch_profiler.runtime.device_uri import DeviceUri
from dispatch_profiler.targets import CpuTarget, NullTarget, Target, parse_target

#: The device of this CPU.
CPU = "local-task"
_CUDA = "cuda"


def target_of(device: DeviceUri) -> Target:
    """The target for `device`: this CPU, or the architecture of a GPU.

    Raises TargetError for a missing GPU, and for devices that kernels cannot be launched on.
    """
    if device.is_null:
        return NullTarget()
    if device.is_remote:
        raise TargetError(
            f"{device} is a device of another machine", hint="kernels can be launched only on this machine"
        )
    if device.is_local:
        settings = launch_settings()
        return CpuTarget(settings.cpu, settings.flushes_subnormals)
    if not device.is_cuda:
        raise TargetError(
            f"kernels cannot be launched on {device.driver}", hint="available: local-sync, local-task, cuda"
        )
    from dispatch_profiler.runtime.cuda_driver import find_gpu

    gpu = find_gpu(str(device))
    if gpu is None:
        raise TargetError(f"{device}: no such GPU", hint="nvidia-smi lists the GPUs of this machine")
    major, minor = gpu.capability
    return parse_target(f"cuda:sm_{major}{minor}")


def launch_devices() -> tuple[DeviceUri, ...]:
    """This CPU, and a GPU of each architecture of this machine."""
    from dispatch_profiler.runtime.cuda_driver import gpu_count

    every = [DeviceUri(CPU), *(DeviceUri(_CUDA, str(number)) for number in range(gpu_count()))]
    by_target: dict[Target, DeviceUri] = {}
    for device in every:
        by_target.setdefault(target_of(device), device)
    return tuple(by_target.values())
