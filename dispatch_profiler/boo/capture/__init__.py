"""Captures the operations of a PyTorch model that the backends of torch.compile launch, and how often each runs."""

from __future__ import annotations

from dispatch_profiler.boo.capture.captured import Captured, LeftToTorch
from dispatch_profiler.boo.capture.capturing import capture

__all__ = ["Captured", "LeftToTorch", "capture"]
