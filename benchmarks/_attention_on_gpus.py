"""The sides of `attention.py` on a GPU: launches without a tuned entry, and torch's kernels, in CUDA graphs."""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from benchmarks._attention_problem import Problem, Shape

#: Executions in a graph at most, microseconds of a replay at most, and replays of each side.
EXECUTIONS, LONGEST, ROUNDS = 100, 3_000.0, 9
#: The largest difference from torch's math kernel in f32, relative to the largest element, by type.
TOLERANCES = {"f16": 2e-3, "bf16": 1.6e-2}
#: Sequences of a batch whose results are compared at most: torch's math kernel stores all scores.
MOST_SCORES = 2**31


def measure_on_gpu(
    shape: Shape, dtype: str, *, with_flex: bool
) -> tuple[dict[str, tuple[float, ...]], dict[str, str]]:
    """(side -> milliseconds of a call, one figure a round; side -> why it failed). Raises AssertionError if results differ."""
    import torch
    from torch.nn.attention import SDPBackend

    problem = Problem(shape, dtype, "cuda")
    sides: dict[str, Callable[[], Any]] = {
        "ours": problem.ours,
        "flash": problem.theirs(SDPBackend.FLASH_ATTENTION),
        "cuDNN": problem.theirs(SDPBackend.CUDNN_ATTENTION),
        "efficient": problem.theirs(SDPBackend.EFFICIENT_ATTENTION),
    }
    if with_flex:
        sides["FlexAttention"] = _flex(shape, *problem.operands)
    with torch.inference_mode():
        if shape.heads * shape.queries * shape.keys <= MOST_SCORES:
            difference, largest = problem.largest_difference(torch.float32)
            off = difference / largest
            assert off < TOLERANCES[dtype], f"{shape.label}, {dtype}: {off}"
        return _times(sides)


def _flex(shape: Shape, query: Any, key: Any, value: Any) -> Callable[[], Any]:
    """torch's FlexAttention, which inductor compiles for the shape, as its documentation has it."""
    import torch
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    torch._dynamo.reset()  # type: ignore[no-untyped-call]  # otherwise it gives up after eight shapes
    mask = None
    if shape.is_causal:
        mask = create_block_mask(lambda b, h, q, k: q >= k, None, None, shape.queries, shape.keys)
    compiled: Any = torch.compile(flex_attention, dynamic=False)
    return lambda: compiled(query, key, value, block_mask=mask, enable_gqa=shape.heads != shape.key_heads)


def _times(
    sides: Mapping[str, Callable[[], Any]],
) -> tuple[dict[str, tuple[float, ...]], dict[str, str]]:
    graphs, failures = {}, {}
    for side, call in sides.items():
        try:
            graphs[side] = _captured(call)
        except RuntimeError as error:  # torch has no such kernel for the shape, or it cannot be captured
            failures[side] = str(error).strip().partition("\n")[0][:80]
    times: dict[str, list[float]] = {side: [] for side in graphs}
    for _ in range(ROUNDS):
        for side, (graph, executions) in graphs.items():
            times[side].append(_milliseconds(graph) / executions)
    return {side: tuple(each) for side, each in times.items()}, failures


def _captured(call: Callable[[], Any]) -> tuple[Any, int]:
    """A graph of executions of `call`, and their number."""
    import torch

    with _on_a_stream():
        call()
        call()
    single = _graph(call, 1)
    guess = statistics.median(_milliseconds(single) for _ in range(3)) * 1e3
    executions = max(2, min(EXECUTIONS, int(LONGEST / guess)))
    graph = _graph(call, executions)
    torch.cuda.synchronize()
    return graph, executions


def _graph(call: Callable[[], Any], executions: int) -> Any:
    import torch

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(executions):
            call()
    graph.replay()
    return graph


@contextlib.contextmanager
def _on_a_stream() -> Iterator[None]:
    """torch demands that what is captured has run on another stream than the default one."""
    import torch

    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with torch.cuda.stream(stream):
        yield
    torch.cuda.synchronize()


def _milliseconds(graph: Any) -> float:
    import torch

    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    begin.record()
    graph.replay()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end))
