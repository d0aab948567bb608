"""Subnormal numbers in tensors: `boo_conv`, `boo_layer_norm` and compiled models are as eager torch, unless told to flush."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from dispatch_profiler.boo.backends import backend  # noqa: E402
from dispatch_profiler.boo.fusion.schema import BOO_FUSIONS_WITH_MATRIX_PRODUCTS  # noqa: E402
from dispatch_profiler.boo.ops import boo_conv, boo_layer_norm  # noqa: E402

#: A power of two, sums of which are exact in any order.
TINY = 2.0**-133
#: What subnormal numbers may differ by: the smallest of them.
STEP = 1.5e-45


@pytest.fixture(autouse=True)
def _use_one_cache(shared_cache: None) -> None:
    torch._dynamo.reset()


def tiny(*shape: int) -> Any:
    return torch.full(shape, TINY)


def pooled(x: Any, w: Any) -> Any:
    return functional.avg_pool2d(functional.conv2d(x, w).relu(), 2)


STRICT = backend(strict=True, fusion_schema=BOO_FUSIONS_WITH_MATRIX_PRODUCTS)
CASES: dict[str, tuple[Callable[..., Any], Callable[..., Any], tuple[Any, ...]]] = {
    "boo_conv": (boo_conv, functional.conv2d, (tiny(1, 2, 5, 5), torch.ones(3, 2, 3, 3))),
    "boo_conv, weight": (boo_conv, functional.conv2d, (torch.ones(1, 2, 5, 5), tiny(3, 2, 3, 3))),
    "boo_conv, packed": (boo_conv, functional.conv2d, (torch.ones(1, 64, 4, 4), nn.Parameter(tiny(64, 64, 3, 3)))),
    "boo_layer_norm": (
        lambda x, w: boo_layer_norm(x, (8,), w),
        lambda x, w: functional.layer_norm(x, (8,), w),
        (torch.arange(32.0).reshape(4, 8), tiny(8)),
    ),
    "convolution and pool": (torch.compile(pooled, backend=STRICT, dynamic=False), pooled, (tiny(1, 2, 6, 6), torch.ones(3, 2, 3, 3))),
    "powers": (
        torch.compile(lambda x, w: functional.conv2d(x, w).exp(), backend=STRICT, dynamic=False),
        lambda x, w: functional.conv2d(x, w).exp(),
        (torch.linspace(-103.0, -87.0, 36).reshape(1, 1, 6, 6), torch.ones(2, 1, 1, 1)),
    ),
    "probabilities": (
        torch.compile(lambda x, w: functional.conv2d(x, w).softmax(1), backend=STRICT, dynamic=False),
        lambda x, w: functional.conv2d(x, w).softmax(1),
        (torch.full((1, 1, 6, 6), -90.0), torch.arange(2.0).reshape(2, 1, 1, 1)),
    ),
    "comparison": (
        torch.compile(lambda x, w: functional.conv2d(x, w) > 0, backend="iree_boo", dynamic=False),
        lambda x, w: functional.conv2d(x, w) > 0,
        (tiny(1, 2, 6, 6), torch.ones(3, 2, 1, 1)),
    ),
    "linear": (
        torch.compile(functional.linear, backend=STRICT, dynamic=False),
        functional.linear,
        (tiny(3, 8), torch.eye(8)),
    ),
}  # fmt: skip


@pytest.mark.some(2)
@pytest.mark.parametrize("name", CASES)
def test_results_are_those_of_eager_torch(name: str) -> None:
    ours, theirs, arguments = CASES[name]
    with torch.no_grad():
        for _ in range(2):
            found, expected = ours(*arguments), theirs(*arguments)
            assert expected.any()
            if found.dtype is torch.bool:
                assert torch.equal(found, expected)
            else:
                torch.testing.assert_close(found.double(), expected.double(), rtol=1e-6, atol=STEP * 64)


@pytest.mark.slow
@pytest.mark.usefixtures("backward_kernels")
def test_gradients_are_those_of_eager_torch() -> None:
    gradients = []
    for function in (boo_conv, functional.conv2d):
        x, w = torch.ones(1, 2, 5, 5, requires_grad=True), torch.ones(3, 2, 3, 3, requires_grad=True)
        function(x, w).backward(tiny(1, 3, 3, 3))
        gradients.append((x.grad.double(), w.grad.double()))
    for found, expected in zip(*gradients, strict=True):
        assert expected.all()
        torch.testing.assert_close(found, expected, rtol=0.0, atol=STEP * 64)


def test_a_variable_flushes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """From when it is set, also for functions that were called before."""
    ours, _, arguments = CASES["boo_conv"]
    with torch.no_grad():
        assert ours(*arguments).all()
        monkeypatch.setenv("BOO_FLUSH_SUBNORMALS", "1")
        assert not ours(*arguments).any()
        monkeypatch.delenv("BOO_FLUSH_SUBNORMALS")
        assert ours(*arguments).all()
