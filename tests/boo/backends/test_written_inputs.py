"""Models without gradients that write to their buffers and inputs, such as caches of keys: the compiled graph does so itself."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from dispatch_profiler.boo.backends import backend
from dispatch_profiler.boo.backends.graph_compiler import GraphCompiler

aten: Any = torch.ops.aten


class Cached(nn.Module):
    """Adds what all calls so far have computed."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.norm = nn.Linear(32, 64), nn.LayerNorm(64)
        self.register_buffer("cache", torch.zeros(1, 8, 64))
        self.register_buffer("count", torch.zeros((), dtype=torch.long))

    def forward(self, x: Any, at: Any, total: Any) -> Any:
        y = self.norm(self.inner(x))
        self.cache.index_copy_(1, at, y)
        self.count.add_(1)
        total.add_(y)
        return nn.functional.gelu(y + self.cache.sum(1, keepdim=True))


@pytest.mark.some(2)
@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("freeze", [False, True])
@pytest.mark.parametrize("nested", [None, "inductor"])
def test_caches_change_as_in_eager_torch(nested: str | None, freeze: bool, strict: bool) -> None:
    """Buffers that the graph writes to are not frozen with the others."""
    torch.manual_seed(0)
    ours, theirs = Cached().eval().requires_grad_(False), Cached().eval().requires_grad_(False)
    theirs.load_state_dict(ours.state_dict())
    compiled = torch.compile(ours, backend=backend(nested, strict=strict, freeze=freeze), dynamic=False)
    totals = torch.zeros(1, 1, 64), torch.zeros(1, 1, 64)
    with torch.no_grad():
        for call in range(4):
            x, at = torch.randn(1, 1, 32), torch.tensor([call])
            torch.testing.assert_close(compiled(x, at, totals[0]), theirs(x, at, totals[1]))
    torch.testing.assert_close(ours.cache, theirs.cache)
    torch.testing.assert_close(*totals)
    assert ours.count == theirs.count == 4


def test_inductor_writes_to_caches_where_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise AOTAutograd copies whole caches behind each call."""
    graphs = []
    compile_nested = GraphCompiler.compile_nested

    def note(self: GraphCompiler, module: Any, example_inputs: Any) -> Any:
        graphs.append(module.graph)
        return compile_nested(self, module, example_inputs)

    monkeypatch.setattr(GraphCompiler, "compile_nested", note)
    model = Cached().eval().requires_grad_(False)
    compiled = torch.compile(model, backend=backend("inductor", autotune=False), dynamic=False)
    with torch.no_grad():
        compiled(torch.randn(1, 1, 32), torch.tensor([0]), torch.zeros(1, 1, 64))
    (graph,) = graphs
    written = [node.args[0].op for node in graph.nodes if node.target is aten.copy_.default]
    assert written == ["placeholder"] * 3
