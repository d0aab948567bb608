"""Times a region in turns by our kernel and by torch."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from dispatch_profiler.boo.backends.borders import Borders, image_places
from dispatch_profiler.boo.backends.rounds import finished, samples
from dispatch_profiler.boo.fusion.execute.calls import RunCall
from dispatch_profiler.boo.fusion.match.matching import Region
from dispatch_profiler.boo.fusion.nodes import Node, aten, is_parameter, value
from dispatch_profiler.boo.fusion.plan.rewriting import compute_only
from dispatch_profiler.boo.fusion.schema import GRADIENTS
from dispatch_profiler.boo.fusion.spec import RunSpec
from dispatch_profiler.runtime.timing import alternating, seconds_of

#: Two functions -> their seconds per call.
Measure = Callable[[Callable[[], Any], Callable[[], Any]], tuple[float, float]]
#: Copies of a region in one chain: in a model, regions follow each other, and the caller waits once.
COPIES = 8
#: Number of rounds, and the seconds after which no more rounds are started.
_ROUNDS, _BUDGET = 15, 0.5


def in_turns(ours: Callable[[], Any], theirs: Callable[[], Any]) -> tuple[float, float]:
    """Medians of the seconds per call of both functions, called alternately."""
    for function in (ours, theirs):
        function()
    # The first call after the other side waits for its threads, and loads memory.
    timers = (partial(_of_second_call, ours), partial(_of_second_call, theirs))
    ours_taken, theirs_taken = alternating(timers, _ROUNDS, _BUDGET)
    return statistics.median(ours_taken), statistics.median(theirs_taken)


def once(ours: Callable[[], Any], theirs: Callable[[], Any]) -> tuple[float, float]:
    """The seconds of the second call of each function: enough to see what takes many times as long."""
    return _of_second_call(ours), _of_second_call(theirs)


def _of_second_call(function: Callable[[], Any]) -> float:
    function()
    return seconds_of(function)


def region_seconds(
    region: Region,
    measure: Measure,
    nested: Callable[[Any, Sequence[Any]], Any] | None = None,
    *,
    borders: Borders = Borders(),
    is_brief: bool = False,
) -> tuple[float, float]:
    """Seconds of a region by our kernel, and by torch's operators.

    `nested` compiles a graph module of the region's nodes; None leaves the nodes to eager torch. Both sides wait for a
    GPU. A region with `borders` is computed once, including the copies at its borders. Other regions follow each other
    in a model: unless `is_brief`, both sides compute such a region several times in a row, with different parameters,
    and our kernel reads images in channels_last memory. Raises the errors of both sides.
    """
    copies = 1 if borders or is_brief else COPIES
    # Not in inference mode: its tensors are treated differently from the parameters of a model.
    with torch.inference_mode(False), torch.no_grad():
        inputs = samples([value(each) for each in region.inputs], ())
        module = region_module(region)
        theirs = module.forward if nested is None else nested(module, inputs)
        rows = _rows(region, inputs, copies)
        places, given = _shared(rows)
        call = RunCall(_run(region, places, len(given)), strict=True)

        def compute_theirs() -> None:
            for row in rows:
                theirs(*row)

        def compute_ours() -> list[Any]:
            results = call(*stored)
            for at in borders.results:
                results[at] = _with_strides(results[at], value(region.outputs[at]))
            return results

        images = {row[at] for row in places for at in image_places(region) - borders.inputs}
        stored = [_channels_last(each) if at in images else each for at, each in enumerate(given)]
        ours_taken, theirs_taken = measure(
            *(finished(each, inputs) for each in (compute_ours, compute_theirs))
        )
    return ours_taken / copies, theirs_taken / copies


def _with_strides(tensor: Any, like: Any) -> Any:
    return torch.empty_strided(like.shape, like.stride(), dtype=tensor.dtype, device=tensor.device).copy_(
        tensor
    )


def _rows(region: Region, inputs: Sequence[Any], copies: int) -> list[list[Any]]:
    """The inputs of each copy of the region, which has its own parameters."""
    own = {at for at, node in enumerate(region.inputs) if is_parameter(node)}
    return [
        [each.clone() if number and at in own else each for at, each in enumerate(inputs)]
        for number in range(copies)
    ]


def _shared(rows: Sequence[Sequence[Any]]) -> tuple[list[tuple[int, ...]], list[Any]]:
    """The places of the tensors of each row in a list of all different tensors, and the list."""
    numbers: dict[int, int] = {}
    given: list[Any] = []
    for each in (tensor for row in rows for tensor in row):
        if id(each) not in numbers:
            numbers[id(each)] = len(given)
            given.append(each)
    return [tuple(numbers[id(each)] for each in row) for row in rows], given


def _run(region: Region, places: Sequence[tuple[int, ...]], count: int) -> RunSpec:
    """A run that computes the region for each of `places`, and returns the results of the last region."""
    results = len(region.spec.results)
    last = count + results * (len(places) - 1)
    return RunSpec(count, tuple((region.spec, each) for each in places), tuple(range(last, last + results)))


def region_module(region: Region) -> Any:
    """A graph module of a region's nodes: the region's inputs -> its outputs.

    An operator of several gradients computes only the region's gradients. Tensors that it reads only for others are
    uninitialized.
    """
    graph: Any = torch.fx.Graph()
    known: dict[Node, Node] = {}
    for number, node in enumerate(region.inputs):
        known[node] = graph.placeholder(f"input_{number}")
    outputs = [each for each in region.outputs if each is not None]
    of_gradients: dict[Node, list[int]] = {}
    for each in outputs if region.root in GRADIENTS else ():
        of_gradients.setdefault(each.args[0], []).append(each.args[1])

    def copied(node: Node) -> Node:
        if node not in known:
            if of_gradients and node not in of_gradients and node not in region.nodes:
                known[node] = _uninitialized(graph, value(node))
                return known[node]
            for each in node.all_input_nodes:
                copied(each)
            known[node] = graph.node_copy(node, known.__getitem__)
            if node in of_gradients:
                compute_only(known[node], of_gradients[node])
        return known[node]

    graph.output(tuple(map(copied, outputs)))
    return torch.fx.GraphModule({}, graph)


def _uninitialized(graph: Any, like: Any) -> Node:
    sizes = (list(like.shape), list(like.stride()))
    return graph.call_function(
        aten.empty_strided.default, sizes, {"dtype": like.dtype, "device": like.device}
    )


def _channels_last(tensor: Any) -> Any:
    axes = tensor.dim()
    dense = tensor.permute(0, *range(2, axes), 1).contiguous()
    return dense.permute(0, axes - 1, *range(1, axes - 1))
