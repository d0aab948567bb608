"""Tunes the kernels of a PyTorch model, and proves what that brings beside eager PyTorch and inductor."""

from __future__ import annotations

from dispatch_profiler.boo.model_tuning.tuning import TunedModel, tune

__all__ = ["TunedModel", "tune"]
