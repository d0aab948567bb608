"""Long sums of compiled models and of boo's operators are as precise as those of eager torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional

from dispatch_profiler.boo.backends import backend
from dispatch_profiler.boo.fusion.schema import BOO_FUSIONS_WITH_MATRIX_PRODUCTS
from dispatch_profiler.boo.launching.torch_types import product_precision
from dispatch_profiler.boo.ops import boo_conv, boo_layer_norm

#: The most that an error may be, in units of torch's, or of the last place of the largest result.
MOST = 4.0
COMPILED = backend(fusion_schema=BOO_FUSIONS_WITH_MATRIX_PRODUCTS)

#: What follows a convolution, each with a sum over all pixels, or over windows of them.
SUMS: dict[str, Callable[[Any], Any]] = {
    "mean": lambda y: y.mean((2, 3)),
    "mean of all": lambda y: y.mean((0, 1, 2, 3)),
    "sum": lambda y: y.sum((2, 3)),
    "sum of an axis": lambda y: y.flatten(2).sum(-1),
    "global pool": lambda y: functional.adaptive_avg_pool2d(y, 1),
    "adaptive pool": lambda y: functional.adaptive_avg_pool2d(y, 4),
    "pool 5": lambda y: functional.avg_pool2d(y, 5),
    "pool 32": lambda y: functional.avg_pool2d(y, 32),
    "softmax": lambda y: y.flatten(2).softmax(-1),
    "instance norm": lambda y: functional.instance_norm(y),
    "group norm": lambda y: functional.group_norm(y, 2),
    "batch norm": lambda y: functional.batch_norm(y, None, None, training=True),
    "layer norm": lambda y: functional.layer_norm(y, y.shape[1:]),
    "norm of a vector": lambda y: torch.linalg.vector_norm(y, 2, (2, 3)),
    "variance": lambda y: y.var((2, 3)),
}


#: A mean, a sum, both kinds of pools, and a norm: the others are made of sums over the same axes.
QUICK_SUMS = ("mean", "sum of an axis", "global pool", "pool 5", "softmax", "group norm", "variance")


def check(found: Any, theirs: Any, truth: Any) -> None:
    """Fail unless the errors of `found` are at most a few times torch's, or a few units in the last place."""
    scale = truth.abs().max().to(found.dtype)
    ulp = float(torch.nextafter(scale, torch.full_like(scale, float("inf"))) - scale)
    error = float((theirs.double() - truth).abs().max())
    assert float((found.double() - truth).abs().max()) <= MOST * max(error, ulp)


def compare(model: Callable[..., Any], *inputs: Any) -> None:
    """The model, compiled, against float64 and eager."""
    torch._dynamo.reset()
    with torch.no_grad():
        truth = model(*(each.double() for each in inputs))
        check(torch.compile(model, backend=COMPILED, dynamic=False)(*inputs), model(*inputs), truth)


def slow(*values: Any) -> Any:
    return pytest.param(*values, marks=pytest.mark.slow)


@pytest.mark.some(2)
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, slow(torch.channels_last)])
@pytest.mark.parametrize("mean", [slow(0.0), 10.0])
@pytest.mark.parametrize("name", [each if each in QUICK_SUMS else slow(each) for each in SUMS])
def test_sums_behind_a_convolution(name: str, mean: float, memory_format: torch.memory_format) -> None:
    x = (torch.randn(1, 3, 256, 256) + mean).to(memory_format=memory_format)
    weight = torch.rand(4, 3, 3, 3)
    compare(lambda x, w: SUMS[name](functional.conv2d(x, w, padding=1)), x, weight)


@pytest.mark.slow
@pytest.mark.parametrize("name", SUMS)
def test_sums_of_millions_of_pixels(name: str) -> None:
    x = torch.randn(1, 3, 2048, 2048).relu()
    compare(lambda x, w: SUMS[name](functional.conv2d(x, w, padding=1)), x, torch.rand(4, 3, 3, 3))


@pytest.mark.parametrize("mean", [slow(0.0), 1000.0])
@pytest.mark.parametrize("size", [slow(2), slow(1023), slow(1024), 1025, slow(10_000), 100_003, slow(10**6)])
def test_layer_norms(size: int, mean: float) -> None:
    x = torch.randn(2, size) + mean
    weight, bias = torch.rand(size), torch.rand(size)
    compare(lambda *each: functional.layer_norm(each[0], [size], *each[1:]), x, weight, bias)
    truth = functional.layer_norm(x.double(), [size], weight.double(), bias.double())
    theirs = functional.layer_norm(x, [size], weight, bias)
    check(boo_layer_norm(x, [size], weight, bias), theirs, truth)


@pytest.mark.slow
def test_a_layer_norm_of_ten_million_elements() -> None:
    x = torch.randn(1, 10**7).relu()
    truth = functional.layer_norm(x.double(), [10**7])
    check(boo_layer_norm(x, [10**7]), functional.layer_norm(x, [10**7]), truth)


@pytest.mark.parametrize("k", [slow(1024), 4096, slow(4099)])
def test_a_linear_layer(k: int) -> None:
    x, weight = torch.randn(32, k) + 1, torch.rand(64, k)
    compare(lambda x, w: functional.linear(x, w), x, weight)


@pytest.mark.parametrize(
    "activation",
    [torch.nn.GELU(), torch.nn.GELU("tanh"), torch.nn.SiLU(), torch.nn.Sigmoid()],
    ids=["gelu", "gelu_tanh", "silu", "sigmoid"],
)
def test_the_activation_of_every_number(activation: torch.nn.Module) -> None:
    """Behind a product with the identity, whose kernel approximates erf or e^x: from -8 to 8, where e^x ends, tiny, large,
    infinite and NaN."""
    model = torch.nn.Sequential(torch.nn.Linear(64, 64, bias=False), activation)
    model[0].weight.data = torch.eye(64)
    line, tiny = torch.linspace(-8, 8, 64 * 2000), torch.logspace(-37, 1, 64 * 20)
    ends = torch.linspace(87, 90, 64 * 4)
    x = torch.cat([line, tiny, -tiny, ends, -ends, torch.linspace(8, 3e38, 64)]).reshape(-1, 64)
    torch._dynamo.reset()
    compiled = torch.compile(
        model,
        dynamic=False,
        backend=backend(fusion_schema=BOO_FUSIONS_WITH_MATRIX_PRODUCTS, freeze=True, autotune=False),
    )
    with torch.no_grad():
        found, exact = compiled(x).double(), activation(x.double())
        near = exact.abs().clamp_min(1e-30)
        assert ((found - exact).abs() <= 4e-7 * x.abs().clamp(1e-30, 8.0).double() + 2e-7 * near).all()
        special = torch.zeros(len(x), 64)
        special[:3, 5] = torch.tensor([float("inf"), float("-inf"), float("nan")])
        found, exact = compiled(special)[:3, 5].double(), activation(special.double())[:3, 5]
    # For -inf, gelu multiplies by 0, as eager torch does in f64; in f32, torch is inconsistent.
    torch.testing.assert_close(found, exact, equal_nan=True, rtol=0.0, atol=0.0)


@pytest.mark.usefixtures("backward_kernels")
@pytest.mark.parametrize("mean", [slow(0.0), 1.0])
@pytest.mark.parametrize("shape", [(2, 8, 8, 64, 1), (3, 17, 19, 53, 3), slow((8, 32, 32, 56, 3))])
def test_gradients_of_a_filter(shape: tuple[int, ...], mean: float) -> None:
    images, channels, filters, size, taps = shape
    x = (torch.randn(images, channels, size, size) + mean).to(memory_format=torch.channels_last)
    dy = (torch.randn(images, filters, size, size) + mean).to(memory_format=torch.channels_last)
    weight = torch.rand(filters, channels, taps, taps)

    def gradient(convolution: Callable[..., Any], type_: torch.dtype) -> Any:
        w = weight.to(type_).requires_grad_()
        convolution(x.to(type_), w, None, 1, taps // 2).backward(dy.to(type_))
        return w.grad

    truth = gradient(functional.conv2d, torch.float64)
    check(gradient(boo_conv, torch.float32), gradient(functional.conv2d, torch.float32), truth)


@pytest.fixture
def _usual_precision():
    yield
    if hasattr(torch.backends.mkldnn, "matmul"):
        torch.backends.mkldnn.matmul.fp32_precision = "none"
    torch.set_float32_matmul_precision("highest")


@pytest.mark.usefixtures("_usual_precision")
@pytest.mark.filterwarnings("ignore:Please use the new API settings:UserWarning")  # torch 2.9
@pytest.mark.parametrize("precision", ["highest", "high", "medium"])
def test_the_precision_of_products_is_the_one_that_a_program_has_set(precision: str):
    torch.set_float32_matmul_precision(precision)
    assert product_precision() == precision


@pytest.mark.usefixtures("_usual_precision")
@pytest.mark.skipif(
    not hasattr(torch.backends.mkldnn, "matmul"), reason="torch without precisions of single backends"
)
def test_a_precision_of_one_backend_of_torch_does_not_keep_kernels_out(caplog: pytest.LogCaptureFixture):
    torch.backends.mkldnn.matmul.fp32_precision = "bf16"
    assert product_precision() == "medium"
    model = torch.nn.Sequential(torch.nn.Conv2d(8, 8, 3), torch.nn.ReLU()).eval()
    x = torch.randn(1, 8, 6, 6)
    with torch.no_grad():
        torch.testing.assert_close(
            torch.compile(model, backend=backend(), dynamic=False)(x), model(x), rtol=1e-4, atol=1e-5
        )
    assert not [each for each in caplog.records if each.levelname == "WARNING"]
