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

    @property
    def scale(self) -> Tensor:
        """weight / sqrt(variance + eps), rounded once."""
        return self._scale_f64().to(self.variance.dtype)

    @property
    def shift(self) -> Tensor:
        """bias - mean * weight / sqrt(variance + eps), rounded once. Needs the mean."""
        assert self.mean is not None
        moved = -self.mean.double() * self._scale_f64()
        return (moved if self.bias is None else moved + self.bias.double()).to(self.variance.dtype)

    def _scale_f64(self) -> Tensor:
        scale = torch.rsqrt(self.variance.double() + self.eps)
        return scale if self.weight is None else scale * self.weight.double()


def batch_norm_scale(weight: Tensor | None, variance: Tensor, *, eps: float) -> Tensor:
    """See `BatchNorm.scale`."""
    return BatchNorm(weight, variance, None, None, eps).scale


def batch_norm_shift(
    weight: Tensor | None, variance: Tensor, bias: Tensor | None, mean: Tensor, *, eps: float
) -> Tensor:
    """See `BatchNorm.shift`."""
    return BatchNorm(weight, variance, bias, mean, eps).shift


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
        return [each.scale if each.mean is None else each.shift for each in norms]
    sizes = [each.variance.numel() for each in norms]
    padded = [-(-size // _ALIGNED_ELEMENTS) * _ALIGNED_ELEMENTS for size in sizes]
    ones, zeros = (norms[0].variance.new_full((max(padded),), number) for number in (1, 0))

    def joined(vectors: Sequence[Tensor | None], absent: Tensor) -> Tensor:
        parts = list[Tensor]()
        for vector, size, whole in zip(vectors, sizes, padded, strict=True):
            parts += [absent[:size] if vector is None else vector.reshape(-1), ones[: whole - size]]
        return torch.cat(parts)

    weight = joined([each.weight for each in norms], ones)
    variance = joined([each.variance for each in norms], ones)
    eps = norms[0].eps
    if norms[0].mean is None:
        whole_result = BatchNorm(weight, variance, None, None, eps).scale
    else:
        bias, mean = (
            joined([each.bias for each in norms], zeros),
            joined([each.mean for each in norms], zeros),
        )
        whole_result = BatchNorm(weight, variance, bias, mean, eps).shift
    return [part[:size] for part, size in zip(whole_result.split(padded), sizes, strict=True)]
