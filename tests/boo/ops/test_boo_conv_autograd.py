"""Gradients of `boo_conv`, by torch's kernels and by ours, and its operators under torch.compile."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

from conv_samples import close, conv, tensors  # noqa: E402
from recorded_launches import recorded_launches  # noqa: E402

from dispatch_profiler.boo.ops import boo_conv  # noqa: E402
from dispatch_profiler.boo.ops.conv import convolution, input_gradient, weight_gradient  # noqa: E402
from dispatch_profiler.errors import UsageError  # noqa: E402

BACKWARD = "BOO_USE_BACKWARD_KERNELS"

pytestmark = pytest.mark.usefixtures("plans_of_this_test")


@pytest.fixture
def launched() -> Iterator[list[Any]]:
    with recorded_launches() as found:
        yield found


def gradients(function: Any, *args: Any, **options: Any) -> list[Any]:
    """Those of all tensors, for a loss that is not linear."""
    leaves = [each.detach().clone(memory_format=torch.preserve_format).requires_grad_() for each in args]
    function(*leaves, **options).square().sum().backward()
    return [each.grad for each in leaves]


@pytest.mark.some(2)
@pytest.mark.parametrize(
    ("last", "dtype"),
    [
        pytest.param(False, "float32", id="contiguous-float32"),
        pytest.param(True, "bfloat16", id="channels_last-bfloat16"),
        pytest.param(True, "float32", id="channels_last-float32", marks=pytest.mark.slow),
        pytest.param(False, "bfloat16", id="contiguous-bfloat16", marks=pytest.mark.slow),
    ],
)
def test_gradients_are_those_of_torch(kernels: str, dtype: str, last: bool, launched: list[Any]):
    x, w, b = tensors(dtype=getattr(torch, dtype), groups=2)
    if last:
        x, w = x.to(memory_format=torch.channels_last), w.to(memory_format=torch.channels_last)
    options = {"stride": (2, 1), "padding": (1, 2), "groups": 2}

    found, expected = gradients(boo_conv, x, w, b, **options), gradients(conv, x, w, b, **options)

    assert all(map(close, found, expected))
    assert [each.stride() for each in found] == [each.stride() for each in expected]
    assert len(launched) == (3 if kernels == "1" else 1), launched


@pytest.mark.slow
def test_first_and_second_derivatives_are_right(kernels: str):
    x, w, b = tensors(dtype=torch.float64)
    # Each element is changed by itself: few are enough to tell the axes apart.
    small = x[:1, :2, :3, :4], w[:2, :2], b[:2]
    args = [each.clone().requires_grad_() for each in small]

    assert torch.autograd.gradcheck(lambda *args: boo_conv(*args, padding=1), args)
    assert torch.autograd.gradgradcheck(lambda *args: boo_conv(*args, padding=1), args)


@pytest.mark.slow
@pytest.mark.usefixtures("backward_kernels")
def test_gradients_of_an_input_and_a_weight_of_one_shape():
    """They are two operations, although all their tensors have the same shapes."""
    x, w = torch.randn(2, 2, 3, 3), torch.randn(2, 2, 3, 3)
    assert all(map(close, gradients(boo_conv, x, w), gradients(conv, x, w)))


@pytest.mark.usefixtures("backward_kernels")
def test_only_the_gradients_that_are_needed_are_computed(launched: list[Any]):
    x, w, b = tensors()
    w.requires_grad_()
    boo_conv(x, w, b).sum().backward()
    assert len(launched) == 2


def test_the_variable_is_read_in_each_backward(monkeypatch: pytest.MonkeyPatch, launched: list[Any]):
    x, w, b = tensors()
    w.requires_grad_()
    y = boo_conv(x, w, b)
    monkeypatch.setenv(BACKWARD, "1")
    y.sum().backward(retain_graph=True)
    monkeypatch.setenv(BACKWARD, "0")
    y.sum().backward(retain_graph=True)
    assert len(launched) == 2
    monkeypatch.setenv(BACKWARD, "perhaps")
    with pytest.raises(UsageError, match=BACKWARD):
        y.sum().backward(retain_graph=True)
    monkeypatch.setenv(BACKWARD, "1")
    y.sum().backward()


def test_a_saved_weight_that_was_changed_is_an_error_as_with_torch():
    x, w, b = tensors()
    x.requires_grad_(), w.requires_grad_()
    y = boo_conv(x, w, b)
    with torch.no_grad():
        w.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


@pytest.mark.slow
@pytest.mark.usefixtures("backward_kernels")
def test_training_follows_torch():
    """The optimizer changes the weight, of which a permuted copy is kept."""
    losses = []
    for function in (boo_conv, conv):
        x, w, b = tensors(dtype=torch.float64)
        x = x.to(memory_format=torch.channels_last)
        parameters = [torch.nn.Parameter(each) for each in (w, b)]
        optimizer = torch.optim.SGD(parameters, lr=1e-3, momentum=0.9)
        for _ in range(5):
            optimizer.zero_grad()
            loss = function(x, *parameters).square().mean()
            loss.backward()
            optimizer.step()
        losses.append(loss)
    assert close(*losses)


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["NCHW", pytest.param("NHWC", marks=pytest.mark.slow), "CHWN"])
@pytest.mark.parametrize("grad", [False, True], ids=["", "requires_grad"])
def test_operators_pass_the_checks_of_torch(layout: str, grad: bool):
    x, w, b = (each.requires_grad_(grad) for each in tensors())
    options = [[1, 1], [1, 1], [1, 1], 1, layout]
    torch.library.opcheck(convolution, (x, w, b, *options))
    if not grad:
        dy = torch.randn(2, 6, 7, 6)
        torch.library.opcheck(input_gradient, (dy, w, list(x.shape), *options))
        torch.library.opcheck(weight_gradient, (dy, x, list(w.shape), *options))


@pytest.mark.parametrize("name", ["convolution", "convolution_input_backward", "layer_norm", "regions"])
@pytest.mark.skipif(not hasattr(torch.Tag, "cudagraph_unsafe"), reason="torch lacks this tag")
def test_operators_stay_out_of_cuda_graphs(name: str):
    """Permuted weights would be in the memory of a graph, which torch reports as an error."""
    import dispatch_profiler.boo.fusion.execute.torch_operator
    import dispatch_profiler.boo.ops.layer_norm  # noqa: F401

    operator = getattr(torch.ops.dispatch_profiler, name).default
    assert torch.Tag.cudagraph_unsafe in operator.tags


class Network(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        _, w, b = tensors()
        self.w, self.b = torch.nn.Parameter(w), torch.nn.Parameter(b)

    def forward(self, x: Any) -> Any:
        y = boo_conv(x, self.w, self.b, padding="same")
        return boo_conv(
            y.relu_().permute(0, 2, 3, 1), self.w[:3].repeat(1, 3, 1, 1)[:, :6], input_layout="NHWC"
        )


def compiled_as_eager(backend: str, **options: Any) -> None:
    network = Network()
    compiled = torch.compile(network, backend=backend, fullgraph=True, **options)
    for batch in (2, 3) if options.get("dynamic") else (2,):
        for x in (
            torch.randn(batch, 4, 7, 6),
            torch.randn(batch, 4, 7, 6).to(memory_format=torch.channels_last),
        ):
            found, expected = compiled(x), network(x)
            assert close(found, expected)
            with torch.no_grad():
                assert close(compiled(x), expected)
            of_found, of_expected = (
                torch.autograd.grad(each.square().sum(), network.parameters()) for each in (found, expected)
            )
            assert all(map(close, of_found, of_expected))


@pytest.mark.slow  # tracing both memory formats takes 10 s
def test_compiled_graphs(kernels: str):
    compiled_as_eager("aot_eager")


@pytest.mark.slow
def test_compiled_graphs_with_dynamic_shapes():
    compiled_as_eager("aot_eager", dynamic=True)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dynamic", [False, True])
def test_inductor(dynamic: bool):
    compiled_as_eager("inductor", dynamic=dynamic)


def test_exported_programs():
    program = torch.export.export(Network(), (torch.randn(2, 4, 7, 6),))
    x = torch.randn(2, 4, 7, 6)
    assert close(program.module()(x), Network()(x))
    assert "dispatch_profiler.convolution.default" in str(program.graph)


@pytest.mark.slow
@pytest.mark.parametrize(
    "last", ["", "x", *(pytest.param(each, marks=pytest.mark.slow) for each in ("w", "xw"))]
)
def test_strides_of_results_and_gradients_are_those_of_torch(
    last: str,
    kernels: str,
):
    """Also where an axis has one element. `last` has channels-last memory."""
    for size, taps in ((5, 3), (1, 1)):
        strides = []
        for function in (boo_conv, torch.nn.functional.conv2d):
            tensors = {"x": torch.randn(2, 3, size, size), "w": torch.randn(4, 3, taps, taps)}
            for name in last:
                tensors[name] = tensors[name].to(memory_format=torch.channels_last)
            x, w = (each.requires_grad_() for each in tensors.values())
            y = function(x, w)
            found = (y, *torch.autograd.grad(y, (x, w), torch.ones_like(y)))
            strides.append([each.stride() for each in found])
        assert strides[0] == strides[1]
