"""Tunes the kernels of a PyTorch model, and proves what that brings beside eager PyTorch and inductor.

The commands of this package start without torch, and say how to install it: each name is loaded on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dispatch_profiler.exports import exported

if TYPE_CHECKING:
    from dispatch_profiler.boo.model_tuning.tuning import (
        TunedModel as TunedModel,
    )
    from dispatch_profiler.boo.model_tuning.tuning import (
        tune as tune,
    )

__all__, __getattr__, __dir__ = exported(__name__, {"tuning": ("TunedModel", "tune")})
