"""Layers of `torch.nn.TransformerEncoder`, which torch computes by one operator in inference, as the operators that they consist of.

Regions begin at products, norms and attention, and compilers fuse nothing into an operator that they do not know.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.nn import functional

Tensor = Any
_aten: Any = torch.ops.aten
_attend: Callable[..., Tensor] = functional.scaled_dot_product_attention


def _encoder_layer(
    src: Tensor,
    embed_dim: int,
    num_heads: int,
    qkv_weight: Tensor,
    qkv_bias: Tensor,
    proj_weight: Tensor,
    proj_bias: Tensor,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: Tensor,
    norm_bias_1: Tensor,
    norm_weight_2: Tensor,
    norm_bias_2: Tensor,
    ffn_weight_1: Tensor,
    ffn_bias_1: Tensor,
    ffn_weight_2: Tensor,
    ffn_bias_2: Tensor,
    mask: Tensor | None = None,
    mask_type: int | None = None,
) -> Tensor:
    """`aten::_transformer_encoder_layer_fwd`. Masks, and tensors other than (batch, positions, elements), are left to torch."""
    if mask is not None or src.is_nested or src.dim() != 3:
        return NotImplemented
    batch, positions, _ = src.shape

    def attend(x: Tensor) -> Tensor:
        every = functional.linear(x, qkv_weight, qkv_bias).view(batch, positions, 3, num_heads, -1)
        result = _attend(*every.permute(2, 0, 3, 1, 4).unbind(0))
        return functional.linear(result.transpose(1, 2).flatten(2), proj_weight, proj_bias)

    def feed(x: Tensor) -> Tensor:
        inner = functional.linear(x, ffn_weight_1, ffn_bias_1)
        inner = functional.gelu(inner) if use_gelu else functional.relu(inner)
        return functional.linear(inner, ffn_weight_2, ffn_bias_2)

    def norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return functional.layer_norm(x, (embed_dim,), weight, bias, eps)

    if norm_first:
        x = src + attend(norm(src, norm_weight_1, norm_bias_1))
        return x + feed(norm(x, norm_weight_2, norm_bias_2))
    x = norm(src + attend(src), norm_weight_1, norm_bias_1)
    return norm(x + feed(x), norm_weight_2, norm_bias_2)


#: Operators -> what they consist of.
ENCODER_LAYERS: Mapping[Any, Callable[..., Any]] = {
    _aten._transformer_encoder_layer_fwd.default: _encoder_layer,
}
