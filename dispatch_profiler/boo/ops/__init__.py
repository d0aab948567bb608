"""Operators of PyTorch that our kernels compute.

The names in `__all__` can be imported from here. Each is loaded on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dispatch_profiler.exports import exported

if TYPE_CHECKING:
    from dispatch_profiler.boo.ops.attention import (
        boo_attention as boo_attention,
    )
    from dispatch_profiler.boo.ops.conv import (
        boo_conv as boo_conv,
    )
    from dispatch_profiler.boo.ops.layer_norm import (
        boo_layer_norm as boo_layer_norm,
    )

#: Module -> the names that this package exports from it.
_PROVIDED = {"attention": ("boo_attention",), "conv": ("boo_conv",), "layer_norm": ("boo_layer_norm",)}
__all__, __getattr__, __dir__ = exported(__name__, _PROVIDED)
