"""`get_launchable`: a signature -> a function that computes it on arrays and tensors."""

from __future__ import annotations

from dispatch_profiler.boo.environment import LaunchSettings, configure_logging, launch_settings
from dispatch_profiler.boo.interface import Signature
from dispatch_profiler.boo.kernels import DriverChoices, Memory, OperationKernels, forget_kernels
from dispatch_profiler.boo.launching import Launchable
from dispatch_profiler.compiler import Cache

#: Launchables in memory: more than the layers of a large model.
_LIMIT = 512
_launchables: Memory[tuple[Signature, LaunchSettings, bool, int | None], Launchable] = Memory(_LIMIT)


def get_launchable(
    signature: Signature, *, cache_only: bool = False, threads: int | None = None
) -> Launchable:
    """The launchable of `signature`; equal signatures share one.

    Its first call on a device loads the kernel from the launch cache, or compiles it. With `cache_only`, it raises
    UsageError instead of compiling. `threads` is the number of threads that compute on a CPU (default: one per
    physical core).

    Raises UsageError for an invalid environment variable (see `environment`).
    """
    configure_logging()
    settings = launch_settings()

    def make() -> Launchable:
        kernels = OperationKernels(signature.operation, signature.func_name, settings, cache_only)
        cache = None if settings.cache_folder is None else Cache(settings.cache_folder)
        return Launchable(signature.launch, kernels, threads=threads, driver_choices=DriverChoices(cache))

    return _launchables.get((signature, settings, cache_only, threads), make)


def forget_launchables() -> None:
    """Drop all launchables and kernels in memory; those that the program holds still work."""
    _launchables.clear()
    forget_kernels()
