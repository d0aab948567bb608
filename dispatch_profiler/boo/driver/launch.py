"""`get_launchable`: a signature -> a callable that computes it on arrays and tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dispatch_profiler.boo.environment import LaunchSettings, configure_logging, launch_settings
from dispatch_profiler.boo.interface import GivenKernel, Signature
from dispatch_profiler.boo.kernels import BatchKernels, DriverChoices, Memory, OperationKernels
from dispatch_profiler.boo.launching import Launchable
from dispatch_profiler.boo.session import SESSION
from dispatch_profiler.compiler import Cache
from dispatch_profiler.cores import usable_threads
from dispatch_profiler.runtime.device_uri import DeviceUri

if TYPE_CHECKING:
    from dispatch_profiler.boo.launching.packing import PackedLaunch

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from dispatch_profiler.boo.driver.torch_functions import to_numpy
from dispatch_profiler.boo.interface import LaunchKernel
from dispatch_profiler.boo.kernels import Toolchain, target_of
from dispatch_profiler.operations import ErrorBound, Operation
from dispatch_profiler.profiler.measurement.kernels import open_kernels

if TYPE_CHECKING:
    from dispatch_profiler.boo.op_exports._base import OpSignature


#: The device of packed weights.
_CPU = DeviceUri("local-task")

#: Launchables in memory: more than the layers of a large model.
_LIMIT = 512
_launchables: Memory[tuple[Signature, LaunchSettings, bool, int], Launchable] = SESSION.keep(
    "launchables", Memory(_LIMIT)
)
_packed: Memory[tuple[Signature, LaunchSettings, int], PackedLaunch | Launchable] = SESSION.keep(
    "packed_launches", Memory(_LIMIT)
)
_of_rows: Memory[tuple[Signature, LaunchSettings, int], PackedLaunch] = SESSION.keep(
    "batch_launches", Memory(_LIMIT)
)


def get_launchable(
    signature: Signature, *, cache_only: bool = False, threads: int | None = None
) -> Launchable:
    """The launchable of `signature`; equal signatures share one.

    Its first call on a device loads the kernel from the launch cache, or compiles it. With `cache_only`, it raises
    UsageError instead of compiling. `threads` is the number of threads that compute on a CPU (default: the
    smallest of the usable physical cores, the CPU quota and `torch.get_num_threads()`).

    Raises UsageError for an invalid environment variable (see `environment`).
    """
    configure_logging()
    settings = launch_settings()

    def make() -> Launchable:
        kernels = OperationKernels(signature.operation, signature.func_name, settings, cache_only)
        return Launchable(signature.launch, kernels, threads=threads, driver_choices=_kept_drivers(settings))

    return _launchables.get((signature, settings, cache_only, threads or usable_threads()), make)


def get_packed_launch(signature: Signature, *, threads: int | None = None) -> PackedLaunch | Launchable:
    """Like `get_launchable`, for the CPU and a weight that can be packed before launches.

    Loads or compiles the kernel now, and raises the errors of a first launch. Returns a plain launchable if the kernel
    takes the weight as it is.
    """
    from dispatch_profiler.boo.launching.packing import packed_launch  # imported here: it needs torch

    configure_logging()
    settings = launch_settings()

    def make() -> PackedLaunch | Launchable:
        kernels = OperationKernels(signature.operation, signature.func_name, settings, packs_weight=True)
        kernel = kernels.kernel(_CPU)
        choices = _kept_drivers(settings)
        if kernel.packing is None:
            return Launchable(signature.launch, kernels, threads=threads, driver_choices=choices)
        return packed_launch(signature.launch, kernel, threads=threads, driver_choices=choices)

    return _packed.get((signature, settings, threads or usable_threads()), make)


def get_batch_launch(signature: Signature) -> PackedLaunch:
    """Like `get_packed_launch`, for a product: its kernel is for any number of rows, and launches of all numbers share it.

    Raises UsageError if there is no such kernel, besides the errors of a first launch.
    """
    from dispatch_profiler.boo.launching.packing import packed_launch  # imported here: it needs torch

    configure_logging()
    settings = launch_settings()

    def make() -> PackedLaunch:
        kernel = BatchKernels(signature.operation, settings).kernel(_CPU)
        return packed_launch(signature.launch, kernel, driver_choices=_kept_drivers(settings))

    return _of_rows.get((signature, settings, usable_threads()), make)


def launch_of_kernel(signature: Signature, kernel: LaunchKernel) -> PackedLaunch | Launchable:
    """The launch of a given kernel for the CPU, which no other caller shares."""
    from dispatch_profiler.boo.launching.packing import packed_launch  # imported here: it needs torch

    choices = _kept_drivers(launch_settings())
    if kernel.packing is None:
        return Launchable(signature.launch, GivenKernel(kernel), driver_choices=choices)
    return packed_launch(signature.launch, kernel, driver_choices=choices)


def forget_launches(operation: Operation) -> None:
    """Let later calls of `get_launchable` and `get_packed_launch` take the kernel that was chosen since.

    What callers hold keeps its kernel.
    """
    _launchables.drop(lambda key: key[0].operation == operation)
    _packed.drop(lambda key: key[0].operation == operation)
    SESSION.clear("regions")


def _kept_drivers(settings: LaunchSettings) -> DriverChoices:
    return DriverChoices(None if settings.cache_folder is None else Cache(settings.cache_folder))


# -- compiled kernel -------------------------------------------------------------------------------

# The kernel of a signature without its launchable: its own time, and the error bound of its sums.


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
