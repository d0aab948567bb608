"""What inductor need not compile in frozen graphs: constants, and a few operators beside our kernels.

Masks of shifted windows and tables of relative positions follow from frozen parameters alone. They are computed once,
while inductor takes minutes to compile some of them.
"""

from __future__ import annotations

import operator
from typing import Any

import torch

from dispatch_profiler.boo.fusion.execute.torch_operator import is_run
from dispatch_profiler.boo.fusion.nodes import Node, value

#: Elements of a constant at most.
_MOST_ELEMENTS = 2**24
#: Operators, and elements of their results, that eager torch computes at most.
_FEW, _FEW_ELEMENTS = 4, 2**20


def fold_constants(module: Any) -> None:
    """Replace operators of constants by their results, in place. What a graph returns is computed in each call."""
    graph = module.graph
    known: dict[Node, Any] = {}
    for node in graph.nodes:
        if node.op == "get_attr":
            known[node] = operator.attrgetter(node.target)(module)
        elif (
            _is_pure(node)
            and value(node).numel() <= _MOST_ELEMENTS
            and known.keys() >= set(node.all_input_nodes)
        ):
            arguments, named = torch.fx.map_arg((node.args, node.kwargs), known.__getitem__)
            known[node] = node.target(*arguments, **named)
    (output,) = (node for node in graph.nodes if node.op == "output")
    if not known.keys().isdisjoint(output.all_input_nodes):
        return
    for number, (node, found) in enumerate(known.items()):
        if node.op == "call_function" and any(user not in known for user in node.users):
            _fold(module, node, found, f"folded_{number}")
    graph.eliminate_dead_code()
    module.recompile()


def _fold(module: Any, node: Node, found: Any, name: str) -> None:
    module.register_buffer(name, found)
    with module.graph.inserting_before(node):
        constant = module.graph.get_attr(name)
    constant.meta["val"] = node.meta.get("val")
    node.replace_all_uses_with(constant)


def _is_pure(node: Node) -> bool:
    """Whether a node is a pure operator with one tensor, of fixed shape, as its result."""
    tensor, target = value(node), node.target
    return (
        node.op == "call_function"
        and isinstance(target, torch._ops.OpOverload)
        and not is_run(target)
        and not target._schema.is_mutable
        and torch.Tag.nondeterministic_seeded not in target.tags
        and tensor is not None
        and all(type(extent) is int for extent in tensor.shape)
    )


def needs_no_compiler(graph: Any) -> bool:
    """Whether a graph has runs of our kernels, views, and so few other operators that eager torch computes them as fast.

    Starting inductor takes 4 s on 2 cores, and up to a minute where torch has CUDA; the embedding of a text and two sums
    take as long in eager torch as in inductor's kernel, plus some 20 us.
    """
    called = [node for node in graph.nodes if node.op == "call_function"]
    others = [
        node
        for node in called
        if not is_run(node.target)
        and node.target is not operator.getitem
        and not getattr(node.target, "is_view", False)
    ]
    has_runs = any(is_run(node.target) for node in called)
    return has_runs and len(others) <= _FEW and all(map(_is_small, others))


def _is_small(node: Node) -> bool:
    return _is_pure(node) and value(node).device.type == "cpu" and value(node).numel() <= _FEW_ELEMENTS
