"""Attention that is written out is found, and what only looks like it is not."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from aot_graphs import inference_graph
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from dispatch_profiler.boo.fusion.written_attention import restore_attention
from dispatch_profiler.boo.ops.attention import ATTENTION

aten: Any = torch.ops.aten
_ATTENTION = aten._scaled_dot_product_flash_attention_for_cpu.default
_Function = Callable[..., Any]


def _heads(x: Any, count: int = 3) -> Any:
    """Batch, position, element -> batch, head, position, element."""
    return x.unflatten(-1, (count, -1)).transpose(1, 2)


def _joined(x: Any) -> Any:
    return x.transpose(1, 2).flatten(2)


def _plain(q: Any, k: Any, v: Any, _: Any) -> Any:
    return _joined((_heads(q) @ _heads(k).transpose(-2, -1)).softmax(-1) @ _heads(v))


def _divided_with_mask(q: Any, k: Any, v: Any, mask: Any) -> Any:
    return _joined(((_heads(q) @ _heads(k).mT) / 2.5 + mask).softmax(-1) @ _heads(v))


def _scaled_queries_and_values(q: Any, k: Any, v: Any, mask: Any) -> Any:
    return ((_heads(q) * 0.3) @ _heads(k * 0.5).mT + mask).softmax(-1) @ _heads(v * 2.0)


def _windows(q: Any, k: Any, v: Any, mask: Any) -> Any:
    """As in Swin transformers: a mask for each head, and one for each window, which is a batch."""
    scores = _heads(q) @ _heads(k).mT + mask
    windows = mask[0, 0] * torch.arange(2.0)[:, None, None]
    scores = scores.unflatten(0, (1, 2)) + windows[None, :, None]
    return _joined(scores.flatten(0, 1).softmax(-1) @ _heads(v))


def _window_of_each_batch(q: Any, k: Any, v: Any, mask: Any) -> Any:
    """Here the mask of windows is repeated for each of two images."""
    q, k, v = (torch.cat([each, each]) for each in (q, k, v))
    scores = (_heads(q) @ _heads(k).mT).unflatten(0, (2, 2))
    scores = scores + (mask[0, 0] * torch.arange(2.0)[:, None, None])[None, :, None]
    return scores.flatten(0, 1).softmax(-1) @ _heads(v)


def _batches_of_heads(q: Any, k: Any, v: Any, mask: Any) -> Any:
    """As in BART: batches and heads are one axis, except where the mask is added."""
    q, k, v = (_heads(each).flatten(0, 1) for each in (q, k, v))
    scores = torch.bmm(q, k.transpose(1, 2)).unflatten(0, (2, 3)) + mask
    return torch.bmm(scores.flatten(0, 1).softmax(-1), v)


def _softmax_in_f32(q: Any, k: Any, v: Any, mask: Any) -> Any:
    scores = (_heads(q) @ _heads(k).mT) * 0.25 + mask
    return scores.softmax(-1, dtype=torch.float32).to(q.dtype) @ _heads(v)


def _attention_without_rows(q: Any, k: Any, v: Any, _: Any) -> Any:
    """The elements of a head do not follow each other in memory."""
    q, k, v = (each.mT.contiguous().mT for each in (q, k, v))
    return (q @ k.mT).softmax(-1) @ v


def _returned_weights(q: Any, k: Any, v: Any, mask: Any) -> Any:
    weights = (_heads(q) @ _heads(k).mT + mask).softmax(-1)
    return weights @ _heads(v), weights


def _scaled_mask(q: Any, k: Any, v: Any, mask: Any) -> Any:
    return ((_heads(q) @ _heads(k).mT + mask) * 0.5).softmax(-1) @ _heads(v)


def _softmax_of_queries(q: Any, k: Any, v: Any, _: Any) -> Any:
    return (_heads(q) @ _heads(k).mT).softmax(-2) @ _heads(v)


def _integer_queries(q: Any, k: Any, v: Any, mask: Any) -> Any:
    """Integers become floating-point numbers by the scale."""
    return ((_heads(q.int()) * 0.5) @ _heads(k).mT + mask).softmax(-1) @ _heads(v)


def _few_queries(q: Any, k: Any, v: Any, _: Any) -> Any:
    return (_heads(q[:, :2]) @ _heads(k).mT).softmax(-1) @ _heads(v)


def _wider_values(q: Any, k: Any, v: Any, _: Any) -> Any:
    return (_heads(q) @ _heads(k).mT).softmax(-1) @ _heads(torch.cat([v, v], -1))


def _found(function: _Function, dtype: Any = torch.float32) -> tuple[int, Any, Any]:
    """The number of operators of attention that are found, and results before and after."""

    def of_one_input(x: Any) -> Any:
        q, k, v = x.split((9, 7, 7), 1)
        return function(q, k, v, x.flatten()[:189].view(1, 3, 9, 7))

    x = torch.randn(2, 23, 12, generator=torch.Generator().manual_seed(0)).to(dtype)
    module = inference_graph(of_one_input, x)
    before = module(x)
    restore_attention(module.graph)
    module.graph.lint()
    module.recompile()
    count = sum(node.target is _ATTENTION for node in module.graph.nodes)
    return count, before, module(x)


@pytest.mark.parametrize(
    "function",
    [
        _plain,
        _divided_with_mask,
        _scaled_queries_and_values,
        _windows,
        _window_of_each_batch,
        _batches_of_heads,
        _softmax_in_f32,
        _integer_queries,
        _attention_without_rows,
    ],
)
def test_one_operator_computes_attention(function: _Function) -> None:
    count, before, after = _found(function)
    assert count == 1
    torch.testing.assert_close(after, before, rtol=1e-5, atol=1e-5)


def test_attention_of_bf16_whose_softmax_is_computed_in_f32() -> None:
    count, before, after = _found(_softmax_in_f32, torch.bfloat16)
    assert count == 1
    torch.testing.assert_close(after, before, rtol=0.02, atol=0.02)


@pytest.mark.parametrize(
    "function",
    [_returned_weights, _scaled_mask, _softmax_of_queries, _few_queries, _wider_values],
    ids=operator.attrgetter("__name__"),
)
def test_products_that_are_left(function: _Function) -> None:
    count, before, after = _found(function)
    assert count == 0
    torch.testing.assert_close(after, before, rtol=0, atol=0)


def test_masked_heads_through_the_backend() -> None:
    from dispatch_profiler.boo.backends import backend

    x, mask = torch.randn(2, 20, 48), torch.randn(1, 3, 20, 20)
    linear = torch.nn.Linear(48, 3 * 48)

    def function(x: Any) -> Any:
        q, k, v = linear(x).chunk(3, -1)
        return _divided_with_mask(q, k, v, mask)

    with torch.inference_mode():
        compiled: Any = torch.compile(function, backend=backend(strict=True, autotune=False), dynamic=False)
        torch.testing.assert_close(compiled(x), function(x), rtol=1e-4, atol=1e-4)


# -- on GPUs ---------------------------------------------------------------------------------------


def _of_torch(q: Any, k: Any, v: Any, mask: Any) -> Any:
    """As torch decomposes attention with a mask for f16 on a GPU."""
    q, k, v = (aten._to_copy.default(each, dtype=torch.float32) for each in (q, k, v))
    q, k = aten.mul.Scalar(q, 0.5), aten.mul.Scalar(aten.permute.default(k, [0, 1, 3, 2]), 0.5)
    scores = aten.bmm.default(aten.view.default(q, [6, 16, 32]), aten.view.default(_dense(k), [6, 32, 24]))
    scores = aten.add.Tensor(aten.view.default(scores, [2, 3, 16, 24]), mask)
    weights = aten.view.default(aten._safe_softmax.default(scores, -1), [6, 16, 24])
    y = aten.bmm.default(weights, aten.view.default(v, [6, 24, 32]))
    return aten._to_copy.default(aten.view.default(y, [2, 3, 16, 32]), dtype=torch.float16)


def _dense(x: Any) -> Any:
    return aten.clone.default(x, memory_format=torch.contiguous_format)


@pytest.mark.parametrize("mask_type", [torch.float16, torch.float32])
def test_attention_on_gpus_is_in_the_type_before_conversions(mask_type: torch.dtype) -> None:
    """Unless the mask is wider. The graph has fake tensors, so this needs no GPU."""
    with FakeTensorMode():
        shapes = ((2, 3, 16, 32), (2, 3, 24, 32), (2, 3, 24, 32))
        given = [torch.empty(each, device="cuda", dtype=torch.float16) for each in shapes]
        mask = torch.empty(2, 1, 16, 24, device="cuda", dtype=mask_type)
        module: Any = make_fx(_of_torch)(*given, mask)
        before = module.graph.python_code("self").src
        restore_attention(module.graph)
        assert module.graph.python_code("self").src == before  # torch is faster
        restore_attention(module.graph, lambda _: True)
    module.graph.lint()
    (call,) = [node for node in module.graph.nodes if node.target is ATTENTION]
    assert {node.meta["val"].dtype for node in call.args[:4]} == {mask_type}
    assert call.args[5] == pytest.approx(0.25)
    assert not [node for node in module.graph.nodes if node.target is aten.bmm.default]
    (output,) = [node for node in module.graph.nodes if node.op == "output"]
    assert output.args[0].meta["val"].dtype == torch.float16
