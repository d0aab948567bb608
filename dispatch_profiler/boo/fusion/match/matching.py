"""Regions of an aten graph: an operation, and the steps that follow it one after another.

Every node of a region but the last is read by nodes of the region only. So no path leaves a region and returns to it,
and no result inside a region is needed elsewhere: where one is, the region ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from dispatch_profiler.boo.fusion.match.steps import STEP_OPERATORS, NodeStep, follower, step_of
from dispatch_profiler.boo.fusion.nodes import (
    Node,
    NotFusible,
    aten,
    element_type,
    is_constant,
    is_frozen,
    is_parameter,
    module_path,
    shape,
    value,
)
from dispatch_profiler.boo.fusion.programs.operators import MOVES, NAMES
from dispatch_profiler.boo.fusion.programs.values import TYPES
from dispatch_profiler.boo.fusion.roots._base import Begun, Operand, RootFamily, root_families
from dispatch_profiler.boo.fusion.roots.product import MATRIX_PRODUCT
from dispatch_profiler.boo.fusion.schema import ALL_STEPS, GLUE, GRADIENTS, FusionRule, FusionSchema
from dispatch_profiler.boo.fusion.spec import ABSENT, MAX_AXES, OperandSource, RegionSpec
from dispatch_profiler.boo.launching.torch_types import NAMES as TYPE_NAMES
from dispatch_profiler.errors import DispatchProfilerError
from dispatch_profiler.operations import Operation
from dispatch_profiler.operations.epilogues import Epilogue


@dataclass(frozen=True, eq=False)
class Region:
    """Nodes that one kernel computes. `inputs` are read from outside, `outputs` have its results, in the spec's order.

    An output is None if nothing reads this result. `stop` says why the region ends where it does, if another node
    could have been part of it.
    """

    root: str
    nodes: tuple[Node, ...]
    inputs: tuple[Node, ...]
    outputs: tuple[Node | None, ...]
    spec: RegionSpec
    stop: str = ""

    @property
    def module(self) -> str:
        """The path of the module of the model that the region begins in, apart from views; see `module_path`."""
        return module_path([each for each in self.nodes if NAMES.get(each.target) not in MOVES] or self.nodes)


@dataclass(frozen=True, eq=False)
class Rejected:
    """A node that could have begun a region, and why it does not."""

    root: str
    node: Node
    reason: str


#: Operators that keep elements in their order.
VIEWS = (aten.view.default, aten._unsafe_view.default, aten.reshape.default)
#: aten operator -> the family of the operations that it may begin.
_FAMILIES: dict[Any, RootFamily] = {
    operator: family for family in root_families() for operator in family.operators
}
#: Of the work of all regions, what matrix products may add that the schema has no rule for.
_LARGEST_HEADS = 0.02
#: Multiplications by each element of a weight from which on packing saves more than comparing the weight takes: reading
#: an element twice takes as long as some 30 to 60 multiplications on a core, and packing saves up to a fifth of them.
_USES_OF_COMPARED = 256
_HEAD = FusionRule(MATRIX_PRODUCT, ALL_STEPS)


def root_of(node: Node) -> str | None:
    """The root that a node may be; None for others."""
    if node.op != "call_function" or node.target not in _FAMILIES:
        return None
    return _FAMILIES[node.target].root(node)


def operators_of_regions(schema: FusionSchema) -> frozenset[Any]:
    """The operators that may begin regions of these rules, or be steps of them; also those of gradients."""
    roots = {rule.root for rule in schema.rules} | GRADIENTS
    begin = {operator for operator, family in _FAMILIES.items() if not roots.isdisjoint(family.roots)}
    return frozenset(begin | STEP_OPERATORS)


def find_regions(graph: Any, schema: FusionSchema) -> tuple[list[Region], list[Rejected]]:
    """The regions of a `torch.fx.Graph` that AOTAutograd made, which share no nodes, in the order of the graph.

    None begins at a constant.
    """
    regions: list[Region] = []
    rejected: list[Rejected] = []
    taken: set[Node] = set()
    for node in graph.nodes:
        root = root_of(node)
        rule = None if root is None else schema.rule_for(root)
        if root is None or rule is None or node in taken or not node.users or is_constant(node):
            continue  # compilers compute constants once
        try:
            begun = _regions_at(node, root, rule, taken)
        except (NotFusible, DispatchProfilerError) as error:
            rejected.append(Rejected(root, node, str(error)))
            continue
        regions += begun
        taken.update(each for region in begun for each in region.nodes)
    if schema.rule_for(GLUE) is not None and schema.rule_for(MATRIX_PRODUCT) is None:
        regions = sorted([*regions, *_heads(graph, regions)], key=lambda each: each.nodes[0])
    return regions, rejected


def _heads(graph: Any, regions: Sequence[Region]) -> list[Region]:
    """Matrix products behind regions, such as the classifier of a network, if they are a small part of all work.

    Left to torch, they would cost more than their own time: its threads spin while the next regions are computed.
    """
    limit = _LARGEST_HEADS * sum(each.spec.operation.flops for each in regions)
    behind = {node for region in regions for node in region.nodes}
    taken = set(behind)
    heads: list[Region] = []
    for node in graph.nodes:
        if behind.intersection(node.all_input_nodes):
            behind.add(node)
        if node not in behind or node in taken or not node.users or root_of(node) != MATRIX_PRODUCT:
            continue
        if TYPE_NAMES.get(value(node).dtype) not in TYPES or value(node).device.type != "cpu":
            continue  # as programs, without which it would be a run of its own
        try:
            (region,) = _regions_at(node, MATRIX_PRODUCT, _HEAD, taken)
        except (NotFusible, DispatchProfilerError):
            continue
        limit -= region.spec.operation.flops
        if limit < 0:
            return []
        heads.append(region)
        taken.update(region.nodes)
    return heads


def _regions_at(node: Node, root: str, rule: FusionRule, taken: set[Node]) -> list[Region]:
    begun = _FAMILIES[node.target].operators[node.target](node)
    if isinstance(begun, tuple):
        return [_closed(root, each, []) for each in begun]
    chain, stop = _chain(begun, rule, taken)
    return [_closed(root, begun, chain, stop)]


def _chain(begun: Begun, rule: FusionRule, taken: set[Node]) -> tuple[list[NodeStep | Node], str]:
    """The steps, and the views between them, that follow the root; and why no more do."""
    chain: list[NodeStep | Node] = []
    current = begun.outputs[0]
    passed: list[Node] = []
    if not rule.steps or not begun.has_steps:
        return chain, ""
    while current is not None:
        user = follower(current)
        if user is None or user in taken:
            return chain, _end_reason(current)
        if begun.keeps_rows and _regroups_rows(user, current):
            passed.append(user)
            current = user
            continue
        try:
            node_step = step_of(user, current, begun.images)
        except NotFusible as error:
            return chain, str(error)
        if node_step is None or node_step.step.name not in rule.steps:
            return chain, ""
        chain.extend([*passed, node_step])
        passed = []
        current = node_step.result
    return chain, ""


def _end_reason(node: Node) -> str:
    readers = [user for user in node.users if user.op == "call_function"]
    return f"{len(node.users)} nodes read {node}" if len(node.users) > 1 and readers else ""


def _regroups_rows(node: Node, of: Node) -> bool:
    """Whether a node is a view that keeps the last axis, so that rows stay rows."""
    if node.target not in VIEWS:
        return False
    return node.args[0] is of and shape(node)[-1:] == shape(of)[-1:] and 0 < len(shape(node)) <= MAX_AXES


def _closed(root: str, begun: Begun, chain: Sequence[NodeStep | Node], stop: str = "") -> Region:
    """The region of a root and its steps. Raises OperationError if there is no such operation."""
    steps = [each for each in chain if isinstance(each, NodeStep)]
    nodes: list[Node] = list(begun.nodes)
    for each in chain:
        nodes.extend(each.nodes if isinstance(each, NodeStep) else [each])
    given = [*begun.operands, *(operand for each in steps for operand in each.operands)]
    operands = [_without_views(operand) for operand in given]
    epilogue = Epilogue((*begun.steps, *(each.step for each in steps)))
    inputs = list(dict.fromkeys(each for operand in operands for each in operand.nodes if each is not None))
    outputs = (nodes[-1],) if steps else begun.outputs
    results = _results(begun, outputs)
    for each in (*map(shape, inputs), *(extents for extents, _ in results)):
        if len(each) > MAX_AXES:
            raise NotFusible(f"a tensor has {len(each)} axes, more than {MAX_AXES}")
    sources = tuple(
        OperandSource(
            of.reading, tuple(ABSENT if each is None else inputs.index(each) for each in of.nodes), of.eps
        )
        for of in operands
    )
    operation = begun.operation(epilogue)
    weight = operands[1].nodes[0] if len(operands) > 1 else None
    spec = RegionSpec(
        operation,
        tuple(map(shape, inputs)),
        sources,
        results,
        tuple(at for at, each in enumerate(inputs) if each.op in ("placeholder", "get_attr")),
        _packs_weight(operation, weight, freezes=weight is not None and is_frozen(weight)),
        tuple(at for at, each in enumerate(inputs) if is_frozen(each)),
    )
    _check_types(spec.operation, operands, outputs)
    return Region(root, tuple(nodes), tuple(inputs), tuple(outputs), spec, stop)


def with_frozen_weights(region: Region) -> Region:
    """The region as it is once its parameters are frozen."""
    places = tuple(at for at, each in enumerate(region.inputs) if is_parameter(each))
    packs = bool(places) and _packs_weight(region.spec.operation, _weight(region), freezes=True)
    return replace(region, spec=replace(region.spec, frozen=places, packs_weight=packs))


def _weight(region: Region) -> Node | None:
    """The node that the second operand is read from; None without a second operand."""
    sources = region.spec.sources
    return (
        region.inputs[sources[1].inputs[0]] if len(sources) > 1 and sources[1].inputs[0] != ABSENT else None
    )


def _packs_weight(operation: Operation, node: Node | None, *, freezes: bool) -> bool:
    """Whether `node`, the second operand, is a parameter on the CPU that a kernel should have packed.

    Each call compares a weight that is not frozen with its snapshot, so it has to be used often enough.
    """
    if not operation.reads_weight or node is None or not is_parameter(node):
        return False
    weight = value(node)
    uses = operation.flops // (2 * weight.numel())
    return weight.device.type == "cpu" and (freezes or uses >= _USES_OF_COMPARED)


def _without_views(operand: Operand) -> Operand:
    """An operand without the views and copies before it, which regroup rows, or move channels to where memory has them.

    So that a region may follow the region that computes what is viewed, without anything of torch between them.
    """
    node: Node = operand.nodes[0]
    if node is None:
        return operand
    if operand.reading == "channels":
        while node.target is aten.clone.default:
            node = node.args[0]
        axes = len(shape(node))
        if _permutes(node, [0, axes - 1, *range(1, axes - 1)]):
            return _without_views(Operand("rows", (node.args[0],), operand.eps))
    if operand.reading != "rows":
        return operand
    while len(shape(node)) and _keeps_rows(node) and len(shape(node.args[0])) <= MAX_AXES:
        node = node.args[0]
    axes = len(shape(node))
    if axes > 2 and _permutes(node, [0, *range(2, axes), 1]):
        return Operand("channels", (node.args[0],), operand.eps)
    return operand._replace(nodes=(node,))


def _permutes(node: Node, order: Sequence[int]) -> bool:
    """Whether a node has the axes of its argument in this order."""
    return node.target is aten.permute.default and [axis % len(order) for axis in node.args[1]] == order


def _keeps_rows(node: Node) -> bool:
    """Whether a node has the elements of its argument in the same order: views, copies, and axes of one element moved."""
    if node.target in (*VIEWS, aten.clone.default):
        return True
    if node.target not in (aten.permute.default, aten.transpose.int):
        return False
    axes = list(range(len(shape(node))))
    if node.target is aten.permute.default:
        order = [axis % len(axes) for axis in node.args[1]]
    else:
        first, second = (axis % len(axes) for axis in node.args[1:3])
        order = axes.copy()
        order[first], order[second] = second, first
    extents = shape(node.args[0])
    moved = [axis for axis in order if extents[axis] != 1]
    return moved == sorted(moved)


def _check_types(operation: Operation, operands: Sequence[Operand], outputs: Sequence[Node | None]) -> None:
    """Raise NotFusible if the graph has other types than the operation."""
    read = [
        (tensor, of.nodes[-1])
        for tensor, of in zip(operation.operands, operands, strict=True)
        if of.reading != "bytes"  # which the root has checked
    ]
    written = zip(operation.results, outputs, strict=True)
    for tensor, node in (*read, *written):
        if node is None:
            continue
        found = element_type(node, may_be_integer=tensor.type.is_integer)
        if found != tensor.type.name:
            raise NotFusible(f"its {tensor.name} is {found}, not {tensor.type.name}")


def _results(begun: Begun, outputs: Sequence[Node | None]) -> tuple[tuple[tuple[int, ...], str], ...]:
    """Shape and reading of each result; a result that nothing reads has the shape that the operator gives it."""
    if len(outputs) == 1:
        return ((shape(outputs[0]), begun.images),)
    return tuple((tuple(each.shape), begun.images) for each in begun.values or map(value, outputs))
