"""Supplies kernels for any number of rows or images, which launches with different numbers of them share."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace

from dispatch_profiler.boo.environment import LaunchSettings, launch_settings
from dispatch_profiler.boo.interface import LaunchKernel
from dispatch_profiler.boo.kernels.build import KernelSearch, Toolchain, find_kernels
from dispatch_profiler.boo.kernels.lru_memory import Memory
from dispatch_profiler.boo.kernels.provider import warn_unless_writable
from dispatch_profiler.boo.kernels.targets import target_of
from dispatch_profiler.boo.kernels.uses import USES, use_of_any_batch
from dispatch_profiler.boo.kernels.variants import Variant
from dispatch_profiler.boo.session import SESSION
from dispatch_profiler.compiler import Cache
from dispatch_profiler.cores import usable_threads
from dispatch_profiler.dispatches import Dispatch
from dispatch_profiler.errors import DispatchProfilerError, UsageError
from dispatch_profiler.operations import Operation
from dispatch_profiler.runtime.device_uri import DeviceUri
from dispatch_profiler.targets import Target, any_batch_kernel, of_any_batch

#: Number of kernels in memory.
_LIMIT = 256
#: Operation with the largest batch, target, settings and threads at hand -> kernel.
_kernels: Memory[tuple[Operation, Target, LaunchSettings, int], LaunchKernel] = SESSION.keep(
    "batch_kernels", Memory(_LIMIT)
)
_CPU = DeviceUri("local-task")


@dataclass(frozen=True)
class BatchKernels:
    """The `KernelProvider` of `operation`: its kernel packs the weight, and is for any number of rows or images."""

    operation: Operation
    settings: LaunchSettings

    def kernel(self, device: DeviceUri) -> LaunchKernel:
        """See `KernelProvider.kernel`. Raises UsageError if no kernel is for any number of rows or images."""
        target = target_of(device)
        whole = _most(self.operation)
        place = whole, target, self.settings, usable_threads()
        kernel = _kernels.get(place, lambda: self._find(whole, target))
        batch = self.operation.operands[0].shape[0]
        # Which driver is faster depends on the batch.
        return replace(kernel, scale=f"{1 << (batch - 1).bit_length()}r")

    def _find(self, whole: Operation, target: Target) -> LaunchKernel:
        search = _search(whole, Toolchain.of(target, self.settings.tuning))
        folder = self.settings.cache_folder
        cache = None if folder is None else Cache(folder)
        if cache is not None:
            warn_unless_writable(cache.folder)
        ((_, kernel),) = find_kernels([search], cache, workers=1)
        if isinstance(kernel, DispatchProfilerError):
            raise kernel
        return kernel


def prepare_batch_kernels(operations: Iterable[Operation], workers: int) -> dict[Operation, str]:
    """Load or compile the kernels for any number of rows or images of `operations`, on the CPU, `workers` at once.

    Returns why operations have none.
    """
    settings, target = launch_settings(), target_of(_CPU)
    toolchain = Toolchain.of(target, settings.tuning)
    cache = None if settings.cache_folder is None else Cache(settings.cache_folder)
    failures, wanted = dict[Operation, str](), dict[Operation, list[Operation]]()
    for operation in operations:
        try:
            wanted.setdefault(_most(operation), []).append(operation)
        except UsageError as error:
            failures[operation] = error.message
    searches = dict[KernelSearch, Operation]()
    for whole, of_kernel in wanted.items():
        try:
            searches[_search(whole, toolchain)] = whole
        except UsageError as error:
            failures |= dict.fromkeys(of_kernel, error.message)
    for search, kernel in find_kernels(list(searches), cache, workers):
        whole = searches[search]
        if isinstance(kernel, DispatchProfilerError):
            failures |= dict.fromkeys(wanted[whole], kernel.message)
        else:
            place = whole, target, settings, usable_threads()
            _kernels.get(place, lambda kernel=kernel: kernel)  # type: ignore[misc]
            for each in wanted[whole]:
                USES.add(use_of_any_batch(each, search.variant.dispatch.configuration), packs_weight=True)
    return failures


def any_batch_keys(operations: Iterable[Operation]) -> list[str]:
    """The keys in the cache of the kernels for any number of rows or images, on the CPU, of those operations that have one."""
    toolchain = Toolchain.of(target_of(_CPU), launch_settings().tuning)
    keys = dict[str, None]()
    for operation in operations:
        with suppress(UsageError):
            keys[_search(_most(operation), toolchain).key] = None
    return list(keys)


def _most(operation: Operation) -> Operation:
    whole = of_any_batch(operation)
    if whole is None:
        raise UsageError(
            f"{operation.name}: no kernel is for any number of rows or images of such an operation"
        )
    return whole


def _search(whole: Operation, toolchain: Toolchain) -> KernelSearch:
    """Raises UsageError if no kernel of the target is for any number of rows or images."""
    kernel = any_batch_kernel(whole, toolchain.target)
    if kernel is None:
        raise UsageError(
            f"{whole.name}: no kernel for {toolchain.target.name} is for any number of rows or images"
        )
    variants = [Variant(Dispatch(whole, kernel))]
    return KernelSearch(whole, whole.name, toolchain, packs_weight=True, variants=variants)
