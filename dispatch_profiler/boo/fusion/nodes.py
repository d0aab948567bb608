"""Properties of the nodes of an aten graph, for matching."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import torch

from dispatch_profiler.boo.launching.torch_types import NAMES

_torch: Any = torch
#: The names in a path of Dynamo, such as `L['model'].layers[0].conv`.
_NAMES = re.compile(r"^[^.\[]*\[[^\]]*\]|[\w-]+")
#: A node of `torch.fx`, whose attributes are untyped.
Node = Any
aten: Any = torch.ops.aten
#: Element types of kernels of regions.
FLOATS = ("f64", "f32", "f16", "bf16")
#: The type of quantised numbers, and all types of tensors that some kernels take beside floating-point ones.
QUANTISED = "i8"
_INTEGERS = (QUANTISED, "i32")


class NotFusible(Exception):
    """A node cannot start a region, for the reason in the message."""


def value(node: Node) -> Any:
    """The fake tensor of a node; None if its result is not a tensor."""
    fake = node.meta.get("val") if hasattr(node, "meta") else None
    return fake if isinstance(fake, torch.Tensor) else None


def fake_mode(graph: Any) -> Any:
    """The mode of the fake tensors that AOTAutograd traced `graph` with; None without any."""
    return _torch._guards.detect_fake_mode([each for each in map(value, graph.nodes) if each is not None])


def shape(node: Node) -> tuple[int, ...]:
    """The shape of a node's tensor. Raises NotFusible if the result is not a tensor, or if an extent is symbolic."""
    tensor = value(node)
    if tensor is None:
        raise NotFusible(f"{node} is not a tensor")
    _check_static(tensor)
    return tuple(tensor.shape)


def _check_static(tensor: Any) -> None:
    if not all(type(extent) is int for extent in tensor.shape):
        raise NotFusible("its shape is dynamic")


def element_type(node: Node, *, may_be_integer: bool = False) -> str:
    """Our name of the type of a node's tensor. Raises NotFusible for a tensor that no kernel takes.

    With `may_be_integer`, also integers that some kernels take.
    """
    tensor = value(node)
    if tensor is None:
        raise NotFusible(f"{node} is not a tensor")
    name = NAMES.get(tensor.dtype, "")
    if name not in FLOATS and not (may_be_integer and name in _INTEGERS):
        raise NotFusible(f"no kernel takes {tensor.dtype}")
    if tensor.layout is not torch.strided or tensor.device.type not in ("cpu", "cuda"):
        raise NotFusible(f"no kernel takes {tensor.layout} tensors on {tensor.device.type}")
    _check_static(tensor)
    if not tensor.numel():
        raise NotFusible("it is empty")
    return name


def check_alike(first: Node, *others: Node | None) -> str:
    """The common type of the tensors, ignoring None. Raises NotFusible if types or devices differ."""
    name, device = element_type(first), value(first).device
    for each in others:
        if each is None:
            continue
        shape(each)
        if element_type(each) != name:
            raise NotFusible(f"types differ: {name} and {element_type(each)}")
        if value(each).device != device:
            raise NotFusible(f"devices differ: {device} and {value(each).device}")
    return name


#: Marks in `meta` of parameters and buffers: of any forward graph, of graphs without gradients, and of frozen ones; and
#: of nodes that read nothing else than frozen ones.
_STATIC, _PARAMETER, _FROZEN, _CONSTANT = (
    f"dispatch_profiler_{mark}" for mark in ("static", "parameter", "frozen", "constant")
)


def mark_static_inputs(graph: Any) -> None:
    """Mark the parameters and buffers of a forward graph. Call this while AOTAutograd waits for the compiled graph.

    The memory of marked inputs usually stays the same from one call to the next.
    """
    inputs = _inputs(graph)
    for at in getattr(aot_metadata(), "static_input_indices", None) or ():
        if at < len(inputs):
            inputs[at].meta[_STATIC] = True


def mark_parameters(graph: Any, *, frozen: bool) -> None:
    """Like `mark_static_inputs`, for a graph without gradients.

    With `frozen`, parameters and buffers are frozen, except the buffers that the graph itself writes to, and what follows
    from frozen ones alone is constant.
    """
    mark_static_inputs(graph)
    written = frozenset(getattr(aot_metadata(), "mutated_inp_runtime_indices", None) or ())
    for at, node in enumerate(_inputs(graph)):
        if _STATIC in node.meta:
            node.meta[_PARAMETER] = True
            node.meta[_FROZEN] = frozen and at not in written and not is_written(node)
    if frozen:
        _mark_what_follows(graph)


def is_written(node: Node) -> bool:
    """Whether the graph writes to a node's tensor, as it does to an input that the model changes."""
    return any(user.target is aten.copy_.default and user.args[0] is node for user in node.users)


def mark_constants(graph: Any, count: int) -> None:
    """Mark the first `count` inputs of a graph without gradients as frozen, and what follows from them as constant."""
    for node in _inputs(graph)[:count]:
        node.meta[_PARAMETER] = node.meta[_FROZEN] = True
    _mark_what_follows(graph)


def _mark_what_follows(graph: Any) -> None:
    for node in graph.nodes:
        node.meta[_CONSTANT] = _is_repeatable(node) and all(
            is_frozen(each) or is_constant(each) for each in node.all_input_nodes
        )


def _is_repeatable(node: Node) -> bool:
    """Whether an operator's results depend on nothing but its arguments."""
    tags = getattr(node.target, "tags", ())
    return node.op == "call_function" and torch.Tag.nondeterministic_seeded not in tags


def aot_metadata() -> Any:
    """AOTAutograd's metadata of the graph that it waits for; None outside of AOTAutograd."""
    return getattr(_torch._guards.TracingContext.try_get(), "fw_metadata", None)


def static_inputs(graph: Any) -> list[int]:
    """The places of the inputs that `mark_static_inputs` has marked."""
    return [at for at, node in enumerate(_inputs(graph)) if _STATIC in node.meta]


def _inputs(graph: Any) -> list[Node]:
    return [node for node in graph.nodes if node.op == "placeholder"]


def is_on_cpu(graph: Any) -> bool:
    """Whether all inputs of a graph that are tensors are on the CPU."""
    tensors = map(value, _inputs(graph))
    return all(each.device.type == "cpu" for each in tensors if each is not None)


def is_parameter(node: Node) -> bool:
    """Whether `mark_parameters` has marked a node."""
    return bool(node.meta.get(_PARAMETER))


def is_frozen(node: Node) -> bool:
    """Whether `mark_parameters` has marked a node as frozen."""
    return bool(node.meta.get(_FROZEN))


def is_constant(node: Node) -> bool:
    """Whether `mark_parameters` has marked a node that follows from frozen parameters alone."""
    return bool(node.meta.get(_CONSTANT))


def frozen_inputs(graph: Any) -> list[int]:
    """The places of the inputs that `mark_parameters` has marked as frozen."""
    return [at for at, node in enumerate(_inputs(graph)) if is_frozen(node)]


def only_user(node: Node) -> Node | None:
    """The only node that reads `node`; None if several nodes read it, or if the graph returns it."""
    users = list(node.users)
    return users[0] if len(users) == 1 and users[0].op == "call_function" else None


def argument(node: Node, index: int, name: str, default: Any = None) -> Any:
    """An argument of a node's call, by its index or its name."""
    return node.args[index] if len(node.args) > index else node.kwargs.get(name, default)


def module_path(nodes: Sequence[Node]) -> str:
    """The path in the model of the module that computes the first of `nodes` that has one, such as `layer3.1.conv2`.

    Nodes of a backward have the path of their forward's nodes. Empty for what a model computes itself, and for functions.
    """
    stacks = (
        node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack") or {} for node in nodes
    )
    # `{id: (path, class), ...}`, from the outermost module to the innermost.
    places = [list(stack.values())[-1][0] for stack in stacks if stack]
    return _dotted(places[0]) if places else ""


def _dotted(place: str) -> str:
    """`L['model'].layer3._modules['1'].conv2` -> `layer3.1.conv2`"""
    return ".".join(each for each in _NAMES.findall(place)[1:] if each != "_modules")


def is_getitem(node: Node, index: int) -> bool:
    """Whether a node takes the result at `index` of an operator that returns several."""
    return (
        node.op == "call_function"
        and getattr(node.target, "__name__", "") == "getitem"
        and node.args[1] == index
    )


def first_result(node: Node) -> Node | None:
    """The first result of `node`, if no other result is read; else None."""
    used = [each for each in node.users if each.users]
    return used[0] if len(used) == 1 and is_getitem(used[0], 0) else None


def added_call(graph: Any, target: Any, *arguments: Any, **named: Any) -> Node:
    """A new node of `graph`, with the fake tensor that it computes."""
    node = graph.call_function(target, arguments, named)
    given, by_name = torch.fx.map_arg((arguments, named), lambda each: each.meta["val"])
    node.meta["val"] = target(*given, **by_name)
    return node
