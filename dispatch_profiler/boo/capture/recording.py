"""Runs a model once with torch's own kernels, and records the operations that our backends would launch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from dispatch_profiler.boo.capture.captured import Captured, LeftToTorch
from dispatch_profiler.boo.capture.models import arguments_of
from dispatch_profiler.boo.fusion.match.matching import find_regions, root_of
from dispatch_profiler.boo.fusion.model_runs import compiled_alone, unchanged
from dispatch_profiler.boo.fusion.schema import BACKWARD_FUSIONS, FusionSchema
from dispatch_profiler.boo.fusion.traced_graphs import GraphKind, boxed, compiled_by, schema_of
from dispatch_profiler.operations import Operation
from dispatch_profiler.workloads import Workload, WorkloadEntry

_torch: Any = torch
_BACKWARD = frozenset(rule.root for rule in BACKWARD_FUSIONS)


def record(
    model: Callable[..., Any], inputs: Any, schema: FusionSchema, *, training: bool, origin: str
) -> Captured:
    """See `capture`."""
    recorder = _Recorder(schema)
    positional, named = arguments_of(inputs)

    compiled = compiled_alone(model, recorder)
    with unchanged(model, inputs), _torch.set_grad_enabled(training):
        results = compiled(*positional, **named)
        if training:
            _differentiate(model, results)
    name = origin or getattr(model, "__name__", type(model).__name__)
    return recorder.captured(name)


def _differentiate(model: Any, results: Any) -> None:
    """Compute gradients of the sum of all results, without storing them in the parameters."""
    leaves = [each for each in _torch.utils._pytree.tree_leaves(results) if isinstance(each, torch.Tensor)]
    total = [each.sum() for each in leaves if each.requires_grad]
    parameters = [each for each in getattr(model, "parameters", list)() if each.requires_grad]
    if total and parameters:
        _torch.autograd.grad(sum(total), parameters, allow_unused=True)


@dataclass
class _Graph:
    """The operations that a graph of AOTAutograd launches in each run, and the operators that it leaves to torch."""

    operations: Sequence[Operation]
    left: Sequence[tuple[str, str]]


@dataclass
class _Recorder:
    """A backend of torch.compile that runs graphs eagerly, and counts the operations that they would launch."""

    schema: FusionSchema
    operations: Counter[Operation] = field(default_factory=Counter)
    left: Counter[tuple[str, str]] = field(default_factory=Counter)

    #: The backend's name in torch's messages.
    __name__ = "capture"

    def __call__(self, module: Any, example_inputs: Sequence[Any], **_: Any) -> Callable[..., Any]:
        return compiled_by(self._counted, module, example_inputs, saves_memory=True)

    def captured(self, origin: str) -> Captured:
        """The counts of all graphs that ran."""
        entries = tuple(WorkloadEntry(each, count, origin) for each, count in self.operations.items())
        left = tuple(LeftToTorch(root, reason, count) for (root, reason), count in self.left.items())
        return Captured(Workload(entries), left)

    def _counted(
        self, kind: GraphKind, module: Any, example_inputs: Sequence[Any]
    ) -> Callable[[list[Any]], Any]:
        graph = _read(module.graph, schema_of(kind, self.schema))

        def call(*arguments: Any) -> Any:
            self.operations.update(graph.operations)
            self.left.update(graph.left)
            return module(*arguments)

        return boxed(call)


def _read(graph: Any, schema: FusionSchema) -> _Graph:
    regions, rejected = find_regions(graph, schema)
    left = [(str(each.root), each.reason) for each in rejected]
    taken = {node for region in regions for node in region.nodes}
    for node in graph.nodes:
        root = root_of(node)
        if root is not None and node.users and node not in taken and schema.rule_for(root) is None:
            left.append((str(root), _reason(root)))
    return _Graph([each.spec.operation for each in regions], left)


def _reason(root: str) -> str:
    """Why an operator that could be fused is left to torch."""
    if root in _BACKWARD:
        return "gradients are left to torch unless BOO_USE_BACKWARD_KERNELS=1"
    return "the fusion schema has no rule for it"
