"""Draw the packages and their imports: `python scripts/draw_architecture.py` writes docs/images/packages.svg.

Each box is a package, below all packages that import it. An arrow means "imports"; an arrow is left out where others lead
the same way (transitive reduction). Boxes and arrows come from the sources, through grimp, which import-linter needs, too.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from graphlib import TopologicalSorter
from html import escape
from itertools import pairwise, permutations, product
from pathlib import Path

import grimp

ROOT = "dispatch_profiler"
PICTURE = Path(__file__).parents[1] / "docs" / "images" / "packages.svg"
#: Package -> the types that it hands to those above it.
HANDED_ON: Mapping[str, tuple[str, ...]] = {
    "operations": ("Operation", "Tensor"),
    "configurations": ("Configuration", "Space"),
    "targets": ("Target",),
    "workloads": ("Workload",),
    "dispatches": ("Dispatch", "Manifest", "Tree"),
    "generator": ("Plan",),
    "compiler": ("BuildRequest", "Built"),
    "runtime": ("Device", "Program"),
    "profiler": ("Candidate", "Record"),
    "library": ("Library", "Entry"),
    "tuner": ("Tuning", "Judged"),
    "boo": ("Launchable", "Backend"),
}
#: The packages whose own packages are drawn beside the whole.
OPENED = ("boo", "tuner", "profiler")

Edges = Mapping[str, frozenset[str]]


def imports_between(graph: grimp.ImportGraph, parent: str, names: Sequence[str]) -> Edges:
    """Which of the modules and packages `names` of `parent` imports which."""
    found: dict[str, set[str]] = {name: set() for name in names}
    for importer in graph.modules:
        for imported in graph.find_modules_directly_imported_by(importer):
            one, other = _child(importer, parent), _child(imported, parent)
            if one != other and one in found and other in found:
                found[one].add(other)
    return {name: frozenset(others) for name, others in found.items()}


def _child(module: str, parent: str) -> str:
    """The child of `parent` that has `module`: `a.b.c` of `a` -> `b`."""
    return module.removeprefix(f"{parent}.").partition(".")[0] if module.startswith(f"{parent}.") else ""


def packages_of(graph: grimp.ImportGraph, parent: str) -> list[str]:
    """The packages directly in `parent`."""
    children = sorted(graph.find_children(parent))
    return [child.rpartition(".")[2] for child in children if graph.find_children(child)]


def reduced(edges: Edges) -> Edges:
    """The imports that no chain of others replaces (transitive reduction)."""
    below: dict[str, frozenset[str]] = {}
    for name in TopologicalSorter(edges).static_order():
        below[name] = edges[name].union(*(below[each] for each in edges[name]))
    return {
        name: frozenset(one for one in others if not any(one in below[each] for each in others))
        for name, others in edges.items()
    }


def layers_of(edges: Edges) -> dict[str, int]:
    """Each package's distance from the bottom: one more than the highest package that it imports."""
    found: dict[str, int] = {}
    for name in TopologicalSorter(edges).static_order():
        found[name] = 1 + max((found[each] for each in edges[name]), default=-1)
    return found


# -- one panel: boxes in layers, and arrows ----------------------------------------------------------------------


@dataclass(frozen=True)
class Sizes:
    """Pixels of a panel's boxes, and between them."""

    width: int
    height: int
    across: int
    down: int


@dataclass
class Panel:
    """A layered drawing. `rows` are from top to bottom; `paths` lead from box to box, past the boxes between them."""

    rows: list[list[str]]
    paths: list[list[str]]
    sizes: Sizes

    @classmethod
    def of(cls, edges: Edges, sizes: Sizes) -> Panel:
        """The drawing of `edges`."""
        layer = layers_of(edges)
        top = max(layer.values())
        rows: list[list[str]] = [[] for _ in range(top + 1)]
        for name in sorted(edges):
            rows[top - layer[name]].append(name)
        paths = []
        for name, others in sorted(reduced(edges).items()):
            for other in sorted(others):
                between = [f"{name}>{other}@{at}" for at in range(layer[name] - 1, layer[other], -1)]
                for at, point in enumerate(between, top - layer[name] + 1):
                    rows[at].append(point)
                paths.append([name, *between, other])
        panel = cls(rows, paths, sizes)
        panel._sort()
        return panel

    def _sort(self) -> None:
        """Order the rows so that as few arrows as possible cross, and then so that they are straight."""
        tried = []
        for rows in product(*(permutations(sorted(row)) for row in self.rows)):
            self.rows = [list(row) for row in rows]
            tried.append((*self._cost(), rows))
        self.rows = [list(row) for row in min(tried)[-1]]

    def _cost(self) -> tuple[int, float]:
        """Crossings, and how far arrows lead sideways."""
        x = self._x()
        steps = [
            (self._row_of(one), x[one], x[other]) for path in self.paths for one, other in pairwise(path)
        ]
        crossings = sum(
            1
            for at, (row, one, other) in enumerate(steps)
            for row_2, one_2, other_2 in steps[:at]
            if row == row_2 and (one - one_2) * (other - other_2) < 0
        )
        return crossings, sum(abs(one - other) for _, one, other in steps)

    def _row_of(self, name: str) -> int:
        return next(at for at, row in enumerate(self.rows) if name in row)

    def _wide(self, name: str) -> int:
        return self.sizes.across if "@" in name else self.sizes.width

    @property
    def width(self) -> int:
        """In pixels."""
        return max(sum(map(self._wide, row)) + self.sizes.across * (len(row) - 1) for row in self.rows)

    @property
    def height(self) -> int:
        """In pixels."""
        return len(self.rows) * self.sizes.height + (len(self.rows) - 1) * self.sizes.down

    def _x(self) -> dict[str, float]:
        """The middle of each box and of each point that an arrow passes."""
        found = {}
        for row in self.rows:
            wide = sum(map(self._wide, row)) + self.sizes.across * (len(row) - 1)
            left = (self.width - wide) / 2
            for name in row:
                found[name] = left + self._wide(name) / 2
                left += self._wide(name) + self.sizes.across
        return found

    def drawn(self, left: float, top: float, notes: Mapping[str, str]) -> Iterator[str]:
        """SVG elements, from this corner on; `notes` are second lines of boxes."""
        x, sizes = self._x(), self.sizes
        y = {name: at * (sizes.height + sizes.down) + top for at, row in enumerate(self.rows) for name in row}
        for path in self.paths:
            yield f'<path class="arrow" d="{_curve([(left + x[name], y[name], "@" in name) for name in path], sizes)}"/>'
        for name in (each for row in self.rows for each in row if "@" not in each):
            middle, upper = left + x[name], y[name]
            yield (
                f'<rect class="box" x="{middle - sizes.width / 2:g}" y="{upper:g}" width="{sizes.width}" '
                f'height="{sizes.height}" rx="6"/>'
            )
            note = notes.get(name, "")
            line = upper + (sizes.height / 2 - 4 if note else sizes.height / 2 + 5)
            yield f'<text class="{"name" if note else "name part"}" x="{middle:g}" y="{line:g}">{escape(name)}</text>'
            if note:
                yield f'<text class="note" x="{middle:g}" y="{line + 18:g}">{escape(note)}</text>'


def _curve(points: Sequence[tuple[float, float, bool]], sizes: Sizes) -> str:
    """A path from the bottom of the first box to the top of the last one, straight down beside the boxes between."""
    (x, y, _), *rest = points
    found, y = [f"M{x:g},{y + sizes.height:g}"], y + sizes.height
    for to_x, to_y, is_passed in rest:
        end = to_y if is_passed else to_y - 5  # the arrow's tip
        bend = (end - y) / 2
        found.append(f"C{x:g},{y + bend:g} {to_x:g},{end - bend:g} {to_x:g},{end:g}")
        x, y = to_x, end
        if is_passed:
            found.append(f"V{to_y + sizes.height:g}")
            y = to_y + sizes.height
    return "".join(found)


# -- the picture -------------------------------------------------------------------------------------------------

WIDTH, MARGIN = 900, 20
STYLE = """\
text { font-family: "Helvetica Neue", Arial, "Liberation Sans", sans-serif; text-anchor: middle; fill: #1b1f24; }
.title { font-size: 17px; font-weight: 600; text-anchor: start; }
.name { font-size: 14px; font-weight: 600; }
.part { font-size: 13px; }
.note { font-size: 13px; fill: #3d444d; }
.left { text-anchor: start; }
.box { fill: #eef4fb; stroke: #5a7ca3; }
.base { fill: #f4f2ec; stroke: #9a917c; }
.arrow { fill: none; stroke: #5a6470; stroke-width: 1.5; marker-end: url(#tip); }
#tip path { fill: #5a6470; }"""
WHOLE, PART = Sizes(230, 50, 36, 34), Sizes(108, 32, 10, 28)


def picture(graph: grimp.ImportGraph) -> str:
    """The text of the SVG file."""
    layered = list(HANDED_ON)
    whole = Panel.of(imports_between(graph, ROOT, layered), WHOLE)
    parts: list[str] = []
    top = 64
    parts += _title(MARGIN, 28, "Packages, and the types that they hand on", "an arrow means “imports”")
    parts += whole.drawn(
        (WIDTH - whole.width) / 2, top, {name: ", ".join(types) for name, types in HANDED_ON.items()}
    )
    top += whole.height + 34
    parts += _base(top, sorted(_below(graph, layered)))
    top += 122
    left = float(MARGIN)
    panels = {
        name: Panel.of(imports_between(graph, f"{ROOT}.{name}", packages_of(graph, f"{ROOT}.{name}")), PART)
        for name in OPENED
    }
    gap = (WIDTH - 2 * MARGIN - sum(each.width for each in panels.values())) / (len(panels) - 1)
    for name, panel in panels.items():
        parts += _title(left, top, f"Inside {name}", "")
        parts += panel.drawn(left, top + 20, {})
        left += panel.width + gap
    height = top + 20 + max(each.height for each in panels.values()) + MARGIN
    return "\n".join([*_head(height), *parts, "</svg>", ""])


def _below(graph: grimp.ImportGraph, layered: Sequence[str]) -> set[str]:
    """What every package may import: the other modules and packages, unless they import one of `layered`."""
    others = {child.rpartition(".")[2] for child in graph.find_children(ROOT)} - {*layered, "__main__"}
    edges = imports_between(graph, ROOT, [*layered, *others])
    return {name for name in others if edges[name].isdisjoint(layered)}


def _head(height: float) -> list[str]:
    return [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:g}" width="{WIDTH}" height="{height:g}">',
        f"<style>\n{STYLE}\n</style>",
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="3" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0,0 L8,4 L0,8 z"/></marker></defs>',
        f'<rect width="{WIDTH}" height="{height:g}" fill="#ffffff"/>',
    ]


def _title(left: float, line: float, title: str, note: str) -> list[str]:
    found = [f'<text class="title" x="{left:g}" y="{line:g}">{escape(title)}</text>']
    if note:
        found.append(f'<text class="note left" x="{left:g}" y="{line + 20:g}">{escape(note)}</text>')
    return found


def _base(top: float, names: Sequence[str]) -> list[str]:
    """The band at the bottom, with its names in two rows."""
    half = -(-len(names) // 2)
    lines = [" · ".join(names[:half]), " · ".join(names[half:])]
    return [
        f'<rect class="base" x="{MARGIN}" y="{top:g}" width="{WIDTH - 2 * MARGIN}" height="74" rx="6"/>',
        f'<text class="note" x="{WIDTH / 2:g}" y="{top + 22:g}">every package may import:</text>',
        *(
            f'<text class="name" x="{WIDTH / 2:g}" y="{top + 43 + 20 * at:g}">{escape(line)}</text>'
            for at, line in enumerate(lines)
        ),
    ]


def main() -> int:
    """Write the picture."""
    text = picture(grimp.build_graph(ROOT, cache_dir=None))
    PICTURE.write_text(text)
    print(f"wrote {PICTURE}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
