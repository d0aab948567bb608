"""Launches compiled kernels on tensors and arrays, without copying them where possible."""

from __future__ import annotations

from dispatch_profiler.boo.interface import empty_aligned
from dispatch_profiler.boo.launching.launchable import Launchable

__all__ = ["Launchable", "empty_aligned"]
