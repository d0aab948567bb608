"""The device that commands run on: `cpu`, or a GPU by torch's name."""

from __future__ import annotations

import importlib.util
import re

from dispatch_profiler.boo.driver.torch_functions import load_torch
from dispatch_profiler.errors import UsageError
from dispatch_profiler.runtime.device_uri import DeviceUri

CPU = "cpu"
_GPU = re.compile(r"cuda(?::|://)?(\d{0,3})", re.ASCII)


def choose_device(device: str | None, gpu: int | None = None) -> str:
    """`cpu` or `cuda:N`, from `--device` and `--gpu-id`. Without either, the first GPU if torch can use it.

    Accepts `cpu`, `cuda`, `cuda:1` and `cuda://1`. Raises UsageError, and MissingDependency for a GPU without torch.
    """
    if device is None:
        return gpu_of_torch(gpu) if gpu is not None or _has_gpu() else CPU
    match = _GPU.fullmatch(device)
    if device != CPU and match is None:
        raise UsageError(
            f"--device: {device[:40]!r} is not supported",
            hint="available: cpu, cuda, cuda:0, cuda:1, ...; cpu chooses between local-sync and local-task itself",
        )
    if match is None:
        if gpu is not None:
            raise UsageError(f"--gpu-id={gpu} contradicts --device=cpu", hint="use one of them")
        return CPU
    number = int(match[1]) if match[1] else None
    if None not in (gpu, number) and gpu != number:
        raise UsageError(f"--gpu-id={gpu} contradicts --device={device}", hint="use one of them")
    return gpu_of_torch(gpu if number is None else number)


def gpu_of_torch(number: int | None) -> str:
    """`cuda:N`. Raises UsageError if torch cannot use that GPU, MissingDependency without torch."""
    torch, wanted = load_torch(), number or 0
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if wanted >= count:
        gpus = (
            f"torch {torch.__version__} finds {count} GPUs" if count != 1 else "torch finds one GPU, number 0"
        )
        raise UsageError(f"cuda:{wanted} is not available: {gpus}", hint="use --device=cpu")
    return f"cuda:{wanted}"


def uri_of(device: str) -> DeviceUri:
    """The device for which kernels are compiled: `cuda:1` -> `cuda://1`, `cpu` -> `local-task`."""
    return DeviceUri("local-task") if device == CPU else DeviceUri.parse(device.replace(":", "://"))


def has_torch() -> bool:
    """Whether torch is installed. Does not import it."""
    return importlib.util.find_spec("torch") is not None


def _has_gpu() -> bool:
    return has_torch() and bool(load_torch().cuda.is_available())
