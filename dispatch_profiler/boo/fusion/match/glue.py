"""Glue: what lies between regions, or follows the last ones, as programs, so that a run does not end there.

region a -> max pool -> region b -> mean        without glue: the runs a and b; with glue: one run
"""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from dispatch_profiler.boo.fusion.match.matching import Region
from dispatch_profiler.boo.fusion.match.updates import cache_updates, is_update
from dispatch_profiler.boo.fusion.nodes import (
    Node,
    NotFusible,
    argument,
    aten,
    is_constant,
    is_frozen,
    is_getitem,
    shape,
    value,
)
from dispatch_profiler.boo.fusion.programs.attention import check_attention
from dispatch_profiler.boo.fusion.programs.channelwise import CHANNELWISE, PIECES
from dispatch_profiler.boo.fusion.programs.group_norm import ACTIVATIONS, group_norm_plan
from dispatch_profiler.boo.fusion.programs.operators import (
    ATTENTION,
    CONVERSION,
    COPIES,
    GROUP_NORM,
    MOVES,
    NAMES,
    POOLS,
    RESIZING,
    STORAGE,
    VIEWS,
    check,
)
from dispatch_profiler.boo.fusion.programs.programs import OperatorProgram
from dispatch_profiler.boo.fusion.programs.updates import rows_plan
from dispatch_profiler.boo.fusion.programs.values import POSITIONS, TYPES, Value
from dispatch_profiler.boo.fusion.programs.windows import WINDOWS, WindowAxis, window_axes, window_plan
from dispatch_profiler.boo.fusion.schema import GLUE
from dispatch_profiler.boo.fusion.spec import OperandSource, RegionSpec
from dispatch_profiler.boo.fusion.strides import kept_views, name_same_memory, renames_strides, shared_memory
from dispatch_profiler.boo.launching.torch_types import NAMES as TYPE_NAMES
from dispatch_profiler.errors import OperationError

#: Views of a part of what they read.
_PARTS = (aten.select.int, aten.unbind.int)
#: Operators that name a program.
_MAX_TITLE = 4


def find_glue(graph: Any, regions: Sequence[Region]) -> list[Region]:
    """Regions that are programs, in addition to `regions` of the same graph, which they connect.

    They have no views with which results of the graph share memory: what a program computes has its own.
    """
    alone = frozenset[Node]()
    while regions:
        glue, failed = _programs(graph, regions, alone)
        if failed <= alone:
            return glue
        alone |= failed
    return []


def _programs(
    graph: Any, regions: Sequence[Region], alone: frozenset[Node]
) -> tuple[list[Region], frozenset[Node]]:
    """As `find_glue`, with nodes that are `alone`; and the nodes that are no kernel of their own with the views around them."""
    kept, updates = kept_views(shared_memory(graph)), cache_updates(graph)

    def may_join(node: Node) -> bool:
        return node not in kept and (node in updates or _is_glue(node))

    def fit(one: Sequence[Node], other: Sequence[Node]) -> bool:
        return _fit(one, other, alone)

    units = Units(graph, regions)
    units.grow(may_join, fit)
    glue = []
    failed = set[Node]()
    groups = [unit for unit in units.ordered if unit.region is None and all(map(may_join, unit.nodes))]
    #: How the memory of each region's results is read.
    readings = {
        output: reading
        for region in regions
        for output, (_, reading) in zip(region.outputs, region.spec.results, strict=True)
        if output is not None
    }
    connecting = _connecting(groups)
    inside = {node for unit in connecting for node in unit.nodes}
    for unit in connecting:
        try:
            region = _region(unit, units, readings, inside)
        except (NotFusible, OperationError):
            failed.update(filter(_has_kernel, unit.nodes))
            continue
        readings.update(zip(region.outputs, (reading for _, reading in region.spec.results), strict=True))
        glue.append(region)
    return glue, frozenset(failed)


def _is_glue(node: Node) -> bool:
    """Whether a program may have this node."""
    if node.op != "call_function" or (node.target not in NAMES and not renames_strides(node)):
        return False
    if is_update(node):  # only `cache_updates` are
        return False
    try:
        if NAMES.get(node.target) in RESIZING:
            _window_axes(node)
        elif not _is_window(node):
            arguments = torch.fx.map_arg((node.args, node.kwargs), lambda each: each.meta.get("val"))
            check(node.target, *arguments)
        _call(node, lambda each: 0)
    except NotFusible:
        return False
    if isinstance(node.meta.get("val"), (tuple, list)):
        read = {user.args[1] for user in node.users if user.target is operator.getitem}
        are_items = all(is_getitem(user, user.args[1]) for user in node.users)
        # Of the other operators, programs compute the first result only.
        return (
            are_items
            and (NAMES[node.target] in PIECES or read <= {0})
            and all(_is_plain(node.meta["val"][each]) for each in read)
        )
    if any(isinstance(each.meta.get("val"), (tuple, list)) for each in node.all_input_nodes):
        return _is_glue(node.args[0])
    is_result = _is_plain(node.meta.get("val")) or _quantises(node)
    return is_result and all(_is_plain(each.meta.get("val")) for each in node.all_input_nodes)


def _quantises(node: Node) -> bool:
    """Whether a node converts numbers to i8 that are in its range. Nothing in a program reads them."""
    if node.target is not CONVERSION or value(node) is None or value(node).dtype != torch.int8:
        return False
    source = node.args[0]
    while source.op == "call_function" and _is_view(source):
        source = source.args[0]
    if source.target is not aten.clamp.default:
        return False
    low, high = argument(source, 1, "min"), argument(source, 2, "max")
    are_numbers = type(low) in (int, float) and type(high) in (int, float)
    return are_numbers and -128 <= low <= high <= 127


def _fit(one: Sequence[Node], other: Sequence[Node], alone: frozenset[Node]) -> bool:
    """Whether a program with all these nodes is compiled well.

    Operators that join or divide the channels of images are one kernel as long as nothing else is in the program, and so
    are rolled tensors; an attention, a pool or a resized image with the views before and behind it; and an update of a
    cache with the views before it. Nodes that are `alone` have no views.
    """
    nodes = [*one, *other]
    if any(map(is_update, nodes)):
        *views, last = sorted(nodes)  # nodes compare by their positions in the graph
        return is_update(last) and last not in alone and all(map(_moves, views))
    centers = [node for node in nodes if _has_kernel(node)]
    if centers:
        others = [node for node in nodes if not _has_kernel(node)]
        if not alone.isdisjoint(centers):
            return all(node.args[0] in centers for node in others)
        is_norm = _is_group_norm(centers[0])
        return len(centers) == 1 and all(
            (_moves(node) or (is_norm and NAMES[node.target] in ACTIVATIONS)) and not is_constant(node)
            for node in others
        )
    if any(node.target is aten.roll.default for node in nodes):
        return all(map(_copies, nodes))
    if not any(map(_divides_channels, nodes)) or (_gathers_pixels(nodes) and all(map(_copies, nodes))):
        return True
    pixels = {_pixels(node) for node in nodes if value(node) is not None}
    return len(pixels) == 1 and all(
        renames_strides(node) or NAMES[node.target] in CHANNELWISE for node in nodes
    )


def _is_attention(node: Node) -> bool:
    return NAMES.get(node.target) == ATTENTION


def _reads_rows(node: Node) -> bool:
    return _is_attention(node) or is_update(node)


def _is_window(node: Node) -> bool:
    """Whether a node is a pool or a resized image with small windows."""
    try:
        return NAMES.get(node.target) in WINDOWS and bool(_window_axes(node))
    except NotFusible:
        return False


def _window_axes(node: Node) -> Sequence[WindowAxis]:
    """The windows of a pool or of a resized image. Raises NotFusible."""
    if any(name not in STORAGE for name in node.kwargs) or len(node.all_input_nodes) != 1:
        raise NotFusible("it has arguments by name")
    return window_axes(NAMES[node.target], shape(node.args[0]), node.args)


def _has_kernel(node: Node) -> bool:
    """Whether kernels of its own compute a node, with the views around it, and activations behind a group norm."""
    return _is_attention(node) or _is_window(node) or _is_group_norm(node) or is_update(node)


def _is_group_norm(node: Node) -> bool:
    return NAMES.get(node.target) == GROUP_NORM


def _moves(node: Node) -> bool:
    return renames_strides(node) or NAMES[node.target] in MOVES


def _copies(node: Node) -> bool:
    return renames_strides(node) or NAMES[node.target] in COPIES


def _gathers_pixels(nodes: Sequence[Node]) -> bool:
    """Whether some take every second pixel, as before patches are merged."""
    return any(node.target is aten.slice.Tensor and argument(node, 4, "step", 1) != 1 for node in nodes)


def _divides_channels(node: Node) -> bool:
    name, read = NAMES.get(node.target, ""), value(node.all_input_nodes[0]) if node.all_input_nodes else None
    if name not in PIECES:
        return False
    is_shuffle = name.endswith("channel_shuffle")
    axis = 1 if is_shuffle else argument(node, 2 if name.startswith("split") else 1, "dim", 0)
    return read is not None and read.dim() in (4, 5) and axis % read.dim() == 1


def _pixels(node: Node) -> tuple[int, ...]:
    """The extents of an image, and of one whose channels are on several axes, that are not of channels."""
    extents = shape(node)
    return (extents[0], *extents[-2:])


def _is_plain(tensor: Any) -> bool:
    """Whether a value is a tensor of a type of programs on the CPU, of fixed shape, with strides."""
    return (
        isinstance(tensor, torch.Tensor)
        and TYPE_NAMES.get(tensor.dtype) in TYPES
        and tensor.device.type == "cpu"
        and tensor.layout is torch.strided
        and all(type(extent) is int and extent > 0 for extent in tensor.shape)
    )


def _connecting(groups: Sequence[Unit]) -> list[Unit]:
    """The groups that read a region, and are read by regions or by nothing but the output; and groups that only regions read.

    Views are such a group only if a region reads them: torch's view of its operand would divide a run.
    """
    kept = list(groups)
    while True:
        among = set(kept)
        left = [unit for unit in kept if _connects(unit, among)]
        if len(left) == len(kept):
            return left
        kept = left


def _computes(unit: Unit) -> bool:
    return not all(map(_is_view, unit.nodes))


def _is_view(node: Node) -> bool:
    """Whether a node moves nothing in memory."""
    if node.target is aten.clone.default and _is_plain(value(node)):  # other copies are in no program
        return name_same_memory(shape(node), value(node.args[0]).stride(), value(node).stride())
    return renames_strides(node) or node.target in (*VIEWS, *_PARTS)


def _connects(unit: Unit, among: set[Unit]) -> bool:
    """Whether a run goes through a group, if the groups in `among` are programs."""

    def is_in_run(other: Unit) -> bool:
        return other.region is not None or other in among

    before, readers = _neighbours(unit, "before"), _neighbours(unit, "behind")
    if not any(map(is_in_run, before)):
        is_once = all(map(is_constant, unit.nodes))
        return _computes(unit) and not is_once and _begins(before, readers, is_in_run)
    if not _computes(unit):
        return any(map(is_in_run, unit.behind))
    left = [each for each in readers if each.region is None and _computes(each)]
    return any(map(is_in_run, readers)) or all(each.nodes[0].op == "output" for each in left)


def _begins(before: Iterable[Unit], readers: Iterable[Unit], is_in_run: Callable[[Unit], bool]) -> bool:
    """Whether a run begins with a group that reads nothing of torch's, and that only the run reads.

    Computed by torch, its threads would spin while the run computes what follows.
    """
    is_ready = all(node.op in ("placeholder", "get_attr") for each in before for node in each.nodes)
    computed = [each for each in readers if is_in_run(each) or _computes(each)]
    return is_ready and bool(computed) and all(map(is_in_run, computed))


def _neighbours(unit: Unit, side: str) -> set[Unit]:
    """The units before or behind, also behind views; and these views."""

    def following(each: Unit) -> set[Unit]:
        is_called = each.region is None and all(node.op == "call_function" for node in each.nodes)
        return getattr(each, side) if is_called and not _computes(each) else set()

    return _reached(getattr(unit, side), following)


def _reached(units: Iterable[Unit], following: Callable[[Unit], Iterable[Unit]]) -> set[Unit]:
    """`units`, and all units that follow from them."""
    reached: set[Unit] = set()
    waiting = list(units)
    while waiting:
        unit = waiting.pop()
        if unit not in reached:
            reached.add(unit)
            waiting.extend(following(unit))
    return reached


def _region(unit: Unit, units: Units, readings: dict[Any, str], glue: set[Node]) -> Region:
    """The region of a group. Raises NotFusible or OperationError if it cannot be a region."""
    inside = set(unit.nodes)
    inputs = list(
        dict.fromkeys(each for node in unit.nodes for each in node.all_input_nodes if each not in inside)
    )
    outputs = [
        node
        for node in unit.nodes
        if any(isinstance(each, Region) or each not in inside for each in units.readers.get(node, ()))
    ]
    if any(value(each) is None for each in (*inputs, *outputs)):
        raise NotFusible("it reads or returns a list of tensors")
    numbers = {node: at for at, node in enumerate([*inputs, *unit.nodes])}
    calls = [_call(node, numbers.__getitem__) for node in unit.nodes]
    operands = tuple(_value(each, readings.get(each) or _reading(each)) for each in inputs)
    images = "channels" if any(each.reading == "channels" for each in operands) else ""
    results = tuple(_value(each, _wanted(each, units, glue - inside, images)) for each in outputs)
    text = json.dumps(calls, sort_keys=True, separators=(",", ":"))
    program = OperatorProgram(_title(unit), operands, text, tuple(numbers[each] for each in outputs), results)
    _check_plans(program, unit.nodes)
    spec = RegionSpec(
        program,
        tuple(each.shape for each in operands),
        tuple(
            OperandSource("positions" if each.type == POSITIONS else each.reading, (at,))
            for at, each in enumerate(operands)
        ),
        tuple((each.shape, each.reading) for each in results),
        frozen=tuple(at for at, each in enumerate(inputs) if is_frozen(each)),
    )
    return Region(GLUE, tuple(unit.nodes), tuple(inputs), tuple(outputs), spec)


def _check_plans(program: OperatorProgram, nodes: Sequence[Node]) -> None:
    """Raise NotFusible if nodes that need a kernel of their own have none in this program.

    Alone, pools and group norms need none.
    """
    if any(map(_is_attention, nodes)):
        check_attention(program)
    if any(map(is_update, nodes)):
        rows_plan(program)
    is_pool = len(nodes) == 1 and NAMES.get(nodes[0].target) in POOLS
    if any(map(_is_window, nodes)) and not is_pool:
        window_plan(program)
    if any(map(_is_group_norm, nodes)) and len(nodes) > 2:  # an item, too
        group_norm_plan(program)


def _value(node: Node, reading: str) -> Value:
    dtype = value(node).dtype
    return Value(shape(node), POSITIONS if dtype is torch.int64 else TYPE_NAMES[dtype], reading)


def _wanted(node: Node, units: Units, glue: set[Node], images: str) -> str:
    """How a result is stored: as the first region that reads it takes it, otherwise as torch stores it.

    Images that other programs, which have the nodes `glue`, read are stored as the `images` that the program reads, and
    with channels last before pools, resized images and group norms. Results of updates are stored as their caches are.
    """
    if is_update(node):
        return "rows"
    for reader in units.readers.get(node, ()):
        if isinstance(reader, Region):
            at = reader.inputs.index(node)
            return next(
                ("channels" if source.reading == "channels" else "rows")
                for source in reader.spec.sources
                if at in source.inputs
            )
    readers = [each for each in units.readers.get(node, ()) if each in glue and not _reads_rows(each)]
    if any(map(_has_kernel, readers)):
        images = "channels"
    return images if readers and images and value(node).dim() in (4, 5) else _reading(node)


def _reading(node: Node) -> str:
    """How torch's memory of a node is read without a copy; `rows` if there is no such way."""
    tensor = value(node)
    axes = tensor.dim()
    is_image = axes in (4, 5) and not tensor.is_contiguous()
    return "channels" if is_image and tensor.permute(0, *range(2, axes), 1).is_contiguous() else "rows"


def _title(unit: Unit) -> str:
    """`mul_add`: the first operators that compute something, or that move it."""
    named = [_short_name(node) for node in unit.nodes if not _is_view(node)]
    names = [each for each in named if each != "clone"] or named or list(map(_short_name, unit.nodes))
    return "_".join(dict.fromkeys(names[:_MAX_TITLE]))[:80]


def _short_name(node: Node) -> str:
    if renames_strides(node):
        return "alias"
    return "attention" if _is_attention(node) else NAMES[node.target].partition(".")[0].strip("_")


def _call(node: Node, number: Callable[[Node], int]) -> list[Any]:
    """A node as a call of a program: name and arguments. Raises NotFusible for what programs cannot have."""
    if renames_strides(node):  # programs have no strides
        return ["alias", *_encoded([[node.args[0]], {}], number)]
    if node.target is CONVERSION:
        return ["clone", *_encoded([[node.args[0]], {}], number)]
    named = {name: given for name, given in node.kwargs.items() if name not in STORAGE and given is not None}
    return [NAMES[node.target], *_encoded([list(node.args), named], number)]


def _encoded(data: Any, number: Callable[[Node], int]) -> Any:
    """Arguments of a call as in a program. Raises NotFusible for what programs cannot have."""
    if isinstance(data, torch.fx.Node):
        return {"value": number(data)}
    if isinstance(data, (list, tuple)):
        return [_encoded(each, number) for each in data]
    if isinstance(data, dict):
        return {name: _encoded(each, number) for name, each in data.items() if name not in STORAGE}
    if data is None or type(data) in (bool, int, float, str):
        return data
    raise NotFusible(f"an argument is {str(data)[:40]}")


# -- units -----------------------------------------------------------------------------------------

# Units of a graph: its regions, and its other nodes, alone or in groups. Groups grow where no cycle arises.


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
        of_regions = [Unit(region.nodes, region) for region in regions]
        by_node = {node: unit for unit in of_regions for node in unit.nodes}
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

    def grow(
        self, may_join: Callable[[Node], bool], fit: Callable[[Sequence[Node], Sequence[Node]], bool]
    ) -> None:
        """Join each node for which `may_join` with the groups that it reads from and `fit`.

        Not if a path leaves a group and returns.
        """
        for unit in list(self.ordered):
            if unit.region is None and may_join(unit.nodes[-1]):
                for other in sorted(unit.before, key=lambda each: each.nodes[-1]):
                    if other.region is not None or not may_join(other.nodes[-1]):
                        continue
                    if fit(other.nodes, unit.nodes) and not _passes_by(other, unit):
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
    return first in _reached(last.before - {first}, lambda unit: set() if unit is first else unit.before)
