"""Operators of PyTorch that our kernels compute, and values derived from parameters."""

from __future__ import annotations

from dispatch_profiler.boo.ops.conv import boo_conv
from dispatch_profiler.boo.ops.layer_norm import boo_layer_norm

__all__ = ["boo_conv", "boo_layer_norm"]
