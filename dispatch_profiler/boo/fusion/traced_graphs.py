"""The graphs that AOTAutograd makes of one graph of Dynamo, and which regions are wanted in each kind of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any

import torch

from dispatch_profiler.boo.environment import uses_backward_kernels
from dispatch_profiler.boo.fusion.nodes import aot_metadata, mark_parameters, mark_static_inputs
from dispatch_profiler.boo.fusion.schema import BACKWARD_FUSIONS, GLUE, FusionRule, FusionSchema

#: AOTAutograd's kinds of outputs that share no memory with others: the latter is a view of what nothing else reads.
_NEW = frozenset(("non_alias", "unsafe_view_alias"))
_torch: Any = torch


class GraphKind(str, Enum):
    """What a graph computes: results without gradients, results and what gradients need, or gradients."""

    INFERENCE = "inference"
    FORWARD = "forward"
    BACKWARD = "backward"


#: (kind, graph module, its inputs) -> what computes the graph, called with one list, which it empties (`boxed`).
CompileGraph = Callable[[GraphKind, Any, Sequence[Any]], Callable[[list[Any]], Any]]


def compiled_by(
    compile_graph: CompileGraph,
    module: Any,
    example_inputs: Sequence[Any],
    *,
    saves_memory: bool,
    freezes: bool = False,
) -> Callable[..., Any]:
    """What computes a graph module of Dynamo, each of whose graphs `compile_graph` compiles.

    The graphs keep their operators, and parameters are marked; with `freezes`, as frozen in graphs of inference. The graph
    of the backward is compiled when it is needed. `saves_memory`: what is cheap to compute is computed again in the
    backward, as inductor has it, instead of being stored.
    """
    # Imported here: it takes seconds.
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch.partitioners import min_cut_rematerialization_partition

    def compiler_of(kind: GraphKind) -> Callable[..., Any]:
        def compiler(graph: Any, inputs: Sequence[Any]) -> Callable[[list[Any]], Any]:
            if kind is GraphKind.INFERENCE:
                mark_parameters(graph.graph, frozen=freezes)
            if kind is GraphKind.FORWARD:
                mark_static_inputs(graph.graph)
            return compile_graph(kind, graph, inputs)

        return compiler

    compile_module = aot_autograd(
        fw_compiler=compiler_of(GraphKind.FORWARD),
        bw_compiler=compiler_of(GraphKind.BACKWARD),
        inference_compiler=compiler_of(GraphKind.INFERENCE),
        decompositions={},
        # In the graph of a forward, buffers are written to before tensors are saved for the backward, as in eager torch:
        # checkpointing ends the forward that it computes again where the last one is saved.
        keep_inference_input_mutations=_computes_gradients(module, example_inputs),
        **({"partition_fn": min_cut_rematerialization_partition} if saves_memory else {}),
    )
    compiled: Callable[..., Any] = compile_module(module, example_inputs)
    return compiled


def _computes_gradients(module: Any, example_inputs: Sequence[Any]) -> bool:
    """Whether AOTAutograd makes graphs of a forward and a backward."""
    tensors = (*example_inputs, *module.parameters())
    needed = any(isinstance(each, torch.Tensor) and each.requires_grad for each in tensors)
    return torch.is_grad_enabled() and needed


def has_bodies(graph: Any) -> bool:
    """Whether a graph of Dynamo has operators with graphs of their own, such as checkpoints.

    Eager torch cannot compute the gradients of a checkpoint that is part of a graph: it computes it twice.
    """
    return any(isinstance(node.target, _torch._ops.HigherOrderOperator) for node in graph.nodes)


def returns_new_tensors() -> bool:
    """Whether the graph that AOTAutograd has compiled writes to no input, and returns no views of inputs or of each other.

    Call this while `compile_graph` of `compiled_by` runs.
    """
    metadata = aot_metadata()
    kinds = [each.output_type.name for each in getattr(metadata, "output_info", None) or ()]
    written = getattr(metadata, "mutated_inp_runtime_indices", None)
    return bool(kinds) and set(kinds) <= _NEW and written == []


def results_for_callers(kind: GraphKind) -> int | None:
    """How many results of the graph that AOTAutograd has compiled are for its callers; None if all of them are.

    The others of a forward are for its backward. Call this while `compile_graph` of `compiled_by` runs.
    """
    if kind is not GraphKind.FORWARD:
        return None
    return int(getattr(aot_metadata(), "num_forward_returns", 0))


def boxed(function: Callable[..., Any]) -> Callable[[list[Any]], Any]:
    """`function` as AOTAutograd calls it: with one list, which is emptied."""

    def call(arguments: list[Any]) -> Any:
        taken = list(arguments)
        arguments.clear()
        return function(*taken)

    call._boxed_call = True  # type: ignore[attr-defined]
    return call


def schema_of(kind: GraphKind, schema: FusionSchema) -> FusionSchema:
    """The rules for the regions of a graph, in a backend with `schema`.

    Only graphs of inference have glue. Those of gradients have rules for gradients if the environment asks for them;
    rules of `schema` for the same roots take precedence.
    """
    if kind is GraphKind.INFERENCE:
        return schema
    rules = added_gradients(schema) if kind is GraphKind.BACKWARD else ()
    return schema.without(GLUE).with_rules(rules)


def added_gradients(schema: FusionSchema) -> tuple[FusionRule, ...]:
    """The rules for gradients that `schema` lacks, and the environment asks for."""
    if not uses_backward_kernels():
        return ()
    return tuple(rule for rule in BACKWARD_FUSIONS if schema.rule_for(rule.root) is None)
