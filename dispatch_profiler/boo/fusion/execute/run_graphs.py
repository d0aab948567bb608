"""Graphs that consist of calls of runs, as plain data and as functions."""

from __future__ import annotations

import json
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from dispatch_profiler.boo.fusion.execute.repeated_calls import RepeatedCall
from dispatch_profiler.boo.fusion.execute.torch_operator import REGIONS, DirectCall
from dispatch_profiler.boo.fusion.spec import (
    MAX_VALUES,
    RegionSpec,
    RunSpec,
    check_keys,
    checked_list,
    parse_run,
    whole_number,
)
from dispatch_profiler.boo.launching.torch_types import Tensor
from dispatch_profiler.errors import DispatchProfilerError, UsageError


@dataclass(frozen=True)
class RunGraph:
    """Runs that are called one after another.

    Values are numbered: first the inputs of the graph, then the outputs of each run. `calls` are runs with the numbers
    of the values that they take; `outputs` are the numbers of the values that the graph returns, or None where the graph
    returns None, for example in place of an unneeded gradient.
    """

    inputs: int
    calls: tuple[tuple[RunSpec, tuple[int, ...]], ...]
    outputs: tuple[int | None, ...]

    @classmethod
    def of(cls, graph: Any) -> RunGraph | None:
        """The calls of a `torch.fx.Graph` that `rewrite` made; None if it has other nodes than calls of runs."""
        numbers = {
            node: at for at, node in enumerate(each for each in graph.nodes if each.op == "placeholder")
        }
        inputs = count = len(numbers)
        calls: list[tuple[RunSpec, tuple[int, ...]]] = []
        first: dict[Any, int] = {}
        returned: Any = ()
        for node in graph.nodes:
            if node.op == "output":
                (returned,) = node.args
            elif node.target is REGIONS:
                spec = parse_run(node.args[1])
                calls.append((spec, tuple(numbers[each] for each in node.args[0])))
                first[node] = count
                count += len(spec.outputs)
            elif node.target is operator.getitem and node.args[0] in first:
                numbers[node] = first[node.args[0]] + node.args[1]
            elif node.op != "placeholder":
                return None
        if not calls or not all(each is None or isinstance(each, torch.fx.Node) for each in returned):
            return None
        outputs = tuple(None if each is None else numbers[each] for each in returned)
        return cls(inputs, tuple(calls), outputs)

    @property
    def regions(self) -> tuple[RegionSpec, ...]:
        """The regions of all runs."""
        return tuple(region for spec, _ in self.calls for region, _ in spec.steps)

    @cached_property
    def results(self) -> tuple[tuple[tuple[int, ...], str, str], ...]:
        """Shape, reading and element type of the outputs of all runs, in the order of the values."""
        return tuple(result for spec, _ in self.calls for result in spec.results)

    @property
    def text(self) -> str:
        """The graph as JSON, for `parse`. Outputs must not be None."""
        calls = [[spec.text, values] for spec, values in self.calls]
        return json.dumps({"inputs": self.inputs, "calls": calls, "outputs": self.outputs})

    @classmethod
    def parse(cls, text: str) -> RunGraph:
        """Inverse of `text`. Raises UsageError for any other text."""
        try:
            return _graph(json.loads(text))
        except (ValueError, TypeError, KeyError, RecursionError, DispatchProfilerError) as error:
            raise UsageError(f"the text is not a graph of runs: {error}"[:300]) from error

    def function(self, *, strict: bool) -> RunFunction:
        """A function that computes the graph from its inputs. `strict` is as in `RunCall`."""
        return RunFunction(self, strict=strict)


class RunFunction:
    """A graph of runs as a function of its inputs. Weights that were frozen in the last call may be None (see `RunCall`)."""

    def __init__(self, graph: RunGraph, *, strict: bool) -> None:
        self._calls = [(DirectCall(spec, strict=strict), values) for spec, values in graph.calls]
        self._outputs = graph.outputs
        last = {value: at for at, (_, values) in enumerate(graph.calls) for value in values}
        kept = set(graph.outputs)
        self._read_last = [
            [value for value, step in last.items() if step == at and value not in kept]
            for at in range(len(graph.calls))
        ]

    def __call__(self, *inputs: Tensor) -> list[Tensor | None]:
        """The outputs. Raises WeightsNeeded."""
        values: list[Any] = list(inputs)
        for (call, taken), ended in zip(self._calls, self._read_last, strict=True):
            values += call(*[values[each] for each in taken])
            for each in ended:  # later runs can use the memory
                values[each] = None
        return [None if each is None else values[each] for each in self._outputs]

    def repeated(self, inputs: Sequence[Tensor | None]) -> RepeatedCall | None:
        """What calls the function again as in the last call, which had `inputs`; None if it consists of several runs.

        None also where `RunCall.repeated` is.
        """
        call, taken = self._calls[0]
        results = range(len(inputs), len(inputs) + len(self._outputs))
        if len(self._calls) > 1 or list(self._outputs) != list(results):
            return None
        found = call.repeated([inputs[each] for each in taken])
        return None if found is None else found.renumbered(dict(enumerate(taken)))


def _graph(data: Any) -> RunGraph:
    check_keys(data, {"inputs", "calls", "outputs"})
    inputs = whole_number(data["inputs"], 0, MAX_VALUES)
    count, calls = inputs, []
    for text, taken in checked_list(data["calls"], MAX_VALUES):
        spec = parse_run(text)
        values = tuple(whole_number(each, 0, count - 1) for each in checked_list(taken, MAX_VALUES))
        if len(values) != spec.inputs:
            raise ValueError(f"a run takes {spec.inputs} values, not {len(values)}")
        calls.append((spec, values))
        count += len(spec.outputs)
    outputs = tuple(whole_number(each, 0, count - 1) for each in checked_list(data["outputs"], MAX_VALUES))
    return RunGraph(inputs, tuple(calls), outputs)
