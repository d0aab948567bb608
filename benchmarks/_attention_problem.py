"""An attention of `attention.py`: its operands, the launch without a tuned entry, and torch's kernels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Shape:
    """Heads of queries and keys, queries, keys and elements of a sequence."""

    heads: int
    key_heads: int
    queries: int
    keys: int
    size: int
    is_causal: bool = False

    @property
    def label(self) -> str:
        """`12 heads, 128 x 128, 64, causal`"""
        heads = (
            f"{self.heads} heads"
            if self.heads == self.key_heads
            else f"{self.heads} heads of {self.key_heads}"
        )
        return f"{heads}, {self.queries} x {self.keys}, {self.size}{', causal' if self.is_causal else ''}"


class Problem:
    """The operands of a shape, drawn by a seed."""

    def __init__(self, shape: Shape, dtype: str, device: str) -> None:
        """`dtype` is f32, f16 or bf16."""
        import torch

        from dispatch_profiler.boo.driver.launch import get_launchable
        from dispatch_profiler.boo.launching.torch_types import TYPES
        from dispatch_profiler.boo.op_exports.attention import AttentionSignature

        torch.manual_seed(1)
        type_ = TYPES[dtype]
        query = torch.randn(1, shape.heads, shape.queries, shape.size, device=device, dtype=type_)
        key, value = (
            torch.randn(1, shape.key_heads, shape.keys, shape.size, device=device, dtype=type_)
            for _ in range(2)
        )
        self.operands = query, key, value
        signature = AttentionSignature(
            query_shape=query.shape,
            key_shape=key.shape,
            value_shape=value.shape,
            is_causal=shape.is_causal,
            dtype=dtype,
        )
        self._launch = get_launchable(signature)
        self._given = {"is_causal": shape.is_causal, "enable_gqa": shape.heads != shape.key_heads}

    def ours(self) -> Any:
        """A launch."""
        return self._launch(*self.operands)

    def theirs(self, kernel: Any) -> Callable[[], Any]:
        """A call of torch's function with one of its kernels."""

        def call() -> Any:
            return self._attend(kernel, *self.operands)

        return call

    def openvino(self, threads: int) -> Callable[[], Any]:
        """A call of a model of OpenVINO that has this attention. Raises ImportError without OpenVINO."""
        import openvino
        from torch import nn

        given = self._given

        class Attention(nn.Module):
            def forward(self, query: Any, key: Any, value: Any) -> Any:
                return nn.functional.scaled_dot_product_attention(query, key, value, **given)

        model = openvino.convert_model(Attention(), example_input=self.operands)
        model.reshape(dict(zip(model.inputs, (list(each.shape) for each in self.operands), strict=True)))
        options = {
            "INFERENCE_NUM_THREADS": threads,
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_PRECISION_HINT": "f32",
        }
        request = openvino.compile_model(model, "CPU", options).create_infer_request()
        values = [each.numpy() for each in self.operands]
        return lambda: request.infer(values, share_inputs=True, share_outputs=True)

    def largest_difference(self, wide: Any) -> tuple[float, float]:
        """From torch's math kernel in the type `wide`, and the largest element."""
        from torch.nn.attention import SDPBackend

        exact = self._attend(SDPBackend.MATH, *(each.to(wide) for each in self.operands))
        return float((self.ours().to(wide) - exact).abs().max()), float(exact.abs().max())

    def _attend(self, kernel: Any, *operands: Any) -> Any:
        import torch
        from torch.nn.attention import sdpa_kernel

        with sdpa_kernel(kernel):
            return torch.nn.functional.scaled_dot_product_attention(*operands, **self._given)
