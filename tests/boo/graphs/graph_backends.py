"""The backends that graphs are compiled with: every other graph with rules for products and gradients, too."""

from __future__ import annotations

from drawn_graphs import DrawnGraph
from graph_checks import compiled_by, differences

from dispatch_profiler.boo.backends import Backend, backend
from dispatch_profiler.boo.fusion.schema import (
    BACKWARD_FUSIONS,
    BOO_FUSIONS_WITH_MATRIX_PRODUCTS,
    DEFAULT_SUPPORTED_BOO_FUSIONS,
)

_EVERYTHING = BOO_FUSIONS_WITH_MATRIX_PRODUCTS.with_rules(BACKWARD_FUSIONS)
#: Backend -> those of torch that it is compared with where it differs from eager torch.
_THEIRS = {"iree_boo": ("aot_eager",), "iree_boo_inductor": ("aot_eager", "inductor")}


def backend_of(graph: DrawnGraph, name: str) -> Backend:
    """The backend `iree_boo` or `iree_boo_inductor`, with the rules that the graph's seed gives."""
    schema = _EVERYTHING if graph.seed % 2 else DEFAULT_SUPPORTED_BOO_FUSIONS
    # Small regions would be left to torch.
    return backend("inductor" if name == "iree_boo_inductor" else None, schema, autotune=False)


def differences_of(graph: DrawnGraph, name: str) -> list[str]:
    """What the graph has otherwise with this backend than with eager torch."""
    return differences(graph, compiled_by(backend_of(graph, name)), _THEIRS[name])
