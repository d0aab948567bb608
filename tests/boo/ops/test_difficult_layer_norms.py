"""Difficult and invalid inputs of `boo_layer_norm`: torch's own results or errors, and nothing is left of them."""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

from conv_samples import close  # noqa: E402

from dispatch_profiler.boo.launching import Launchable  # noqa: E402
from dispatch_profiler.boo.ops import boo_layer_norm  # noqa: E402
from dispatch_profiler.boo.session import SESSION  # noqa: E402
from dispatch_profiler.errors import ToolError  # noqa: E402

theirs = torch.nn.functional.layer_norm


@pytest.fixture(autouse=True)
def _use_one_cache(shared_cache: None) -> None:
    SESSION.clear("layer_norms")


def tensors(seed: int = 0) -> tuple[Any, Any, Any]:
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(shape, generator=generator) for shape in ((3, 5, 8), (8,), (8,)))  # type: ignore[return-value]


def outcome(function: Any, *args: Any) -> Any:
    try:
        return function(*args)
    except Exception as error:
        return error


_X, _W, _B = tensors()
REJECTED = {
    "a rank of 0": (torch.randn(()), (8,)),
    "more axes than the input": (_X, (2, 3, 5, 8)),
    "integers": (_X.long(), (8,)),
    "integers as parameters": (_X, (8,), _W.long(), _B.long()),
    "sparse": (_X.to_sparse(), (8,), _W, _B),
    "no tensor": ([[1.0] * 8], (8,)),
    "a weight that is no tensor": (_X, (8,), 3.0, _B),
    "an epsilon that is no number": (_X, (8,), _W, _B, "small"),
}


@pytest.mark.parametrize("case", REJECTED)
def test_errors_are_those_of_torch(case: str):
    args = REJECTED[case]
    with pytest.raises(Exception) as expected:
        theirs(*args)
    with pytest.raises(type(expected.value)) as found:
        boo_layer_norm(*args)
    assert str(found.value).split("\n")[0] == str(expected.value).split("\n")[0]
    assert close(boo_layer_norm(_X, (8,), _W, _B), theirs(_X, (8,), _W, _B))


def test_tensors_on_different_devices_are_as_with_torch():
    for args in (
        (_X, (8,), _W.to("meta"), _B),
        (_X.to("meta"), (8,), _W, _B),
        (_X.to("meta"), (8,), _W.to("meta"), _B.to("meta")),
    ):
        expected, found = outcome(theirs, *args), outcome(boo_layer_norm, *args)
        assert type(found) is type(expected)
        if isinstance(expected, torch.Tensor):
            assert (found.device, found.shape) == (expected.device, expected.shape)
    assert close(boo_layer_norm(_X, (8,), _W, _B), theirs(_X, (8,), _W, _B))


@pytest.mark.parametrize("dtype", ["complex64", "int32", "bool"])
def test_types_without_kernels_are_left_to_torch(dtype: str, monkeypatch: pytest.MonkeyPatch):
    launched: list[Any] = []
    monkeypatch.setattr(Launchable, "__call__", lambda self, *_: launched.append(self))
    args = (_X.to(getattr(torch, dtype)), (8,))
    expected, found = outcome(theirs, *args), outcome(boo_layer_norm, *args)
    assert type(found) is type(expected)
    if isinstance(expected, torch.Tensor):
        assert close(torch.view_as_real(found), torch.view_as_real(expected))
    else:
        assert str(found) == str(expected)
    assert not launched


def test_views_are_computed_as_by_torch():
    wide = torch.randn(6, 5, 24)
    for x in (
        wide[1:4, :, 8:16],
        wide[:3, :, ::3],
        wide[:1, :, :8].expand(3, 5, 8),
        wide[:3, :, :8].transpose(0, 1),
        wide[:3, :, :8].flip(2),
        torch._neg_view(wide[:3, :, :8]),
        wide.flatten()[1:121].view(3, 5, 8),  # not aligned
    ):
        assert close(boo_layer_norm(x, (8,), _W, _B), theirs(x, (8,), _W, _B))
        parameters = wide[0, 0, 1::3], wide[0, 1, ::3]
        assert close(boo_layer_norm(x, (8,), *parameters), theirs(x, (8,), *parameters))


def test_operands_may_be_the_same_and_results_are_memory_of_their_own():
    row = torch.randn(8)
    before = row.clone()
    found = boo_layer_norm(row, (8,), row, row)
    assert close(found, theirs(row, (8,), row, row))
    found.zero_()
    assert torch.equal(row, before)
    leaf, other = _X.clone().requires_grad_(), _X.clone().requires_grad_()
    boo_layer_norm(leaf, (8,), _W, _B).relu_().sum().backward()
    theirs(other, (8,), _W, _B).relu_().sum().backward()
    assert close(leaf.grad, other.grad)


def test_results_in_no_grad_and_inference_mode():
    w = _W.clone().requires_grad_()
    with torch.no_grad():
        y = boo_layer_norm(_X.clone().requires_grad_(), (8,), w, _B)
    assert not y.requires_grad
    assert not y._is_view()
    # torch forbids it on a view that is made in no_grad.
    y.mul_(torch.nn.Parameter(torch.ones(()))).sum().backward()
    with torch.inference_mode():
        assert boo_layer_norm(_X, (8,), w, _B).is_inference()
    assert boo_layer_norm(_X, (8,), w, _B).requires_grad


def test_threads():
    samples = [tensors(seed) for seed in range(8)]
    expected = [theirs(x, (8,), w, b) for x, w, b in samples]

    def is_right(number: int) -> bool:
        x, w, b = samples[number]
        return all(close(boo_layer_norm(x, (8,), w, b), expected[number]) for _ in range(20))

    with ThreadPoolExecutor(len(samples)) as pool:
        assert all(pool.map(is_right, range(len(samples))))


def test_a_kernel_that_fails_costs_one_message(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    def fail(*_: Any, **__: Any) -> Any:
        raise ToolError("the compiler crashed")

    monkeypatch.setattr(Launchable, "__call__", fail)
    with caplog.at_level(logging.WARNING, "dispatch_profiler.boo"):
        for _ in range(3):
            assert close(boo_layer_norm(_X, (8,), _W, _B), theirs(_X, (8,), _W, _B))
    assert [record.getMessage() for record in caplog.records] == [
        "a layer norm of (3, 5, 8) is computed by torch: the compiler crashed"
    ]
