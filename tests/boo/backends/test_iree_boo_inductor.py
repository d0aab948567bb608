"""Models compiled with `iree_boo_inductor` agree with eager torch, and inductor's own cache keeps working."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from compiled_models import Block, check_equals_eager
from torch import nn
from torch.nn import functional

from dispatch_profiler.boo.backends import backend
from dispatch_profiler.boo.fusion.schema import BOO_FUSIONS_WITH_MATRIX_PRODUCTS

#: Of torch's own modules, when inductor is imported.
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
INDUCTOR = backend(nested_backend="inductor", strict=True)


class Net(nn.Module):
    """Two blocks with a pool between them, a product and a softmax: one run."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = Block(), Block(), nn.Linear(8, 4)

    def forward(self, x: Any) -> Any:
        y = functional.max_pool2d(self.first(x), 2)
        return self.last(self.second(y).mean((2, 3))).softmax(1)


@pytest.mark.slow
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_a_network(memory_format: torch.memory_format) -> None:
    model = Net().eval().to(memory_format=memory_format)
    check_equals_eager(
        model, INDUCTOR, torch.randn(2, 8, 8, 8).to(memory_format=memory_format), fullgraph=True
    )


@pytest.mark.slow
def test_matrix_products() -> None:
    model = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, activation="gelu").eval()
    nested = backend("inductor", BOO_FUSIONS_WITH_MATRIX_PRODUCTS, strict=True)
    check_equals_eager(model, nested, torch.randn(2, 5, 16))


@pytest.mark.slow
def test_options_are_passed_on_to_inductor() -> None:
    model, x = Block().eval(), torch.randn(1, 8, 4, 4)
    check_equals_eager(model, INDUCTOR, x, options={"max_fusion_size": 8})
    torch._dynamo.reset()
    with pytest.raises(Exception, match="no_such_option"):
        torch.compile(model, backend=INDUCTOR, options={"no_such_option": 1})(x)


def test_an_error_of_a_nested_backend_is_that_of_torch() -> None:
    def broken(module: Any, example_inputs: Any) -> Any:
        raise ZeroDivisionError("planted")

    model, x = Block().eval(), torch.randn(1, 8, 4, 4)
    with torch.no_grad(), pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match="planted") as caught:
        torch.compile(model, backend=backend(nested_backend=broken))(x)
    assert isinstance(caught.value.inner_exception, ZeroDivisionError)
    # Nothing is left of it.
    check_equals_eager(model, backend(), x)


@pytest.mark.slow
def test_any_backend_can_be_nested() -> None:
    seen = []

    def nested(module: Any, example_inputs: Any) -> Any:
        seen.append([str(node.target) for node in module.graph.nodes if node.op == "call_function"])
        return module.forward

    check_equals_eager(Net().eval(), backend(nested_backend=nested), torch.randn(2, 8, 8, 8))
    (targets,) = seen
    assert targets.count("dispatch_profiler.regions.default") == 1
    check_equals_eager(Net().eval(), backend(nested_backend="aot_eager"), torch.randn(2, 8, 8, 8))


@pytest.mark.slow
def test_a_graph_that_is_only_compiled_without_regions_is_left_to_the_nested_backend(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def nested(module: Any, example_inputs: Any) -> Any:
        if any("regions" in str(node.target) for node in module.graph.nodes):
            raise RuntimeError("planted\nmany lines")
        return module.forward

    x = torch.randn(2, 8, 8, 8)
    check_equals_eager(Net().eval(), backend(nested_backend=nested), x)
    (message,) = [each.getMessage() for each in caplog.records if "planted" in each.getMessage()]
    assert message == "a graph cannot be compiled beside our regions: planted; torch computes it"
    torch._dynamo.reset()
    strict = backend(nested_backend=nested, strict=True)
    with torch.no_grad(), pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match="planted"):
        torch.compile(Net().eval(), backend=strict, dynamic=False)(x)


@pytest.mark.slow
def test_regions_read_one_copy_in_other_memory() -> None:
    """Of the gradient of a convolution, for example, which two regions read."""
    seen = []

    def nested(module: Any, example_inputs: Any) -> Any:
        seen.extend(str(node.target) for node in module.graph.nodes if node.op == "call_function")
        return module.forward

    first, second = torch.randn(8, 8, 3, 3), torch.randn(4, 8, 1, 1)

    def function(x: Any) -> Any:
        y = x.cumsum(1)
        return nn.functional.conv2d(y, first), nn.functional.conv2d(y, second)

    x = torch.randn(2, 8, 6, 6)
    compiled = torch.compile(function, backend=backend(nested_backend=nested, strict=True), dynamic=False)
    for found, expected in zip(compiled(x), function(x), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert seen.count("aten.clone.default") == 1 + 2  # and of each result


@pytest.mark.parametrize("is_trained", [False, True])
def test_results_behind_regions_have_eager_strides_whatever_a_compiler_gives_them(is_trained: bool) -> None:
    """Inductor replaces `stack` by operators whose results follow the strides of what they read."""

    def nested(module: Any, example_inputs: Any) -> Any:
        def run(*inputs: Any) -> Any:
            results = list(module(*inputs))
            results[0] = results[0].clone(memory_format=torch.channels_last)
            return results

        return run

    model = nn.Sequential(nn.Conv2d(4, 6, 3), nn.Softplus()).train(is_trained)
    x = torch.randn(2, 4, 6, 6)
    torch._dynamo.reset()
    compiled = torch.compile(model, backend=backend(nested_backend=nested, strict=True), dynamic=False)
    with torch.set_grad_enabled(is_trained):
        found, expected = compiled(x), model(x)
    assert found.stride() == expected.stride()
    torch.testing.assert_close(found, expected)


def test_views_of_what_a_compiler_gives_other_strides() -> None:
    """Inductor replaces a `cat` of one repeated tensor by an expanded copy, whose elements lie in another order."""

    class WithRows(torch.fx.Interpreter):
        def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
            found = super().call_function(target, args, kwargs)
            return found.contiguous() if target is torch.ops.aten.cat.default else found

    def nested(module: Any, example_inputs: Any) -> Any:
        assert "aten.view" not in module.code  # which a compiler may call instead
        return WithRows(module).run

    def function(x: Any) -> Any:
        return torch.cat([x, x], 3).permute(0, 2, 3, 1).view(2, 5, -1) + 1

    x = torch.randn(2, 4, 5, 3).to(memory_format=torch.channels_last)
    compiled = torch.compile(function, backend=backend(nested_backend=nested, strict=True), dynamic=False)
    torch.testing.assert_close(compiled(x), function(x))


class OverlappingRows(nn.Module):
    """Writes to a row of a view whose rows share elements, of what follows from a region."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(4, 8, 3, padding=1)

    def forward(self, x: Any) -> Any:
        rows = self.conv(x).clamp(min=-0.5).as_strided([4, 2], [1, 1], 0)
        rows[0].zero_()
        return rows


def test_a_nested_backend_gets_one_copy_of_what_a_view_is_written_to() -> None:
    """Inductor writes in place where a view and what is written back are of one node, as functionalized graphs need."""
    seen = []

    def nested(module: Any, example_inputs: Any) -> Any:
        views = [node for node in module.graph.nodes if "as_strided" in str(node.target)]
        seen.append({node.args[0] for node in views} - set(views))
        return module.forward

    check_equals_eager(OverlappingRows().eval(), backend(nested_backend=nested), torch.randn(1, 4, 8))
    assert [len(owners) for owners in seen] == [1]


class OfStackedImages(nn.Module):
    """Fake tensors have the strides of channels_last memory for the stacked images, and real ones do not."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv3d(2, 8, 1, groups=2)

    def forward(self, x: Any) -> Any:
        y = self.conv(torch.stack([x, x], 2)) + 1
        return y, y[..., ::2]


def test_what_follows_from_a_region_has_the_strides_of_eager_torch_in_a_nested_backend() -> None:
    def nested(module: Any, example_inputs: Any) -> Any:
        return module.forward

    x = torch.randn(1, 2, 2, 4).contiguous(memory_format=torch.channels_last)
    model = OfStackedImages().eval()
    with torch.no_grad():
        found, expected = torch.compile(model, backend=backend(nested_backend=nested))(x), model(x)
    for one, other in zip(found, expected, strict=True):
        assert one.stride() == other.stride()
        torch.testing.assert_close(one, other)


class WithViews(nn.Module):
    """Returns an image, a view of it, and a view of that."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 1)

    def forward(self, x: Any) -> Any:
        y = self.conv(x).exp()
        rows = y[:, :, 1:]
        return y, rows, rows.flatten(2)


def test_views_share_memory_with_results_that_a_nested_backend_gives_other_strides() -> None:
    def nested(module: Any, example_inputs: Any) -> Any:
        return lambda *inputs: [
            each.contiguous(memory_format=torch.channels_last) for each in module.forward(*inputs)
        ]

    model, x = WithViews().eval(), torch.randn(2, 3, 4, 4)
    with torch.no_grad():
        found, expected = torch.compile(model, backend=backend(nested_backend=nested))(x), model(x)
    for one, other in zip(found, expected, strict=True):
        assert one.stride() == other.stride()
        assert one.data_ptr() - found[0].data_ptr() == other.data_ptr() - expected[0].data_ptr()
        torch.testing.assert_close(one, other)


_SECOND_PROCESS = """
import json, sys, torch
from torch import nn
from torch._dynamo.utils import counters
from torch.nn import functional

torch.manual_seed(0)
model = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64, 64), nn.GELU()).eval()
x = torch.randn(2, 3, 8, 8)
compiled = torch.compile(model, backend="dispatch_profiler_boo_inductor", dynamic=False)
with torch.no_grad():
    torch.testing.assert_close(compiled(x), model(x))
print(json.dumps([counters["inductor"]["fxgraph_cache_hit"], counters["aot_autograd"]["autograd_cache_hit"]]))
"""


@pytest.mark.slow
def test_a_second_process_compiles_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script, cache = tmp_path / "second.py", tmp_path / "inductor"
    script.write_text(_SECOND_PROCESS)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(cache))
    monkeypatch.setenv("BOO_CACHE_DIR", str(tmp_path / "boo"))
    hits, libraries = [], []
    for _ in range(2):
        done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert "leaked" not in done.stderr
        hits.append(json.loads(done.stdout.splitlines()[-1]))
        libraries.append(sorted(cache.rglob("*.so")))
    assert sum(hits[0]) == 0
    assert sum(hits[1]) > 0
    # A hit alone may be one whose kernels are compiled again, with other flags.
    assert any(each.name.endswith(".main.so") for each in libraries[0])
    assert libraries[1] == libraries[0]
