"""torch in CUDA graphs: many executions per launch, like the profile vmfb of a dispatch.

In eager mode, torch launches each kernel from Python, which takes two to four times as long as the
kernels of small problems. A graph is captured after a warm-up on a side stream, in which cuBLAS allocates
its workspace and cuDNN chooses its algorithm (see PyTorch's notes on CUDA graphs).
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from dispatch_profiler.profiler.measurement.kernels import Operands
from dispatch_profiler.runtime.timing import seconds_of

#: Executions before the capture.
_WARM_UP = 3


@dataclass(frozen=True)
class CapturedGraph:
    """A CUDA graph, the tensor that holds its result after a replay, and the owner of its memory."""

    graph: Any
    result: Any
    #: A replay uses fixed addresses, so the memory allocated before the capture must stay alive.
    compute: Callable[[], Any]


def capture(cuda: Any, device: Any, compute: Callable[[], Any], count: int) -> CapturedGraph:
    """Capture `count` executions of `compute`, which launches kernels on `device`. `cuda` is `torch.cuda`.

    Raises torch's RuntimeError if some of the work cannot be captured.
    """
    with cuda.device(device):
        stream = cuda.Stream(device)
        stream.wait_stream(cuda.current_stream(device))
        with cuda.stream(stream):
            for _ in range(_WARM_UP):
                compute()
        cuda.current_stream(device).wait_stream(stream)
        cuda.synchronize(device)
        graph, result = cuda.CUDAGraph(), None
        with cuda.graph(graph, stream=stream):
            for _ in range(count):
                result = compute()
        return CapturedGraph(graph, result, compute)


class GraphCache:
    """Captured graphs, one for each `Operands` object and number of executions."""

    def __init__(self, cuda: Any, device: Any) -> None:
        self._cuda = cuda
        self._device = device
        self._captured: weakref.WeakKeyDictionary[Operands, dict[int, CapturedGraph]]
        self._captured = weakref.WeakKeyDictionary()

    def get(self, operands: Operands, compute: Callable[..., Any], count: int) -> CapturedGraph:
        """The graph of `count` executions of `compute` on the handles of `operands`."""
        known = self._captured.setdefault(operands, {})
        if count not in known:
            handles = operands.handles  # not `operands`: a graph must not keep its own key alive
            known[count] = capture(self._cuda, self._device, lambda: compute(*handles), count)
        return known[count]


class GraphTurns:
    """Replays graphs in turn and waits for each, as a call of IREE does."""

    def __init__(self, cuda: Any, device: Any, graphs: Sequence[CapturedGraph]) -> None:
        self._cuda = cuda
        self._device = device
        self.first = graphs[0]
        self._turns = itertools.cycle(graphs)

    def replay_first(self) -> None:
        """Replay the first graph and wait for it."""
        self._replay(self.first)

    def time(self, calls: int) -> float:
        """Total seconds of `calls` replays."""
        self._cuda.synchronize(self._device)
        return seconds_of(self._replay, zip(itertools.islice(self._turns, calls)))

    def _replay(self, captured: CapturedGraph) -> None:
        captured.graph.replay()
        self._cuda.synchronize(self._device)
