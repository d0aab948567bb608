"""Regions that follow each other are joined: one call computes as many as possible without anything of torch between.

regions a, b, c and a pooling p:   a -> b -> p -> c   gives the runs a, b and c
"""

from __future__ import annotations

import operator
from dataclasses import dataclass, field
from typing import Any

from dispatch_profiler.boo.fusion.execute.torch_operator import REGIONS
from dispatch_profiler.boo.fusion.nodes import Node
from dispatch_profiler.boo.fusion.spec import DERIVED, RegionSpec, RunSpec, parse_run

Graph = Any


@dataclass
class _RegionRun:
    """Calls of single regions, in order, and the nodes of torch that depend on them."""

    calls: list[Node] = field(default_factory=list)
    #: The calls and their results.
    inside: set[Node] = field(default_factory=set)
    behind: set[Node] = field(default_factory=set)

    def takes(self, call: Node) -> bool:
        """Whether a call can be computed with the calls of the run: nothing of torch lies between them."""
        if self.behind.intersection(call.all_input_nodes):
            return False
        ((spec, _),) = parse_run(call.args[1]).steps
        derived = {at for source in spec.sources if source.reading in DERIVED for at in source.inputs}
        same_device = not self.calls or _device(self.calls[0]) == _device(call)
        return same_device and not any(at >= 0 and call.args[0][at] in self.inside for at in derived)


def _device(call: Node) -> Any:
    return call.meta["val"][0].device


def join_runs(graph: Graph) -> None:
    """Replace the calls of single regions in a graph by calls of runs, in place."""
    for run in _runs(graph):
        if len(run.calls) > 1:
            _join(graph, run)
    graph.eliminate_dead_code()


def _runs(graph: Graph) -> list[_RegionRun]:
    runs = [_RegionRun()]
    for node in graph.nodes:
        run = runs[-1]
        if node.op == "call_function" and node.target is REGIONS:
            if not run.takes(node):
                run = _RegionRun()
                runs.append(run)
            run.calls.append(node)
            run.inside.update((node, *node.users))
        elif node not in run.inside and (run.behind | run.inside).intersection(node.all_input_nodes):
            run.behind.add(node)
    return runs


def _join(graph: Graph, run: _RegionRun) -> None:
    """One call in the place of the last one. What depends on earlier ones moves behind it."""
    inputs: dict[Node, int] = {}
    for call in run.calls:
        for each in call.args[0]:
            if each not in run.inside:
                inputs.setdefault(each, len(inputs))
    values, steps = dict(inputs), list[tuple[RegionSpec, tuple[int, ...]]]()
    results: list[Node] = []
    count = len(inputs)
    for call in run.calls:
        ((spec, _),) = parse_run(call.args[1]).steps
        steps.append((spec, tuple(values[each] for each in call.args[0])))
        for user in call.users:
            values[user] = count + user.args[1]
            if any(reader not in run.inside for reader in user.users):
                results.append(user)
        count += len(spec.results)
    outputs = tuple(dict.fromkeys(values[each] for each in results))
    spec_ = RunSpec(len(inputs), tuple(steps), outputs)
    last = run.calls[-1]
    with graph.inserting_after(last):
        joined = graph.call_function(REGIONS, (list(inputs), spec_.text))
    by_value = {values[each]: each for each in results}
    joined.meta["val"] = [by_value[each].meta["val"] for each in outputs]
    before = joined
    for result in results:
        with graph.inserting_after(before):
            found = graph.call_function(operator.getitem, (joined, outputs.index(values[result])))
        found.meta["val"] = result.meta["val"]
        # The calls that are replaced precede `found`.
        result.replace_all_uses_with(found, delete_user_cb=lambda user: user not in run.inside)
        before = found
    _move_behind(graph, joined, run.behind)


def _move_behind(graph: Graph, joined: Node, behind: set[Node]) -> None:
    """Move those nodes of `behind` that precede `joined` behind its results, in their order."""
    at = joined
    while at.next.op == "call_function" and at.next.target is operator.getitem and at.next.args[0] is joined:
        at = at.next
    for node in [each for each in graph.nodes if each in behind and each < joined]:
        at.append(node)
        at = node
