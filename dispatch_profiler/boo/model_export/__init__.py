"""Writes PyTorch models as packages of AOTInductor that contain our kernels, for programs in C++.

The commands of this package start without torch, and say how to install it: each name is loaded on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dispatch_profiler.exports import exported

if TYPE_CHECKING:
    from dispatch_profiler.boo.model_export.exporting import (
        ExportedModel as ExportedModel,
    )
    from dispatch_profiler.boo.model_export.exporting import (
        export_model as export_model,
    )

__all__, __getattr__, __dir__ = exported(__name__, {"exporting": ("ExportedModel", "export_model")})
