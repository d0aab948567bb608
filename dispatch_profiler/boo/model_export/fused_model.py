"""Replaces the regions of a traced model by operators of kernels in C."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dispatch_profiler.boo.backends.graph_kernels import copied
from dispatch_profiler.boo.backends.region_kernels import RegionChoice
from dispatch_profiler.boo.fusion.folding import fold_constants
from dispatch_profiler.boo.fusion.match.matching import Region, Rejected, find_regions
from dispatch_profiler.boo.fusion.nodes import fake_mode, is_frozen
from dispatch_profiler.boo.fusion.plan.rewriting import rewrite
from dispatch_profiler.boo.fusion.schema import FusionSchema
from dispatch_profiler.boo.fusion.spec import ABSENT
from dispatch_profiler.boo.fusion.strides import drop_aliases, let_views_copy
from dispatch_profiler.boo.kernels import NeededKernel
from dispatch_profiler.boo.model_export.c_kernels import c_kernels
from dispatch_profiler.boo.model_export.constants import ConstantBlock, packer
from dispatch_profiler.boo.model_export.native_library import NativeLibrary
from dispatch_profiler.boo.model_export.operators import OperatorMaker, RegionOperator, replace_call
from dispatch_profiler.boo.model_export.traced_model import TracedModel


@dataclass(frozen=True, eq=False)
class FusedModel:
    """A traced model, whose regions are computed by `operators`; `calls` has the node and the arguments of each.

    `library` has the kernels, `constants` their operands that follow from weights, and `left_to_torch` the nodes that
    could have begun a region.
    """

    module: Any
    operators: tuple[RegionOperator, ...]
    calls: tuple[tuple[Any, list[Any]], ...]
    library: NativeLibrary
    constants: bytes
    left_to_torch: tuple[Rejected, ...]

    def call_operators(self, targets: Sequence[Any]) -> None:
        """Let the module call the operators as `targets` of torch, and forget what only kernels read."""
        replaced: dict[Any, Any] = {}
        for (call, taken), each, target in zip(self.calls, self.operators, targets, strict=True):
            now = [replaced.get(node, node) for node in taken]
            replaced |= replace_call(self.module.graph, call, each, now, target)
        self.module.graph.eliminate_dead_code()
        self.module.graph.lint()
        read = {node.target for node in self.module.graph.nodes if node.op == "get_attr"}
        for name in [name for name, _ in self.module.named_buffers() if name not in read]:
            delattr(self.module, name)
        self.module.recompile()

    @property
    def key(self) -> str:
        """Identifies the kernels and constants."""
        content = hashlib.sha256(self.constants)
        for each in self.library.kernels:
            content.update(each.data)
        return content.hexdigest()[:12]


def fused(
    traced: TracedModel, schema: FusionSchema, choice: RegionChoice | None, library: Path, compiler: str
) -> FusedModel:
    """The model with operators for the regions of `schema`, with kernels in the folder `library`.

    Regions that `choice` decides against, or that have no kernel in C, are left to torch; without a choice, none is timed.
    """
    module = copied(traced.module)
    graph = module.graph
    drop_aliases(graph)
    regions, rejected = _chosen(*find_regions(graph, schema), choice)
    kernels, reasons = c_kernels(map(_needed, regions))
    rejected += [
        Rejected(each.root, each.nodes[0], reasons[_needed(each)])
        for each in regions
        if _needed(each) in reasons
    ]
    regions = [each for each in regions if _needed(each) in kernels]
    used = tuple(dict.fromkeys(kernels[_needed(each)] for each in regions))
    native = NativeLibrary(library, compiler, used)
    if not regions:
        return FusedModel(module, (), (), native, b"", tuple(rejected))
    rewrite(graph, regions, fake_mode(graph), joins=False)
    _insert_weights(module, traced.weights)
    fold_constants(module)
    let_views_copy(module)
    native.write()
    constants = ConstantBlock()
    maker = OperatorMaker(module, kernels, constants, packer(native.shared()))
    calls = list(maker.operators())
    made = FusedModel(
        module,
        tuple(each for _, each, _ in calls),
        tuple((call, taken) for call, _, taken in calls),
        native,
        constants.data,
        tuple(rejected),
    )
    # AOTInductor's own names follow from its code alone, which must differ where kernels or constants do.
    named = tuple(replace(each, name=f"{each.name}_{made.key}") for each in made.operators)
    return replace(made, operators=named)


def _needed(region: Region) -> NeededKernel:
    return NeededKernel(region.spec.operation, region.spec.packs_weight)


def _chosen(
    regions: Sequence[Region], rejected: Sequence[Rejected], choice: RegionChoice | None
) -> tuple[list[Region], list[Rejected]]:
    """The regions for kernels, and the rejected ones."""
    left = list(rejected)
    usable = []
    for each in regions:
        if _has_constant_norms(each):
            usable.append(each)
        else:
            left.append(
                Rejected(each.root, each.nodes[0], "its batch norm does not follow from weights alone")
            )
    if choice is None:
        return usable, left
    usable, slower = choice.promising(usable)
    reasons = choice.prepared(usable)
    left += slower
    left += [
        Rejected(each.root, each.nodes[0], reasons[each.spec.operation])
        for each in usable
        if each.spec.operation in reasons
    ]
    usable, slower = choice.chosen([each for each in usable if each.spec.operation not in reasons])
    return usable, left + slower


def _has_constant_norms(region: Region) -> bool:
    """Whether the scales and shifts of a region's batch norms are computed from the model's weights themselves."""
    places = {
        at
        for source in region.spec.sources
        if source.reading in ("scale", "shift")
        for at in source.inputs
        if at != ABSENT
    }
    return all(is_frozen(region.inputs[at]) for at in places)


def _insert_weights(module: Any, weights: Sequence[Any]) -> None:
    """Replace the inputs for weights of a graph module by the weights."""
    graph = module.graph
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    for at, (node, weight) in enumerate(zip(inputs, weights, strict=False)):
        name = f"weight_{at}"
        module.register_buffer(name, weight)
        with graph.inserting_after(inputs[-1]):
            constant = graph.get_attr(name)
        constant.meta["val"] = node.meta["val"]
        node.replace_all_uses_with(constant)
        graph.erase_node(node)
    module.recompile()
