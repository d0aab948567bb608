"""Packs weights before launches, and launches kernels on packed weights."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import iree.runtime as rt
import torch

from dispatch_profiler.boo.interface import ALIGNMENT, GivenKernel, LaunchKernel, LaunchSpec, TensorSpec
from dispatch_profiler.boo.launching.array_library import host_views
from dispatch_profiler.boo.launching.launchable import Launchable
from dispatch_profiler.boo.launching.loading import TASK, load
from dispatch_profiler.boo.launching.torch_types import TYPES, Tensor
from dispatch_profiler.runtime.iree import IreeDevice

#: The weight's position among the operands.
_WEIGHT = 1


@dataclass(frozen=True, eq=False)
class PackedLaunch:
    """A launch on the CPU with a packed weight: `launchable` takes the tensors that `pack` returns as the weight."""

    launchable: Launchable
    kernel: LaunchKernel

    @property
    def recipe(self) -> object:
        """Identifies the packing: equal recipes pack equal weights into equal tensors."""
        assert self.kernel.packing is not None  # `packed_launch`
        return self.kernel.packing.recipe

    @property
    def count(self) -> int:
        """The number of packed tensors."""
        assert self.kernel.packing is not None
        return len(self.kernel.packing.tensors)

    def pack(self, weight: Tensor) -> tuple[Tensor, ...]:
        """The packed tensors of `weight`, each with one axis.

        `weight` is on the CPU, in the memory order of the operation's operand. Raises RunError.
        """
        packing = self.kernel.packing
        assert packing is not None
        operation = self.launchable.spec.operation
        weight = weight.detach().reshape(-1)
        if weight.is_neg() or weight.data_ptr() % ALIGNMENT:
            weight = weight.clone().resolve_neg()
        packed = tuple(
            torch.empty(each.elements, dtype=TYPES[each.type.name], device="cpu") for each in packing.tensors
        )
        # Loaded for this call only: packing is rare.
        device = IreeDevice(TASK)
        loaded = load(replace(self.kernel, function=packing.function), device, operation.name, len(packed))
        passed = rt.VmVariantList(1 + len(packed))
        for tensor, spec in zip(
            (weight, *packed), (operation.operands[_WEIGHT], *packing.tensors), strict=True
        ):
            passed.push_ref(host_views(device, spec.shape, spec.type)(tensor.data_ptr()))
        loaded.run(passed)
        return packed


def packed_launch(spec: LaunchSpec, kernel: LaunchKernel, **options: Any) -> PackedLaunch:
    """The launch of `kernel`, which has a packing. `spec` has the unpacked weight; Launchable takes `options`."""
    assert kernel.packing is not None
    tensors = kernel.packing.tensors
    arguments: list[TensorSpec] = []
    for each in spec.arguments:
        if each.position == _WEIGHT:
            arguments += [
                TensorSpec(tensor.name, (tensor.elements,), tensor.type, tensor.shape, _WEIGHT + at)
                for at, tensor in enumerate(tensors)
            ]
        else:
            moved = len(tensors) - 1 if each.position > _WEIGHT else 0
            arguments.append(replace(each, position=each.position + moved))
    # Another kernel of the operation might take other packed tensors.
    launchable = Launchable(replace(spec, arguments=tuple(arguments)), GivenKernel(kernel), **options)
    return PackedLaunch(launchable, kernel)
