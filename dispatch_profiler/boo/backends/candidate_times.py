"""Finds the fastest of several kernels of a region whose results agree with torch's, where the model computes the region.

Also times attention on GPUs, which is no region.
"""

from __future__ import annotations

import logging
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import compress
from typing import Any

import torch

from dispatch_profiler.boo.backends.measuring import (
    COPIES,
    Borders,
    Measure,
    RegionTrial,
    once,
    samples,
    trial_mode,
)
from dispatch_profiler.boo.driver.launch import launch_of_kernel
from dispatch_profiler.boo.environment import LOGGER
from dispatch_profiler.boo.fusion.gpu_attention import AttentionCall
from dispatch_profiler.boo.fusion.match.matching import Region
from dispatch_profiler.boo.fusion.nodes import value
from dispatch_profiler.boo.fusion.spec import RegionSignature
from dispatch_profiler.boo.kernels import KernelCandidates
from dispatch_profiler.boo.launching.torch_types import product_precision
from dispatch_profiler.boo.ops.attention import ATTENTION
from dispatch_profiler.errors import DispatchProfilerError

_log = logging.getLogger(LOGGER)
#: Differences from torch's results that kernels may have, by the type of the result, relative to the result's largest
#: element: sums in other orders and Winograd's transforms differ by some 1e-5 in f32, and in f16 and bf16 both sides
#: round what is between the steps.
_TOLERANCES = {torch.float64: 1e-10, torch.float32: 2e-4, torch.float16: 1e-2, torch.bfloat16: 5e-2}
#: The precision of f32 products with which torch rounds no factor to a shorter type.
_FULL_PRECISION = "highest"
#: Kernels are not measured further if all take so many times as long as torch, and so many seconds longer; nor is torch, if it
#: does beside the fastest kernel.
_FAR_SLOWER, _NOTICEABLE = 4.0, 1e-3
#: A kernel is not measured further if its first calls take so many times as long as the fastest kernel's, and so many
#: seconds longer: waiting for the threads makes calls of short kernels differ.
_HOPELESS, _MUCH_LONGER = 2.0, 1e-4
#: Another kernel is preferred to the first one only if it takes at most this part of the first one's time.
_FASTER = 0.98
#: A region is computed several times in a row, in about so many seconds, and at least twice, so that its weights are read
#: from memory as in a model.
_ROW, _FEWEST = 4e-3, 2


@dataclass(frozen=True)
class _Rival:
    """A candidate that may be chosen: its place among the candidates, and its launch."""

    place: int
    launch: Any


def fastest_kernel(
    region: Region,
    borders: Borders,
    candidates: KernelCandidates,
    measure: Measure,
    *,
    is_apart: bool = False,
) -> tuple[int, list[float | None], float]:
    """The place of the fastest candidate, the seconds per call of each (None if it cannot be used), and of torch.

    Kernels that fail, and kernels whose results differ from torch's, are passed over. `is_apart` is as in `RegionTrial`.
    Raises DispatchProfilerError if no kernel is left, and the errors of torch.
    """
    with trial_mode():
        trial = RegionTrial(region, borders, is_signed=True)
        rivals, calls = _rivals(trial, candidates)
        torchs = trial.by_torch()
        brief = _briefly(calls, torchs)
        seconds: list[float | None] = [None] * len(candidates.every)
        for rival, each in zip(rivals, brief, strict=False):
            seconds[rival.place] = each
        best = min(brief[:-1])
        if _is_far_slower(best, brief[-1]):
            return _chosen(seconds, [each.place for each in rivals]), seconds, brief[-1]
        rivals = [rival for rival, each in zip(rivals, brief, strict=False) if each <= _limit(best)]
        measures_torch = not _is_far_slower(brief[-1], best)
        if not measures_torch and len(rivals) == 1:
            return rivals[0].place, seconds, brief[-1]
        copies = 1 if borders or is_apart else max(_FEWEST, min(COPIES, round(_ROW / max(best, 1e-6))))
        trial = RegionTrial(region, borders, copies, is_apart=is_apart)
        sides = [trial.by_kernel(each.launch) for each in rivals]
        taken = measure(*sides, *([trial.by_torch()] if measures_torch else []))
    for rival, each in zip(rivals, taken, strict=False):
        seconds[rival.place] = each / copies
    torch_seconds = taken[-1] / copies if measures_torch else brief[-1]
    return _chosen(seconds, [each.place for each in rivals]), seconds, torch_seconds


def _is_far_slower(one: float, other: float) -> bool:
    return one > _FAR_SLOWER * other and one - other > _NOTICEABLE


def _briefly(calls: Sequence[Callable[[], Any]], torchs: Callable[[], Any]) -> list[float]:
    """The seconds of one call of each kernel and of torch; of a second one, if the first seems hopeless: a program may
    have interrupted it."""
    *ours, of_torch = once(*calls, torchs)
    limit = _limit(min(ours))
    for at, each in enumerate(ours):
        if each > limit:
            ours[at] = min(each, *once(calls[at]))
    return [*ours, of_torch]


def _limit(best: float) -> float:
    """The seconds from which on a kernel is hopeless beside the fastest one."""
    return max(_HOPELESS * best, best + _MUCH_LONGER)


def _chosen(seconds: Sequence[float | None], measured: Sequence[int]) -> int:
    """The fastest kernel of those that were measured to the end; the first one unless another is faster by 2 %."""
    times = {at: each for at in measured if (each := seconds[at]) is not None}
    best = min(times, key=lambda at: times[at])
    return 0 if 0 in times and times[best] > _FASTER * times[0] else best


def _rivals(trial: RegionTrial, candidates: KernelCandidates) -> tuple[list[_Rival], list[Callable[[], Any]]]:
    """The candidates whose results agree with torch's, and their calls."""
    operation = candidates.needed.operation
    expected = trial.by_torch()()
    is_read = [node is not None for node in trial.region.outputs]
    rivals, calls, reasons = list[_Rival](), list[Callable[[], Any]](), list[str]()
    for place, (variant, kernel) in enumerate(candidates.every):
        try:
            launch = launch_of_kernel(RegionSignature(operation), kernel)
            call = trial.by_kernel(launch)
            is_right = all(map(_agree, compress(call(), is_read), expected))
        except DispatchProfilerError as error:
            reasons.append(f"{variant.label}: {error}")
            continue
        if not is_right:
            reasons.append(f"{variant.label}: its results differ from torch's")
            continue
        rivals.append(_Rival(place, launch))
        calls.append(call)
    for reason in reasons:
        _log.warning("%s: %s; this kernel is not used", operation.name, reason)
    if not rivals:
        raise DispatchProfilerError("; ".join(reasons))
    return rivals, calls


def _agree(result: Any, expected: Any) -> bool:
    """Whether all elements differ by the tolerance at most, or are NaN or infinite on both sides."""
    is_short = result.dtype is torch.float32 and product_precision() != _FULL_PRECISION
    tolerance = _TOLERANCES.get(torch.bfloat16 if is_short else result.dtype)
    if tolerance is None:
        return bool(torch.equal(result, expected))
    finite = expected[expected.isfinite()]
    scale = float(finite.abs().max()) if finite.numel() else 0.0
    return bool(torch.allclose(result, expected, rtol=0.0, atol=tolerance * scale, equal_nan=True))


# -- attention on GPUs -----------------------------------------------------------------------------

#: Calls of an attention in a CUDA graph, and rounds of both graphs.
_CALLS, _GRAPH_ROUNDS = 10, 7


def attention_seconds(call: AttentionCall) -> tuple[float, float]:
    """The seconds of an attention on a GPU by the kernel of this package and by torch, in CUDA graphs.

    Raises the errors of both sides.
    """
    nodes = list(call.node.all_input_nodes)
    tensors = dict(zip(nodes, samples([value(each) for each in nodes], (), is_signed=True), strict=True))
    for node in filter(None, call.tensors):  # without what torch repeats and expands
        tensors.setdefault(node, samples([value(node)], (), is_signed=True)[0])
    sides: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = [
        (ATTENTION, call.arguments, {}),
        (call.node.target, call.node.args, call.node.kwargs),
    ]
    device = value(call.query).device
    graphs = []
    with torch.cuda.device(device):
        for target, args, named in sides:
            given, by_name = torch.fx.map_arg((args, named), tensors.__getitem__)
            graphs.append(_cuda_graph(partial(target, *given, **by_name)))
        taken = [[_graph_seconds(each) for each in graphs] for _ in range(_GRAPH_ROUNDS)]
    ours, torchs = map(statistics.median, zip(*taken, strict=True))
    return ours / _CALLS, torchs / _CALLS


def _cuda_graph(function: Callable[[], Any]) -> Any:
    """A CUDA graph with several calls of `function`, which has been called before: that loads kernels."""
    stream_of: Any = torch.cuda.Stream
    stream = stream_of()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        function()
    torch.cuda.current_stream().wait_stream(stream)
    graph: Any = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(_CALLS):
            function()
    return graph


def _graph_seconds(graph: Any) -> float:
    graph.replay()  # loads what the other graph displaced
    event: Any = torch.cuda.Event
    start, end = (event(enable_timing=True) for _ in range(2))
    start.record()
    graph.replay()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / 1e3
