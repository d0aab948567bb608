"""A graph that differs -> a smaller one that still does: fewer results, fewer lines, plainer tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from drawn_graphs import DrawnGraph, Step, names_in, without_unused


def reduced(graph: DrawnGraph, differs: Callable[[DrawnGraph], bool]) -> DrawnGraph:
    """The smallest graph that is found by leaving out one thing after another, for as long as `differs` holds."""
    while True:
        found = next((each for each in _smaller(graph) if each != graph and differs(each)), None)
        if found is None:
            return graph
        graph = found


def _smaller(graph: DrawnGraph) -> Iterator[DrawnGraph]:
    """Graphs with one thing less."""
    names = names_in(graph.results)
    if graph.results != tuple(names):
        yield replace(graph, results=tuple(names))
    for at in range(len(names)):
        if len(names) > 1:
            yield without_unused(replace(graph, results=(*names[:at], *names[at + 1 :])))
    yield without_unused(graph)
    for step in reversed(graph.steps):
        yield from _without(graph, step)
    for at, each in enumerate(graph.tensors):
        if each.memory != "rows":
            plain = replace(each, memory="rows")
            yield replace(graph, tensors=(*graph.tensors[:at], plain, *graph.tensors[at + 1 :]))
    if graph.mode == "inference_mode":
        yield replace(graph, mode="no_grad")
    if graph.type != "f32":
        yield replace(graph, type="f32")


def _without(graph: DrawnGraph, step: Step) -> Iterator[DrawnGraph]:
    """The graph without a step: what read its results reads instead what the step read, or is left out, too."""
    others = tuple(each for each in graph.steps if each is not step)
    for source in step.reads[:2] if step.makes else ():
        renamed = dict.fromkeys(step.makes, source)
        yield without_unused(
            replace(graph, steps=_renamed(others, renamed), results=_in(graph.results, renamed))
        )
    left, gone = [], set(step.makes)
    for each in others:
        if gone.intersection(each.reads):
            gone.update(each.makes)
        else:
            left.append(each)
    results = tuple(name for name in names_in(graph.results) if name not in gone)
    if results:
        yield without_unused(replace(graph, steps=tuple(left), results=results))


def _renamed(steps: tuple[Step, ...], names: dict[str, str]) -> tuple[Step, ...]:
    return tuple(replace(each, reads=tuple(names.get(name, name) for name in each.reads)) for each in steps)


def _in(results: Any, names: dict[str, str]) -> Any:
    return tuple(names.get(name, name) for name in names_in(results))
