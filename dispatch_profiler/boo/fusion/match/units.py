"""Units of a graph: its regions, and its other nodes, alone or in groups. Groups grow where no cycle arises."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from dispatch_profiler.boo.fusion.match.matching import Region
from dispatch_profiler.boo.fusion.nodes import Node


class Unit:
    """Nodes that are computed together. `region` is what computes them, None for a group."""

    def __init__(self, nodes: Iterable[Node], region: Region | None = None) -> None:
        self.nodes = list(nodes)
        self.region = region
        #: Units that this one reads from, and units that read from it.
        self.before: set[Unit] = set()
        self.behind: set[Unit] = set()


class Units:
    """The units of what a graph needs for its outputs, once each of `regions` is computed as a whole.

    `readers` has, for each node, the nodes outside regions and the regions that read it.
    """

    def __init__(self, graph: object, regions: Sequence[Region]) -> None:
        self.of: dict[Node, Unit] = {}
        self.readers: dict[Node, list[Node | Region]] = {}
        in_region = {node: Unit(region.nodes, region) for region in regions for node in region.nodes}
        units = {unit.region: unit for unit in in_region.values()}
        by_node = {node: units[unit.region] for node, unit in in_region.items()}
        nodes = list(graph.nodes)  # type: ignore[attr-defined]
        waiting = [node for node in nodes if node.op == "output"]
        while waiting:
            node = waiting.pop()
            if node in self.of:
                continue
            unit = by_node.get(node) or Unit([node])
            self.of.update(dict.fromkeys(unit.nodes, unit))
            region = unit.region
            for each in dict.fromkeys(node.all_input_nodes if region is None else region.inputs):
                self.readers.setdefault(each, []).append(node if region is None else region)
                waiting.append(each)
        self._join_neighbours()
        self.ordered = list(dict.fromkeys(self.of[node] for node in nodes if node in self.of))

    def _join_neighbours(self) -> None:
        for node, readers in self.readers.items():
            for reader in readers:
                other = self.of[reader.nodes[0] if isinstance(reader, Region) else reader]
                unit = self.of[node]
                if unit is not other:
                    unit.behind.add(other)
                    other.before.add(unit)

    def grow(self, may_join: Callable[[Node], bool]) -> None:
        """Join each node for which `may_join` with the groups that it reads from, unless a path leaves and returns."""
        for unit in list(self.ordered):
            if unit.region is None and may_join(unit.nodes[-1]):
                for other in sorted(unit.before, key=lambda each: each.nodes[-1]):
                    if other.region is None and may_join(other.nodes[-1]) and not _passes_by(other, unit):
                        self._merge(other, unit)
        self.ordered = list(dict.fromkeys(self.of[unit.nodes[0]] for unit in self.ordered))

    def _merge(self, unit: Unit, into: Unit) -> None:
        into.nodes = sorted([*unit.nodes, *into.nodes])
        self.of.update(dict.fromkeys(unit.nodes, into))
        for each in unit.before:
            each.behind.discard(unit)
            each.behind.add(into)
        for each in unit.behind:
            each.before.discard(unit)
            each.before.add(into)
        into.before = (into.before | unit.before) - {unit, into}
        into.behind = (into.behind | unit.behind) - {unit, into}
        unit.nodes = into.nodes  # what still holds the old unit finds the new one by its nodes


def _passes_by(first: Unit, last: Unit) -> bool:
    """Whether a path leads from `first` to `last` through another unit."""
    seen: set[Unit] = set()
    waiting = [each for each in last.before if each is not first]
    while waiting:
        unit = waiting.pop()
        if unit is first:
            return True
        if unit not in seen:
            seen.add(unit)
            waiting.extend(unit.before)
    return False
