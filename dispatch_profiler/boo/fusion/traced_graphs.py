"""The graphs that AOTAutograd makes from one graph of Dynamo, and the fusion rules for each kind of graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any

import torch

from dispatch_profiler.boo.environment import uses_backward_kernels
from dispatch_profiler.boo.fusion.encoder_layers import ENCODER_LAYERS
from dispatch_profiler.boo.fusion.gpu_attention import AttentionCall, place_attention
from dispatch_profiler.boo.fusion.nodes import aot_metadata, mark_parameters, mark_static_inputs
from dispatch_profiler.boo.fusion.resizing import restore_resizing
from dispatch_profiler.boo.fusion.schema import BACKWARD_FUSIONS, GLUE, FusionRule, FusionSchema
from dispatch_profiler.boo.fusion.simplifying import simplify
from dispatch_profiler.boo.fusion.written_attention import restore_attention

#: AOTAutograd's kinds of outputs that share no memory: new tensors, and views of tensors that nothing else reads.
_NEW = frozenset(("non_alias", "unsafe_view_alias"))
_torch: Any = torch


class GraphKind(str, Enum):
    """What a graph computes: results without gradients, results and tensors for the backward, or gradients."""

    INFERENCE = "inference"
    FORWARD = "forward"
    BACKWARD = "backward"


#: (kind, graph module, its inputs) -> a function that computes the graph from one list, which it empties (`boxed`).
CompileGraph = Callable[[GraphKind, Any, Sequence[Any]], Callable[[list[Any]], Any]]


def compiled_by(
    compile_graph: CompileGraph,
    module: Any,
    example_inputs: Sequence[Any],
    *,
    saves_memory: bool,
    freezes: bool = False,
    decompositions: Callable[[], Mapping[Any, Callable[..., Any]]] = dict,
    is_ours: Callable[[AttentionCall], bool] = lambda _: False,
) -> Callable[..., Any]:
    """A function that computes a graph module of Dynamo. `compile_graph` compiles each graph of AOTAutograd.

    AOTAutograd decomposes composite operators itself, layers of encoders, and with gradients also those of `decompositions`.
    Inference graphs are simplified, and their resized images and written attention found; of their attention on GPUs,
    kernels of this package compute what `is_ours` says. Parameters are marked; with `freezes`, parameters of inference
    graphs are marked as frozen. The backward graph is compiled when it is needed.
    With `saves_memory`, the backward recomputes cheap values instead of storing them, as with inductor.
    """
    # Imported here: the import takes seconds.
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch.partitioners import min_cut_rematerialization_partition

    def compiler_of(kind: GraphKind) -> Callable[..., Any]:
        def compiler(graph: Any, inputs: Sequence[Any]) -> Callable[[list[Any]], Any]:
            if kind is GraphKind.INFERENCE:
                restore_resizing(graph.graph)
                simplify(graph.graph)
                restore_attention(graph.graph, is_ours)
                place_attention(graph.graph, is_ours)
                graph.recompile()
                mark_parameters(graph.graph, frozen=freezes)
            if kind is GraphKind.FORWARD:
                mark_static_inputs(graph.graph)
            return compile_graph(kind, graph, inputs)

        return compiler

    computes_gradients = _computes_gradients(module, example_inputs)
    compile_module = aot_autograd(
        fw_compiler=compiler_of(GraphKind.FORWARD),
        bw_compiler=compiler_of(GraphKind.BACKWARD),
        inference_compiler=compiler_of(GraphKind.INFERENCE),
        decompositions={**ENCODER_LAYERS, **(decompositions() if computes_gradients else {})},
        # Graphs write to inputs themselves. Inductor then changes a cache of keys where it is, instead of copying all of it. In a
        # forward graph, buffers are written to before tensors are saved for the backward, as in eager torch: checkpointing
        # stops recomputing the forward as soon as the last tensor is saved.
        keep_inference_input_mutations=True,
        **({"partition_fn": min_cut_rematerialization_partition} if saves_memory else {}),
    )
    return compile_module(module, example_inputs)


def _computes_gradients(module: Any, example_inputs: Sequence[Any]) -> bool:
    """Whether AOTAutograd makes a forward and a backward graph."""
    tensors = (*example_inputs, *module.parameters())
    needed = any(isinstance(each, torch.Tensor) and each.requires_grad for each in tensors)
    return torch.is_grad_enabled() and needed


def has_bodies(graph: Any) -> bool:
    """Whether a graph of Dynamo has operators with their own graphs, such as checkpoints.

    Eager torch cannot compute the gradients of a checkpoint in a graph: it would compute the checkpoint twice.
    """
    return any(isinstance(node.target, _torch._ops.HigherOrderOperator) for node in graph.nodes)


def returns_new_tensors() -> bool:
    """Whether the graph that AOTAutograd waits for does not write to inputs, and returns only new tensors.

    New tensors are not views of inputs or of each other. Call this while `compile_graph` of `compiled_by` runs.
    """
    metadata = aot_metadata()
    kinds = [each.output_type.name for each in getattr(metadata, "output_info", None) or ()]
    inputs = getattr(metadata, "input_info", None)
    is_pure = inputs is not None and not any(each.mutates_data or each.mutates_metadata for each in inputs)
    return bool(kinds) and set(kinds) <= _NEW and is_pure


def results_for_callers(kind: GraphKind) -> int | None:
    """The number of results for callers, of the graph that AOTAutograd waits for; None if all of them are.

    Further results of a forward are for its backward. Call this while `compile_graph` of `compiled_by` runs.
    """
    if kind is not GraphKind.FORWARD:
        return None
    return int(getattr(aot_metadata(), "num_forward_returns", 0))


def boxed(function: Callable[..., Any]) -> Callable[[list[Any]], Any]:
    """`function` in AOTAutograd's calling convention: it takes one list, and empties it."""

    def call(arguments: list[Any]) -> Any:
        taken = list(arguments)
        arguments.clear()
        return function(*taken)

    call._boxed_call = True  # type: ignore[attr-defined]
    return call


def schema_of(kind: GraphKind, schema: FusionSchema) -> FusionSchema:
    """The rules for a graph of this kind, in a backend with `schema`.

    Only inference graphs have glue. Backward graphs get rules for gradients if the environment asks for them; rules of
    `schema` for the same roots take precedence.
    """
    if kind is GraphKind.INFERENCE:
        return schema
    rules = added_gradients(schema) if kind is GraphKind.BACKWARD else ()
    return schema.without(GLUE).with_rules(rules)


def added_gradients(schema: FusionSchema) -> tuple[FusionRule, ...]:
    """The rules for gradients that the environment asks for and `schema` lacks."""
    if not uses_backward_kernels():
        return ()
    return tuple(rule for rule in BACKWARD_FUSIONS if schema.rule_for(rule.root) is None)
