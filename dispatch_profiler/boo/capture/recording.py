"""Runs a model once with torch's own kernels, and records the operations that our backends would launch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from dispatch_profiler.boo.fusion.match.glue import find_glue
from dispatch_profiler.boo.fusion.match.matching import Region, find_regions, root_of
from dispatch_profiler.boo.fusion.model_runs import arguments_of, compiled_alone, unchanged
from dispatch_profiler.boo.fusion.schema import BACKWARD_FUSIONS, GLUE, FusionSchema
from dispatch_profiler.boo.fusion.traced_graphs import GraphKind, boxed, compiled_by, schema_of
from dispatch_profiler.boo.kernels.uses import is_tunable
from dispatch_profiler.operations import Operation

_torch: Any = torch
_BACKWARD = frozenset(rule.root for rule in BACKWARD_FUSIONS)


@dataclass
class Recorded:
    """How often each operation is launched, by which modules, and how often each operator with a reason is left to torch."""

    operations: Counter[Operation] = field(default_factory=Counter)
    #: The paths of modules as the keys of a dictionary, which keeps their order.
    modules: dict[Operation, dict[str, None]] = field(default_factory=dict)
    left: Counter[tuple[str, str]] = field(default_factory=Counter)


def record(model: Callable[..., Any], inputs: Any, schema: FusionSchema, *, training: bool) -> Recorded:
    """Run a model; see `capture`."""
    recorder = _Recorder(schema)
    positional, named = arguments_of(inputs)

    compiled = compiled_alone(model, recorder)
    with unchanged(model, inputs), _torch.set_grad_enabled(training):
        results = compiled(*positional, **named)
        if training:
            _differentiate(model, results)
    return recorder.recorded


def _differentiate(model: Any, results: Any) -> None:
    """Compute gradients of the sum of all results, without storing them in the parameters."""
    leaves = [each for each in _torch.utils._pytree.tree_leaves(results) if isinstance(each, torch.Tensor)]
    total = [each.sum() for each in leaves if each.requires_grad]
    parameters = [each for each in getattr(model, "parameters", list)() if each.requires_grad]
    if total and parameters:
        _torch.autograd.grad(sum(total), parameters, allow_unused=True)


@dataclass
class _Recorder:
    """A backend of torch.compile that runs graphs eagerly, and counts the operations that they would launch."""

    schema: FusionSchema
    recorded: Recorded = field(default_factory=Recorded)

    #: The backend's name in torch's messages.
    __name__ = "capture"

    def __call__(self, module: Any, example_inputs: Sequence[Any], **_: Any) -> Callable[..., Any]:
        return compiled_by(self._counted, module, example_inputs, saves_memory=True)

    def _counted(
        self, kind: GraphKind, module: Any, example_inputs: Sequence[Any]
    ) -> Callable[[list[Any]], Any]:
        regions, left = _read(module.graph, schema_of(kind, self.schema))
        operations = [each.spec.operation.tuned_as for each in regions]
        for each, operation in zip(regions, operations, strict=True):
            if each.module:
                self.recorded.modules.setdefault(operation, {})[each.module] = None

        def call(*arguments: Any) -> Any:
            self.recorded.operations.update(operations)
            self.recorded.left.update(left)
            return module(*arguments)

        return boxed(call)


def _read(graph: Any, schema: FusionSchema) -> tuple[list[Region], list[tuple[str, str]]]:
    """The regions of a graph of AOTAutograd whose operations can be tuned, and the operators that it leaves to torch."""
    regions, rejected = find_regions(graph, schema)
    if schema.rule_for(GLUE) is not None:
        regions += [each for each in find_glue(graph, regions) if is_tunable(each.spec.operation)]
    left = [(str(each.root), each.reason) for each in rejected]
    taken = {node for region in regions for node in region.nodes}
    for node in graph.nodes:
        root = root_of(node)
        if root is not None and node.users and node not in taken and schema.rule_for(root) is None:
            left.append((str(root), _reason(root)))
    return regions, left


def _reason(root: str) -> str:
    """Why an operator that could be fused is left to torch."""
    if root in _BACKWARD:
        return "gradients are left to torch unless BOO_USE_BACKWARD_KERNELS=1"
    return "the fusion schema has no rule for it"
