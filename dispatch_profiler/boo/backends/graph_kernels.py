"""Replaces the regions of a graph of AOTAutograd by calls of our kernels, and prepares the kernels.

A region whose kernel is slower than torch is left to torch.
"""

from __future__ import annotations

import logging
import operator
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch

from dispatch_profiler.boo.backends.region_kernels import (
    CHANGE,
    RegionChoice,
    device_of,
    unusable_kernels,
    wrong_regions,
)
from dispatch_profiler.boo.environment import LOGGER
from dispatch_profiler.boo.fusion.execute.run_graphs import RunGraph
from dispatch_profiler.boo.fusion.execute.torch_operator import (
    REGIONS,
    direct_function,
    is_run,
    run_of,
)
from dispatch_profiler.boo.fusion.match.glue import find_glue
from dispatch_profiler.boo.fusion.match.matching import Region, Rejected, find_regions
from dispatch_profiler.boo.fusion.nodes import fake_mode
from dispatch_profiler.boo.fusion.plan.any_batch import (
    any_batch_regions,
    computes_more,
    has_dynamic_shapes,
    replace_regions,
    sized_as_traced,
)
from dispatch_profiler.boo.fusion.plan.eager_strides import correct_strides
from dispatch_profiler.boo.fusion.plan.joining import runs_of_regions
from dispatch_profiler.boo.fusion.plan.rewriting import RESULT_STRIDES, rewrite
from dispatch_profiler.boo.fusion.schema import GLUE, FusionSchema
from dispatch_profiler.boo.fusion.strides import drop_aliases, name_same_memory, shared_memory, with_strides
from dispatch_profiler.errors import DispatchProfilerError

_torch: Any = torch
_NOTHING_SAVED = (
    "torch is faster: kernels of such regions save less than the change from torch's threads and back takes"
)
_log = logging.getLogger(LOGGER)


@dataclass(frozen=True, eq=False)
class FusedGraph:
    """A graph module with calls of our kernels, and the regions and rejected nodes of the graph before."""

    module: Any
    regions: tuple[Region, ...]
    rejected: tuple[Rejected, ...]
    #: Whether regions lack a kernel, or have a wrong one.
    has_failures: bool = False

    @cached_property
    def runs(self) -> RunGraph | None:
        """The graph as runs, if our kernels compute all of it and leave nothing for a nested backend; else None."""
        return RunGraph.of(self.module.graph) if self.regions else None


@dataclass
class Fallbacks:
    """Reports operators that are not fused: logs each reason once, or raises it in strict mode."""

    strict: bool
    _logged: set[str] = field(default_factory=set)

    def report(self, what: str, error: BaseException | str) -> None:
        """Raise `error` in strict mode; otherwise log it once, with `what` failed."""
        is_ours = isinstance(error, (str, DispatchProfilerError))
        # Messages of other compilers may have hundreds of lines.
        message = f"{what}: {error if is_ours else str(error).partition(chr(10))[0]}"
        if self.strict:
            if isinstance(error, BaseException):
                raise error
            raise DispatchProfilerError(message)
        if message not in self._logged:
            self._logged.add(message)
            _log.warning("%s; torch computes it", message)


class SilentFallbacks(Fallbacks):
    """Reports operators that are not fused by a candidate's schema: only logs them, at DEBUG."""

    def __init__(self) -> None:
        super().__init__(strict=False)

    def report(self, what: str, error: BaseException | str) -> None:
        """Log `error`."""
        _log.debug("%s: %s", what, error)


def fuse(
    module: Any,
    schema: FusionSchema,
    fallbacks: Fallbacks,
    choice: RegionChoice | None = None,
    *,
    runs_eagerly: bool = False,
    most: int | None = None,
) -> FusedGraph:
    """A copy of a graph module in which regions are calls of our operators.

    Regions without a kernel, and regions that `choice` decides against, stay as they are. A module without regions is
    returned itself. With `runs_eagerly`, eager torch computes the rest (see `rewrite`). Only the first `most` regions of
    the graph are replaced, or all if it is None.
    """
    graph = _copy(module.graph)
    varying, slower = batch_regions(graph, schema, choice)
    if varying:
        replace_regions(graph, varying, fake_mode(graph))
    drop_aliases(graph)
    regions, rejected = find_beside(graph, schema, (), slower)
    regions = regions[:most]
    optional = frozenset[str]() if choice is None else choice.optional
    for each in rejected[len(slower) :]:
        _reporting(each.root, optional, fallbacks).report(f"{each.node} ({each.root})", each.reason)
    if choice is not None:
        regions, slower = choice.promising(regions)
        rejected += slower
    reasons = unusable_kernels(regions) if choice is None else choice.prepared(regions)
    regions, failed = _usable(regions, reasons, fallbacks, optional)
    rejected, has_failures = rejected + failed, any(each.root not in optional for each in failed)
    if choice is not None:
        regions, slower = choice.chosen(regions)
        rejected += slower
    if not regions:
        made = torch.fx.GraphModule(module, graph) if varying else module
        return FusedGraph(made, tuple(varying), tuple(rejected), has_failures)
    if runs_eagerly:
        # Programs that connect regions may compute results, whose strides are those of eager torch.
        correct_strides(graph, fake_mode(graph))
    reasons = {}
    connecting = connecting_regions(graph, regions, schema, reasons)
    connecting, failed = _usable(connecting, reasons, fallbacks)
    rejected += failed
    has_failures |= bool(failed)
    regions += connecting
    rewrite(graph, regions, fake_mode(graph), runs_eagerly=runs_eagerly)
    every = (*varying, *regions)
    return FusedGraph(torch.fx.GraphModule(module, graph), every, tuple(rejected), has_failures)


def batch_regions(
    graph: Any, schema: FusionSchema, choice: RegionChoice | None
) -> tuple[list[Region], list[Rejected]]:
    """The regions for any batch of a graph with dynamic shapes, and those where torch is faster. Their kernels are compiled."""
    found = any_batch_regions(graph, schema) if has_dynamic_shapes(graph) else []
    unusable = unusable_kernels(found) if found else {}
    found = [each for each in found if each.spec.operation not in unusable]
    if choice is None or not found:
        return found, []
    choice = replace(choice, chooses_kernels=False)  # there is one kernel
    with sized_as_traced(graph, fake_mode(graph)):
        regions, slower = choice.chosen(found)
        saved = dict(zip(found, choice.savings(found), strict=True))
    least = CHANGE if computes_more(graph, regions) else 0.0
    for run in runs_of_regions(graph, regions):
        if sum(saved[each] for each in run) <= least:
            slower += [Rejected(each.root, each.nodes[0], _NOTHING_SAVED) for each in run]
            regions = [each for each in regions if each not in run]
    return regions, slower


def find_beside(
    graph: Any, schema: FusionSchema, varying: Sequence[Region], slower: Sequence[Rejected]
) -> tuple[list[Region], list[Rejected]]:
    """The other regions of a graph, and the rejected nodes: first what `batch_regions` found to be `slower`."""
    regions, rejected = find_regions(graph, schema)
    known = {each.node for each in slower} | {node for each in varying for node in each.nodes}
    return regions, [*slower, *(each for each in rejected if each.node not in known)]


def _reporting(root: str, optional: Container[str], fallbacks: Fallbacks) -> Fallbacks:
    """What reports that a node with this root is not fused."""
    return SilentFallbacks() if root in optional else fallbacks


def _usable(
    regions: Sequence[Region],
    reasons: Mapping[Any, str],
    fallbacks: Fallbacks,
    optional: Container[str] = (),
) -> tuple[list[Region], list[Rejected]]:
    """The regions whose operations are not in `reasons`, and the other regions, which are reported, as rejected."""
    usable, failed = list[Region](), list[Rejected]()
    for region in regions:
        reason = reasons.get(region.spec.operation)
        if reason is None:
            usable.append(region)
        else:
            _reporting(region.root, optional, fallbacks).report(region.spec.operation.name, reason)
            failed.append(Rejected(region.root, region.nodes[0], reason))
    return usable, failed


def connecting_regions(
    graph: Any, regions: Sequence[Region], schema: FusionSchema, failed: dict[Any, str]
) -> list[Region]:
    """Programs that connect `regions`, if the schema has a rule for them. Adds why some are unusable to `failed`."""
    if schema.rule_for(GLUE) is None:
        return []
    glue = find_glue(graph, regions)
    failed |= unusable_kernels(glue)
    programs = [each.spec.operation for each in glue if each.spec.operation not in failed]
    if programs:
        failed |= wrong_regions(programs, device_of(glue[0]))
    return glue


def copied(module: Any) -> Any:
    """A graph module with a copy of the graph, for compilers that change the graph that they compile."""
    return torch.fx.GraphModule(module, _copy(module.graph))


def distinct(function: Callable[..., Any], module: Any) -> Callable[..., Any]:
    """`function`, which a compiler made from `module`, with a separate tensor object for each result of the graph.

    Compilers leave out views that change nothing, and return the same object for a result and its view.
    """
    (output,) = [node for node in module.graph.nodes if node.op == "output"]
    nodes = list(output.args[0])
    if len({id(each) for each in nodes}) < 2:
        return function

    def call(*inputs: Any) -> Any:
        results = list(function(*inputs))
        first: dict[int, Any] = {}
        for at, (result, node) in enumerate(zip(results, nodes, strict=True)):
            if isinstance(result, torch.Tensor) and first.setdefault(id(result), node) is not node:
                results[at] = result.view_as(result)
        return results

    return call


def _copy(graph: Any) -> Any:
    copied: Any = torch.fx.Graph()
    node = copied.output(copied.graph_copy(graph, {}))
    (original,) = [each for each in graph.nodes if each.op == "output"]
    node.meta.update(original.meta)
    return copied


def with_direct_calls(module: Any, *, strict: bool) -> Any:
    """A graph module with runs called as Python functions, bypassing torch's dispatcher."""
    for number, node in enumerate(module.graph.nodes):
        if node.op == "call_function" and is_run(node.target):
            run, inputs = run_of(node)
            if node.target is not REGIONS and len(run.outputs) == 1:
                _list_result(module.graph, node)
            node.target = direct_function(run, number, strict=strict)
            node.args = tuple(inputs)
    module.recompile()
    return module


def _list_result(graph: Any, call: Any) -> None:
    """Let a call that returned one tensor return a list of it."""
    with graph.inserting_after(call):
        result = graph.call_function(operator.getitem, (call, 0))
    call.replace_all_uses_with(result, delete_user_cb=lambda user: user is not result)


# -- result views ----------------------------------------------------------------------------------

# Lets results of compiled graphs share memory as in eager torch.
#
# Inductor computes views among the results separately, unless it happens to store the tensor that they are views of. So
# the graph returns this tensor, the owner, and the views are made in each call:
#
#     y = relu(x); return y[0], y[1]    ->    return y, and make y[0] and y[1] later


@dataclass(frozen=True)
class _View:
    """A result as a view of its owner, the tensor at `place` among the graph's new results."""

    place: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    #: Whether it views the real and imaginary parts of complex numbers.
    is_of_parts: bool

    def of(self, owner: Any) -> Any:
        if self.is_of_parts:
            owner = torch.view_as_real(owner)
        return owner.as_strided(self.shape, self.strides, owner.storage_offset() + self.offset)


def return_owners(module: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]] | None:
    """Let the graph of `module` return the owners of results that are views, instead of the views.

    Returns a function that turns a function with the new results into a function with the previous results; None if no
    result is a view. Results with dynamic shapes, or with another type than their owner, are returned as before.
    """
    graph = module.graph
    (output,) = [node for node in graph.nodes if node.op == "output"]
    results = list(output.args[0])
    owners: dict[Any, Any] = {}
    for shared in shared_memory(graph):
        views = [each for each in results if each in shared.views]
        if views and _is_static(shared.base) and all(_is_view(each, shared.base) for each in views):
            owners |= dict.fromkeys(views, shared.base)
    if not owners:
        return None
    returned = list(dict.fromkeys(owners.get(each, each) for each in results))
    output.args = (type(output.args[0])(returned),)
    graph.eliminate_dead_code()
    module.recompile()
    places = {each: place for place, each in enumerate(returned)}
    views_of = {each: _view(each, owner, places[owner]) for each, owner in owners.items()}
    strides = {places[owner]: owner.meta["val"].stride() for owner in owners.values()}
    return lambda function: _with_views(function, results, places, views_of, strides)


def _is_static(node: Any) -> bool:
    tensor = node.meta["val"]
    return all(type(each) is int for each in (*tensor.shape, *tensor.stride(), tensor.storage_offset()))


def _is_view(node: Any, owner: Any) -> bool:
    """Whether strides and an offset describe `node` as a view of `owner`, or of the parts of its complex numbers."""
    view, whole = node.meta["val"], owner.meta["val"]
    is_plain = not (view.is_conj() or view.is_neg() or whole.is_conj() or whole.is_neg())
    return _is_static(node) and is_plain and (view.dtype == whole.dtype or _is_of_parts(view, whole))


def _is_of_parts(view: Any, whole: Any) -> bool:
    return bool(whole.is_complex() and view.dtype == whole.dtype.to_real())


def _view(node: Any, owner: Any, place: int) -> _View:
    view, whole = node.meta["val"], owner.meta["val"]
    is_of_parts = _is_of_parts(view, whole)
    offset = view.storage_offset() - whole.storage_offset() * (2 if is_of_parts else 1)
    return _View(place, tuple(view.shape), view.stride(), offset, is_of_parts)


def _with_views(
    function: Callable[..., Any],
    results: Sequence[Any],
    places: Mapping[Any, int],
    views: Mapping[Any, _View],
    strides: Mapping[int, tuple[int, ...]],
) -> Callable[..., Any]:
    """A function that returns `results`: the results of `function`, which are at `places`, and `views` of them.

    Owners first get their `strides`, by place, because the compiler may have chosen others.
    """

    def call(*inputs: Any) -> Any:
        returned = list(function(*inputs))
        for place, wanted in strides.items():
            owner = returned[place]
            if owner.stride() != wanted:
                returned[place] = with_strides(owner, owner.shape, wanted)
        made = {each: view.of(returned[view.place]) for each, view in views.items()}
        return [made[each] if each in made else returned[places[each]] for each in results]

    return call


# -- result strides --------------------------------------------------------------------------------

# Strides of results behind a compiler.
#
# Eager torch and inductor have rules of their own for strides along axes with one element, which mean nothing, but programs
# see them. And inductor may replace operators by others, whose results follow the strides of regions. So results get the
# strides of eager torch, which were found when regions replaced the operators that they follow from.


def with_eager_strides(
    function: Callable[..., Any], module: Any, copied: int | None = None
) -> Callable[..., Any]:
    """`function`, which computes the graph of `module` with fused regions, but with the strides of eager torch.

    Of results with the elements in another order, the first `copied` are copied, or all if it is None.
    """
    (output,) = [node for node in module.graph.nodes if node.op == "output"]
    return results_with_strides(function, output.meta.get(RESULT_STRIDES, {}), copied)


def results_with_strides(
    function: Callable[..., Any], wanted: Mapping[int, tuple[int, ...]], copied: int | None = None
) -> Callable[..., Any]:
    """`function`, but results have the `wanted` strides, by their places. `copied` is as in `with_eager_strides`."""
    if not wanted:
        return function

    def call(*inputs: Any) -> Any:
        results = list(function(*inputs))
        for place, strides in wanted.items():
            result = results[place]
            if not isinstance(result, torch.Tensor) or result.stride() == strides:
                continue
            if name_same_memory(result.shape, result.stride(), strides):
                # In place: another tensor would be a view that was made without gradients, which programs that compute
                # gradients may not write to.
                result.as_strided_(result.shape, strides)
            elif copied is None or place < copied:
                results[place] = with_strides(result, result.shape, strides)
        return results

    return call
