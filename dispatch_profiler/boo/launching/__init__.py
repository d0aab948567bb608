"""Launches: tensors and arrays -> buffers without a copy -> one call of a compiled kernel -> tensors and arrays."""

from __future__ import annotations

from dispatch_profiler.boo.aligned import empty_aligned
from dispatch_profiler.boo.launching.launchable import Launchable

__all__ = ["Launchable", "empty_aligned"]
