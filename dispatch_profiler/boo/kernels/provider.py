"""Supplies the kernels of one operation, from the memory of this process, the cache, or the compiler."""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterable, Iterator, MutableMapping
from dataclasses import dataclass, field
from pathlib import Path

from dispatch_profiler.boo.environment import LOGGER, LaunchSettings, launch_settings
from dispatch_profiler.boo.interface import LaunchKernel
from dispatch_profiler.boo.kernels.build import KernelSearch, Toolchain, find_kernels
from dispatch_profiler.boo.kernels.lru_memory import Memory
from dispatch_profiler.boo.kernels.targets import target_of
from dispatch_profiler.boo.kernels.uses import USES, use_of
from dispatch_profiler.boo.kernels.variants import Variant
from dispatch_profiler.boo.session import SESSION
from dispatch_profiler.compiler import Cache
from dispatch_profiler.cores import usable_threads
from dispatch_profiler.errors import DispatchProfilerError, UsageError
from dispatch_profiler.files.private_files import NotPrivate
from dispatch_profiler.operations import Operation
from dispatch_profiler.runtime.device_uri import DeviceUri
from dispatch_profiler.targets import Target

#: Number of kernels in memory. A kernel for a CPU has 10 to 500 KB.
_LIMIT = 256
#: What a kernel in memory is for: see `kernel_place`.
KernelPlace = tuple[Operation, bool, Target, LaunchSettings, int]
#: The kernels of this process.
KERNELS: Memory[KernelPlace, LaunchKernel] = SESSION.keep("kernels", Memory(_LIMIT))


def kernel_place(
    operation: Operation, target: Target, settings: LaunchSettings, packs_weight: bool
) -> KernelPlace:
    """The key in `KERNELS` of the kernel that launches on the threads at hand use."""
    return operation, packs_weight, target, settings, usable_threads()


@dataclass(frozen=True)
class OperationKernels:
    """The `KernelProvider` of `operation`. `name` labels its kernels in the cache.

    With `cache_only`, a kernel that is not in the cache raises UsageError instead of being compiled. With
    `packs_weight`, the kernel takes a packed weight if its configuration packs it (`LaunchKernel.packing`).
    """

    operation: Operation
    name: str
    settings: LaunchSettings
    cache_only: bool = False
    packs_weight: bool = False

    def kernel(self, device: DeviceUri) -> LaunchKernel:
        """See `KernelProvider.kernel`."""
        target = target_of(device)
        place = kernel_place(self.operation, target, self.settings, self.packs_weight)
        return KERNELS.get(place, lambda: self._find(target))

    def _find(self, target: Target) -> LaunchKernel:
        folder = self.settings.cache_folder
        cache = None if folder is None else Cache(folder)
        toolchain = Toolchain.of(target, self.settings.tuning)
        search = KernelSearch(self.operation, self.name, toolchain, packs_weight=self.packs_weight)
        kernel = search.look_up(cache)
        if kernel is None and self.cache_only:
            raise UsageError(
                f"{self.name} for {target.name} is not in the launch cache ({folder or 'BOO_CACHE_ON is 0'})",
                hint="compile it with dispatch-profiler preload, or launch without cache_only",
            )
        if kernel is None:
            if cache is not None:
                warn_unless_writable(cache.folder)
            ((_, kernel),) = find_kernels([search], cache, workers=1)
        if isinstance(kernel, DispatchProfilerError):
            raise kernel
        remember_use(search.variant, toolchain, packs_weight=self.packs_weight)
        return kernel


def remember_use(variant: Variant, toolchain: Toolchain, *, packs_weight: bool) -> None:
    """Note that launches use the kernel of `variant`, and where it comes from."""
    use = use_of(variant, toolchain.tuning, toolchain.target, packs_weight=packs_weight)
    USES.add(use, packs_weight=packs_weight)


def prepare_kernels(
    operations: Iterable[Operation], device: DeviceUri, workers: int, *, packs_weight: bool = False
) -> dict[Operation, str]:
    """Load or compile the kernels of `operations` into memory, `workers` at once, for later launches.

    `packs_weight` is as in `OperationKernels`. Returns why operations cannot be compiled. Raises UsageError and
    TargetError as launches do.
    """
    settings, target = launch_settings(), target_of(device)
    cache = None if settings.cache_folder is None else Cache(settings.cache_folder)
    toolchain = Toolchain.of(target, settings.tuning)
    searches = {
        KernelSearch(each, each.name, toolchain, packs_weight=packs_weight): each
        for each in dict.fromkeys(operations)
    }
    failures = {}
    for search, kernel in find_kernels(list(searches), cache, workers):
        operation = searches[search]
        if isinstance(kernel, DispatchProfilerError):
            failures[operation] = kernel.message
        else:
            place = kernel_place(operation, target, settings, packs_weight)
            KERNELS.get(place, lambda kernel=kernel: kernel)  # type: ignore[misc]
            remember_use(search.variant, toolchain, packs_weight=packs_weight)
    return failures


@functools.cache
def warn_unless_writable(folder: Path) -> None:
    """Log, once for each folder, that kernels cannot be kept there."""
    try:
        Cache(folder).check_writable()
    except NotPrivate:
        return  # the cache has warned
    except UsageError as error:
        logging.getLogger(LOGGER).warning("%s; every process will compile its kernels again", error)


# -- driver choices --------------------------------------------------------------------------------

# Which driver of the CPU runs each kernel, as notes beside the kernels in the cache.


@dataclass
class DriverChoices(MutableMapping[str, str]):
    """`KERNEL-2t` -> driver, where KERNEL is the key of a kernel; without a cache, only for this process.

    Iteration yields what this process read or wrote.
    """

    cache: Cache | None
    _known: dict[str, str] = field(default_factory=dict)

    def __getitem__(self, key: str) -> str:
        if key not in self._known and self.cache is not None:
            kernel, _, threads = key.rpartition("-")
            driver = self.cache.notes(kernel).get(threads)
            if driver is not None:
                self._known[key] = driver
        return self._known[key]

    def __setitem__(self, key: str, value: str) -> None:
        self._known[key] = value
        if self.cache is not None:
            kernel, _, threads = key.rpartition("-")
            self.cache.add_note(kernel, threads, value)

    def __delitem__(self, key: str) -> None:
        del self._known[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)
