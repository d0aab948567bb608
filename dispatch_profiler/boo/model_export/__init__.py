"""Writes PyTorch models as packages of AOTInductor that contain our kernels, for programs in C++."""

from __future__ import annotations

from dispatch_profiler.boo.model_export.exporting import ExportedModel, export_model

__all__ = ["ExportedModel", "export_model"]
