"""The operations that `capture` writes are those that the backends launch."""

from __future__ import annotations

from collections import Counter
from importlib import import_module
from typing import Any

import pytest

from dispatch_profiler import Attention, LayerNorm, Matmul, capture
from dispatch_profiler.boo.fusion.schema import BOO_FUSIONS_WITH_MATRIX_PRODUCTS

torch: Any = pytest.importorskip("torch")
graph_compiler = import_module("dispatch_profiler.boo.backends.graph_compiler")
matching = import_module("dispatch_profiler.boo.fusion.match.matching")
FakeTensorMode = import_module("torch._subclasses.fake_tensor").FakeTensorMode
nn = torch.nn


class Block(nn.Module):
    """Two convolutions with batch norm, a residual and activations; the second one twice."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, stride=2, padding=1)
        self.conv, self.norm = nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.drop = nn.Dropout(0.5)

    def forward(self, x):
        y = torch.relu(self.stem(x))
        y = torch.relu(self.norm(self.conv(y)) + y)
        y = torch.relu(self.norm(self.conv(y)) + y)
        return self.drop(y)


def launched_by_the_backend(model, inputs, monkeypatch, training=False):
    """Operations of the regions that the backend `iree_boo` fuses, without compiling any."""
    found = Counter()

    def fuse(module, schema, fallbacks, choice, **_):
        regions, _ = matching.find_regions(module.graph, schema)
        found.update(region.spec.operation for region in regions)
        return graph_compiler.FusedGraph(module, (), ())

    monkeypatch.setattr(graph_compiler, "fuse", fuse)
    torch._dynamo.reset()
    with torch.set_grad_enabled(training):
        result = torch.compile(
            model, backend=graph_compiler.backend(nested_backend="aot_eager"), dynamic=False
        )(inputs)
        if training:
            result.sum().backward()
    torch._dynamo.reset()
    return found


@pytest.mark.usefixtures("backward_kernels")
@pytest.mark.parametrize("training", [False, True])
def test_operations_are_those_that_the_backend_launches(monkeypatch, training: bool):
    model, x = Block().train(training), torch.randn(2, 3, 16, 16)

    captured = capture(model, x, training=training)

    counts = {entry.operation: entry.count for entry in captured.workload.entries}
    assert counts == launched_by_the_backend(model, x, monkeypatch, training)
    assert sum(counts.values()) >= (5 if training else 3)


def test_fake_tensors_give_the_same_operations():
    """A model whose weights have shapes and no values, of any size."""
    model, x = Block().eval(), torch.randn(1, 3, 16, 16)
    real = capture(model, x)
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            module._parameters[name] = nn.Parameter(mode.from_tensor(parameter.detach()), requires_grad=False)
        for name, buffer in module.named_buffers(recurse=False):
            module._buffers[name] = mode.from_tensor(buffer)

    assert capture(model, mode.from_tensor(x)) == real
    assert len(real.workload.entries) >= 2


def test_equal_operations_are_counted_and_have_epilogues():
    captured = capture(Block().eval(), torch.randn(1, 3, 16, 16))

    (stem, inner) = captured.workload.entries
    assert (stem.count, inner.count) == (1, 2)
    assert str(stem.operation.epilogue) == "bias+relu"
    assert str(inner.operation.epilogue) == "scale_shift+residual+relu"
    assert inner.origin == "Block"
    assert captured.left_to_torch == ()
    assert (stem.modules, inner.modules) == (("stem",), ("conv",))


class Layer(nn.Module):
    """A convolution in code that torch does not skip."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, x):
        return torch.relu(self.conv(x))


def test_a_graph_that_runs_often_counts_often():
    layer = Layer().eval()

    def loop(x):
        for _ in range(3):
            x = layer(x)
            torch._dynamo.graph_break()
        return x

    (entry,) = capture(loop, torch.randn(1, 4, 8, 8)).workload.entries
    assert (entry.count, entry.origin) == (3, "loop")


def test_gradients_are_left_to_torch_unless_the_environment_says_so(monkeypatch):
    monkeypatch.delenv("BOO_USE_BACKWARD_KERNELS", raising=False)
    captured = capture(Block().train(), torch.randn(2, 3, 16, 16), training=True)

    (left,) = [each for each in captured.left_to_torch if each.root == "convolution_backward"]
    assert left.count == 3
    assert "BOO_USE_BACKWARD_KERNELS=1" in left.reason


def test_matrix_products_count_if_the_schema_has_them():
    model = nn.Sequential(nn.Linear(16, 32), nn.LayerNorm(32)).eval()
    x = torch.randn(8, 16)

    default = capture(model, x)
    with_products = capture(model, x, fusion_schema=BOO_FUSIONS_WITH_MATRIX_PRODUCTS)

    assert [type(each) for each in default.workload.operations] == [LayerNorm]
    assert [(each.root, each.reason) for each in default.left_to_torch] == [
        ("matrix_product", "the fusion schema has no rule for it")
    ]
    assert [type(each) for each in with_products.workload.operations] == [Matmul, LayerNorm]
    assert with_products.left_to_torch == ()


class SelfAttention(nn.Module):
    """Four heads of eight elements."""

    def __init__(self) -> None:
        super().__init__()
        self.every, self.out = nn.Linear(32, 96), nn.Linear(32, 32)

    def forward(self, x):
        query, key, value = self.every(x).reshape(2, -1, 3, 4, 8).permute(2, 0, 3, 1, 4).unbind(0)
        found = nn.functional.scaled_dot_product_attention(query, key, value)
        return self.out(found.transpose(1, 2).flatten(2))


def test_attention_between_products_is_an_operation():
    model = nn.Sequential(SelfAttention(), SelfAttention()).eval()
    captured = capture(model, torch.randn(2, 9, 32), fusion_schema=BOO_FUSIONS_WITH_MATRIX_PRODUCTS)

    (entry,) = [each for each in captured.workload.entries if each.operation.kind == "attention"]
    assert entry.operation == Attention(2, 4, 9, 9, 8, layout="bshd")
    assert (entry.count, entry.modules) == (2, ("0", "1"))


@pytest.mark.slow
def test_the_model_and_the_process_are_as_before():
    model, x = Block().train(), torch.randn(2, 3, 16, 16)
    state = {name: each.clone() for name, each in model.state_dict().items()}
    random = torch.random.get_rng_state()

    with torch._dynamo.config.patch(recompile_limit=2):  # times that torch compiles code
        for _ in range(3):
            assert len(capture(model, x, training=True).workload.entries) == 2

    assert all(torch.equal(each, state[name]) for name, each in model.state_dict().items())
    assert all(each.grad is None for each in model.parameters())
    assert torch.equal(torch.random.get_rng_state(), random)
    assert model.training and torch.is_grad_enabled()


@pytest.mark.parametrize("inputs", [(1, 2), {"y": 2, "x": 1}], ids=["positional", "named"])
def test_several_inputs(inputs):
    tensors = {1: torch.randn(1, 4, 8, 8), 2: torch.randn(4, 4, 3, 3)}
    given = (
        {name: tensors[each] for name, each in inputs.items()}
        if isinstance(inputs, dict)
        else tuple(tensors[each] for each in inputs)
    )

    def convolve(x, y):
        return nn.functional.conv2d(x, y)

    (entry,) = capture(convolve, given).workload.entries
    assert entry.operation.flops == 2 * 36 * 4 * 36


def test_what_the_model_raises_is_raised():
    with pytest.raises(RuntimeError):
        capture(Block().eval(), torch.randn(1, 4, 16, 16))
