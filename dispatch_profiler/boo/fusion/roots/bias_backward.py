"""Gradients of a bias alone, which are parts of a layer norm's gradients."""

from __future__ import annotations

from collections.abc import Sequence

from dispatch_profiler.boo.fusion.roots._base import RootFamily
from dispatch_profiler.boo.fusion.spec import RegionSpec
from dispatch_profiler.boo.launching.torch_types import Tensor


class BiasBackwardRoots(RootFamily):
    """See `RootFamily`. No node begins with one."""

    def compute(self, spec: RegionSpec, operands: Sequence[Tensor]) -> list[Tensor]:
        """See `RootFamily.compute`."""
        (gradient,) = spec.operation.operands
        return [operands[0].reshape(gradient.shape).sum((0, 2))]


FAMILY = BiasBackwardRoots()
