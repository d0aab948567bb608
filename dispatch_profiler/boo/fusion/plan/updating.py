"""Lets runs write to the inputs that they update, as the last step of `rewrite`.

Before, a graph has no writing calls: what follows from an update reads the call's result, so that nodes can be moved.

    outputs = regions([keys, ...]); copy_(keys, outputs[1])    ->    outputs = updating_regions([keys], [...])
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from dispatch_profiler.boo.fusion.execute.calls import empty_results
from dispatch_profiler.boo.fusion.execute.torch_operator import REGIONS, call_arguments, run_of
from dispatch_profiler.boo.fusion.nodes import Node, added_call, aten
from dispatch_profiler.boo.fusion.programs.operators import OPERATORS, evaluate
from dispatch_profiler.boo.fusion.programs.programs import OperatorProgram
from dispatch_profiler.boo.fusion.spec import RunSpec, parse_run

Graph = Any


def place_updates(graph: Graph) -> None:
    """Replace the calls of runs with updates in a graph, in place."""
    for call in [node for node in graph.nodes if node.op == "call_function" and node.target is REGIONS]:
        run, inputs = run_of(call)
        if not run.in_place:
            continue
        others = [each for each in run.outputs if each not in run.in_place] or _other_values(run)
        if others:
            _place(graph, call, replace(run, outputs=tuple(others)), inputs)
        else:
            _restore(graph, call, run, inputs)


def _other_values(run: RunSpec) -> list[int]:
    """A value that a run computes, of those that have memory of their own; none if there are only updates."""
    count = sum(len(spec.results) for spec, _ in run.steps)
    return [each for each in range(run.inputs, run.inputs + count) if each not in run.in_place][:1]


def _restore(graph: Graph, call: Node, run: RunSpec, inputs: list[Node]) -> None:
    """Put torch's operators in the place of a call that only updates inputs: a run returns something."""
    operators = {name: partial(added_call, graph, target) for name, target in OPERATORS.items()}
    values = list(inputs)
    with graph.inserting_before(call):
        for region, taken in run.steps:
            assert isinstance(region.operation, OperatorProgram)
            values += evaluate(region.operation, [values[each] for each in taken], operators=operators)
    for user in list(call.users):
        user.replace_all_uses_with(values[run.outputs[user.args[1]]])
        graph.erase_node(user)
    graph.erase_node(call)


def _place(graph: Graph, call: Node, run: RunSpec, inputs: list[Node]) -> None:
    """Replace a call by one of `run`, which returns no updated inputs."""
    before = parse_run(call.args[-1]).outputs
    for user in list(call.users):
        updated = run.in_place.get(before[user.args[1]])
        if updated is None:
            continue
        cache = inputs[updated]
        for reader in list(user.users):
            if reader.target is aten.copy_.default and reader.args[0] is cache:
                graph.erase_node(reader)
        user.replace_all_uses_with(cache)
        graph.erase_node(user)
    with graph.inserting_before(call):
        target, arguments = call_arguments(run, inputs)
        placed = graph.call_function(target, arguments)
    results = empty_results(run, inputs[0].meta["val"])
    if len(results) == 1:
        (placed.meta["val"],) = results
        for user in list(call.users):
            user.replace_all_uses_with(placed)
            graph.erase_node(user)
    else:
        placed.meta["val"] = tuple(results)
        for user in list(call.users):
            user.args = (placed, run.outputs.index(before[user.args[1]]))
    graph.erase_node(call)
