"""The kernels that launches of operations use, compiled for C."""

from __future__ import annotations

from collections.abc import Iterable

from dispatch_profiler.boo.environment import LaunchSettings, launch_settings
from dispatch_profiler.boo.kernels import KernelSearch, NeededKernel, Toolchain, target_of
from dispatch_profiler.boo.kernels.targets import CPU
from dispatch_profiler.compiler import Cache
from dispatch_profiler.errors import CompilerError
from dispatch_profiler.library.c_export.functions import CKernel, compiled
from dispatch_profiler.library.c_export.kernels import ExportedKernel, reason_against_c
from dispatch_profiler.runtime.device_uri import DeviceUri


def c_kernels(needed: Iterable[NeededKernel]) -> tuple[dict[NeededKernel, CKernel], dict[NeededKernel, str]]:
    """The kernel in C of each operation, and why others have none.

    Of the ways to compile an operation, the first one that launches would use and that C can call: what was measured to
    be the fastest on this machine, what the library has, what rules choose, and the compiler's default. Raises UsageError
    as launches do.
    """
    settings = launch_settings()
    toolchain = Toolchain.of(target_of(DeviceUri(CPU)), settings.tuning)
    found: dict[NeededKernel, CKernel] = {}
    reasons: dict[NeededKernel, str] = {}
    for each in dict.fromkeys(needed):
        kernel = _kernel(each, toolchain, settings)
        if isinstance(kernel, str):
            reasons[each] = kernel
        else:
            found[each] = kernel
    return found, reasons


def _kernel(needed: NeededKernel, toolchain: Toolchain, settings: LaunchSettings) -> CKernel | str:
    """The kernel, or why the first way to compile it failed."""
    operation = needed.operation
    search = KernelSearch(operation, operation.name, toolchain, packs_weight=needed.packs_weight)
    search.follow(None if settings.cache_folder is None else Cache(settings.cache_folder))
    reason = ""
    for variant in search.untried():
        kernel = ExportedKernel.of(variant.dispatch, toolchain.target, variant.flags)
        failure = reason_against_c(kernel)
        if not failure:
            try:
                return compiled(kernel)
            except CompilerError as error:
                failure = error.message
        reason = reason or failure
    return reason
