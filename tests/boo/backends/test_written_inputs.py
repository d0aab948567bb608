"""Models without gradients that write to their buffers and inputs, such as caches of keys: the compiled graph does so itself."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from dispatch_profiler.boo.backends import backend
from dispatch_profiler.boo.backends.graph_compiler import GraphCompiler
from dispatch_profiler.boo.fusion.execute.calls import RunCall
from dispatch_profiler.boo.fusion.execute.torch_operator import is_run
from dispatch_profiler.boo.fusion.schema import BOO_FUSIONS_WITH_MATRIX_PRODUCTS

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
    assert written == ["placeholder"] * 2  # the count and the total
    (run,) = [node for node in graph.nodes if is_run(node.target)]
    assert [each.op for each in run.args[0]] == ["placeholder"]


class Decoder(nn.Module):
    """Layers with caches of keys and values, whose heads are shared by two heads of queries."""

    def __init__(self, layers: int, heads: int = 2, size: int = 16) -> None:
        super().__init__()
        self.heads, self.size, width = heads, size, 2 * heads * size
        self.layers = nn.ModuleList(nn.Linear(width, 2 * width) for _ in range(layers))
        self.last = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))

    def forward(self, x: Any, at: Any, caches: Any) -> Any:
        mask = torch.arange(caches[0][0].shape[2])[None] <= at[:, None]
        for inner, last, (keys, values) in zip(self.layers, self.last, caches, strict=True):
            every = inner(x).unflatten(2, (-1, self.size)).transpose(1, 2)
            queries, *new = every.split([2 * self.heads, self.heads, self.heads], 1)
            keys.index_copy_(2, at, new[0])
            values[:, :, at] = new[1]
            shared = [each.repeat_interleave(2, 1) for each in (keys, values)]
            found = nn.functional.scaled_dot_product_attention(queries, *shared, attn_mask=mask)
            x = x + last(found.transpose(1, 2).flatten(2))
        return x


@pytest.mark.some(2)
@pytest.mark.parametrize("freeze", [False, True])
@pytest.mark.parametrize("nested", [None, "inductor"])
def test_a_token_is_one_run(nested: str | None, freeze: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A prompt of three tokens, then one after the other, through all layers; a position outside is an error."""
    found = []
    launch = RunCall.__call__

    def note(self: Any, *inputs: Any) -> Any:
        found.append(len(self.spec.updated_inputs))
        return launch(self, *inputs)

    monkeypatch.setattr(RunCall, "__call__", note)
    torch.manual_seed(0)
    model = Decoder(2).eval().requires_grad_(False)
    ours, theirs = ([[torch.zeros(1, 2, 8, 16) for _ in range(2)] for _ in range(2)] for _ in range(2))
    strict = backend(nested, BOO_FUSIONS_WITH_MATRIX_PRODUCTS, strict=True, freeze=freeze)
    compiled = torch.compile(model, backend=strict, dynamic=False)
    with torch.no_grad():
        for at in ([0, 1, 2], [3], [4], [5]):
            x, positions = torch.randn(1, len(at), 64), torch.tensor(at)
            expected = model(x, positions, theirs)
            found.clear()
            torch.testing.assert_close(compiled(x, positions, ours), expected)
            torch.testing.assert_close(ours, theirs)
            assert found == [4]
        with pytest.raises((IndexError, RuntimeError), match="out of bounds"):
            compiled(torch.randn(1, 1, 64), torch.tensor([8]), ours)
    torch.testing.assert_close(ours, theirs)
