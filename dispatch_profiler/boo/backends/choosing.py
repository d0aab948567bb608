"""The measured choice: a region is ours only where our kernel is the faster one. Kept with the kernel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from dispatch_profiler.boo.backends.measuring import Measure, in_turns, region_seconds
from dispatch_profiler.boo.environment import launch_settings
from dispatch_profiler.boo.fusion.matching import Region
from dispatch_profiler.boo.fusion.nodes import value
from dispatch_profiler.boo.kernels import OperationKernels
from dispatch_profiler.compiler import Cache
from dispatch_profiler.cores import usable_cores
from dispatch_profiler.runtime.device_uri import DeviceUri

#: What a note says.
_OURS, _THEIRS = "ours", "theirs"


@dataclass(frozen=True)
class Choice:
    """Decides whether a region is fused, by timing it once beside the nested backend, or eager torch if that is None.

    Decisions are kept as notes beside the kernel in the cache; without a cache, for this process. `name` stands for the
    nested backend there.
    """

    name: str
    nested: Callable[[Any, Sequence[Any]], Any] | None
    measure: Measure = in_turns
    _known: dict[tuple[str, str], str] = field(default_factory=dict)

    def reason_against(self, region: Region, device: DeviceUri) -> str:
        """Why the region is left to the nested backend; empty if our kernel is faster.

        Raises what compiling or launching one of the two raises.
        """
        settings, operation = launch_settings(), region.spec.operation
        cache = None if settings.cache_folder is None else Cache(settings.cache_folder)
        kernels = OperationKernels(operation, operation.name, settings, packs_weight=region.spec.packs_weight)
        key = kernels.kernel(device).key
        note = self._note(region)
        found = self._known.get((key, note)) or (cache.notes(key).get(note) if cache else None)
        if found not in (_OURS, _THEIRS):
            ours, theirs = region_seconds(region, self.measure, self.nested)
            found = _OURS if ours <= theirs else _THEIRS
            if cache is not None:
                cache.add_note(key, note, found)
        self._known[key, note] = found
        return "" if found == _OURS else f"{self.name} is faster"

    def _note(self, region: Region) -> str:
        """What a decision depends on besides the kernel: torch, its threads, and how the model stores the inputs."""
        axes = ("".join(map(str, _order(value(each)))) for each in region.inputs)
        version = torch.__version__.partition("+")[0]
        return f"{self.name}-{version}-{torch.get_num_threads()}of{len(usable_cores())}t-{'_'.join(axes)}"


def _order(tensor: Any) -> list[int]:
    return sorted(range(tensor.dim()), key=lambda axis: (-tensor.stride(axis), axis))
