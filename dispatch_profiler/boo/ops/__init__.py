"""Operators of PyTorch that our kernels compute, and values derived from parameters."""

from __future__ import annotations

from dispatch_profiler.boo.ops.conv import boo_conv

__all__ = ["boo_conv"]
