"""Graphs of runs and of torch's operators, as plain data and as functions."""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from dispatch_profiler.boo.fusion.execute.torch_operator import REGIONS, direct_function
from dispatch_profiler.boo.fusion.spec import (
    MAX_VALUES,
    RegionSpec,
    check_keys,
    checked_list,
    parse_run,
    whole_number,
)
from dispatch_profiler.errors import DispatchProfilerError, UsageError

_torch: Any = torch
_ATEN: Any = _torch.ops.aten
#: Characters of a text, and levels of nested arguments.
_MAX_TEXT, _MAX_DEPTH = 8_000_000, 4
#: Names of nodes that are not operators of torch.
_RUN, _ITEM = "run", "item"
#: Operators that read more than their arguments.
_EXCLUDED = frozenset(("from_file",))
#: Constants among the arguments of operators, by the name of their type.
_CONSTANTS = {"dtype": torch.dtype, "layout": torch.layout, "memory_format": torch.memory_format}
#: What a damaged text leads to.
_DAMAGES = (ValueError, TypeError, KeyError, AttributeError, RecursionError, DispatchProfilerError)


@dataclass(frozen=True)
class MixedGraph:
    """Runs and torch's operators that are called one after another.

    Values are numbered: first the inputs of the graph, then the results of the nodes. Each node has a name, such as
    `aten.mul.Tensor`, `run` or `item` (an element of a list of results), arguments, and keyword arguments. An argument is
    a constant, a list of arguments, or {"value": NUMBER}.
    """

    inputs: int
    nodes: tuple[tuple[str, list[Any], Mapping[str, Any]], ...]
    outputs: list[Any]

    @classmethod
    def of(cls, graph: Any) -> MixedGraph | None:
        """The nodes of a `torch.fx.Graph` that `rewrite` made; None if the graph has other nodes.

        Operators that write to their arguments, and operators of other packages, are such nodes.
        """
        numbers: dict[Any, int] = {}
        nodes: list[tuple[str, list[Any], Mapping[str, Any]]] = []
        outputs: list[Any] = []
        inputs = 0
        try:
            for node in graph.nodes:
                if node.op == "output":
                    outputs = _encoded(node.args[0], numbers)
                    continue
                if node.op == "placeholder":
                    inputs += 1
                else:
                    kwargs = {name: _encoded(each, numbers) for name, each in node.kwargs.items()}
                    nodes.append((_name(node), [_encoded(each, numbers) for each in node.args], kwargs))
                numbers[node] = len(numbers)
        except ValueError:
            return None
        return cls(inputs, tuple(nodes), outputs)

    @property
    def text(self) -> str:
        """The graph as JSON, for `parse`."""
        return json.dumps({"inputs": self.inputs, "nodes": self.nodes, "outputs": self.outputs})

    @classmethod
    def parse(cls, text: str) -> MixedGraph:
        """Inverse of `text`. Raises UsageError for any other text."""
        try:
            if len(text) > _MAX_TEXT:
                raise ValueError("it is too long")
            return _parsed(json.loads(text))
        except _DAMAGES as error:
            raise UsageError(f"the text is not a graph of runs and operators: {error}"[:300]) from error

    @property
    def regions(self) -> tuple[RegionSpec, ...]:
        """The regions of all runs."""
        runs = (parse_run(args[1]) for name, args, _ in self.nodes if name == _RUN)
        return tuple(region for run in runs for region, _ in run.steps)

    def function(self, *, strict: bool) -> Callable[..., Any]:
        """A function that computes the graph from its inputs. `strict` is as in `RunCall`.

        Raises UsageError for a graph with unknown operators or values.
        """
        try:
            function: Callable[..., Any] = self._module(strict=strict).forward
        except _DAMAGES as error:
            raise UsageError(f"a graph of runs and operators is damaged: {error}"[:300]) from error
        return function

    def _module(self, *, strict: bool) -> Any:
        graph: Any = torch.fx.Graph()
        values = [graph.placeholder(f"input_{number}") for number in range(self.inputs)]
        for number, (name, args, kwargs) in enumerate(self.nodes):
            given = [_decoded(each, values) for each in args]
            if name == _RUN:
                inputs, text = given
                node = graph.call_function(
                    direct_function(parse_run(text), number, strict=strict), tuple(inputs)
                )
            else:
                options = {key: _decoded(each, values) for key, each in kwargs.items()}
                node = graph.call_function(_target(name), tuple(given), options)
            values.append(node)
        graph.output(tuple(_decoded(each, values) for each in self.outputs))
        return torch.fx.GraphModule({}, graph)


def _name(node: Any) -> str:
    """The name of a node's function. Raises ValueError if the function cannot be kept."""
    if node.op == "call_function":
        if node.target is REGIONS:
            return _RUN
        if node.target is operator.getitem:
            return _ITEM
        if isinstance(node.target, _torch._ops.OpOverload):
            name = str(node.target)
            if _target(name) is node.target:
                return name
    raise ValueError(f"{node} cannot be kept")


def _target(name: str) -> Any:
    """The function of a node, by its name. Raises ValueError."""
    if name == _ITEM:
        return operator.getitem
    namespace, _, rest = name.partition(".")
    packet, _, overload = rest.partition(".")
    if namespace == "aten" and packet not in _EXCLUDED and packet.isidentifier() and overload.isidentifier():
        target = getattr(getattr(_ATEN, packet), overload)
        if isinstance(target, _torch._ops.OpOverload) and not target._schema.is_mutable:
            return target
    raise ValueError(f"{name[:40]} is not an operator of torch that only computes")


def _encoded(argument: Any, numbers: Mapping[Any, int]) -> Any:
    """An argument of a node as JSON. Raises ValueError if it is not one of the kinds that `MixedGraph` describes."""
    if isinstance(argument, torch.fx.Node):
        return {"value": numbers[argument]}
    if isinstance(argument, (tuple, list)):
        return [_encoded(each, numbers) for each in argument]
    if argument is None or type(argument) in (bool, int, float, str):
        return argument
    if isinstance(argument, torch.device):
        return {"device": str(argument)}
    for kind, type_ in _CONSTANTS.items():
        if isinstance(argument, type_):
            return {kind: str(argument).removeprefix("torch.")}
    raise ValueError(f"{type(argument).__name__} is not kept")


def _decoded(argument: Any, values: list[Any], depth: int = 0) -> Any:
    """Inverse of `_encoded`. Raises ValueError, and the errors of torch for unknown constants."""
    if depth > _MAX_DEPTH:
        raise ValueError("arguments are nested too deeply")
    if isinstance(argument, list):
        return [_decoded(each, values, depth + 1) for each in argument]
    if not isinstance(argument, dict):
        return argument
    ((kind, given),) = argument.items()
    if kind == "value":
        return values[whole_number(given, 0, len(values) - 1)]
    if kind == "device":
        return torch.device(given)
    constant = getattr(torch, given)
    if not isinstance(constant, _CONSTANTS[kind]):
        raise ValueError(f"torch.{given[:40]} is not a {kind}")
    return constant


def _parsed(data: Any) -> MixedGraph:
    check_keys(data, {"inputs", "nodes", "outputs"})
    nodes = []
    for name, args, kwargs in checked_list(data["nodes"], MAX_VALUES):
        if not isinstance(name, str) or not isinstance(kwargs, dict):
            raise ValueError("a node has a name, arguments and keyword arguments")
        nodes.append((name, checked_list(args, MAX_VALUES), kwargs))
    inputs = whole_number(data["inputs"], 0, MAX_VALUES)
    return MixedGraph(inputs, tuple(nodes), checked_list(data["outputs"], MAX_VALUES))
