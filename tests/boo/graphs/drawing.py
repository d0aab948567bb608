"""`draw(seed)`: a random graph."""

from __future__ import annotations

import random
import warnings
from typing import Any

import torch
from drafts import Draft, Unfit
from drawn_graphs import DrawnGraph, names_in
from graph_calls import called
from line_families import BODY, ENDING, FAMILIES, FIRST, NETWORK, VIEWS

#: Values beyond which differences mean little.
_LARGEST = 1e4


def draw(seed: int) -> DrawnGraph:
    """The graph of a seed: one that eager torch computes, with finite results."""
    for attempt in range(100):
        draft = Draft(seed, random.Random(1000 * seed + attempt))
        _declare_inputs(draft)
        if draft.newest < 0.5:
            _add_lines(draft, FAMILIES, draft.draw.randrange(2, 9))
        elif draft.newest < 0.9:
            _add_lines(draft, BODY, draft.draw.randrange(2, 7))
            _add_lines(draft, ENDING, draft.draw.randrange(1, 5))
        else:
            _add_lines(draft, NETWORK, draft.draw.randrange(3, 9))
            _add_lines(draft, VIEWS, draft.draw.choice((0, 1, 1, 2)))
        read = {name for step in draft.steps for name in step.reads}
        results = _results(draft)
        tensors = [
            each
            for each in draft.declared
            if each.role == "input" or each.name in read or each.name in names_in(results)
        ]
        graph = DrawnGraph(seed, draft.type, draft.mode, tuple(tensors), tuple(draft.steps), results)
        if is_sound(graph):
            return graph
    raise AssertionError(f"no graph of seed {seed} is sound")


def _add_lines(draft: Draft, families: dict[Any, float], count: int) -> None:
    """Add so many lines, the first of which is something that a kernel computes."""
    names, weights = list(families), list(families.values())
    end = len(draft.steps) + count
    for _ in range(1000):
        if len(draft.steps) >= end:
            break
        family = draft.draw.choices(names, weights)[0] if draft.steps else draft.draw.choice(FIRST)
        try:
            code, reads, *made = family(draft)
        except Unfit:
            continue
        draft.add(code, reads, *made)


def _declare_inputs(draft: Draft) -> None:
    rng = draft.draw
    channels = rng.choice((2, 4))
    pixels = rng.choice(
        ((6, 6), (6, 6), (6, 6), (6, 6), (4, 8), (6,), (8,), (4, 4, 4), (1, 1), (1, 6), (5, 1))
    )
    shape = (rng.choice((1, 2, 2)), channels, *pixels)
    for at in range(rng.choice((1, 1, 1, 2))):
        memory = rng.choice(("rows", "rows", "channels", "channels", "padded", "transposed"))
        if at and draft.chance(0.2) and shape[0] > 1:
            memory = draft.declared[0].name
        name = draft.declare("input", shape, memory=memory, requires_grad=draft.chance(0.4))
        if memory == "x0":
            draft.tensors[name] = draft.tensors["x0"].detach()[:1]
        draft.values[name] = draft.tensors[name]


def _results(draft: Draft) -> Any:
    """Two values or more, most often the newest, in nested containers; now and then an input or a parameter."""
    rng = draft.draw
    names = list(draft.values)
    chosen = [names[-1], *(rng.choice(names[-5:]) for _ in range(rng.choice((0, 1, 1, 2, 3))))]
    if draft.chance(0.5):
        chosen += _sharing(draft, chosen[0])
    if draft.chance(0.1):
        chosen.append(rng.choice([each.name for each in draft.declared if each.fill == "normal"]))
    if draft.chance(0.3):
        chosen = list(dict.fromkeys(chosen))
    rng.shuffle(chosen)
    if len(chosen) == 1 and draft.chance(0.6):
        return chosen[0]
    if len(chosen) > 2 and draft.chance(0.5):
        return [chosen[0], {"rest": (*chosen[1:],)}]
    return rng.choice((tuple, list))(chosen)


def _sharing(draft: Draft, name: str) -> list[str]:
    """Another value that shares memory with this one, if there is any."""
    memory = draft.values[name].untyped_storage().data_ptr()
    found = [each for each, it in draft.values.items() if it.untyped_storage().data_ptr() == memory]
    return [draft.draw.choice(found)]


def is_sound(graph: DrawnGraph) -> bool:
    """Whether eager torch computes the graph and its gradients, also in float64, with finite and moderate results."""
    if not any(each.makes for each in graph.steps) or not names_in(graph.results):
        return False
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ours, exact = called(graph, graph.model()), called(graph, graph.model().double())
    except (RuntimeError, IndexError, ValueError, TypeError, NotImplementedError):
        return False
    found = [each for one in (*ours, *exact) for each in one.tensors if each is not None]
    with torch.no_grad():
        return all(bool(each.isfinite().all()) and float(each.abs().max()) < _LARGEST for each in found)
