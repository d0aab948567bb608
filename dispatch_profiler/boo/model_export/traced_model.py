"""A model as one graph of aten operators, without Python: what is traced, and what replaces it.

model, inputs  ->  TracedModel: placeholders of weights, then of tensors among the inputs
               ->  a module with the same arguments and results, which calls a graph of the tensors alone
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from dispatch_profiler.boo.fusion.model_runs import arguments_of
from dispatch_profiler.boo.fusion.nodes import mark_constants
from dispatch_profiler.boo.fusion.simplifying import simplify
from dispatch_profiler.errors import UsageError, reason_of

_torch: Any = torch
#: Stands for a tensor in a tree of results.
_TENSOR = object()
_trees: Any = torch.utils._pytree


@dataclass(frozen=True, eq=False)
class TracedModel:
    """The graph of a model without gradients, for inputs of these shapes.

    `module` takes `weights`, which are marked as frozen, and then `tensors`. It returns the tensors among the results.
    `inputs` are positional and keyword arguments, and `results` is a tree with a mark in place of each tensor.
    """

    module: Any
    weights: tuple[Any, ...]
    tensors: tuple[Any, ...]
    inputs: tuple[tuple[Any, ...], dict[str, Any]]
    results: Any


def traced(model: Any, inputs: Any) -> TracedModel:
    """Trace `model` on `inputs`: a tensor, a sequence of arguments, or a mapping of keyword arguments.

    Raises UsageError for a model that torch.export or the package cannot express.
    """
    arguments = arguments_of(inputs)
    _check(model, arguments)
    with _torch.no_grad():
        try:
            program = torch.export.export(model, *arguments, strict=False)
        except Exception as error:  # whatever the model or torch raises
            raise UsageError(
                f"torch.export cannot export the model: {reason_of(error)}",
                hint="torch.export.export(model, arguments) shows where it fails",
            ) from error
        flat = _Flat(program.module(), arguments)
        module, signature = _graph(flat)
    written = [*signature.buffers_to_mutate.values(), *signature.user_inputs_to_mutate.values()]
    if written:
        raise UsageError(
            f"the model writes to {written[0].removeprefix('model.')}: only models that change nothing are exported",
            hint="return the new value as a result, and pass it as an input to the next call",
        )
    # Tied weights have several names.
    by_name: dict[str, Any] = {
        **dict(flat.named_parameters(remove_duplicate=False)),
        **dict(flat.named_buffers(remove_duplicate=False)),
    }
    names = [*signature.parameters, *signature.buffers]
    weights = tuple(by_name[each].detach() for each in names)
    simplify(module.graph)
    module.recompile()
    mark_constants(module.graph, len(weights))
    return TracedModel(module, weights, tuple(flat.tensors), arguments, flat.results)


def _check(model: Any, arguments: tuple[tuple[Any, ...], dict[str, Any]]) -> None:
    """Raise UsageError for a model in training mode, or with tensors that are not on the CPU."""
    if not isinstance(model, _torch.nn.Module):
        raise UsageError(f"expected a model, a torch.nn.Module, but got {type(model).__name__}")
    if model.training:
        raise UsageError("the model is in training mode", hint="call model.eval() first")
    tensors = [*model.parameters(), *model.buffers(), *_tensors_of(arguments)]
    elsewhere = {each.device.type for each in tensors} - {"cpu"}
    if elsewhere:
        raise UsageError(
            f"the model or its inputs are on {elsewhere.pop()}: the kernels of a package are for CPUs",
            hint="move both to the CPU: model.cpu()",
        )


def _tensors_of(tree: Any) -> list[Any]:
    return [each for each in _trees.tree_leaves(tree) if isinstance(each, torch.Tensor)]


class _Flat(torch.nn.Module):
    """A model that takes the tensors of its inputs, and returns the tensors of its results."""

    def __init__(self, model: Any, arguments: tuple[tuple[Any, ...], dict[str, Any]]) -> None:
        super().__init__()
        self.model = model
        self._leaves, self._structure = _trees.tree_flatten(arguments)
        self.tensors = _tensors_of(arguments)
        self.results: Any = None

    def forward(self, *tensors: Any) -> list[Any]:
        left = iter(tensors)
        leaves = [next(left) if isinstance(each, torch.Tensor) else each for each in self._leaves]
        positional, named = _trees.tree_unflatten(leaves, self._structure)
        results = self.model(*positional, **named)
        self.results = _trees.tree_map_only(torch.Tensor, lambda _: _TENSOR, results)
        return _tensors_of(results)


def _graph(flat: _Flat) -> tuple[Any, Any]:
    """The graph that AOTAutograd makes of a model, and its signature."""
    from torch._functorch.aot_autograd import aot_export_module  # imported here: it takes seconds

    export: Any = aot_export_module
    made: tuple[Any, Any] = export(flat, flat.tensors, trace_joint=False, decompositions={})
    return made


class ReplacedModel(torch.nn.Module):
    """The model again, computed by `function`, a function of the tensors among its inputs."""

    def __init__(self, function: Callable[..., Sequence[Any]], of: TracedModel) -> None:
        super().__init__()
        self.function = function
        leaves, self._structure = _trees.tree_flatten(of.results)
        self._leaves = leaves

    def forward(self, *positional: Any, **named: Any) -> Any:
        """The results of the model."""
        results = iter(self.function(*_tensors_of((positional, named))))
        leaves = [next(results) if each is _TENSOR else each for each in self._leaves]
        return _trees.tree_unflatten(leaves, self._structure)
