"""Callable kernels: an operation by its shape or its MIOpen command, compiled once and launched from Python.

The names in `__all__` can be imported from here. Each is loaded on first use, so `import dispatch_profiler.boo` is fast
and loads neither torch, numpy nor IREE.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dispatch_profiler.exports import exported

if TYPE_CHECKING:
    from dispatch_profiler.boo.backends.background import (
        wait_for_kernels as wait_for_kernels,
    )
    from dispatch_profiler.boo.driver.launch import (
        get_launchable as get_launchable,
    )
    from dispatch_profiler.boo.driver.preload import (
        CachePopulator as CachePopulator,
    )
    from dispatch_profiler.boo.driver.preload import (
        CachePrepopulator as CachePrepopulator,
    )
    from dispatch_profiler.boo.driver.registry import (
        BooOpRegistry as BooOpRegistry,
    )
    from dispatch_profiler.boo.launching import (
        Launchable as Launchable,
    )
    from dispatch_profiler.boo.launching import (
        empty_aligned as empty_aligned,
    )
    from dispatch_profiler.boo.op_exports.conv import (
        ConvSignature as ConvSignature,
    )
    from dispatch_profiler.boo.op_exports.gemm import (
        GEMMSignature as GEMMSignature,
    )
    from dispatch_profiler.boo.op_exports.layer_norm import (
        LayerNormSignature as LayerNormSignature,
    )
    from dispatch_profiler.boo.weights.snapshots import (
        refreeze as refreeze,
    )

#: Module -> the names that this package exports from it.
_PROVIDED = {
    "backends.background": ("wait_for_kernels",),
    "driver.launch": ("get_launchable",),
    "driver.preload": ("CachePopulator", "CachePrepopulator"),
    "driver.registry": ("BooOpRegistry",),
    "launching": ("Launchable", "empty_aligned"),
    "op_exports.conv": ("ConvSignature",),
    "op_exports.gemm": ("GEMMSignature",),
    "op_exports.layer_norm": ("LayerNormSignature",),
    "weights.snapshots": ("refreeze",),
}
__all__, __getattr__, __dir__ = exported(__name__, _PROVIDED)
