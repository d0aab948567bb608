"""The kernel of a signature without its launchable: its own time, and the error bound of its sums."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from dispatch_profiler.boo.driver.torch_functions import to_numpy
from dispatch_profiler.boo.environment import launch_settings
from dispatch_profiler.boo.interface import LaunchKernel
from dispatch_profiler.boo.kernels import OperationKernels, Toolchain, target_of
from dispatch_profiler.operations import ErrorBound
from dispatch_profiler.profiler.measurement.kernels import open_kernels
from dispatch_profiler.runtime.device_uri import DeviceUri

if TYPE_CHECKING:
    from dispatch_profiler.boo.op_exports._base import OpSignature


def compiled_kernel(signature: OpSignature, device: DeviceUri) -> LaunchKernel:
    """The kernel of `signature` on `device`, compiled if the launch cache lacks it. Raises DispatchProfilerError."""
    return OperationKernels(signature.operation, signature.func_name, launch_settings()).kernel(device)


def kernel_time(
    signature: OpSignature, arguments: Sequence[Any], device: DeviceUri
) -> Callable[[int], float]:
    """`time(launches) -> seconds` of the kernel alone on `device`, for copies of `arguments`, in the order of a launch.

    Converts arguments and allocates results beforehand.
    """
    kernel, spec = compiled_kernel(signature, device), signature.launch
    paired = sorted(zip(spec.arguments, arguments, strict=True), key=lambda pair: pair[0].position)
    inputs = [to_numpy(array, each.type).reshape(each.kernel_shape) for each, array in paired]
    kernels = open_kernels(str(device))
    return kernels.load(kernel.vmfb).bind(kernel.function, kernels.put(spec.operation, inputs)).time


def error_bound(signature: OpSignature, device: DeviceUri) -> ErrorBound | None:
    """The error bound of the kernel if it computes sums in another way than the operation defines, else None."""
    target = target_of(device)
    tuning = Toolchain.of(target, launch_settings().tuning).tuning
    name = compiled_kernel(signature, device).function
    variants = (variant.dispatch for variant in tuning.variants(signature.operation, target))
    return next((dispatch.error_bound_on(target) for dispatch in variants if dispatch.name == name), None)
