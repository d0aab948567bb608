"""The kernels of regions: compiled at once, chosen by measuring, and left out where torch is faster."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily

from dispatch_profiler.boo.backends.candidate_times import attention_seconds, fastest_kernel
from dispatch_profiler.boo.backends.measuring import (
    Borders,
    Measure,
    borders_of,
    in_turns,
    once,
    region_seconds,
    trial_mode,
)
from dispatch_profiler.boo.driver.launch import forget_launches
from dispatch_profiler.boo.environment import LOGGER, LaunchSettings, launch_settings
from dispatch_profiler.boo.fusion.execute.checking import wrong_programs
from dispatch_profiler.boo.fusion.gpu_attention import AttentionCall
from dispatch_profiler.boo.fusion.match.matching import Region, Rejected
from dispatch_profiler.boo.fusion.nodes import value
from dispatch_profiler.boo.fusion.programs.programs import OperatorProgram
from dispatch_profiler.boo.fusion.roots.product import MATRIX_PRODUCT
from dispatch_profiler.boo.fusion.schema import GRADIENTS
from dispatch_profiler.boo.fusion.spec import RegionSpec
from dispatch_profiler.boo.interface import KernelProvider
from dispatch_profiler.boo.kernels import (
    BatchKernels,
    KernelCandidates,
    NeededKernel,
    OperationKernels,
    is_promising,
    prepare_batch_kernels,
    prepare_candidates,
    prepare_kernels,
)
from dispatch_profiler.boo.kernels.provider import KERNELS, KernelPlace
from dispatch_profiler.boo.ops.attention import attention_device, attention_signature
from dispatch_profiler.boo.ops.layouts import storage_order
from dispatch_profiler.boo.progress import current
from dispatch_profiler.compiler import Cache
from dispatch_profiler.console.plurals import counted
from dispatch_profiler.cores import usable_processes, usable_threads
from dispatch_profiler.errors import DispatchProfilerError
from dispatch_profiler.operations import Operation
from dispatch_profiler.runtime.device_uri import DeviceUri

_torch: Any = torch
_CPU = DeviceUri("local-task")
_log = logging.getLogger(LOGGER)


def device_of(region: Region) -> DeviceUri:
    """The device that the kernel of a region runs on."""
    device = value(region.inputs[0]).device
    return _CPU if device.type == "cpu" else DeviceUri("cuda", str(device.index or 0))


def unusable_kernels(regions: Sequence[Region]) -> dict[Any, str]:
    """Compile the kernels of all regions at once. Returns why operations have no kernel."""
    return _unusable((device_of(region), region.spec) for region in regions)


def has_kernels(regions: Sequence[RegionSpec]) -> bool:
    """Compile missing kernels for the CPU. Returns whether every region has a kernel with correct results."""
    if _unusable((_CPU, region) for region in regions):
        return False
    return not wrong_regions([region.operation for region in regions], _CPU)


def forget_kernels(regions: Sequence[RegionSpec]) -> None:
    """Let this process load the kernels of `regions` again: another process may have chosen faster ones."""
    for operation in {region.operation for region in regions}:
        KERNELS.drop(partial(_is_of, operation))
        forget_launches(operation)


def _is_of(operation: Operation, place: KernelPlace) -> bool:
    return place[0] == operation


def wrong_regions(operations: Iterable[Any], device: DeviceUri) -> dict[Any, str]:
    """Why the programs among `operations` have wrong results."""
    return wrong_programs((each for each in operations if isinstance(each, OperatorProgram)), device)


def _unusable(regions: Iterable[tuple[DeviceUri, RegionSpec]]) -> dict[Any, str]:
    by_device: dict[tuple[DeviceUri, bool], list[Any]] = {}
    of_any_batch = list[Any]()
    for uri, spec in regions:
        if spec.any_batch:
            of_any_batch.append(spec.operation)
        else:
            by_device.setdefault((uri, spec.packs_weight), []).append(spec.operation)
    failed: dict[Any, str] = prepare_batch_kernels(of_any_batch, usable_processes()) if of_any_batch else {}
    for (uri, packs_weight), operations in by_device.items():
        failed |= _failures(list(dict.fromkeys(operations)), uri, packs_weight=packs_weight)
    return failed


def _failures(operations: Sequence[Any], uri: DeviceUri, *, packs_weight: bool) -> dict[Any, str]:
    try:
        return prepare_kernels(operations, uri, usable_processes(), packs_weight=packs_weight)
    except DispatchProfilerError as error:
        if len(operations) == 1:
            return {operations[0]: str(error)}
    # One by one, so that an operation that fails, such as a program that cannot be imported, does not affect others.
    return {
        each: reason
        for one in operations
        for each, reason in _failures([one], uri, packs_weight=packs_weight).items()
    }


# -- region choice ---------------------------------------------------------------------------------

# Leaves a region to torch if our kernel is slower there. The cache keeps the measured times with the kernel.


#: A region whose first calls take this many times as long as torch's is not measured further: it may take seconds.
_HOPELESS = 4.0
#: Seconds that a region may take longer than torch if the graph has other regions: the approximate time of a change from
#: our threads to torch's and back. A region between operators of torch has to be faster by as much; a product, which torch
#: computes nearly as fast, also by the time of preparing a call whose tensors are at new addresses.
CHANGE, _CHANGE_OF_PRODUCT = 1e-4, 3e-4
#: Before a region is left to torch for good, it is measured again, since other programs may have disturbed the kernel;
#: unless a call takes so many seconds.
_LONG = 0.1
_NOT_PROMISING = "torch is faster: no kernel packs this weight, and none was tuned"
#: First calls may be disturbed: they count only if the difference exceeds this many seconds.
_NOTICEABLE = 1e-3


@dataclass(frozen=True)
class RegionTimes:
    """Seconds of a call of a region, by our kernel and by torch."""

    ours: float
    torchs: float

    def reason_against(self, limit: float, slack: float) -> str:
        """Why the region is left to torch; empty if our kernel is within `limit` times torch's time or `slack` s of it.

        A `slack` below 0 is what our kernel has to be faster by; then there is no other limit.
        """
        if self.ours - self.torchs <= slack or (slack >= 0 and self.ours <= limit * self.torchs):
            return ""
        return f"torch is faster: {self.torchs * 1e6:.0f} us, our kernel {self.ours * 1e6:.0f} us"

    def shorter(self, other: RegionTimes) -> RegionTimes:
        """The shorter times of two measurements."""
        return RegionTimes(min(self.ours, other.ours), min(self.torchs, other.torchs))

    @property
    def note(self) -> str:
        """The text for a cache."""
        return f"{self.ours * 1e6:.2f} {self.torchs * 1e6:.2f}"

    @classmethod
    def of(cls, note: str | None) -> RegionTimes | None:
        """The times in `note`; None if the note is missing or damaged."""
        try:
            ours, torchs = (float(each) / 1e6 for each in (note or "").split())
        except ValueError:
            return None
        return cls(ours, torchs) if math.isfinite(ours + torchs) and min(ours, torchs) >= 0 else None


@dataclass(frozen=True)
class RegionChoice:
    """Decides which kernel computes a region, or whether torch does, by timing each region once.

    `limits` maps roots to how many times as long as torch our kernel may take. Our kernels compute regions with other
    roots without timing. With `chooses_kernels`, the fastest of several kernels of a region is used on the CPU. Times and
    the configurations of these kernels are kept as notes beside a kernel in the cache; without a cache, times are kept for
    this graph. Regions with `optional` roots are tried only because they are measured: that some have no kernel is not
    reported. Regions with `judged` roots are compiled only if a rule says that their kernels may be fast enough. If regions
    are `apart`, with operators of torch between them, each is timed between two of these on a CPU, and has to save more
    time than measuring may be wrong by.
    """

    limits: Mapping[str, float]
    measure: Measure = in_turns
    chooses_kernels: bool = False
    optional: frozenset[str] = frozenset()
    judged: frozenset[str] = frozenset()
    apart: bool = False
    _known: dict[tuple[str, str], RegionTimes] = field(default_factory=dict)
    #: What is to be measured yet.
    _candidates: dict[NeededKernel, KernelCandidates] = field(default_factory=dict)

    def promising(self, regions: Sequence[Region]) -> tuple[list[Region], list[Rejected]]:
        """The regions that are worth compiling, and the rejected ones."""
        ours, others = list[Region](), list[Rejected]()
        for region in regions:
            if region.root not in self.judged or is_promising(region.spec.operation, device_of(region)):
                ours.append(region)
            else:
                others.append(Rejected(region.root, region.nodes[0], _NOT_PROMISING))
        return ours, others

    def prepared(self, regions: Sequence[Region]) -> dict[Any, str]:
        """Compile the kernels of all regions at once, with all candidates. Returns why operations have no kernel."""
        choosing = [
            each
            for each in regions
            if self.chooses_kernels and each.root in self.limits and device_of(each) == _CPU
        ]
        needed = dict.fromkeys(map(_needed, choosing))
        if not needed:
            return unusable_kernels(regions)
        try:
            found, failed = prepare_candidates(needed, _CPU, usable_processes())
        except DispatchProfilerError:  # of one operation, or all: each gets its own reason
            return unusable_kernels(regions)
        self._candidates.update(found)
        return failed | unusable_kernels([each for each in regions if _needed(each) not in needed])

    def chosen(self, regions: Sequence[Region]) -> tuple[list[Region], list[Rejected]]:
        """The regions that our kernels compute, and the rejected ones. Both sides are timed on real tensors."""
        ours, others = list[Region](), list[Rejected]()
        unset: Any = unset_fake_temporarily
        progress = current()
        with unset(), _torch._guards.tracing(None):
            for done, (region, borders) in enumerate(zip(regions, borders_of(regions), strict=True)):
                progress.phase(f"{done} of {counted(len(regions), 'region')} measured")
                slack = CHANGE if len(regions) > 1 and region.root not in GRADIENTS else 0.0
                if self._is_apart(region):
                    slack = -(_CHANGE_OF_PRODUCT if region.root == MATRIX_PRODUCT else CHANGE)
                try:
                    reason = self._reason_against(region, borders, device_of(region), slack)
                except Exception as error:
                    # Compilers, drivers and torch's operators raise errors of any kind. The model runs nevertheless,
                    # since torch computes the region; the reason is logged, and `explain` lists it.
                    reason = f"it cannot be timed: {error}"
                if reason:
                    others.append(Rejected(region.root, region.nodes[0], reason))
                    _log.info("%s: %s", region.spec.operation.name, reason)
                else:
                    ours.append(region)
        return ours, others

    def _reason_against(self, region: Region, borders: Borders, device: DeviceUri, slack: float) -> str:
        """Why the region is left to torch; empty if our kernel is fast enough, or need not be timed.

        Raises errors of compiling or running either side.
        """
        if region.root not in self.limits:
            return ""
        settings, limit = launch_settings(), self.limits[region.root]
        cache = None if settings.cache_folder is None else Cache(settings.cache_folder)
        key = kernels_of(region.spec, settings).kernel(device).key
        note = _note(region, borders, is_apart=self._is_apart(region))
        times = self._known.get((key, note)) or RegionTimes.of(cache.notes(key).get(note) if cache else None)
        candidates = self._candidates.pop(_needed(region), None)
        if candidates is not None:
            current().begin()
            key, times = self._chosen(region, borders, candidates)
        elif times is None:
            times = self.measured_times(region, borders)
        else:
            self._known[key, note] = times
            return times.reason_against(limit, slack)
        if times.reason_against(limit, slack) and times.ours < _LONG:
            times = times.shorter(self.measured_times(region, borders))
        if cache is not None:
            cache.add_note(key, note, times.note)
        self._known[key, note] = times
        return times.reason_against(limit, slack)

    def savings(self, regions: Sequence[Region]) -> list[float]:
        """Seconds that our kernel of each region saves, as `chosen` has measured; infinity if it was not timed."""
        settings = launch_settings()
        saved = []
        for region, borders in zip(regions, borders_of(regions), strict=True):
            key = kernels_of(region.spec, settings).kernel(device_of(region)).key
            times = self._known.get((key, _note(region, borders, is_apart=self._is_apart(region))))
            saved.append(math.inf if times is None else times.torchs - times.ours)
        return saved

    def _chosen(
        self, region: Region, borders: Borders, candidates: KernelCandidates
    ) -> tuple[str, RegionTimes]:
        """The key of the fastest kernel, which later launches use, and the region's times with it."""
        chosen, seconds, torchs = fastest_kernel(
            region, borders, candidates, self.measure, is_apart=self._is_apart(region)
        )
        kernel = candidates.keep(chosen, seconds)
        forget_launches(region.spec.operation)
        _log.info("%s: %s", region.spec.operation.name, measured_text(kernel.measured))
        ours = seconds[chosen]
        assert ours is not None  # it was measured
        return kernel.key, RegionTimes(ours, torchs)

    def measured_times(self, region: Region, borders: Borders) -> RegionTimes:
        """The times of a region, measured now; after its first calls only if neither side is hopeless."""
        current().begin()
        ours, torchs = region_seconds(region, once, borders=borders, is_brief=True)
        faster, slower = sorted((ours, torchs))
        if slower < _HOPELESS * faster or slower - faster < _NOTICEABLE:
            is_apart = self._is_apart(region)
            ours, torchs = region_seconds(region, self.measure, borders=borders, is_apart=is_apart)
        return RegionTimes(ours, torchs)

    def _is_apart(self, region: Region) -> bool:
        return self.apart and device_of(region) == _CPU


def kernels_of(spec: RegionSpec, settings: LaunchSettings) -> KernelProvider:
    """What supplies the kernel of a region."""
    operation = spec.operation
    if spec.any_batch:
        return BatchKernels(operation, settings)
    return OperationKernels(operation, operation.name, settings, packs_weight=spec.packs_weight)


def _needed(region: Region) -> NeededKernel:
    return NeededKernel(region.spec.operation, region.spec.packs_weight)


def measured_text(measured: Sequence[tuple[str, float]]) -> str:
    """Kernels with their seconds per call as text, the fastest first."""
    fastest_first = sorted(measured, key=lambda each: each[1])
    return ", ".join(f"{label} {seconds * 1e6:.0f} us" for label, seconds in fastest_first)


def _note(region: Region, borders: Borders, *, is_apart: bool) -> str:
    """The name of the note for a time: everything that the time depends on besides the kernel.

    This is torch, the numbers of threads, the order of the axes of inputs in memory, the copies at the borders, and
    whether torch's operators are around the region.
    """
    axes = ("".join(map(str, storage_order(value(each).stride()))) for each in region.inputs)
    version = torch.__version__.partition("+")[0]
    rows = f"-{region.spec.operation.operands[0].shape[0]}r" if region.spec.any_batch else ""
    frozen = "-frozen" if region.spec.frozen else ""
    apart = "-apart" if is_apart else ""
    copied = "".join(
        f"-{kind}{''.join(map(str, sorted(at)))}"
        for kind, at in (("i", borders.inputs), ("o", borders.results))
        if at
    )
    return f"time-{version}-{torch.get_num_threads()}of{usable_threads()}t-{'_'.join(axes)}{copied}{frozen}{apart}{rows}"


# -- attention on GPUs -----------------------------------------------------------------------------


def attention_choice(*, measures: bool) -> Callable[[AttentionCall], bool]:
    """Whether a kernel of this package computes an attention on a GPU; with `measures`, whether it is faster than torch's.

    Compiles the kernel. Both sides are timed in CUDA graphs; the cache keeps the times.
    """
    return partial(_attends_faster, measures=measures)


def _attends_faster(call: AttentionCall, *, measures: bool) -> bool:
    """See `attention_choice`."""
    unset: Any = unset_fake_temporarily
    query, key, values, mask = tensors = [each if each is None else value(each) for each in call.tensors]
    try:
        signature = attention_signature(query, key, values, mask, call.is_causal, call.scale)
        if signature is None:
            return False
        settings = launch_settings()
        kernels = OperationKernels(signature.operation, signature.func_name, settings)
        of_kernel = kernels.kernel(attention_device(query)).key
        if not measures:
            return True
        note = _attention_note(tensors)
        cache = None if settings.cache_folder is None else Cache(settings.cache_folder)
        times = RegionTimes.of(cache.notes(of_kernel).get(note) if cache else None)
        if times is None:
            current().begin()
            with unset(), _torch._guards.tracing(None), trial_mode():
                times = RegionTimes(*attention_seconds(call))
            if cache is not None:
                cache.add_note(of_kernel, note, times.note)
        reason = times.reason_against(1.0, 0.0)
    except Exception as error:
        # torch, Triton and drivers raise errors of any kind; torch computes the attention.
        reason = f"it cannot be used: {error}"
    if reason:
        _log.info("an attention of %s: %s", tuple(value(call.query).shape), reason)
    return not reason


def _attention_note(tensors: Sequence[Any]) -> str:
    """The name of the note for a time. Where tensors are parts of others, copies are part of it."""
    strides = ("x".join(map(str, each.stride())) for each in tensors if each is not None)
    return f"attention-{torch.__version__.partition('+')[0]}-{'_'.join(strides)}"
