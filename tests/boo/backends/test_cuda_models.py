"""Compiled models, BooConv2d and layer norms on an NVIDIA GPU: results, CUDA graphs, streams, training. Skipped without one."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from compiled_models import Block
from recorded_launches import recorded_launches
from torch import nn
from torch.nn import functional

from dispatch_profiler.boo.backends import backend, explain
from dispatch_profiler.boo.fusion.schema import (
    BACKWARD_FUSIONS,
    BOO_FUSIONS_WITH_MATRIX_PRODUCTS,
    DEFAULT_SUPPORTED_BOO_FUSIONS,
)
from dispatch_profiler.boo.modeling import replace_convs_with_boo
from dispatch_profiler.boo.ops import boo_layer_norm

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch has no CUDA device here"),
    pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning"),  # of torch's own, in inductor
]

DEVICE = torch.device("cuda", 0)
#: Largest error relative to the largest element: some roundings of the type, or twice what eager torch has.
TOLERANCES = {torch.float32: 1e-4, torch.float16: 3e-3, torch.bfloat16: 2e-2}
DTYPES = list(TOLERANCES)
#: Cycles of a kernel that does nothing, about 0.3 s.
LONG = 500_000_000
STRICT = backend(strict=True)
INDUCTOR = backend("inductor", strict=True)
#: Every gradient that kernels express, however fast they are.
ALL_GRADIENTS = backend(fusion_schema=DEFAULT_SUPPORTED_BOO_FUSIONS.with_rules(BACKWARD_FUSIONS), strict=True)
_torch: Any = torch


class Net(nn.Module):
    """Two blocks with a pool between them, a layer norm, a product and a softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Block(), Block()
        self.norm, self.last = nn.LayerNorm(8), nn.Linear(8, 4)

    def forward(self, x: Any) -> Any:
        y = functional.max_pool2d(self.first(x), 2)
        return self.last(self.norm(self.second(y).mean((2, 3)))).softmax(1)


class BooLayerNorm(nn.LayerNorm):
    def forward(self, x: Any) -> Any:
        return boo_layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)


def boo_net() -> nn.Module:
    """`Net` by operators of this package."""
    model = replace_convs_with_boo(Net())
    model.norm.__class__ = BooLayerNorm
    return model


def placed(model: nn.Module, dtype: Any = torch.float32, memory: Any = torch.contiguous_format) -> Any:
    return model.eval().to(DEVICE, dtype).to(memory_format=memory)


def image(seed: int, dtype: Any = torch.float32, memory: Any = torch.contiguous_format) -> Any:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(2, 8, 8, 8, generator=generator).to(DEVICE, dtype).to(memory_format=memory)


def exactly(model: Any, x: Any) -> Any:
    """What a model of plain torch computes, in float64 on the CPU."""
    return Net.forward(copy.deepcopy(model).cpu().double(), x.detach().cpu().double())


def check(found: Any, expected: Any, eager: Any = None) -> None:
    """Compare with values in float64 on the CPU; `eager` has those of eager torch."""
    assert found.device == DEVICE
    assert found.shape == expected.shape
    largest = expected.abs().max().item()
    error, allowed = worst(found, expected), TOLERANCES[found.dtype] * largest
    if eager is not None:
        assert (found.dtype, found.stride()) == (eager.dtype, eager.stride())
        allowed = max(allowed, 2 * worst(eager, expected))
    assert error <= allowed  # also false for NaN


def worst(found: Any, expected: Any) -> float:
    return float((found.detach().cpu().double() - expected).abs().max())


@pytest.fixture(autouse=True)
def _compiled_anew() -> None:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()


# -- results ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("memory", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_model(dtype: Any, memory: Any, launched: list[str], caplog: pytest.LogCaptureFixture) -> None:
    model = placed(Net(), dtype, memory)
    compiled = torch.compile(model, backend=STRICT, dynamic=False)
    with torch.no_grad(), caplog.at_level(logging.WARNING, "dispatch_profiler.boo"):
        for seed in range(3):
            x = image(seed, dtype, memory)
            check(compiled(x), exactly(model, x), model(x))
    assert [name.partition("_")[0] for name in launched[:5]] == ["conv2d"] * 4 + ["layer"]
    assert len(launched) == 15
    assert caplog.text == ""


@pytest.mark.parametrize("dtype", DTYPES)
def test_matrix_products(dtype: Any, launched: list[str]) -> None:
    model = placed(Net(), dtype)
    made = backend(fusion_schema=BOO_FUSIONS_WITH_MATRIX_PRODUCTS, strict=True)
    x = image(0, dtype)
    with torch.no_grad():
        check(torch.compile(model, backend=made, dynamic=False)(x), exactly(model, x), model(x))
    assert any(name.startswith("matmul") for name in launched)


@pytest.mark.parametrize("dtype", DTYPES)
def test_operators(dtype: Any) -> None:
    ours = placed(boo_net(), dtype)
    with torch.no_grad():
        for seed in range(3):
            x = image(seed, dtype)
            check(ours(x), exactly(ours, x))


def test_a_parameter_that_changes_is_read_again() -> None:
    model, ours, x = placed(Net()), placed(boo_net()), image(0)
    compiled = torch.compile(model, backend=STRICT, dynamic=False)
    with torch.no_grad():
        for _ in range(3):
            check(compiled(x), exactly(model, x))
            check(ours(x), exactly(ours, x))
            for each in (*model.parameters(), *ours.parameters()):
                each.mul_(1.25)


def test_inputs_on_another_device_are_an_error_of_torch_and_leave_nothing() -> None:
    conv, x = nn.Conv2d(8, 4, 3).eval().to(DEVICE), image(0)
    compiled = torch.compile(conv, backend=backend(), dynamic=False)
    with torch.no_grad():
        expected = compiled(x)
        for _ in range(2):
            with pytest.raises(RuntimeError):
                compiled(x.cpu())
            torch.testing.assert_close(compiled(x), expected)


def test_explain_lists_the_regions_with_their_times() -> None:
    model = placed(Net())
    with torch.no_grad():
        found = explain(model, [image(0)])
    fused = [each for each in found.regions if each.speedup is not None]
    assert len(fused) == 5


# -- training ---------------------------------------------------------------------------------------


def gradients(run: Callable[[Any], Any], model: nn.Module, x: Any) -> list[Any]:
    model.zero_grad()
    x = x.clone().requires_grad_()
    run(x).square().sum().backward()
    return [x.grad, *(each.grad for each in model.parameters())]


@pytest.mark.parametrize("kernels", ["torch", "ours"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_training_step(dtype: Any, kernels: str, launched: list[str]) -> None:
    model = placed(Net(), dtype)
    theirs, exact = copy.deepcopy(model), copy.deepcopy(model).cpu().double()
    made = ALL_GRADIENTS if kernels == "ours" else STRICT
    x = image(0, dtype)
    found = gradients(torch.compile(model, backend=made, dynamic=False), model, x)
    eager, expected = gradients(theirs, theirs, x), gradients(exact, exact, x.cpu().double())
    for each in zip(found, expected, eager, strict=True):
        check(*each)
    assert any("backward" in name for name in launched) == (kernels == "ours")


def test_a_training_step_by_operators(kernels: str) -> None:
    """In the autograd thread of the GPU, on the stream of the forward."""
    model = placed(boo_net())
    exact: Any = Net().eval().double()
    exact.load_state_dict(model.state_dict())
    x = image(0)
    with torch.cuda.stream(torch.cuda.Stream()):
        found = gradients(model, model, x)
        torch.cuda.current_stream().synchronize()
    for each in zip(found, gradients(exact, exact, x.cpu().double()), strict=True):
        check(*each)


@pytest.mark.usefixtures("backward_kernels")
def test_gradients_are_timed_and_right() -> None:
    model = placed(Net())
    exact = copy.deepcopy(model).cpu().double()
    x = image(0)
    found = gradients(torch.compile(model, backend=INDUCTOR, dynamic=False), model, x)
    for each in zip(found, gradients(exact, exact, x.cpu().double()), strict=True):
        check(*each)


# -- CUDA graphs of inductor ------------------------------------------------------------------------


def check_replays(model: Any, dtype: Any, **options: Any) -> None:
    """Calls of a compiled model that record and replay CUDA graphs, and calls after a parameter has changed."""
    compiled = torch.compile(model, dynamic=False, **options)
    with torch.no_grad():
        for seed in range(8):
            if seed == 5:
                for each in model.parameters():
                    each.mul_(1.25)
            torch.compiler.cudagraph_mark_step_begin()
            x = image(seed, dtype)
            check(compiled(x).clone(), exactly(model, x))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("options", [{"mode": "reduce-overhead"}, {"options": {"triton.cudagraphs": True}}])
def test_the_rest_is_replayed_in_cuda_graphs(dtype: Any, options: Any, launched: list[str]) -> None:
    check_replays(placed(Net(), dtype), dtype, backend=INDUCTOR, **options)
    counters = torch._dynamo.utils.counters["inductor"]
    assert counters["cudagraph_skips"] == 0
    assert counters["cudagraph_recorded_non_static_inputs"] > 0
    assert len(launched) == 5 * 8  # none is in a graph


@pytest.mark.parametrize("options", [{"mode": "reduce-overhead"}, {"options": {"triton.cudagraphs": True}}])
def test_cuda_graphs_copy_no_parameters(options: Any) -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.GELU(), nn.Linear(16, 4)).eval().to(DEVICE)
    compiled = torch.compile(model, backend="iree_boo_inductor", dynamic=False, **options)
    with torch.no_grad():
        for seed in range(4):
            torch.compiler.cudagraph_mark_step_begin()
            x = image(seed)[0, 0]
            torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)
    assert torch._dynamo.utils.counters["inductor"]["cudagraph_recorded_non_static_inputs"] == 1


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_autotune_with_cuda_graphs(dtype: Any) -> None:
    options = {"autotune": True, "triton.cudagraphs": True}
    check_replays(placed(Net(), dtype), dtype, backend="iree_boo_inductor", options=options)


class Attending(nn.Module):
    """Self-attention with four heads, of which two share keys."""

    def __init__(self, causal: bool) -> None:
        super().__init__()
        self.inner, self.outer, self.causal = nn.Linear(64, 128), nn.Linear(64, 64), causal

    def forward(self, x: Any) -> Any:
        q, k, v = self.inner(x).split((64, 32, 32), -1)
        q, k, v = (each.unflatten(-1, (-1, 16)).transpose(1, 2) for each in (q, k, v))
        k, v = (each.repeat_interleave(2, 1) for each in (k, v))
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.outer(y.transpose(1, 2).flatten(2))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_attention_is_in_cuda_graphs(dtype: Any, causal: bool) -> None:
    model = placed(Attending(causal), dtype)
    exact = copy.deepcopy(model).cpu().double()
    compiled = torch.compile(model, backend=INDUCTOR, dynamic=False, mode="reduce-overhead")
    with torch.no_grad(), recorded_launches() as recorded:
        for seed in range(6):
            torch.compiler.cudagraph_mark_step_begin()
            x = torch.randn(2, 37, 64, generator=torch.Generator().manual_seed(seed)).to(DEVICE, dtype)
            check(compiled(x).clone(), exact(x.cpu().double()))
    assert torch._dynamo.utils.counters["inductor"]["cudagraph_skips"] == 0
    assert 0 < len(recorded) < 6  # the graph has the launch of the others


class Masked(nn.Module):
    """Attention with a mask, which torch writes out as products in f32."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(64, 192)
        self.register_buffer("mask", torch.where(torch.rand(2, 1, 24, 24) > 0.3, 0.0, -torch.inf))

    def forward(self, x: Any) -> Any:
        q, k, v = (each.unflatten(-1, (4, 16)).transpose(1, 2) for each in self.inner(x).chunk(3, -1))
        y = functional.scaled_dot_product_attention(q, k, v, self.mask.to(q.dtype).expand(2, 4, 24, 24))
        return y.transpose(1, 2).flatten(2)


@pytest.mark.parametrize("dtype", DTYPES)
def test_attention_with_a_mask(dtype: Any) -> None:
    torch.manual_seed(0)
    model = placed(Masked(), dtype)
    exact = copy.deepcopy(model).cpu().double()
    x = torch.randn(2, 24, 64, generator=torch.Generator().manual_seed(0)).to(DEVICE, dtype)
    compiled = torch.compile(model, backend=INDUCTOR, dynamic=False)
    with torch.no_grad(), recorded_launches() as recorded:
        check(compiled(x), exact(x.cpu().double()))
    assert len(recorded) == 1


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_attention_is_timed(dtype: Any) -> None:
    """The faster side computes it; a second compilation has the times from the cache."""
    model = placed(Attending(True), dtype)
    exact = copy.deepcopy(model).cpu().double()
    x = torch.randn(2, 37, 64, generator=torch.Generator().manual_seed(0)).to(DEVICE, dtype)
    for _ in range(2):
        torch._dynamo.reset()
        with torch.no_grad():
            check(
                torch.compile(model, backend="iree_boo_inductor", dynamic=False)(x), exact(x.cpu().double())
            )


def test_operators_stay_out_of_cuda_graphs_of_inductor() -> None:
    check_replays(placed(boo_net()), torch.float32, mode="reduce-overhead")


def test_training_steps_in_cuda_graphs() -> None:
    """Steps follow those of eager torch."""
    ours = placed(Net())
    theirs = copy.deepcopy(ours)
    compiled = torch.compile(ours, backend=INDUCTOR, mode="reduce-overhead", dynamic=False)
    losses = []
    for run, model in ((compiled, ours), (theirs, theirs)):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(5):
            torch.compiler.cudagraph_mark_step_begin()
            optimizer.zero_grad()
            loss = run(image(step)).square().sum()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    assert losses[:5] == pytest.approx(losses[5:], rel=1e-3)


# -- graphs that a program captures -----------------------------------------------------------------


RUNS: dict[str, Callable[[Any], Any]] = {
    "compiled": lambda model: torch.compile(model, backend=STRICT, dynamic=False),
    "compiled, inductor": lambda model: torch.compile(model, backend=INDUCTOR, dynamic=False),
    "operators": lambda model: model,
}


@pytest.mark.parametrize("memory", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("name", RUNS)
def test_replays_see_new_inputs_and_parameters(name: str, memory: Any) -> None:
    """Calls before and after a capture keep what derives from parameters; the graph computes it itself."""
    model = placed(boo_net() if name == "operators" else Net(), memory=memory)
    run, x = RUNS[name](model), image(0, memory=memory)
    with torch.no_grad():
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                run(x)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            found = run(x)
        for seed in (1, 2, 3):
            x.copy_(image(seed))
            graph.replay()
            check(found, exactly(model, x))
            check(run(x), exactly(model, x))
            for each in model.parameters():
                each.mul_(1.25)


def test_a_capture_leaves_nothing_for_later_calls() -> None:
    """The first calls with these parameters are captured: nothing has been computed when the eager ones follow."""
    first, second = placed(boo_net()), placed(boo_net())
    x = image(0)
    with torch.no_grad():
        first(x)  # the kernels are loaded
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            found = second(x)
        check(second(x), exactly(second, x))
        graph.replay()
        check(found, exactly(second, x))


@pytest.mark.usefixtures("backward_kernels")
def test_a_captured_training_step() -> None:
    """Forward, backward and optimizer in one graph: each replay is a step."""
    ours, theirs, x = placed(boo_net()), Net().eval().double(), image(0)
    theirs.load_state_dict(ours.state_dict())

    def step(model: Any, optimizer: Any, given: Any) -> Any:
        optimizer.zero_grad(set_to_none=True)
        loss = model(given).square().sum()
        loss.backward()
        optimizer.step()
        return loss

    optimizer = torch.optim.SGD(ours.parameters(), lr=0.1)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step(ours, optimizer, x)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    optimizer.zero_grad(set_to_none=True)
    with torch.cuda.graph(graph):
        step(ours, optimizer, x)
    for seed in (1, 2):
        x.copy_(image(seed))
        graph.replay()
    reference = torch.optim.SGD(theirs.parameters(), lr=0.1)
    for seed in (0, 0, 0, 1, 2):
        step(theirs, reference, image(seed).cpu().double())
    for found, expected in zip(ours.parameters(), theirs.parameters(), strict=True):
        check(found, expected)


# -- streams ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RUNS)
def test_calls_are_on_the_current_stream_and_do_not_wait(name: str) -> None:
    """The input is written at the end of 0.3 s, on the same stream; the result is read there."""
    model = placed(boo_net() if name == "operators" else Net())
    run = RUNS[name](model)
    wanted = image(1)
    with torch.no_grad():
        expected = exactly(model, wanted)
        for _ in range(3):
            run(image(0))
        torch.cuda.synchronize()
        for stream in (torch.cuda.Stream(), torch.cuda.default_stream()):
            with torch.cuda.stream(stream):
                x = torch.zeros_like(wanted)
                _torch.cuda._sleep(LONG)
                x.copy_(wanted, non_blocking=True)
                found = run(x).clone()
                x.zero_()
                assert not stream.query()
            stream.synchronize()
            check(found, expected)


def test_two_threads_on_streams_of_their_own() -> None:
    model = placed(Net())
    compiled = torch.compile(model, backend=STRICT, dynamic=False)
    with torch.no_grad():
        compiled(image(0))

    def work(seed: int) -> None:
        with torch.no_grad(), torch.cuda.stream(torch.cuda.Stream()):
            inputs = [image(seed + turn) for turn in range(4)]
            found = [(compiled(x), x) for x in inputs * 10]
            torch.cuda.current_stream().synchronize()
            for result, x in found:
                check(result, exactly(model, x))

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(work, (0, 10)))


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one GPU")
def test_a_model_on_another_device_than_the_current_one() -> None:
    model, x = placed(Net()), image(0)
    expected = exactly(model, x)
    other = torch.compile(copy.deepcopy(model).to("cuda:1"), backend=STRICT, dynamic=False)
    with torch.no_grad():
        found = other(x.to("cuda:1"))
    assert str(found.device) == "cuda:1"
    check(found.to(DEVICE), expected)
