"""Backends of `torch.compile` that compute parts of a model with tuned kernels.

torch.compile(model, backend="iree_boo")             our kernels compute regions, eager torch the rest
torch.compile(model, backend="iree_boo_inductor")    our kernels compute regions, inductor the rest
torch.compile(model, backend=backend(nested_backend="inductor", fusion_schema=..., strict=True))
"""

from __future__ import annotations

from dispatch_profiler.boo.backends.explaining import ChoiceReport, Explanation, RegionReport, explain
from dispatch_profiler.boo.backends.graph_compiler import Backend, backend, iree_boo, iree_boo_inductor

__all__ = [
    "Backend",
    "ChoiceReport",
    "Explanation",
    "RegionReport",
    "backend",
    "explain",
    "iree_boo",
    "iree_boo_inductor",
]
