"""Loads kernels on GPUs, for launches on torch's stream if they have a launch program, else through IREE's runtime."""

from __future__ import annotations

import logging
import math

from dispatch_profiler.boo.interface import LaunchKernel, LaunchSpec
from dispatch_profiler.boo.launching.loaded import LoadedKernel, load
from dispatch_profiler.dispatches.launch_program import LaunchProgram, read_program
from dispatch_profiler.errors import UsageError
from dispatch_profiler.runtime.cuda_launch import CudaProgram, OldDriverError
from dispatch_profiler.runtime.device_uri import DeviceUri
from dispatch_profiler.runtime.iree import IreeDevice

_log = logging.getLogger("dispatch_profiler.boo")


def load_on_gpu(kernel: LaunchKernel, uri: DeviceUri, spec: LaunchSpec) -> LoadedKernel | CudaProgram:
    """Load `kernel` on the CUDA device `uri`. Raises RunError, and TargetError if the device cannot be used."""
    name = spec.operation.name
    try:
        return CudaProgram(_program(kernel, spec), kernel.vmfb, int(uri.path or 0), name)
    except (UsageError, OldDriverError) as error:
        _log.debug("%s: launches wait for their results, because they need IREE's runtime: %s", name, error)
    return load(kernel, IreeDevice(uri, graphs=False), name, len(spec.results))


def _program(kernel: LaunchKernel, spec: LaunchSpec) -> LaunchProgram:
    """The launch program of a kernel. Raises UsageError if the kernel has no program that fits the launch."""
    program = read_program(kernel.program, kernel.vmfb)
    sizes = [
        math.prod(each.shape) * each.type.bytes
        for tensors in (spec.arguments, spec.results)
        for each in sorted(tensors, key=lambda tensor: tensor.position)
    ]
    if len(sizes) != len(program.arguments) or any(
        own < needed for own, needed in zip(sizes, program.arguments, strict=True)
    ):
        raise UsageError(
            f"its launch program takes arguments of {program.arguments} bytes, not of {tuple(sizes)}"
        )
    return program
