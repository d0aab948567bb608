"""torch in CUDA graphs, on a CUDA that only writes down what it is asked for; on a GPU see test_torch_gpu."""

from __future__ import annotations

import contextlib
import gc
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")


from dispatch_profiler.operations import LayerNormWeightBackward, Matmul
from dispatch_profiler.profiler.evaluation import device_worker
from dispatch_profiler.profiler.evaluation.candidate import LIBRARY, VmfbRef, VmfbRefs
from dispatch_profiler.profiler.measurement.kernels import Operands
from dispatch_profiler.profiler.measurement.measure import Included, MeasureOptions, Mode, included_text
from dispatch_profiler.profiler.measurement.sample_batches import joined, next_batch
from dispatch_profiler.profiler.providers import torch_library
from dispatch_profiler.profiler.providers.in_torch._base import torch_family
from dispatch_profiler.profiler.providers.torch_library import GraphCache, GraphTurns, TorchLibrary, capture
from dispatch_profiler.profiler.statistics.stopping import StopRule
from dispatch_profiler.profiler.verification.inputs import Distribution, draw

OPERATION = Matmul(4, 6, 8)


class FakeGraph:
    def __init__(self, log: list[str]) -> None:
        self.kernels: list[Callable[[], object]] = []
        self._log = log

    def replay(self) -> None:
        self._log.append(f"replay {len(self.kernels)}")
        for kernel in self.kernels:
            kernel()


class FakeStream:
    def wait_stream(self, other: object) -> None:
        """Everything is in order here."""


class FakeCuda:
    """`torch.cuda` on a CPU: what is launched while a graph is captured is run when it is replayed."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.capturing: FakeGraph | None = None
        self.CUDAGraph = lambda: FakeGraph(self.log)

    def launch(self, kernel: Callable[[], object]) -> None:
        if self.capturing is not None:
            self.capturing.kernels.append(kernel)
        else:
            self.log.append("eager")
            kernel()

    def Stream(self, device: object) -> FakeStream:
        return FakeStream()

    current_stream = Stream

    def stream(self, stream: object) -> Any:
        return contextlib.nullcontext()

    def device(self, device: object) -> Any:
        return contextlib.nullcontext()

    def synchronize(self, device: object) -> None:
        self.log.append("wait")

    @contextlib.contextmanager
    def graph(self, graph: FakeGraph, stream: object):
        self.capturing = graph
        yield
        self.capturing = None


@pytest.fixture
def cuda() -> FakeCuda:
    return FakeCuda()


@pytest.fixture
def library(cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> TorchLibrary:
    """One that takes the CPU for a GPU."""
    whole = torch_library.computation

    def computation(operation, device):
        compute = whole(operation, device)

        def launched(*handles):
            cuda.launch(lambda: compute(*handles))
            return handles[-1]

        return launched

    monkeypatch.setattr(torch_library, "computation", computation)
    monkeypatch.setattr(torch_library.torch_api, "cuda", cuda)
    monkeypatch.setattr(TorchLibrary, "repeats", True)
    return TorchLibrary("local-sync", 1)


def test_a_graph_is_captured_after_a_warm_up(cuda: FakeCuda):
    found = capture(cuda, "gpu", lambda: cuda.launch(lambda: None), 7)
    assert cuda.log == ["eager"] * 3 + ["wait"]
    assert len(found.graph.kernels) == 7


def test_a_graph_is_captured_once_for_its_operands_and_goes_with_them(cuda: FakeCuda):
    cache = GraphCache(cuda, "gpu")
    one, other = Operands(OPERATION, (1,)), Operands(OPERATION, (2,))
    first = cache.get(one, lambda handle: cuda.launch(lambda: None), 5)

    assert cache.get(one, lambda handle: None, 5) is first
    assert cache.get(one, lambda handle: cuda.launch(lambda: None), 6) is not first
    assert cache.get(other, lambda handle: cuda.launch(lambda: None), 5) is not first
    del one
    gc.collect()
    assert len(cache._captured) == 1


def test_a_graph_keeps_the_memory_that_it_was_captured_with(cuda: FakeCuda):
    """Sums that are rounded to a narrower result lie in a tensor that only the computation holds."""
    held = Operands(OPERATION, ())  # anything that can be referenced weakly
    gone = weakref.ref(held)
    found = capture(cuda, "gpu", lambda held=held: cuda.launch(lambda: held), 1)
    del held
    gc.collect()
    assert gone() is not None and found.graph.kernels
    found.graph.kernels.clear()
    assert gone() is not None


def test_each_replay_is_waited_for_as_a_call_of_iree_is(cuda: FakeCuda):
    graphs = [capture(cuda, "gpu", lambda: cuda.launch(lambda: None), count) for count in (2, 3)]
    cuda.log.clear()

    assert GraphTurns(cuda, "gpu", graphs).time(3) > 0

    assert cuda.log == ["wait", "replay 2", "wait", "replay 3", "wait", "replay 2", "wait"]


def test_a_graph_computes_what_the_library_does(library: TorchLibrary, cuda: FakeCuda):
    inputs = draw(OPERATION, Distribution.INTEGERS, 1)
    operands = library.put(OPERATION, inputs)

    (result,) = library.load_repeated(10).bind("", operands).run()

    np.testing.assert_array_equal(result, inputs[0] @ inputs[1])
    assert cuda.log[-2:] == ["replay 10", "wait"]


def test_a_graph_that_writes_nothing_leaves_poison(library: TorchLibrary, monkeypatch):
    monkeypatch.setattr(torch_library, "computation", lambda *_: lambda *handles: handles[-1])
    operands = library.put(OPERATION, draw(OPERATION, Distribution.REALS, 1))
    (result,) = library.load_repeated(3).bind("", operands).run()
    assert np.isnan(result).all()


@pytest.mark.parametrize("repeat", [10, 100])
def test_both_sides_have_the_same_number_of_executions_in_a_call(
    library: TorchLibrary, cuda: FakeCuda, in_process, monkeypatch, repeat: int
):
    """The batch of a library on a GPU is of graphs as long as a profile vmfb; eager time stands beside it."""
    monkeypatch.setattr(device_worker.STATE, "library", library)
    refs = VmfbRefs(LIBRARY, VmfbRef("", repeat))
    plan = next_batch(MeasureOptions(StopRule(count=6), batch=1), (), None)

    found = device_worker.take_batch(refs, "", OPERATION, 1, plan)

    assert found.executions == repeat
    assert f"replay {repeat}" in cuda.log
    assert found.eager_ms > 0 and found.library_call_ms == 0
    assert not found.overhead.is_known  # without the time of one execution
    timed = device_worker.take_batch(refs, "", OPERATION, 1, plan, 1e-3)
    assert (
        included_text(joined(plan.options, [timed]).includes)
        == "kernels; fills and copies; weight conversion"
    )
    for mode, result in ((Mode.WARM, True), (Mode.COLD, False)):
        cuda.log.clear()
        device_worker.result_of_timed(refs, "", OPERATION, 1, MeasureOptions(mode=mode), 0.0)
        assert (f"replay {repeat}" in cuda.log) is result


def test_on_a_cpu_what_a_call_costs_is_told(in_process, monkeypatch):
    """On a problem of extent 1; a call is one execution, as ever."""
    monkeypatch.setattr(device_worker.STATE, "library", TorchLibrary("local-sync", 1))
    refs = VmfbRefs(LIBRARY, VmfbRef("", 100))
    plan = next_batch(MeasureOptions(StopRule(count=6), batch=1), (), None)

    found = device_worker.take_batch(refs, "", OPERATION, 1, plan)

    assert found.executions == 1
    assert found.library_call_ms > 0 and found.eager_ms == 0
    assert joined(plan.options, [found]).includes[-1] is Included.CALL


def test_a_graph_returns_every_result(library: TorchLibrary, cuda: FakeCuda, monkeypatch):
    """Results that torch allocates lie in the graph's memory, which is poison before a replay."""
    operation = LayerNormWeightBackward(3, 5)
    own: list[Any] = []

    def computation(operation, device):
        compute = torch_family(operation).computation(torch_library.torch_api, operation, device)
        own[:] = [torch_library.torch_api.zeros(5) for _ in range(2)]

        def launched(*handles):
            def kernel() -> None:
                for memory, result in zip(own, compute(*handles), strict=True):
                    assert not cuda.log[-1].startswith("replay") or memory.isnan().all()
                    memory.copy_(result)

            cuda.launch(kernel)
            return tuple(own)

        return launched

    monkeypatch.setattr(torch_library, "computation", computation)
    inputs = draw(operation, Distribution.INTEGERS, 1)

    results = library.load_repeated(1).bind("", library.put(operation, inputs)).run()

    for result, reference in zip(results, operation.reference(inputs), strict=True):
        np.testing.assert_array_equal(result, reference.expected)
