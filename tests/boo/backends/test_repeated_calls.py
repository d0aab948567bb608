"""Calls of a frozen model that are repeated compute what the first call computes, and nothing that is another call is repeated."""

from __future__ import annotations

import gc
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("iree.runtime")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from dispatch_profiler.boo import refreeze  # noqa: E402
from dispatch_profiler.boo.backends import backend  # noqa: E402
from dispatch_profiler.boo.fusion.execute.repeated_calls import RepeatedCall  # noqa: E402
from dispatch_profiler.boo.fusion.execute.run_graphs import RunFunction  # noqa: E402
from dispatch_profiler.boo.weights.derivations import WeightsNeeded  # noqa: E402


@pytest.fixture(autouse=True)
def _reset():
    yield
    torch.compiler.reset()


@pytest.fixture
def repeated(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each call that was prepared for repetition was one."""
    found: list[bool] = []
    call = RepeatedCall.__call__

    def counted(own: RepeatedCall, inputs: Any) -> Any:
        outputs = call(own, inputs)
        found.append(outputs is not None)
        return outputs

    monkeypatch.setattr(RepeatedCall, "__call__", counted)
    return found


def network() -> Any:
    layers = [torch.nn.Conv2d(8, 16, 3), torch.nn.BatchNorm2d(16), torch.nn.ReLU(), torch.nn.Conv2d(16, 8, 1)]
    return torch.nn.Sequential(*layers).eval()


def frozen(model: Any) -> Any:
    return torch.compile(model, backend=backend(freeze=True, autotune=False), dynamic=False)


def images() -> Any:
    return torch.randn(2, 8, 10, 10).to(memory_format=torch.channels_last)


def warm(fast: Any) -> None:
    for _ in range(4):
        fast(images())


@pytest.fixture(params=["inference", "no_grad"])
def mode(request: pytest.FixtureRequest):
    with torch.inference_mode() if request.param == "inference" else torch.no_grad():
        yield


def agrees(actual: Any, expected: Any) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)
    assert actual.stride() == expected.stride()
    assert actual.is_inference() == expected.is_inference()


@pytest.mark.usefixtures("mode")
def test_repeated_calls_read_the_inputs_of_the_call(repeated: list[bool]):
    model = network()
    fast = frozen(model)
    warm(fast)
    del repeated[:]
    held = [images() for _ in range(4)]
    for x in held * 2:
        agrees(fast(x), model(x))
    assert repeated == [True] * 8


@pytest.mark.usefixtures("mode")
def test_outputs_belong_to_the_caller(repeated: list[bool]):
    model = network()
    fast = frozen(model)
    warm(fast)
    inputs = [images() for _ in range(6)]
    outputs = [fast(x) for x in inputs]
    for x, y in zip(inputs, outputs, strict=True):
        agrees(y, model(x))
    outputs[0].mul_(2)
    outputs[1].untyped_storage().resize_(4)
    kept = outputs[2][:, 1:]
    expected = kept.clone()
    del outputs
    for x in inputs * 2:
        agrees(fast(x), model(x))
    assert torch.equal(kept, expected)
    assert repeated.count(True) > 12


def test_other_inputs_are_other_calls(repeated: list[bool]):
    model = network()
    fast = frozen(model)
    with torch.inference_mode():
        warm(fast)
        del repeated[:]
        for x in (images().contiguous(), images().flip(2), images()[:, :, ::1].double().float()):
            agrees(fast(x), model(x))
        negated = torch.complex(torch.zeros(2, 8, 10, 10), torch.randn(2, 8, 10, 10)).conj().imag
        assert negated.is_neg()
        torch.testing.assert_close(fast(negated), model(negated.clone()), rtol=1e-4, atol=1e-5)
        apart = torch.randn(4, 8, 10, 10).to(memory_format=torch.channels_last)[1:3]
        agrees(fast(apart), model(apart))
        unaligned = torch.randn(1 + 2 * 8 * 100)[1:].view(2, 10, 10, 8).permute(0, 3, 1, 2)
        agrees(fast(unaligned), model(unaligned))


@pytest.mark.usefixtures("mode")
def test_a_refreeze_ends_repetition(repeated: list[bool]):
    model = network()
    fast = frozen(model)
    warm(fast)
    model[0].weight.data.mul_(2)
    refreeze(model)
    del repeated[:]
    x = images()
    agrees(fast(x), model(x))
    assert not any(repeated)
    warm(fast)
    del repeated[:]
    agrees(fast(x), model(x))
    assert repeated == [True]


class Wrapped(torch.Tensor):
    """A tensor that may be more than its memory."""


def test_only_calls_that_are_alike_are_repeated(monkeypatch: pytest.MonkeyPatch):
    calls: list[RepeatedCall] = []
    call = RepeatedCall.__call__
    monkeypatch.setattr(
        RepeatedCall, "__call__", lambda own, inputs: (calls.append(own), call(own, inputs))[1]
    )
    model = network()
    with torch.inference_mode():
        fast = frozen(model)
        warm(fast)
        one, x = calls[-1], images()
        (found,) = one((x,))
        agrees(found, model(x))
        unaligned = torch.randn(1 + x.numel())[1:].as_strided(x.shape, x.stride())
        others = (x.double(), x[:1], x.contiguous(), x.as_subclass(Wrapped), unaligned)
        assert [one((each,)) for each in others] == [None] * len(others)
        with TorchDispatchMode():
            assert one((x,)) is None
        refreeze(model)
        assert one((x,)) is None
        fast(x)
        del model, fast
        torch.compiler.reset()
        gc.collect()
        assert one((x,)) is None


@pytest.mark.usefixtures("mode")
def test_the_default_device_of_a_program_makes_no_difference(repeated: list[bool]):
    model, x = network(), images()
    with torch.device("meta"):
        fast = frozen(model)
        for _ in range(4):
            agrees(fast(x), model(x))
    assert repeated.count(True)
    torch.compiler.reset()
    warm(fast)
    with torch.device("meta"):
        agrees(fast(x), model(x))


def test_weights_that_are_thawed_while_a_call_is_prepared_are_no_error(monkeypatch: pytest.MonkeyPatch):
    def thawed(*_: Any) -> None:
        raise WeightsNeeded

    monkeypatch.setattr(RunFunction, "repeated", thawed)
    model, x = network(), images()
    fast = frozen(model)
    with torch.inference_mode():
        for _ in range(4):
            agrees(fast(x), model(x))


def test_threads_share_a_model_that_another_thread_refreezes():
    model = network()
    fast = frozen(model)
    is_done = threading.Event()

    @torch.no_grad()
    def call(seed: int) -> int:
        count = 0
        generator = torch.Generator().manual_seed(seed)
        while not is_done.is_set():
            x = torch.randn(2, 8, 10, 10, generator=generator).to(memory_format=torch.channels_last)
            agrees(fast(x), model(x))
            count += 1
        return count

    with torch.no_grad():
        warm(fast)
    with ThreadPoolExecutor(3) as pool:
        counts = [pool.submit(call, seed) for seed in range(3)]
        try:
            for _ in range(40):
                refreeze(model)
                is_done.wait(0.01)
        finally:
            is_done.set()
        assert all(each.result() for each in counts)


@pytest.mark.usefixtures("mode")
def test_outputs_that_are_the_next_inputs_are_not_written_to():
    model = torch.nn.Sequential(torch.nn.Conv2d(8, 16, 1), torch.nn.ReLU(), torch.nn.Conv2d(16, 8, 1)).eval()
    fast, x = frozen(model), images()
    for _ in range(12):
        y = fast(x)
        agrees(y, model(x))
        x = y.view_as(y)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_has_threads_of_its_own():
    model = network()
    fast = frozen(model)
    with torch.inference_mode():
        warm(fast)
        x = images()
        expected = fast(x)
        child = os.fork()
        if child == 0:
            os._exit(0 if torch.allclose(fast(x), expected, rtol=1e-4, atol=1e-5) else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
