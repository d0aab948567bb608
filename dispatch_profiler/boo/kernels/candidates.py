"""Several kernels of each operation, compiled at once, from which the fastest is chosen by measuring."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from dispatch_profiler.boo.environment import LOGGER, LaunchSettings, launch_settings
from dispatch_profiler.boo.interface import LaunchKernel
from dispatch_profiler.boo.kernels.build import KernelSearch, Toolchain, find_kernels
from dispatch_profiler.boo.kernels.choices import KernelChoice, choice_name
from dispatch_profiler.boo.kernels.provider import KERNELS, kernel_place, remember_use
from dispatch_profiler.boo.kernels.targets import target_of
from dispatch_profiler.boo.kernels.variants import Variant
from dispatch_profiler.compiler import Cache
from dispatch_profiler.errors import DispatchProfilerError
from dispatch_profiler.operations import Operation
from dispatch_profiler.runtime.device_uri import DeviceUri
from dispatch_profiler.targets import Target

_log = logging.getLogger(LOGGER)


@dataclass(frozen=True)
class NeededKernel:
    """An operation whose kernel is needed, and whether it may take a packed weight."""

    operation: Operation
    packs_weight: bool


@dataclass(frozen=True)
class KernelCandidates:
    """The kernels of an operation to choose from, at least two: variants and kernels, the likely fastest first."""

    needed: NeededKernel
    target: Target
    settings: LaunchSettings
    #: The key of the operation's first variant, beside which the choice is noted.
    key: str
    every: tuple[tuple[Variant, LaunchKernel], ...]

    def keep(self, chosen: int, seconds: Sequence[float | None]) -> LaunchKernel:
        """Let later launches, also of other processes, use the kernel at `chosen`.

        `seconds` has the seconds per call of each kernel; None for kernels that cannot be used. Returns the chosen kernel.
        """
        measured = tuple(
            (variant.label, each)
            for (variant, _), each in zip(self.every, seconds, strict=True)
            if each is not None
        )
        variant, kernel = self.every[chosen]
        choice = KernelChoice(variant.dispatch.configuration, measured)
        if self.settings.cache_folder is not None:
            name = choice_name(packs_weight=self.needed.packs_weight)
            Cache(self.settings.cache_folder).add_note(self.key, name, choice.note)
        kernel = replace(kernel, measured=measured)
        packs_weight = self.needed.packs_weight
        KERNELS.put(kernel_place(self.needed.operation, self.target, self.settings, packs_weight), kernel)
        toolchain = Toolchain.of(self.target, self.settings.tuning)
        remember_use(variant, toolchain, packs_weight=packs_weight)
        return kernel


def is_promising(operation: Operation, device: DeviceUri) -> bool:
    """See `LaunchTuning.is_promising`. Raises UsageError and TargetError as launches do."""
    target = target_of(device)
    return Toolchain.of(target, launch_settings().tuning).tuning.is_promising(operation, target)


def prepare_candidates(
    needed: Iterable[NeededKernel], device: DeviceUri, workers: int
) -> tuple[dict[NeededKernel, KernelCandidates], dict[Operation, str]]:
    """Load or compile the kernels to choose from, `workers` at once: at most `MOST_CANDIDATES` of each operation.

    Returns the candidates of each operation that has several and was not measured on this machine, and why operations
    cannot be compiled. The kernels of other operations are kept in memory for launches. Raises UsageError and TargetError
    as launches do.
    """
    settings, target = launch_settings(), target_of(device)
    cache = None if settings.cache_folder is None else Cache(settings.cache_folder)
    toolchain = Toolchain.of(target, settings.tuning)
    first: dict[KernelSearch, tuple[NeededKernel, str]] = {}
    further: dict[KernelSearch, NeededKernel] = {}
    for each in dict.fromkeys(needed):
        known = KERNELS.find(kernel_place(each.operation, target, settings, each.packs_weight))
        if known is not None and known.measured:
            continue
        search = _search(each, toolchain)
        first[search] = each, search.key
        if not search.follow(cache):
            others = toolchain.tuning.candidates(each.operation, target, packs_weight=each.packs_weight)[1:]
            further |= {_search(each, toolchain, variant): each for variant in others}
    failures: dict[Operation, str] = {}
    kernels: dict[KernelSearch, LaunchKernel] = {}
    for search, kernel in find_kernels([*first, *further], cache, workers):
        if not isinstance(kernel, DispatchProfilerError):
            kernels[search] = kernel
        elif search in first:
            failures[first[search][0].operation] = kernel.message
        else:
            _log.info("%s; it is no candidate", kernel.message)
    found: dict[NeededKernel, KernelCandidates] = {}
    for search, (each, key) in first.items():
        if search not in kernels:
            continue
        KERNELS.put(kernel_place(each.operation, target, settings, each.packs_weight), kernels[search])
        remember_use(search.variant, toolchain, packs_weight=each.packs_weight)
        mine = [search, *(other for other, of in further.items() if of == each and other in kernels)]
        every = {kernels[one].key: (one.variant, kernels[one]) for one in mine}
        if len(every) > 1:
            found[each] = KernelCandidates(each, target, settings, key, tuple(every.values()))
    return found, failures


def _search(needed: NeededKernel, toolchain: Toolchain, *variants: Variant) -> KernelSearch:
    operation = needed.operation
    return KernelSearch(
        operation,
        operation.name,
        toolchain,
        packs_weight=needed.packs_weight,
        variants=variants or None,
    )
