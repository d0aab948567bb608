"""Differences between a compiled graph and eager torch: values, layouts, what shares memory, what was changed, gradients."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from drawn_graphs import TYPES, DrawnGraph
from graph_calls import Called, Rounded, called

from dispatch_profiler.boo.environment import LOGGER

#: Ours may have so many times the largest error of torch, and so many ulps of the largest value more.
_TIMES, _ULPS = 4.0, 8.0
#: Runs in float64 with random roundings, first and once a difference is found.
_RUNS, _MORE_RUNS = 2, 40
Compile = Callable[[Any], Any]


def compiled_by(backend: Any) -> Compile:
    """What compiles a model with a backend of `torch.compile`, anew."""

    def compile_(model: Any) -> Any:
        torch._dynamo.reset()
        return torch.compile(model, backend=backend, dynamic=False)

    return compile_


def differences(graph: DrawnGraph, compile_: Compile, others: tuple[str, ...] = ("aot_eager",)) -> list[str]:
    """What the compiled graph has otherwise than eager torch; empty if nothing.

    Where one of the backends `others` has it as the compiled graph, the difference is torch's and left out. The same
    holds for eager torch on another number of threads, which changes the library that computes a convolution, and with
    it strides along axes with one element.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with _complaints() as complaints:
            try:
                ours = called(graph, graph.model(), compile_)
            except Exception as error:  # of any kind: reported unless torch's own backends raise one, too
                ours = f"{type(error).__name__}: {str(error)[:300]}"
        found = complaints + _found(graph, ours, called(graph, graph.model()))
        for other in others:
            if not found or complaints:
                break
            try:
                theirs = called(graph, graph.model(), compiled_by(other))
            except Exception:
                return []
            found = [each for each in found if each in _found(graph, ours, theirs)]
        if found and not complaints:
            with _other_threads():
                theirs = called(graph, graph.model())
            found = [each for each in found if each in _found(graph, ours, theirs)]
    return found


@contextmanager
def _other_threads() -> Iterator[None]:
    """Several threads for torch where it has one, and one where it has several."""
    before = torch.get_num_threads()
    torch.set_num_threads(2 if before == 1 else 1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def _complaints() -> Iterator[list[str]]:
    """What the backends log of graphs and kernels that failed, rather than being left to torch by a rule."""
    found: list[str] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            text = record.getMessage()
            if "torch computes it from now on" in text or "a graph is not fused" in text:
                found.append(text)

    handler = Handler(logging.WARNING)
    logging.getLogger(LOGGER).addHandler(handler)
    try:
        yield found
    finally:
        logging.getLogger(LOGGER).removeHandler(handler)


def _found(graph: DrawnGraph, ours: list[Called] | str, theirs: list[Called]) -> list[str]:
    if isinstance(ours, str):
        return [ours]
    found = []
    for at, (one, other) in enumerate(zip(ours, theirs, strict=True)):
        found += [f"call {at}: {each}" for each in (*_layouts(one, other), *_relations(one, other))]
    return found or wrong_values(graph, ours, theirs)


def _layouts(ours: Called, theirs: Called) -> Iterator[str]:
    if ours.layout.keys() != theirs.layout.keys():
        yield f"there are {sorted(ours.layout)}, not {sorted(theirs.layout)}"
    for name, expected in theirs.layout.items():
        if (found := ours.layout.get(name)) != expected:
            yield f"{name} is {found}, not {expected}"


def _relations(ours: Called, theirs: Called) -> Iterator[str]:
    for pair in sorted({*ours.shared, *theirs.shared}):
        found, expected = ours.shared.get(pair), theirs.shared.get(pair)
        if found != expected:
            yield f"{' and '.join(pair)} share memory at a distance of {found}, not {expected}"
    for pair in sorted(ours.same ^ theirs.same):
        yield f"{' and '.join(pair)} are one object only {'here' if pair in ours.same else 'in eager torch'}"


def wrong_values(graph: DrawnGraph, ours: list[Called], theirs: list[Called]) -> list[str]:
    """The tensors of which ours are further from those in float64 than torch's roundings explain."""
    exact = called(graph, graph.model().double())
    largest = [_errors(theirs, exact)]
    found: list[str] = []
    for runs in (_RUNS, _MORE_RUNS):
        while len(largest) <= runs:
            with Rounded(torch.finfo(TYPES[graph.type]).eps, len(largest)):
                rounded = called(graph, graph.model().double())
            largest.append(_errors(rounded, exact))
        found = list(_beyond(graph, _errors(ours, exact), largest, exact))
        if not found:
            break
    return found


def _beyond(graph: DrawnGraph, errors: Any, largest: list[Any], exact: list[Called]) -> Iterator[str]:
    epsilon = torch.finfo(TYPES[graph.type]).eps
    for key, error in errors.items():
        call, name = key
        value = exact[call].values[name]
        size = 0.0 if value is None else float(value.abs().max())
        allowed = _TIMES * max(each[key] for each in largest) + _ULPS * epsilon * size
        if not error <= allowed:  # also NaN
            yield f"call {call}: {name} is off by {error:.3g}, more than {allowed:.3g} (largest value {size:.3g})"


def _errors(found: list[Called], exact: list[Called]) -> dict[tuple[int, str], float]:
    """The largest error of each tensor."""
    errors = {}
    for call, (one, other) in enumerate(zip(found, exact, strict=True)):
        for name, value in other.values.items():
            mine = one.values.get(name)
            if mine is None or value is None:
                errors[call, name] = 0.0 if mine is value else float("inf")
            else:
                wide = mine.to(value.dtype)
                errors[call, name] = float((wide - value).abs().max())
    return errors
