"""Attention in torch, by `scaled_dot_product_attention`, which chooses one of its kernels and allocates its result."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from dispatch_profiler.operations import AttentionGeometry, Operation
from dispatch_profiler.profiler.measurement.kernels import NotSupported
from dispatch_profiler.profiler.providers.in_torch._base import (
    Computation,
    Tensor,
    TorchFamily,
    TorchFunction,
    single,
)


class TorchAttention(TorchFamily):
    """See `TorchFamily`."""

    def method(self, kind: str) -> str:
        """See `TorchFamily.method`."""
        return "scaled_dot_product_attention"

    def handles(
        self, api: Any, operation: Operation, device: Any, tensors: Sequence[Tensor]
    ) -> tuple[Tensor, ...]:
        """See `TorchFamily.handles`: views with the heads first, and the mask as torch takes it, with what is causal."""
        attention = _checked(operation)
        query, key, value = (_heads_first(attention, each) for each in tensors[:3])
        given = tensors[3] if attention.mask else None
        mask = _mask(api, attention, device, given)
        masks = () if mask is None else (mask,)
        return (query, key, value, *masks, *tensors[len(operation.operands) :])

    def computation(self, api: Any, operation: Operation, device: Any) -> Computation:
        """See `TorchFamily.computation`."""
        attention = _checked(operation)
        attend = _attend(api, attention)

        def compute(query: Tensor, key: Tensor, value: Tensor, *rest: Tensor) -> Tensor:
            return _heads_first(attention, attend(query, key, value, *rest[:-1]))

        return compute

    def function(self, api: Any, operation: Operation, device: Any) -> TorchFunction:
        """See `TorchFamily.function`."""
        attention = _checked(operation)

        def enter(tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
            return self.handles(api, operation, tensors[0].device, tensors)

        attend = _attend(api, attention)
        return TorchFunction(enter, attend, lambda found: single(_heads_first(attention, found).contiguous()))


def _checked(operation: Operation) -> AttentionGeometry:
    attention = operation.attention
    assert attention is not None
    if attention.logsumexp:
        raise NotSupported("torch returns no logarithms of sums")
    return attention


def _heads_first(attention: AttentionGeometry, tensor: Tensor) -> Tensor:
    """A view with heads and positions exchanged, if the layout has the heads behind the positions."""
    return tensor if attention.heads_first else tensor.transpose(1, 2)


def _is_plainly_causal(attention: AttentionGeometry) -> bool:
    """Whether torch's `is_causal` says which keys are seen."""
    return attention.causal == "upper_left" and not attention.window and not attention.mask


def _mask(api: Any, attention: AttentionGeometry, device: Any, given: Tensor | None) -> Tensor | None:
    """The mask as torch takes it: None, of Booleans, or of numbers that are added."""
    mask = given.bool() if attention.mask == "bool" and given is not None else given
    if not attention.causal or _is_plainly_causal(attention):
        return mask
    seen = api.from_numpy(attention.visibility.seen(slice(None))).to(device)
    if mask is None:
        return seen
    return mask & seen if attention.mask == "bool" else mask.masked_fill(~seen, -math.inf)


def _attend(api: Any, attention: AttentionGeometry) -> Callable[..., Tensor]:
    """A function of (query, key, value[, mask])."""
    attend, is_causal = api.nn.functional.scaled_dot_product_attention, _is_plainly_causal(attention)
    named = {"scale": attention.scale, "is_causal": is_causal}
    if attention.shared > 1:
        named["enable_gqa"] = True

    def compute(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
        return attend(query, key, value, attn_mask=mask, **named)

    return compute


FAMILY = TorchAttention()
