"""Times a region in turns by our kernel and by torch, on tensors like those of its graph."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch

from dispatch_profiler.boo.fusion.execute.calls import RunCall
from dispatch_profiler.boo.fusion.match.matching import VIEWS, Region
from dispatch_profiler.boo.fusion.nodes import Node, aten, is_parameter, value
from dispatch_profiler.boo.fusion.plan.rewriting import compute_only
from dispatch_profiler.boo.fusion.roots.product import MATRIX_PRODUCT
from dispatch_profiler.boo.fusion.schema import GRADIENTS
from dispatch_profiler.boo.fusion.spec import RunSpec
from dispatch_profiler.boo.fusion.strides import takes_any_strides
from dispatch_profiler.runtime._base import seconds_of

# -- tensors -------------------------------------------------------------------------------------


_torch: Any = torch
#: Operators between a region and its inputs, which kernels leave out.
_MOVES = (*VIEWS, aten.clone.default, aten.permute.default, aten.transpose.int)


def samples(example_inputs: Sequence[Any], real: Sequence[Any], *, is_signed: bool = False) -> list[Any]:
    """Real tensors with the shapes, strides and types of a graph's example inputs, which may be fake.

    Values are copied from `real` if these tensors match the example inputs, each in its place. Otherwise they are random
    floating-point numbers, or the integer 0, which is a valid index. Random numbers are positive, and with `is_signed`
    of both signs in tensors with several axes. Global random states do not change.
    """
    is_known = len(real) == len(example_inputs) and all(map(_is_like, real, example_inputs))
    generator = torch.Generator().manual_seed(0)
    with _torch.inference_mode(False), torch.no_grad():
        return [
            _sample(each, real[at] if is_known else None, generator, is_signed=is_signed)
            for at, each in enumerate(example_inputs)
        ]


def _is_like(real: Any, example: Any) -> bool:
    if not isinstance(example, torch.Tensor):
        return type(real) is type(example) and bool(real == example)
    return (
        type(real) in (torch.Tensor, torch.nn.Parameter)
        and real.layout == torch.strided
        and (real.shape, real.stride(), real.dtype, real.device)
        == (example.shape, example.stride(), example.dtype, example.device)
    )


def _sample(example: Any, real: Any, generator: Any, *, is_signed: bool) -> Any:
    if not isinstance(example, torch.Tensor):
        return example
    count = 1 + sum(
        (extent - 1) * stride for extent, stride in zip(example.shape, example.stride(), strict=True)
    )
    count = count if example.numel() else 0
    if real is not None:
        flat = real.detach().as_strided((count,), (1,)).clone()
    elif example.dtype.is_floating_point or example.dtype.is_complex:
        # In [0.5, 1), also valid as a variance; or in [-0.25, 0.25).
        least = -0.25 if is_signed and example.dim() > 1 else 0.5
        flat = (
            torch.rand(count, generator=generator, device="cpu")
            .mul_(0.5)
            .add_(least)
            .to(example.device, example.dtype)
        )
    else:
        flat = torch.zeros(count, dtype=example.dtype, device=example.device)
    return flat.as_strided(example.shape, example.stride())


def keeps_random_states(inputs: Sequence[Any]) -> AbstractContextManager[Any]:
    """A context that restores torch's random states on all devices of `inputs`."""
    devices = {each.device.index or 0 for each in inputs if isinstance(each, torch.Tensor) and each.is_cuda}
    return _torch.random.fork_rng(devices=sorted(devices))


def as_call(function: Callable[..., Any], inputs: Sequence[Any]) -> Callable[[], object]:
    """A call of a compiled graph, which takes a list and empties it, with `inputs`. The call waits for a GPU."""
    return finished(lambda: function(list(inputs)), inputs)


def finished(call: Callable[[], object], inputs: Sequence[Any]) -> Callable[[], object]:
    """`call`, followed by a wait for the GPU of `inputs`, if they are on a GPU."""
    device = next((each.device for each in inputs if isinstance(each, torch.Tensor) and each.is_cuda), None)
    if device is None:
        return call

    def call_and_wait() -> object:
        result = call()
        torch.cuda.synchronize(device)
        return result

    return call_and_wait


# -- borders of regions ----------------------------------------------------------------------------

# Finds where the memory format of images changes between regions and torch's operators.
#
# Kernels read and write images in channels_last memory. Images stay in this format between regions, and across operators
# of torch that take any strides. Elsewhere they are copied: before a region that reads an image with other strides, and
# after a region whose result must have other strides.


@dataclass(frozen=True)
class Borders:
    """The copies at the borders of a region: places of copied inputs among its inputs, and of copied results."""

    inputs: frozenset[int] = frozenset()
    results: frozenset[int] = frozenset()

    def __bool__(self) -> bool:
        return bool(self.inputs or self.results)


def borders_of(regions: Sequence[Region]) -> list[Borders]:
    """The borders of each region of a graph, provided that our kernels compute all of them."""
    if not regions:
        return []
    moved = _moved(regions)
    computed = {node for region in regions for node in region.nodes}
    return [
        Borders(
            frozenset(
                at
                for at in image_places(region)
                if region.inputs[at] not in moved and not _is_channels_last(value(region.inputs[at]))
            ),
            frozenset(
                at
                for at, (node, (_, reading)) in enumerate(
                    zip(region.outputs, region.spec.results, strict=True)
                )
                if node is not None and reading == "channels" and _is_restored(node, computed)
            ),
        )
        for region in regions
    ]


def image_places(region: Region) -> set[int]:
    """The places of the inputs, except weights, that kernels read in channels_last memory."""
    return {at for source in region.spec.sources if source.reading == "channels" for at in source.inputs}


def _moved(regions: Sequence[Region]) -> set[Node]:
    """The nodes whose results are in channels_last memory because the results of regions are."""
    inside = {node for region in regions for node in region.nodes}
    moved = {
        node
        for region in regions
        for node, (_, reading) in zip(region.outputs, region.spec.results, strict=True)
        if node is not None and reading == "channels"
    }
    for node in next(iter(moved)).graph.nodes if moved else ():
        is_of_torch = node.op == "call_function" and node not in inside and takes_any_strides(node.target)
        if is_of_torch and moved.intersection(node.all_input_nodes):
            moved.add(node)
    return moved


def _is_restored(node: Node, computed: set[Node]) -> bool:
    """Whether something that reads a result needs the strides that the result has in the graph without regions."""
    if _is_channels_last(value(node)):
        return False
    return any(
        user not in computed and (user.op != "call_function" or not takes_any_strides(user.target))
        for user in node.users
    )


def _is_channels_last(tensor: Any) -> bool:
    return bool(tensor.permute(0, *range(2, tensor.dim()), 1).is_contiguous())


# -- times of a region -----------------------------------------------------------------------------

#: Functions -> the seconds per call of each.
Measure = Callable[..., Sequence[float]]
#: Copies of a region in one chain: in a model, regions follow each other, and the caller waits once.
COPIES = 8
#: Elements of a pointwise operator for each thread that computes it: torch gives a thread half as many at least. And the
#: rows and columns of a product that takes about a millisecond on two cores.
_OF_A_THREAD, _ROWS_OF_NEIGHBOR = 2**16, 512
#: Number of rounds, and the seconds after which no more rounds are started.
_ROUNDS, _BUDGET = 15, 0.5
#: The same for more than two functions, one of which is given up if it takes so many times as long as the fastest one in
#: each round, from the second one on.
_BUDGET_OF_MANY, _SLOW, _SLOW_ROUNDS = 0.4, 1.2, 2
#: Other programs compute if a function's middle half of times spreads by this part; then many functions are measured for
#: so many times as long.
_NOISY, _LONGER = 0.3, 3


def in_turns(*functions: Callable[[], Any]) -> list[float]:
    """Medians of the seconds per call of each function, called alternately.

    Of more than two functions, slow ones are given up, and the lower quartiles of the seconds are returned: other programs
    make some rounds longer, and the choice between many kernels is kept.
    """
    are_many = len(functions) > 2
    for function in functions:
        function()
    taken: list[list[float]] = [[] for _ in functions]
    left = list(range(len(functions)))
    start, budget = time.perf_counter(), _BUDGET_OF_MANY if are_many else _BUDGET
    for number in range(1, _ROUNDS + 1):
        for at in left:
            # The first call after the other side waits for its threads, and loads memory.
            taken[at].append(_of_second_call(functions[at]))
        if are_many and number >= _SLOW_ROUNDS:
            left = _without_slow(taken, left)
        is_noisy = are_many and any(map(_is_noisy, map(taken.__getitem__, left)))
        if time.perf_counter() - start > budget * (_LONGER if is_noisy else 1):
            break
    return list(map(_lower_quartile if are_many else statistics.median, taken))


def _lower_quartile(seconds: Sequence[float]) -> float:
    return sorted(seconds)[(len(seconds) - 1) // 4]


def _is_noisy(seconds: Sequence[float]) -> bool:
    ordered = sorted(seconds)
    return ordered[3 * (len(ordered) - 1) // 4] > (1 + _NOISY) * _lower_quartile(seconds)


def _without_slow(taken: Sequence[Sequence[float]], left: Sequence[int]) -> list[int]:
    best = min(left, key=lambda at: statistics.median(taken[at]))
    return [
        at
        for at in left
        if any(mine <= _SLOW * its for mine, its in zip(taken[at], taken[best], strict=True))
    ]


def once(*functions: Callable[[], Any]) -> list[float]:
    """The seconds of the second call of each function: enough to see what takes many times as long."""
    return list(map(_of_second_call, functions))


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
    is_apart: bool = False,
) -> tuple[float, float]:
    """Seconds of a region by our kernel, and by torch's operators.

    `nested` compiles a graph module of the region's nodes; None leaves the nodes to eager torch. Both sides wait for a
    GPU. A region with `borders` is computed once, including the copies at its borders, and so is one that `is_apart`, as
    in `RegionTrial`. Other regions follow each other in a model: unless `is_brief`, both sides compute such a region
    several times in a row, with different parameters, and our kernel reads images in channels_last memory. Raises the
    errors of both sides.
    """
    copies = 1 if borders or is_brief or is_apart else COPIES
    with trial_mode():
        trial = RegionTrial(region, borders, copies, nested, is_apart=is_apart)
        ours, theirs = measure(trial.by_kernel(), trial.by_torch())
    return ours / copies, theirs / copies


@contextlib.contextmanager
def trial_mode() -> Iterator[None]:
    """The modes in which regions are computed. In inference mode, tensors are treated differently from parameters."""
    with torch.inference_mode(False), torch.no_grad():
        yield


class RegionTrial:
    """Calls of a region by torch's operators and by our kernels, on the same tensors. Use it in `trial_mode`.

    The region is computed `copies` times in a row, with different parameters. `borders` and `nested` are as in
    `region_seconds`. With `is_signed`, images and matrices have numbers of both signs. If the region `is_apart`, each call
    also computes a short operator of torch before it and after it (`_neighbor`).
    """

    def __init__(
        self,
        region: Region,
        borders: Borders = Borders(),
        copies: int = 1,
        nested: Callable[[Any, Sequence[Any]], Any] | None = None,
        *,
        is_signed: bool = False,
        is_apart: bool = False,
    ) -> None:
        self._neighbor = _neighbor(region) if is_apart else None
        self.region, self._borders = region, borders
        inputs = samples([value(each) for each in region.inputs], (), is_signed=is_signed)
        module = region_module(region)
        self._compute = module.forward if nested is None else nested(module, inputs)
        self._rows = _rows(region, inputs, copies)
        self._places, given = _shared(self._rows)
        images = {row[at] for row in self._places for at in image_places(region) - borders.inputs}
        self._stored = [_channels_last(each) if at in images else each for at, each in enumerate(given)]

    def by_torch(self) -> Callable[[], Any]:
        """The region computed by torch, or by the nested backend; the results of the last copy."""

        def compute() -> Any:
            results = None
            for row in self._rows:
                results = self._compute(*row)
            return results

        return finished(self._beside_torch(compute), self._stored)

    def by_kernel(self, launch: Any = None) -> Callable[[], Any]:
        """The region computed by our kernel, or by a given `launch` of a kernel; the results of the last copy."""
        launches = None if launch is None else [launch] * len(self._places)
        run = _run(self.region, self._places, len(self._stored))
        call = RunCall(run, strict=True, launches=launches)

        def compute() -> list[Any]:
            results = call(*self._stored)
            for at in self._borders.results:
                results[at] = _with_strides(results[at], value(self.region.outputs[at]))
            return results

        return finished(self._beside_torch(compute), self._stored)

    def _beside_torch(self, compute: Callable[[], Any]) -> Callable[[], Any]:
        """`compute` between two operators of torch if the region is apart; otherwise `compute` itself."""
        neighbor = self._neighbor
        if neighbor is None:
            return compute

        def compute_between() -> Any:
            neighbor()
            results = compute()
            neighbor()
            return results

        return compute_between


def _neighbor(region: Region) -> Callable[[], Any]:
    """A short operator of torch on all of its threads: beside a product another one, as in a model.

    Our threads wait for torch's, which spin after an operator. torch's next one may have to start new threads, with which
    a product takes 0.2 ms longer on two cores, negating numbers 0.06.
    """
    if region.root != MATRIX_PRODUCT:
        return torch.zeros(torch.get_num_threads() * _OF_A_THREAD, device="cpu").neg_
    left, right, out = torch.zeros(3, _ROWS_OF_NEIGHBOR, _ROWS_OF_NEIGHBOR, device="cpu")
    return lambda: torch.mm(left, right, out=out)


def _with_strides(tensor: Any, like: Any) -> Any:
    return torch.empty_strided(like.shape, like.stride(), dtype=tensor.dtype, device=tensor.device).copy_(
        tensor
    )


def _rows(region: Region, inputs: Sequence[Any], copies: int) -> list[list[Any]]:
    """The inputs of each copy of the region, which has its own parameters."""
    are_own = list(map(is_parameter, region.inputs))
    return [
        [each.clone() if number and is_own else each for each, is_own in zip(inputs, are_own, strict=True)]
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
    uninitialized. It may read inputs through views.
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
            is_read = node in of_gradients or node in region.nodes or _is_view(node, region.inputs)
            if of_gradients and not is_read:
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


def _is_view(node: Node, inputs: Sequence[Node]) -> bool:
    """Whether a node views or copies one of `inputs`, as regions read it."""
    while node.target in _MOVES:
        node = node.args[0]
        if node in inputs:
            return True
    return False


def _uninitialized(graph: Any, like: Any) -> Node:
    options = {"dtype": like.dtype, "device": like.device}
    return graph.call_function(aten.empty_strided.default, (list(like.shape), list(like.stride())), options)


def _channels_last(tensor: Any) -> Any:
    axes = tensor.dim()
    dense = tensor.permute(0, *range(2, axes), 1).contiguous()
    return dense.permute(0, axes - 1, *range(1, axes - 1))
