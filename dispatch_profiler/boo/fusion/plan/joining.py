"""Regions that follow each other as one run: one call computes as many as possible without anything of torch between.

regions a, b, c and a pooling p:   a -> b -> p -> c   gives the runs a, b and c
"""

from __future__ import annotations

import math
import operator
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch.fx.experimental.symbolic_shapes import statically_known_true

from dispatch_profiler.boo.fusion.match.matching import Region
from dispatch_profiler.boo.fusion.nodes import Node, value
from dispatch_profiler.boo.fusion.spec import DERIVED, RegionSpec, RunSpec, parse_run

Graph = Any


@dataclass(frozen=True)
class RunPart:
    """A region in a graph, or the call that has taken its place.

    inputs: the nodes that it reads.
    derived: those of `inputs` from which an operand is derived, so that no region of the same run may compute them.
    readings: how it reads the memory of others of `inputs`.
    made: its nodes.
    results: how the memory of each result is read.
    """

    inputs: Sequence[Node]
    derived: frozenset[Node]
    readings: Sequence[tuple[Node, str]]
    made: frozenset[Node]
    results: Mapping[Node, str]

    @classmethod
    def of(
        cls, spec: RegionSpec, inputs: Sequence[Node], made: Collection[Node], results: Mapping[int, Node]
    ) -> RunPart:
        """The part for a region that reads `inputs`. `results` has the node of each result, by its place."""
        sources = [(inputs[at], source.reading) for source in spec.sources for at in source.inputs if at >= 0]
        return cls(
            inputs,
            frozenset(node for node, reading in sources if reading in DERIVED),
            [(node, reading) for node, reading in sources if reading not in DERIVED],
            frozenset(made),
            {node: spec.results[at][1] for at, node in results.items()},
        )

    @property
    def device(self) -> Any:
        """Where it is computed."""
        return value(self.inputs[0]).device


@dataclass
class GraphRun:
    """Parts that one call can compute, in order, by the nodes where they end, and nodes of torch that depend on them."""

    parts: dict[Node, RunPart] = field(default_factory=dict)
    inside: set[Node] = field(default_factory=set)
    behind: set[Node] = field(default_factory=set)
    #: How the memory of each result inside is read.
    readings: dict[Node, str] = field(default_factory=dict)

    def takes(self, part: RunPart) -> bool:
        """Whether a part can be computed with the others: nothing of torch lies between them, no copy either."""
        if not self.behind.isdisjoint(part.inputs) or not self.inside.isdisjoint(part.derived):
            return False
        if any(self._is_stored_otherwise(node, reading) for node, reading in part.readings):
            return False
        return all(each.device == part.device for each in self.parts.values())

    def _is_stored_otherwise(self, node: Node, reading: str) -> bool:
        """Whether the memory of a result inside has its elements in another order than `reading` expects."""
        if self.readings.get(node, reading) == reading:
            return False
        _, channels, *pixels = value(node).shape
        return not any(statically_known_true(each == 1) for each in (channels, math.prod(pixels)))

    def add(self, node: Node, part: RunPart) -> None:
        """Compute a part, which ends at `node`, with the others."""
        self.parts[node] = part
        self.inside |= part.made
        self.readings |= part.results


def runs_of(graph: Graph, parts: Mapping[Node, RunPart]) -> list[GraphRun]:
    """The runs of a graph. `parts` has each part by the node where it ends."""
    made = {node for part in parts.values() for node in part.made}
    runs = [GraphRun()]
    for node in graph.nodes:
        part = parts.get(node)
        if part is not None:
            if not runs[-1].takes(part):
                runs.append(GraphRun())
            runs[-1].add(node, part)
        elif node not in made and (runs[-1].behind | runs[-1].inside).intersection(node.all_input_nodes):
            runs[-1].behind.add(node)
    return [each for each in runs if each.parts]


def runs_of_regions(graph: Graph, regions: Sequence[Region]) -> list[list[Region]]:
    """The regions of each run of a graph in which nothing has been replaced."""
    ends = {max(region.nodes): region for region in regions}  # nodes compare by their positions in the graph
    parts = {end: _part_of(region) for end, region in ends.items()}
    return [[ends[end] for end in run.parts] for run in runs_of(graph, parts)]


def _part_of(region: Region) -> RunPart:
    results = {at: node for at, node in enumerate(region.outputs) if node is not None}
    return RunPart.of(region.spec, region.inputs, region.nodes, results)


def join_runs(graph: Graph, target: Any) -> None:
    """Replace the calls of single regions in a graph, which are calls of the operator `target`, by calls of runs, in place."""
    calls = [node for node in graph.nodes if node.op == "call_function" and node.target is target]
    for run in runs_of(graph, {call: _part_of_call(call) for call in calls}):
        if len(run.parts) > 1:
            _join(graph, run, target)
    graph.eliminate_dead_code()


def _part_of_call(call: Node) -> RunPart:
    results = {user.args[1]: user for user in call.users}
    return RunPart.of(_region(call), call.args[0], (call, *call.users), results)


def _region(call: Node) -> RegionSpec:
    ((spec, _),) = parse_run(call.args[1]).steps
    return spec


def insert_call(
    graph: Graph,
    target: Any,
    last: Node,
    inputs: list[Node],
    run: RunSpec,
    outputs: Mapping[Node, int],
    readers_left: Collection[Node] = (),
) -> tuple[Node, dict[Node, Node]]:
    """Insert the call of a run, by the operator `target`, behind `last`. Returns the call, and former node -> node that takes its place.

    `outputs`: former nodes -> places of the results that replace them, except in `readers_left`.
    """
    with graph.inserting_after(last):
        call = before = graph.call_function(target, (inputs, run.text))
    replacements: dict[Node, Node] = {}
    for output, at in outputs.items():
        with graph.inserting_after(before):
            before = graph.call_function(operator.getitem, (call, at))
        before.meta["val"] = output.meta["val"]
        output.replace_all_uses_with(before, delete_user_cb=lambda user: user not in readers_left)
        replacements[output] = before
    return call, replacements


def _join(graph: Graph, run: GraphRun, target: Any) -> None:
    """One call in the place of the last one. What depends on earlier ones moves behind it."""
    calls = list(run.parts)
    inputs: dict[Node, int] = {}
    for call in calls:
        for each in call.args[0]:
            if each not in run.inside:
                inputs.setdefault(each, len(inputs))
    values, steps = dict(inputs), list[tuple[RegionSpec, tuple[int, ...]]]()
    results: list[Node] = []
    count = len(inputs)
    for call in calls:
        spec = _region(call)
        steps.append((spec, tuple(values[each] for each in call.args[0])))
        for user in call.users:
            values[user] = count + user.args[1]
            if any(reader not in run.inside for reader in user.users):
                results.append(user)
        count += len(spec.results)
    outputs = tuple(dict.fromkeys(values[each] for each in results))
    joined_run = RunSpec(len(inputs), tuple(steps), outputs)
    places = {each: outputs.index(values[each]) for each in results}
    # The calls that are replaced precede the new one, so they keep reading each other's results.
    joined, _ = insert_call(graph, target, calls[-1], list(inputs), joined_run, places, run.inside)
    by_value = {values[each]: each for each in results}
    joined.meta["val"] = [by_value[each].meta["val"] for each in outputs]
    _move_behind(graph, joined, run.behind)


def _move_behind(graph: Graph, joined: Node, behind: set[Node]) -> None:
    """Move those nodes of `behind` that precede `joined` behind its results, in their order."""
    at = joined
    while at.next.op == "call_function" and at.next.target is operator.getitem and at.next.args[0] is joined:
        at = at.next
    for node in [each for each in graph.nodes if each in behind and each < joined]:
        at.append(node)
        at = node
