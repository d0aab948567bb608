"""Scale and shift of batch norms in inference: batch_norm(x) = x * scale + shift, per channel."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

import torch

from dispatch_profiler.boo.launching.torch_types import Tensor

#: Vectors that are computed together start at multiples of this many elements, since kernels read aligned memory.
_ALIGNED_ELEMENTS = 64
#: Devices on which many small operators take no longer than a few large ones.
ONE_BY_ONE = frozenset(("cpu",))


class BatchNorm(NamedTuple):
    """The vectors of a batch norm, with one element per channel. A missing `weight` is 1, a missing `bias` is 0."""

    weight: Tensor | None
    variance: Tensor
    bias: Tensor | None
    mean: Tensor | None
    eps: float

    @classmethod
    def of(cls, vectors: Sequence[Tensor | None], eps: float) -> BatchNorm:
        """The batch norm of a scale, from (weight, variance), or of a shift, from (weight, variance, bias, mean)."""
        weight, variance, bias, mean = (*vectors, None, None)[:4]
        assert variance is not None
        return cls(weight, variance, bias, mean, eps)

    @property
    def vector(self) -> Tensor:
        """The scale, weight / sqrt(variance + eps), or with a mean the shift, bias - mean * scale; rounded once."""
        vector = torch.rsqrt(self.variance.double() + self.eps)
        if self.weight is not None:
            vector = vector * self.weight.double()
        if self.mean is not None:
            vector = -self.mean.double() * vector
            vector = vector if self.bias is None else vector + self.bias.double()
        return vector.to(self.variance.dtype)


def scales_and_shifts(norms: Sequence[BatchNorm], one_by_one: Collection[str] = ONE_BY_ONE) -> list[Tensor]:
    """The shift of each batch norm, or its scale if it has no mean.

    Except on the devices `one_by_one`, a few kernels compute all vectors of a model, instead of several for each vector.
    """
    vectors: list[Tensor | None] = [None] * len(norms)
    alike: dict[object, list[int]] = {}
    for number, norm in enumerate(norms):
        key = norm.variance.device, norm.variance.dtype, norm.eps, norm.mean is None
        alike.setdefault(key, []).append(number)
    for numbers in alike.values():
        alike_vectors = _vectors([norms[each] for each in numbers], one_by_one)
        for number, vector in zip(numbers, alike_vectors, strict=True):
            vectors[number] = vector
    return [each for each in vectors if each is not None]


def _vectors(norms: Sequence[BatchNorm], one_by_one: Collection[str]) -> list[Tensor]:
    """As `scales_and_shifts`, of batch norms that have the same device, type and epsilon, all with a mean or all without."""
    if len(norms) == 1 or norms[0].variance.device.type in one_by_one:
        return [each.vector for each in norms]
    sizes = [each.variance.numel() for each in norms]
    padded = [-(-size // _ALIGNED_ELEMENTS) * _ALIGNED_ELEMENTS for size in sizes]
    ones, zeros = (norms[0].variance.new_full((max(padded),), number) for number in (1, 0))

    def joined(vectors: Sequence[Tensor | None], absent: Tensor) -> Tensor:
        parts = list[Tensor]()
        for vector, size, whole in zip(vectors, sizes, padded, strict=True):
            parts += [absent[:size] if vector is None else vector.reshape(-1), ones[: whole - size]]
        return torch.cat(parts)

    vectors = [joined([each.weight for each in norms], ones), joined([each.variance for each in norms], ones)]
    if norms[0].mean is not None:
        vectors += [
            joined([each.bias for each in norms], zeros),
            joined([each.mean for each in norms], zeros),
        ]
    together = BatchNorm.of(vectors, norms[0].eps).vector
    return [part[:size] for part, size in zip(together.split(padded), sizes, strict=True)]
