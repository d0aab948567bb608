"""Supplies kernels for any number of rows or images, or for a range of them, which launches with different numbers share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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
#: What the kernel is compiled for, target, settings and threads at hand -> kernel.
_kernels: Memory[tuple[Dispatch, Target, LaunchSettings, int], LaunchKernel] = SESSION.keep(
    "batch_kernels", Memory(_LIMIT)
)
#: Operation with the largest batch, target and threads -> the kernel that a rule chooses for any batch, if there is one.
_ruled: Memory[tuple[Operation, Target, int], Dispatch | None] = SESSION.keep("batch_rules", Memory(_LIMIT))
_CPU = DeviceUri("local-task")


@dataclass(frozen=True)
class BatchKernels:
    """The `KernelProvider` of `operation`: its kernel packs the weight, and is for several numbers of rows or images.

    An entry of the library has a range of these numbers; a kernel that a rule chooses is for any number.
    """

    operation: Operation
    settings: LaunchSettings

    def kernel(self, device: DeviceUri) -> LaunchKernel:
        """See `KernelProvider.kernel`. Raises UsageError if no kernel is for any number of rows or images."""
        target = target_of(device)
        variants = _variants(self.operation, Toolchain.of(target, self.settings.tuning))
        place = variants[0].dispatch, target, self.settings, usable_threads()
        kernel = _kernels.get(place, lambda: self._find(variants, target))
        batch = self.operation.operands[0].shape[0]
        # Which driver is faster depends on the batch.
        return replace(kernel, scale=f"{1 << (batch - 1).bit_length()}r")

    def _find(self, variants: Sequence[Variant], target: Target) -> LaunchKernel:
        search = _search(variants, Toolchain.of(target, self.settings.tuning))
        folder = self.settings.cache_folder
        cache = None if folder is None else Cache(folder)
        if cache is not None:
            warn_unless_writable(cache.folder)
        ((_, kernel),) = find_kernels([search], cache, workers=1)
        if isinstance(kernel, DispatchProfilerError):
            raise kernel
        return kernel


def prepare_batch_kernels(operations: Iterable[Operation], workers: int) -> dict[Operation, str]:
    """Load or compile the kernels for several numbers of rows or images of `operations`, on the CPU, `workers` at once.

    Entries of the library for several sizes of an operation are prepared, whatever its size is. Returns why operations have
    no kernel.
    """
    settings, target = launch_settings(), target_of(_CPU)
    toolchain = Toolchain.of(target, settings.tuning)
    cache = None if settings.cache_folder is None else Cache(settings.cache_folder)
    failures, wanted = dict[Operation, str](), dict[Dispatch, list[Operation]]()
    searches = dict[KernelSearch, Dispatch]()
    for operation in operations:
        try:
            every = _every_variants(operation, toolchain)
        except UsageError as error:
            failures[operation] = error.message
            continue
        for variants in every:
            first = variants[0].dispatch
            if first not in wanted:
                searches[_search(variants, toolchain)] = first
            wanted.setdefault(first, [])
        wanted[every[0][0].dispatch].append(operation)  # the kernel for its own size
    for search, kernel in find_kernels(list(searches), cache, workers):
        first = searches[search]
        if isinstance(kernel, DispatchProfilerError):
            failures |= dict.fromkeys(wanted[first], kernel.message)
        else:
            place = first, target, settings, usable_threads()
            _kernels.get(place, lambda kernel=kernel: kernel)  # type: ignore[misc]
            for each in wanted[first]:
                lookup = toolchain.tuning.lookup_for_sizes(each)
                use = use_of_any_batch(each, search.variant.dispatch.configuration, lookup)
                USES.add(use, packs_weight=True)
    return failures


def any_batch_keys(operations: Iterable[Operation]) -> list[str]:
    """The keys in the cache of what `prepare_batch_kernels` compiles for those operations that have such a kernel."""
    toolchain = Toolchain.of(target_of(_CPU), launch_settings().tuning)
    keys = dict[str, None]()
    for operation in operations:
        with suppress(UsageError):
            for variants in _every_variants(operation, toolchain):
                keys[_search(variants, toolchain).key] = None
    return list(keys)


def _every_variants(operation: Operation, toolchain: Toolchain) -> list[Sequence[Variant]]:
    """The variants for the size of `operation`, then for each entry for several sizes."""
    sized = [operation.with_batch(sizes.least) for sizes in toolchain.tuning.sizes_of(operation)]
    return [_variants(each, toolchain) for each in (operation, *sized) if each is not None]


def _variants(operation: Operation, toolchain: Toolchain) -> Sequence[Variant]:
    """The kernel of the library's entry for several sizes, if `operation` has one of these, and what the rule chooses.

    Raises UsageError if there is neither.
    """
    whole = of_any_batch(operation)
    if whole is None:
        raise UsageError(
            f"{operation.name}: no kernel is for any number of rows or images of such an operation"
        )
    target = toolchain.target
    lookup = toolchain.tuning.lookup_for_sizes(operation)
    tuned = None if lookup is None else lookup.dispatch
    ruled = _ruled.get((whole, target, usable_threads()), lambda: _by_rule(whole, target))
    found = [Variant(each) for each in (tuned, ruled) if each is not None]
    if not found:
        raise UsageError(f"{whole.name}: no kernel for {target.name} is for any number of rows or images")
    return found


def _by_rule(whole: Operation, target: Target) -> Dispatch | None:
    kernel = any_batch_kernel(whole, target)
    return None if kernel is None else Dispatch(whole, kernel)


def _search(variants: Sequence[Variant], toolchain: Toolchain) -> KernelSearch:
    operation = variants[0].dispatch.operation
    return KernelSearch(operation, operation.name, toolchain, packs_weight=True, variants=variants)
