"""Leaves a region to torch if our kernel is slower there. The cache keeps the measured times with the kernel."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily

from dispatch_profiler.boo.backends.borders import Borders, borders_of
from dispatch_profiler.boo.backends.measuring import Measure, in_turns, once, region_seconds
from dispatch_profiler.boo.environment import LOGGER, launch_settings
from dispatch_profiler.boo.fusion.match.matching import Region, Rejected
from dispatch_profiler.boo.fusion.nodes import value
from dispatch_profiler.boo.fusion.schema import GRADIENTS
from dispatch_profiler.boo.kernels import OperationKernels
from dispatch_profiler.compiler import Cache
from dispatch_profiler.cores import usable_cores
from dispatch_profiler.runtime.device_uri import DeviceUri

_torch: Any = torch
_log = logging.getLogger(LOGGER)
DeviceOf = Callable[[Region], DeviceUri]
#: A region whose first calls take this many times as long as torch's is not measured further: it may take seconds.
_HOPELESS = 4.0
#: Seconds that a region may take longer than torch if the graph has other regions: the approximate time of a change from
#: our threads to torch's and back.
_CHANGE = 1e-4
#: First calls may be disturbed: they count only if the difference exceeds this many seconds.
_NOTICEABLE = 1e-3


@dataclass(frozen=True)
class RegionTimes:
    """Seconds of a call of a region, by our kernel and by torch."""

    ours: float
    torchs: float

    def reason_against(self, limit: float, slack: float) -> str:
        """Why the region is left to torch; empty if our kernel is within `limit` times torch's time or `slack` s of it."""
        if self.ours <= limit * self.torchs or self.ours - self.torchs <= slack:
            return ""
        return f"torch is faster: {self.torchs * 1e6:.0f} us, our kernel {self.ours * 1e6:.0f} us"

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
    """Decides whether our kernels or torch compute regions, by timing each region once.

    `limits` maps roots to how many times as long as torch our kernel may take. Our kernels compute regions with other
    roots without timing. Times are kept as notes beside the kernel in the cache; without a cache, for this graph.
    """

    limits: Mapping[str, float]
    measure: Measure = in_turns
    _known: dict[tuple[str, str], RegionTimes] = field(default_factory=dict)

    def chosen(self, regions: Sequence[Region], device_of: DeviceOf) -> tuple[list[Region], list[Rejected]]:
        """The regions that our kernels compute, and the rejected ones. Both sides are timed on real tensors."""
        ours, others = list[Region](), list[Rejected]()
        unset: Any = unset_fake_temporarily
        with unset(), _torch._guards.tracing(None):
            for region, borders in zip(regions, borders_of(regions), strict=True):
                slack = _CHANGE if len(regions) > 1 and region.root not in GRADIENTS else 0.0
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
        settings, operation = launch_settings(), region.spec.operation
        cache = None if settings.cache_folder is None else Cache(settings.cache_folder)
        kernels = OperationKernels(operation, operation.name, settings, packs_weight=region.spec.packs_weight)
        key, note = kernels.kernel(device).key, _note(region, borders)
        times = self._known.get((key, note)) or RegionTimes.of(cache.notes(key).get(note) if cache else None)
        if times is None:
            times = self._times(region, borders)
            if cache is not None:
                cache.add_note(key, note, times.note)
        self._known[key, note] = times
        return times.reason_against(self.limits[region.root], slack)

    def _times(self, region: Region, borders: Borders) -> RegionTimes:
        ours, torchs = region_seconds(region, once, borders=borders, is_brief=True)
        if ours < _HOPELESS * torchs or ours - torchs < _NOTICEABLE:
            ours, torchs = region_seconds(region, self.measure, borders=borders)
        return RegionTimes(ours, torchs)


def _note(region: Region, borders: Borders) -> str:
    """The name of the note for a time: everything that the time depends on besides the kernel.

    This is torch, the numbers of threads, the order of the axes of inputs in memory, and the copies at the borders.
    """
    axes = ("".join(map(str, _order(value(each)))) for each in region.inputs)
    version = torch.__version__.partition("+")[0]
    frozen = "-frozen" if region.spec.frozen else ""
    copied = "".join(
        f"-{kind}{''.join(map(str, sorted(at)))}"
        for kind, at in (("i", borders.inputs), ("o", borders.results))
        if at
    )
    return (
        f"time-{version}-{torch.get_num_threads()}of{len(usable_cores())}t-{'_'.join(axes)}{copied}{frozen}"
    )


def _order(tensor: Any) -> list[int]:
    return sorted(range(tensor.dim()), key=lambda axis: (-tensor.stride(axis), axis))
