"""Captures the operations of a PyTorch model that the backends of torch.compile launch, and how often each runs."""

from __future__ import annotations

from dispatch_profiler.boo.capture.capturing import Captured, LeftToTorch, capture

__all__ = ["Captured", "LeftToTorch", "capture"]
