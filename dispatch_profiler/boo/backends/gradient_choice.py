"""The measured choice of gradients: one is ours only where our kernel is faster than torch. Kept with the kernel."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily

from dispatch_profiler.boo.backends.measuring import Measure, in_turns, region_seconds
from dispatch_profiler.boo.environment import LOGGER, launch_settings
from dispatch_profiler.boo.fusion.matching import Region, Rejected
from dispatch_profiler.boo.fusion.nodes import value
from dispatch_profiler.boo.fusion.schema import Root
from dispatch_profiler.boo.kernels import OperationKernels
from dispatch_profiler.compiler import Cache
from dispatch_profiler.cores import usable_cores
from dispatch_profiler.runtime.device_uri import DeviceUri

_torch: Any = torch
_log = logging.getLogger(LOGGER)
DeviceOf = Callable[[Region], DeviceUri]
#: What a note says.
_OURS, _THEIRS = "ours", "theirs"


@dataclass(frozen=True)
class GradientChoice:
    """Decides whether a gradient is ours, by timing it once beside eager torch, which computes it otherwise.

    Regions whose roots are not in `roots` are ours without being timed. Decisions are kept as notes beside the kernel
    in the cache; without a cache, for this graph.
    """

    roots: frozenset[Root]
    measure: Measure = in_turns
    _known: dict[tuple[str, str], str] = field(default_factory=dict)

    def chosen(self, regions: Sequence[Region], device_of: DeviceOf) -> tuple[list[Region], list[Rejected]]:
        """The regions that are ours, and the others. Both sides are measured with real tensors."""
        ours, others = list[Region](), list[Rejected]()
        unset: Any = unset_fake_temporarily
        with unset(), _torch._guards.tracing(None):
            for region in regions:
                try:
                    reason = self.reason_against(region, device_of(region))
                except Exception as error:
                    reason = f"it cannot be timed: {error}"
                if reason:
                    others.append(Rejected(region.root, region.nodes[0], reason))
                    _log.info("%s: %s", region.spec.operation.name, reason)
                else:
                    ours.append(region)
        return ours, others

    def reason_against(self, region: Region, device: DeviceUri) -> str:
        """Why the region is left to torch; empty if our kernel is faster, or not to be timed.

        Raises what compiling or launching one of the two raises.
        """
        if region.root not in self.roots:
            return ""
        settings, operation = launch_settings(), region.spec.operation
        cache = None if settings.cache_folder is None else Cache(settings.cache_folder)
        key = OperationKernels(operation, operation.name, settings).kernel(device).key
        note = self._note(region)
        found = self._known.get((key, note)) or (cache.notes(key).get(note) if cache else None)
        if found not in (_OURS, _THEIRS):
            ours, theirs = region_seconds(region, self.measure)
            found = _OURS if ours <= theirs else _THEIRS
            if cache is not None:
                cache.add_note(key, note, found)
        self._known[key, note] = found
        return "" if found == _OURS else "torch is faster"

    def _note(self, region: Region) -> str:
        """What a decision depends on besides the kernel: torch, its threads, and how the model stores the inputs."""
        axes = ("".join(map(str, _order(value(each)))) for each in region.inputs)
        version = torch.__version__.partition("+")[0]
        return f"gradient-{version}-{torch.get_num_threads()}of{len(usable_cores())}t-{'_'.join(axes)}"


def _order(tensor: Any) -> list[int]:
    return sorted(range(tensor.dim()), key=lambda axis: (-tensor.stride(axis), axis))
