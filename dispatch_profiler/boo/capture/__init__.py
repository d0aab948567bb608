"""Captures the operations of a PyTorch model that the backends of torch.compile launch, and how often each runs.

The commands of this package start without torch, and say how to install it: each name is loaded on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dispatch_profiler.exports import exported

if TYPE_CHECKING:
    from dispatch_profiler.boo.capture.capturing import (
        Captured as Captured,
    )
    from dispatch_profiler.boo.capture.capturing import (
        LeftToTorch as LeftToTorch,
    )
    from dispatch_profiler.boo.capture.capturing import (
        capture as capture,
    )

__all__, __getattr__, __dir__ = exported(__name__, {"capturing": ("Captured", "LeftToTorch", "capture")})
