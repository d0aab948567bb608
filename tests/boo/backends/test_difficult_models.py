"""Unusual models and invalid inputs: compiled models do what eager torch does, or what torch.compile does without us."""

from __future__ import annotations

import copy
import logging
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from compiled_models import Block, check_alike, check_equals_eager
from torch import nn
from torch.nn import functional

from dispatch_profiler.boo import backends
from dispatch_profiler.boo.backends import backend, graph_compiler
from dispatch_profiler.boo.launching.chain import Chain

STRICT = backend(strict=True)


def outcome(function: Any, *inputs: Any) -> Any:
    """What a call returns, or the exception that it raises."""
    try:
        with torch.no_grad():
            return function(*inputs)
    except Exception as error:
        return error


@pytest.mark.slow
def test_invalid_inputs_are_errors_of_torch_and_leave_nothing() -> None:
    conv, x = nn.Conv2d(4, 6, 3).eval(), torch.randn(2, 4, 6, 6)
    expected = conv(x).detach()
    invalid: list[Any] = [
        x[:, :3],
        x[0, 0],
        x.double(),
        x.to_sparse(),
        None,
    ]
    compiled = torch.compile(conv, backend=backend(), dynamic=False)
    by_torch = torch.compile(copy.deepcopy(conv), backend="aot_eager", dynamic=False)
    for each in invalid:
        found = outcome(compiled, each)
        assert isinstance(found, Exception)
        assert type(found) is type(outcome(by_torch, each))
        torch.testing.assert_close(outcome(compiled, x), expected)
    with pytest.raises(Exception, match="groups"):
        torch.compile(lambda x, w: functional.conv2d(x, w, groups=3), backend=backend())(x, conv.weight)


@pytest.mark.slow
def test_tensors_on_different_devices_are_as_with_torch() -> None:
    """torch lets a convolution mix `meta` with another device, and nothing else."""
    conv, norm = nn.Conv2d(4, 6, 3).eval(), nn.LayerNorm(6).eval()
    x = torch.randn(2, 4, 6, 6, device="meta")
    for module in (conv, norm):
        torch._dynamo.reset()
        compiled = torch.compile(module, backend=backend(), dynamic=False)
        by_torch = torch.compile(copy.deepcopy(module), backend="aot_eager", dynamic=False)
        found, expected = outcome(compiled, x), outcome(by_torch, x)
        assert type(found) is type(expected)
        assert isinstance(found, Exception) or found.device == expected.device
        on_cpu = torch.randn(2, 4, 6, 6)
        check_alike(outcome(compiled, on_cpu), outcome(module, on_cpu))


@pytest.mark.parametrize("dtype", [torch.int64, torch.complex64])
def test_types_without_kernels_are_computed_by_torch(
    dtype: torch.dtype, caplog: pytest.LogCaptureFixture
) -> None:
    x, w = (torch.ones(shape).to(dtype) for shape in ((1, 2, 4, 4), (3, 2, 2, 2)))
    check_equals_eager(functional.conv2d, backend(), x, w)
    # torch splits complex convolutions into real ones before backends see them, or leaves them out.
    assert caplog.text.count("no kernel takes torch.int64") == (dtype is torch.int64)


def test_views_as_inputs() -> None:
    conv, base = nn.Conv2d(4, 4, 3, padding=1).eval(), torch.randn(2, 8, 6, 6)
    flat = torch.randn(2 * 4 * 6 * 6 + 3)
    views = [
        base[:, ::2],
        base[:1, 4:].expand(2, 4, 6, 6),
        base[:, :4].transpose(2, 3),
        torch._neg_view(base[:, :4]),
        base.permute(2, 3, 0, 1)[..., :4].permute(2, 3, 0, 1),
        flat[1:289].view(2, 4, 6, 6),  # not aligned
    ]
    for view in views:
        check_equals_eager(conv, STRICT, view)


@pytest.mark.slow
def test_results_are_no_views_of_ours() -> None:
    """torch forbids to change a view that is made without grad, once a parameter is involved."""
    for module in (nn.Conv2d(4, 6, 3), nn.Sequential(nn.Conv2d(4, 6, 3), nn.Conv2d(6, 4, 1), nn.ReLU())):
        compiled = check_equals_eager(module.eval(), STRICT, torch.randn(2, 4, 6, 6))
        with torch.no_grad():
            found = compiled(torch.randn(2, 4, 6, 6))
        assert not found._is_view()
        found.mul_(nn.Parameter(torch.ones(()))).sum().backward()


@pytest.mark.slow
def test_random_numbers_are_those_of_eager_torch() -> None:
    """They are drawn in the order of memory, which our kernels change."""
    model, x = nn.Sequential(nn.Conv2d(4, 4, 3), nn.Dropout(0.5)).train(), torch.randn(2, 4, 6, 6)
    torch._dynamo.reset()
    compiled = torch.compile(model, backend=STRICT, dynamic=False)
    for context in (torch.enable_grad, torch.no_grad):
        results = []
        for each in (compiled, model):
            torch.manual_seed(0)
            with context():
                results.append(each(x))
        torch.testing.assert_close(*results)


class Stateful(nn.Module):
    """Tied weights, a weight and buffers that its forward changes, and an exception for three images."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.second.weight = self.first.weight
        self.calls: torch.Tensor
        self.mean: torch.Tensor
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x: Any) -> Any:
        y = self.second(self.first(x).relu())
        if x.shape[0] == 3:
            raise KeyError("mine")
        self.calls += 1
        self.mean.mul_(0.9).add_(y.mean((0, 2, 3)))
        with torch.no_grad():
            self.first.weight.mul_(1.1)
        return self.first(y) * self.calls + self.mean[:, None, None]


def test_a_model_that_changes_itself() -> None:
    ours = Stateful()
    theirs = copy.deepcopy(ours)
    compiled = torch.compile(ours, backend=backend(), dynamic=False)
    x = torch.randn(2, 4, 5, 5)
    for step in range(4):
        if step == 2:
            assert isinstance(outcome(compiled, torch.randn(3, 4, 5, 5)), KeyError)
        check_alike(outcome(compiled, x), outcome(theirs, x))
        check_alike([*ours.buffers(), *ours.parameters()], [*theirs.buffers(), *theirs.parameters()])


@pytest.mark.slow
def test_hooks_parametrizations_and_graph_breaks() -> None:
    class Broken(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.utils.parametrizations.weight_norm(nn.Conv2d(4, 6, 3))
            self.first.register_forward_hook(lambda module, inputs, result: result * 2)
            self.second = nn.Conv2d(6, 4, 1)
            self.second.register_forward_pre_hook(lambda module, inputs: (inputs[0] + 1,))

        def forward(self, x: Any) -> Any:
            y = self.first(x)
            torch._dynamo.graph_break()
            return self.second(y) if y.sum() > 0 else -self.second(y)

    model = Broken().eval()
    x = torch.randn(2, 4, 6, 6)
    compiled = check_equals_eager(model, backend(), x)
    check_alike(outcome(compiled, -x), outcome(model, -x))


@pytest.mark.slow
def test_training_after_a_compiled_evaluation() -> None:
    ours = nn.Sequential(nn.Conv2d(4, 6, 3), nn.BatchNorm2d(6), nn.ReLU()).eval()
    theirs, x = copy.deepcopy(ours), torch.randn(2, 4, 6, 6)
    compiled = torch.compile(ours, backend=backend(), dynamic=False)
    models = ((compiled, ours), (theirs, theirs))
    check_alike(outcome(compiled, x), outcome(theirs, x))
    for run, model in models:
        model.train()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            run(x).square().mean().backward()
            optimizer.step()
        model.eval()
    torch.testing.assert_close(outcome(compiled, x), outcome(theirs, x), rtol=1e-3, atol=1e-4)
    # Without parameters that require grad, the input's gradient is needed alone.
    gradients = []
    for run, model in models:
        model.requires_grad_(False)
        given = x.clone().requires_grad_()
        run(given).square().sum().backward()
        gradients.append(given.grad)
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-3, atol=1e-3)


@pytest.mark.slow
def test_autocast_and_inference_mode() -> None:
    model, x = nn.Sequential(nn.Conv2d(4, 6, 3), nn.ReLU()).eval(), torch.randn(2, 4, 6, 6)
    compiled = check_equals_eager(model, STRICT, x)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        found, expected = compiled(x), model(x)
    assert found.dtype is expected.dtype is torch.bfloat16
    torch.testing.assert_close(found, expected, rtol=5e-2, atol=5e-2)
    with torch.inference_mode():
        made_there = copy.deepcopy(model)
        compiled = torch.compile(made_there, backend=STRICT, dynamic=False)
        for _ in range(2):
            found, expected = compiled(x.clone()), made_there(x)
            assert found.is_inference()
            check_alike(found, expected)
            made_there[0].weight.mul_(2)  # no version tells
    found = outcome(compiled, x)
    if isinstance(outcome(torch.compile(made_there, backend="aot_eager", dynamic=False), x), Exception):
        # Torch 2.6 compiles no model made in inference mode outside of it.
        assert isinstance(found, Exception)
    else:
        check_alike(found, outcome(made_there, x))


def test_an_exception_of_what_a_nested_backend_returns_is_the_users() -> None:
    fails = True

    def nested(module: Any, example_inputs: Any) -> Any:
        def run(*inputs: Any) -> Any:
            if fails:
                raise ZeroDivisionError("planted")
            return module(*inputs)

        return run

    model, x = Block().eval(), torch.randn(2, 8, 6, 6)
    compiled = torch.compile(model, backend=backend(nested_backend=nested), dynamic=False)
    found = outcome(compiled, x)
    assert isinstance(found, ZeroDivisionError)
    fails = False
    check_alike(outcome(compiled, x), outcome(model, x))


def test_a_copied_compiled_model_is_independent() -> None:
    model, x = nn.Conv2d(4, 6, 3).eval(), torch.randn(2, 4, 6, 6)
    compiled: Any = check_equals_eager(model, STRICT, x)
    copied = copy.deepcopy(compiled)
    with torch.no_grad():
        copied._orig_mod.weight.mul_(2)
        check_alike(copied(x), copied._orig_mod(x))
        check_alike(compiled(x), model(x))


# -- messages ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", ["DEBUG", "ERROR"])
def test_the_level_of_messages_is_in_the_environment(
    level: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    logger = logging.getLogger("dispatch_profiler.boo")
    monkeypatch.setattr(logger, "level", logger.level)  # restores it
    monkeypatch.setenv("TURBINE_LOG_LEVEL", level)
    made = backend()
    norm = nn.LayerNorm(6)
    for rows in (2, 3):
        check_equals_eager(norm, made, torch.randn(rows, 6).bfloat16())
    assert caplog.text.count("types differ: bf16 and f32") == (1 if level == "DEBUG" else 0)
    assert logger.level == getattr(logging, level)
    logger._cache.clear()  # type: ignore[attr-defined]


def test_another_package_with_backends_of_the_same_names_is_reported_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def version(name: str) -> str:
        if name != "iree-turbine":
            raise graph_compiler.importlib.metadata.PackageNotFoundError
        return "3.13"

    monkeypatch.setattr(graph_compiler.importlib.metadata, "version", version)
    graph_compiler.warn_of_other_package.cache_clear()
    try:
        for made in (backends.iree_boo, "dispatch_profiler_boo"):
            check_equals_eager(nn.Conv2d(4, 6, 3).eval(), made, torch.randn(2, 4, 6, 6))
    finally:
        graph_compiler.warn_of_other_package.cache_clear()
    (message,) = [each.getMessage() for each in caplog.records if "iree-turbine" in each.getMessage()]
    assert "dispatch_profiler_boo_inductor" in message


# -- threads ----------------------------------------------------------------------------------------


def test_threads_that_run_a_chain_at_once_have_memory_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both are in the chain at the same time, between choosing memory and computing."""
    import threading

    from dispatch_profiler.boo.launching.chain import HostPlan

    model = nn.Sequential(*(nn.Conv2d(4, 4, 3, padding=1) for _ in range(4))).eval()
    inputs = [torch.randn(2, 4, 6, 6) for _ in range(2)]
    known = torch.randn(2, 4, 6, 6)  # the chain has no recording for other inputs
    compiled = check_equals_eager(model, STRICT, known)
    with torch.no_grad():
        expected = [model(each) for each in inputs]
    seen: list[set[int]] = []
    meeting = threading.Barrier(2, timeout=60)
    recorded = HostPlan._recorded

    def wait_for_the_other(self: Any, memory: Any, inputs: Any, outputs: Any) -> Any:
        seen.append({*inputs.changing, *outputs, *(each.data_ptr() for each in memory.slots)})
        meeting.wait()
        found = recorded(self, memory, inputs, outputs)

        def execute() -> None:
            found()
            meeting.wait()

        return execute

    monkeypatch.setattr(HostPlan, "_recorded", wait_for_the_other)

    def run(given: Any) -> Any:
        with torch.no_grad():
            return compiled(given)

    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(run, inputs))
    check_alike(found, expected)
    parameters = {each.data_ptr() for each in model.parameters()}
    assert len(seen) == 2
    shared = seen[0] & seen[1]
    assert not {each.data_ptr() for each in (*inputs, *found)} & shared
    assert len(shared) <= 2 * len(parameters)  # weights, as they are or permuted, and biases


@pytest.mark.slow
def test_a_forked_process_computes_what_its_parent_does() -> None:
    """As workers of a DataLoader do."""
    from torch.utils.data import DataLoader

    if torch.cuda.is_initialized():
        pytest.skip("torch cannot compile in a forked process once its parent has used a GPU")

    model, x = nn.Sequential(nn.Conv2d(4, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 1)).eval(), torch.randn(4, 6, 6)
    compiled = check_equals_eager(model, STRICT, x[None])

    class Images(torch.utils.data.Dataset[Any]):
        def __len__(self) -> int:
            return 2

        def __getitem__(self, number: int) -> Any:
            with torch.no_grad():
                return compiled(x[None] + number)[0]

    loader = DataLoader(Images(), batch_size=2, num_workers=1, multiprocessing_context="fork")
    (found,) = loader
    with torch.no_grad():
        torch.testing.assert_close(found, torch.cat([model(x[None]), model(x[None] + 1)]))


# -- what is copied ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["convolutions", "layer norm"])
def test_neither_input_nor_result_is_copied_and_parameters_once_for_each_version(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kernels read the memory of inputs, write that of results, and find derived parameters where they were."""
    if kind == "convolutions":
        model: nn.Module = Block().eval()  # its weights are contiguous: each is permuted
        x = torch.randn(2, 8, 6, 6).to(memory_format=torch.channels_last)
    else:
        model, x = nn.LayerNorm(8).eval(), torch.randn(4, 6, 8)
    seen: list[tuple[list[int], list[int]]] = []

    call = Chain.call

    def recorded(self: Chain, changing: Any, operands: Any, state: object) -> Any:
        found = call(self, changing, operands, state)
        seen.append(([each.data_ptr() for each in operands], [each.data_ptr() for each in found]))
        return found

    monkeypatch.setattr(Chain, "call", recorded)
    compiled = check_equals_eager(model, STRICT, x)
    with torch.no_grad():
        compiled(x)  # the first call of a chain is one of separate launches
    seen.clear()
    kept, before = [], list[int]()
    with torch.no_grad():
        for step in range(4):
            if step == 2:
                for each in model.parameters():
                    each.mul_(1.5)
            if step % 2:
                with torch.profiler.profile() as profile:
                    found = compiled(x)
                copies = {"aten::clone", "aten::copy_", "aten::contiguous", "aten::_to_copy"}
                assert not copies & {each.key for each in profile.key_averages()}
            else:
                found = compiled(x)
            kept.append(found)
            # Whatever packs a parameter does not take the input.
            ((operands, results),) = [each for each in seen if x.data_ptr() in each[0]]
            assert results[0] == found.data_ptr()
            assert found.untyped_storage().nbytes() == found.nbytes
            parameters = sorted(set(operands) - {x.data_ptr()})
            if step % 2:
                assert parameters == before
            before = parameters
            check_alike(found, model(x))
            seen.clear()
