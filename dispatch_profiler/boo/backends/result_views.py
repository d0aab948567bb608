"""Lets results of compiled graphs share memory as in eager torch.

Inductor computes views among the results separately, unless it happens to store the tensor that they are views of. So
the graph returns this tensor, the owner, and the views are made in each call:

    y = relu(x); return y[0], y[1]    ->    return y, and make y[0] and y[1] later
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from dispatch_profiler.boo.fusion.plan.rewriting import RESULT_STRIDES
from dispatch_profiler.boo.fusion.strides import name_same_memory, shared_memory, with_strides


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
    extents = (*tensor.shape, *tensor.stride(), tensor.storage_offset())
    return all(type(each) is int for each in extents)


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
    wanted: Mapping[int, tuple[int, ...]] = output.meta.get(RESULT_STRIDES, {})
    if not wanted:
        return function

    def call(*inputs: Any) -> Any:
        results = list(function(*inputs))
        for place, strides in wanted.items():
            found = results[place]
            if not isinstance(found, torch.Tensor) or found.stride() == strides:
                continue
            if name_same_memory(found.shape, found.stride(), strides):
                # In place: another tensor would be a view that was made without gradients, which programs that compute
                # gradients may not write to.
                found.as_strided_(found.shape, strides)
            elif copied is None or place < copied:
                results[place] = with_strides(found, found.shape, strides)
        return results

    return call
