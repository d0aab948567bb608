"""Calls of a model that was drawn: what they return and leave behind, and how that lies in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from drawn_graphs import MODES, TYPES, DrawnGraph
from torch import nn
from torch._decomp import get_decompositions
from torch.utils._python_dispatch import TorchDispatchMode

#: Calls of a model: chains of launches reuse their memory from the second one on.
CALLS = 2


@dataclass(frozen=True)
class Called:
    """What one call left: tensors by name, None for gradients that do not exist.

    `layout` says how each tensor lies in memory: type, shape, strides, offset, and whether it needs gradients. `shared`
    has pairs of names whose tensors share memory, with the distance of their first elements, and `same` pairs that are
    the same object. Results come first, then inputs, parameters and buffers, then gradients.
    """

    values: dict[str, torch.Tensor | None]
    layout: dict[str, tuple[Any, ...] | None]
    shared: dict[tuple[str, str], int]
    same: frozenset[tuple[str, str]]

    @property
    def tensors(self) -> list[torch.Tensor | None]:
        return list(self.values.values())


def flat(results: Any) -> Iterator[torch.Tensor]:
    """The tensors in nested results, in their order."""
    if isinstance(results, torch.Tensor):
        yield results
    elif isinstance(results, dict):
        for each in results.values():
            yield from flat(each)
    else:
        for each in results:
            yield from flat(each)


def called(graph: DrawnGraph, model: nn.Module, compile_: Callable[[Any], Any] | None = None) -> list[Called]:
    """Call a model twice, as `compile_` makes it, on inputs of its type. What the first call returned outlives the second."""
    function = model if compile_ is None else compile_(model)
    floats = [each for each in (*model.parameters(), *model.buffers()) if each.is_floating_point()]
    type_ = floats[0].dtype if floats else TYPES[graph.type]
    calls = []
    for number in range(CALLS):
        arguments = graph.arguments(type_=type_, number=number)
        with MODES[graph.mode]():
            results = list(flat(function(*arguments)))
        calls.append(_named(graph, model, results, arguments))
    return [_called(named, gradients) for named, gradients in calls]


Tensors = dict[str, Any]


def _named(
    graph: DrawnGraph, model: nn.Module, results: list[torch.Tensor], arguments: list[torch.Tensor]
) -> tuple[Tensors, Tensors]:
    """Results, inputs, parameters and buffers by name; and gradients, if there are any."""
    named: Tensors = {f"result {at}": each for at, each in enumerate(results)}
    named |= {each.name: tensor for each, tensor in zip(graph.inputs, arguments, strict=True)}
    named |= dict(model.named_parameters()) | dict(model.named_buffers())
    if graph.mode != "grad":
        return named, {}
    leaves = {name: each for name, each in named.items() if each.is_leaf and each.requires_grad}
    losses = [_weighed(each, at) for at, each in enumerate(results) if each.requires_grad]
    if not losses or not leaves:
        return named, {}
    given = torch.autograd.grad(torch.stack(losses).sum(), list(leaves.values()), allow_unused=True)
    return named, {f"gradient of {name}": each for name, each in zip(leaves, given, strict=True)}


def _weighed(result: torch.Tensor, number: int) -> torch.Tensor:
    """A scalar, with gradients for `result` that differ from one element to the next."""
    if result.is_complex():
        result = torch.view_as_real(result)
    generator = torch.Generator().manual_seed(number)
    return (result * torch.randn(result.shape, generator=generator).to(result.dtype)).sum().double()


def _called(named: Tensors, gradients: Tensors) -> Called:
    every = named | gradients
    shared, same = _relations(named)
    return Called(
        {name: None if each is None else each.detach().clone() for name, each in every.items()},
        {name: None if each is None else _layout(each) for name, each in every.items()},
        shared,
        same,
    )


def _layout(tensor: torch.Tensor) -> tuple[Any, ...]:
    return (
        *(tensor.dtype, tuple(tensor.shape), tensor.stride(), tensor.storage_offset()),
        *(tensor.requires_grad, tensor.is_inference(), tensor.is_conj(), tensor.is_neg()),
    )


def _relations(named: Tensors) -> tuple[dict[tuple[str, str], int], frozenset[tuple[str, str]]]:
    """Which tensors share memory, and which are one object."""
    shared, same = {}, set()
    items = list(named.items())
    for at, (name, one) in enumerate(items):
        for other_name, other in items[at + 1 :]:
            if one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr():
                shared[name, other_name] = other.data_ptr() - one.data_ptr()
                if one is other:
                    same.add((name, other_name))
    return shared, frozenset(same)


class Rounded(TorchDispatchMode):
    """Changes what each operator computes by up to half of `epsilon`, at random: roundings of a narrower type.

    Operators that copy or move elements change nothing.
    """

    def __init__(self, epsilon: float, seed: int) -> None:
        super().__init__()
        self.epsilon = epsilon
        self.generator = torch.Generator().manual_seed(seed)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _DECOMPOSED:
            with self:
                return _DECOMPOSED[func](*args, **(kwargs or {}))
        found = func(*args, **(kwargs or {}))
        if func.is_view or func in _EXACT or func.namespace != "aten":
            return found
        written = args[0] if func._schema.is_mutable else found
        for each in written if isinstance(written, (tuple, list)) else [written]:
            if isinstance(each, torch.Tensor) and _has_own_elements(each):
                noise = torch.rand(each.shape, generator=self.generator, dtype=torch.float64)
                each.mul_(1 + (noise - 0.5) * self.epsilon)
        return found


def _has_own_elements(tensor: torch.Tensor) -> bool:
    """Whether each element is a rounded number in memory of its own, which that of an expanded tensor is not."""
    is_rounded = tensor.is_floating_point() or tensor.is_complex()
    return is_rounded and all(tensor.stride(axis) for axis in range(tensor.dim()) if tensor.shape[axis] > 1)


_aten = torch.ops.aten
#: Operators of several roundings.
_DECOMPOSED = get_decompositions(
    [
        *(_aten.native_group_norm, _aten.native_group_norm_backward),
        *(_aten.native_batch_norm, _aten.native_batch_norm_backward),
        *(
            _aten.native_layer_norm,
            _aten.native_layer_norm_backward,
            _aten._softmax,
            _aten._softmax_backward_data,
        ),
    ]
)
_EXACT = frozenset(
    (
        *(
            _aten.clone.default,
            _aten.cat.default,
            _aten.stack.default,
            _aten.detach.default,
            _aten.relu.default,
        ),
        *(_aten.copy_.default, _aten.zero_.default, _aten.fill_.Scalar, _aten.set_.source_Storage),
        *(
            _aten.max_pool2d_with_indices.default,
            _aten.empty.memory_format,
            _aten.neg.default,
            _aten.relu_.default,
        ),
    )
)
