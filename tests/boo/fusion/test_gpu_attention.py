"""The attention of graphs on GPUs becomes an operator of this package.

The graphs have fake tensors, so this needs no GPU. Their operators are those of AOTAutograd's graphs: without CUDA, torch
decomposes no others for tensors on GPUs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from dispatch_profiler.boo.fusion.gpu_attention import AttentionCall, place_attention
from dispatch_profiler.boo.ops.attention import ATTENTION

aten: Any = torch.ops.aten
_flash = aten._scaled_dot_product_flash_attention.default
_efficient = aten._scaled_dot_product_efficient_attention.default
_cudnn = aten._scaled_dot_product_cudnn_attention.default
_Function = Callable[..., Any]


def placed(function: _Function, *shapes: tuple[int, ...]) -> tuple[Any, Any]:
    """The graph of a function of f16 tensors on a GPU, with all attention placed, and its result before."""
    with FakeTensorMode():
        given = [torch.empty(each, device="cuda", dtype=torch.float16) for each in shapes]
        module: Any = make_fx(function)(*given)
        before = _result(module).clone()
        place_attention(module.graph, lambda call: isinstance(call, AttentionCall))
    module.graph.lint()
    return module.graph, before


def _result(module: Any) -> Any:
    (output,) = [node for node in module.graph.nodes if node.op == "output"]
    return output.args[0].meta["val"]


def _calls(graph: Any) -> list[Any]:
    return [node for node in graph.nodes if node.target is ATTENTION]


def _heads(x: Any) -> Any:
    batch, positions, elements = x.shape
    return aten.permute.default(aten.view.default(x, [batch, positions, elements // 64, 64]), [0, 2, 1, 3])


def _separate_heads(x: Any) -> Any:
    return _contiguous(_heads(x))


def _contiguous(x: Any) -> Any:
    return aten.clone.default(x, memory_format=torch.contiguous_format)


def _joined(x: Any) -> Any:
    batch, heads, positions, size = x.shape
    return aten.view.default(aten.permute.default(x, [0, 2, 1, 3]), [batch, positions, heads * size])


@pytest.mark.parametrize(
    "operator",
    [
        lambda q, k, v: _flash(q, k, v, 0.0, True),
        lambda q, k, v: _efficient(q, k, v, None, False, 0.0, True),
        lambda q, k, v: _cudnn(q, k, v, None, False, 0.0, True),
        lambda q, k, v: _flash(q, k, v, is_causal=True, scale=0.3),
    ],
)
@pytest.mark.parametrize("prepared", [_heads, _separate_heads])
def test_each_operator_is_replaced(operator: _Function, prepared: _Function) -> None:
    """Later nodes see results in the order in which torch has them."""
    graph, before = placed(
        lambda q, k, v: _joined(operator(_heads(q), *map(prepared, (k, v)))[0]),
        (2, 37, 512),
        (2, 50, 512),
        (2, 50, 512),
    )
    (call,) = _calls(graph)
    assert call.args[4] is True
    assert call.args[5] in (None, 0.3)
    (output,) = [node for node in graph.nodes if node.op == "output"]
    assert output.args[0].meta["val"].shape == before.shape
    assert not any("scaled_dot" in str(node.target) for node in graph.nodes)


@pytest.mark.parametrize("operator", [_flash, _efficient, _cudnn])
def test_results_keep_their_strides(operator: Any) -> None:
    rest = () if operator is _flash else (None, False)
    graph, before = placed(
        lambda q, k, v: operator(_heads(q), k, v, *rest)[0], (2, 37, 512), (2, 8, 50, 64), (2, 8, 50, 64)
    )
    (output,) = [node for node in graph.nodes if node.op == "output"]
    after = output.args[0].meta["val"]
    assert (after.shape, after.stride(), after.dtype) == (before.shape, before.stride(), before.dtype)


def _repeated(x: Any) -> Any:
    """The 2 heads, each 4 times."""
    expanded = aten.expand.default(aten.unsqueeze.default(x, 2), [2, 2, 4, 50, 64])
    return aten.view.default(_contiguous(expanded), [2, 8, 50, 64])


def test_keys_are_read_before_torch_repeats_their_heads() -> None:
    def grouped(q: Any, k: Any, v: Any) -> Any:
        k, v = map(_repeated, (k, v))
        return _flash(q, k, v)[0]

    graph, _ = placed(grouped, (2, 8, 37, 64), (2, 2, 50, 64), (2, 2, 50, 64))
    (call,) = _calls(graph)
    assert [node.op for node in call.args[:3]] == ["placeholder"] * 3
    assert not any(node.target is aten.expand.default for node in graph.nodes)


def test_masks_are_read_before_torch_aligns_and_expands_them() -> None:
    def masked(q: Any, k: Any, v: Any, mask: Any) -> Any:
        aligned = aten.slice.Tensor(aten.constant_pad_nd.default(mask, [0, 6]), -1, 0, 50)
        aligned = aten.expand.default(aligned, [2, 8, 37, 50])
        return _efficient(q, k, v, aligned, False)[0]

    graph, _ = placed(masked, (2, 8, 37, 64), (2, 8, 50, 64), (2, 8, 50, 64), (2, 1, 37, 50))
    (call,) = _calls(graph)
    assert call.args[3].op == "placeholder"


@pytest.mark.parametrize(
    "function",
    [
        lambda q: _flash(q, q, q, 0.1)[0],
        lambda q: _flash(q, q, q)[:2],
        lambda q: _efficient(q, q, q, None, True)[1],
    ],
    ids=["dropout", "logarithms too", "logarithms only"],
)
def test_other_calls_are_left_alone(function: _Function) -> None:
    with FakeTensorMode():
        module: Any = make_fx(function)(torch.empty(2, 8, 37, 64, device="cuda", dtype=torch.float16))
    before = module.graph.python_code("self").src
    place_attention(module.graph, lambda _: pytest.fail("it was a candidate"))
    assert module.graph.python_code("self").src == before


def test_nothing_changes_where_torch_is_faster() -> None:
    with FakeTensorMode():
        module: Any = make_fx(lambda q: _flash(q, q, q)[0])(
            torch.empty(2, 8, 37, 64, device="cuda", dtype=torch.float16)
        )
    before = module.graph.python_code("self").src
    place_attention(module.graph, lambda _: False)
    assert module.graph.python_code("self").src == before


@pytest.mark.parametrize("heads", [8, 2])
@pytest.mark.parametrize("mask", [None, torch.rand(37, 50) > 0.3])
@pytest.mark.parametrize("order", ["positions first", "heads first"])
def test_the_operator_computes_attention(heads: int, mask: Any, order: str) -> None:
    """On a CPU: fewer key heads, a mask, both orders in memory; the fake result has the same strides."""
    torch.manual_seed(0)
    shapes = ((2, 37, 8, 16), (2, 50, heads, 16), (2, 50, heads, 16))
    q, k, v = (torch.randn(each).transpose(1, 2) for each in shapes)
    if order == "heads first":
        q, k, v = (each.contiguous() for each in (q, k, v))
    found = ATTENTION(q, k, v, mask, False, 0.2)
    expected = torch.nn.functional.scaled_dot_product_attention(
        q.double(), k.double(), v.double(), mask, scale=0.2, enable_gqa=True
    )
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)
    with FakeTensorMode() as mode:
        fake = ATTENTION(*map(mode.from_tensor, (q, k, v)), None, False, 0.2)
    assert (fake.shape, fake.stride()) == (found.shape, found.stride())


def test_its_operations_are_counted_as_torch_counts() -> None:
    from torch.utils.flop_counter import FlopCounterMode

    q = torch.randn(2, 8, 37, 64)
    counts = []
    for function in (
        lambda: ATTENTION(q, q, q, None, False, None),
        lambda: torch.nn.functional.scaled_dot_product_attention(q, q, q),
    ):
        with FlopCounterMode(display=False) as counter:
            function()
        counts.append(counter.get_total_flops())
    assert counts[0] == 2 * 2 * 2 * 8 * 37 * 37 * 64
    assert counts[1] in (0, counts[0])  # torch 2.13 does not count its kernel for CPUs
