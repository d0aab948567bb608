"""Regions of a graph as operators of torch that kernels in C compute: arguments, constants and results."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from dispatch_profiler.boo.fusion.execute.calls import WEIGHT
from dispatch_profiler.boo.fusion.execute.torch_operator import REGIONS
from dispatch_profiler.boo.fusion.nodes import Node, aten, value
from dispatch_profiler.boo.fusion.spec import ABSENT, OperandSource, parse_run, strides
from dispatch_profiler.boo.kernels import NeededKernel
from dispatch_profiler.boo.launching.torch_types import EXACT_STRIDES, NAMES, TYPES
from dispatch_profiler.boo.model_export.constants import ConstantBlock, Pack, operand_bytes
from dispatch_profiler.library.c_export.functions import CKernel

_torch: Any = torch
#: The namespace of the operators, while a model is exported.
_NAMESPACE = "dispatch_profiler_package"


@dataclass(frozen=True)
class TensorLayout:
    """A tensor that an operator takes or returns: its element type, shape and strides."""

    type: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def bytes(self) -> int:
        """The bytes of its elements."""
        count = 1
        for extent in self.shape:
            count *= extent
        return count * int(TYPES[self.type].itemsize)

    def empty(self) -> Any:
        """An uninitialized tensor."""
        return torch.empty_strided(self.shape, self.strides, dtype=TYPES[self.type])


@dataclass(frozen=True)
class OperandPlace:
    """Where an operand of a kernel is: the input with this number, or if that is None, at an offset of the constants."""

    input: int | None = None
    offset: int = 0


@dataclass(frozen=True)
class RegionOperator:
    """An operator: the `operands` of its kernel, the tensors that it takes, and the results of the kernel.

    It returns the results at `returned`.
    """

    name: str
    kernel: CKernel
    operands: tuple[OperandPlace, ...]
    inputs: tuple[TensorLayout, ...]
    results: tuple[TensorLayout, ...]
    returned: tuple[int, ...]

    @property
    def schema(self) -> str:
        """Its schema: tensors to one tensor or several."""
        taken = ", ".join(f"Tensor input{at}" for at in range(len(self.inputs)))
        made = ["Tensor"] * len(self.returned)
        return f"{self.name}({taken}) -> {made[0] if len(made) == 1 else '(' + ', '.join(made) + ')'}"

    @property
    def symbol(self) -> str:
        """The function in C that AOTInductor calls for it."""
        return f"aoti_torch_cpu_{self.name}"

    @property
    def declaration(self) -> str:
        """The declaration of this function."""
        taken = [f"AtenTensorHandle input{at}" for at in range(len(self.inputs))]
        made = [f"AtenTensorHandle *result{at}" for at in self.returned]
        return f"int32_t {self.symbol}({', '.join([*taken, *made])})"

    def fake(self, *_: Any) -> Any:
        """Tensors like the results of a call."""
        made = tuple(self.results[at].empty() for at in self.returned)
        return made[0] if len(made) == 1 else made


@dataclass
class OperatorMaker:
    """Makes the operators of a graph module whose regions are calls of `REGIONS` with one region each."""

    module: Any
    kernels: Mapping[NeededKernel, CKernel]
    constants: ConstantBlock
    pack: Pack

    def operators(self) -> Iterator[tuple[Node, RegionOperator, list[Node]]]:
        """The node of each call, its operator, and the nodes that this takes."""
        calls = [node for node in self.module.graph.nodes if node.target is REGIONS]
        for number, call in enumerate(calls):
            yield call, *self._operator(call, f"region_{number}")

    def _operator(self, call: Node, name: str) -> tuple[RegionOperator, list[Node]]:
        ((spec, _),) = parse_run(call.args[1]).steps
        kernel = self.kernels[NeededKernel(spec.operation, spec.packs_weight)]
        operands: list[OperandPlace] = []
        taken: list[Node] = []
        for at, source in enumerate(spec.sources):
            nodes = [None if place == ABSENT else call.args[0][place] for place in source.inputs]
            if all(each is None or each.op == "get_attr" for each in nodes):
                operands.append(OperandPlace(offset=self._constant(kernel, at, source, nodes)))
                continue
            with self.module.graph.inserting_before(call):
                node = _in_order(self.module.graph, nodes[0], source.reading)
            if node not in taken:
                taken.append(node)
            operands.append(OperandPlace(input=taken.index(node)))
        results = tuple(
            TensorLayout(tensor.type.name, shape, strides(shape, reading))
            for tensor, (shape, reading) in zip(spec.operation.results, spec.results, strict=True)
        )
        returned = tuple(sorted({user.args[1] for user in call.users if user.users}))
        return (
            RegionOperator(name, kernel, tuple(operands), tuple(map(_layout, taken)), results, returned),
            taken,
        )

    def _constant(self, kernel: CKernel, at: int, source: OperandSource, nodes: Sequence[Node | None]) -> int:
        """The offset of an operand that follows from weights."""
        tensors = [None if each is None else operator.attrgetter(each.target)(self.module) for each in nodes]
        data = operand_bytes(source, tensors)
        return self.constants.add(self.pack(kernel, data) if at == WEIGHT and kernel.pack else data)


def _layout(node: Node) -> TensorLayout:
    tensor = value(node)
    return TensorLayout(NAMES[tensor.dtype], tuple(tensor.shape), tuple(tensor.stride()))


def _in_order(graph: Any, node: Node, reading: str) -> Node:
    """`node`, or a copy of it, whose memory a kernel reads as `reading` says."""
    axes = list(range(value(node).dim()))
    order = axes if reading == "rows" else [0, *axes[2:], 1]
    if value(node).permute(order).is_contiguous():
        return node
    moved = _called(graph, aten.permute.default, node, order)
    copied = _called(graph, aten.clone.default, moved, memory_format=torch.contiguous_format)
    return _called(graph, aten.permute.default, copied, [order.index(axis) for axis in axes])


def _called(graph: Any, target: Any, node: Node, *args: Any, **kwargs: Any) -> Node:
    called = graph.call_function(target, (node, *args), kwargs)
    called.meta["val"] = target(value(node), *args, **kwargs)
    return called


def replace_call(
    graph: Any, call: Node, of: RegionOperator, taken: Sequence[Node], target: Any
) -> dict[Node, Node]:
    """Replace a call of regions by a call of its operator `target`. Returns former result -> the node in its place."""
    replaced: dict[Node, Node] = {}
    with graph.inserting_before(call):
        made = graph.call_function(target, tuple(taken))
        for user in list(call.users):
            if user.users:
                result = made
                if len(of.returned) > 1:
                    result = graph.call_function(operator.getitem, (made, of.returned.index(user.args[1])))
                user.replace_all_uses_with(result)
                replaced[user] = result
            graph.erase_node(user)
    graph.erase_node(call)
    return replaced


class DefinedOperators:
    """Operators that torch knows in a `with` block, only by their schemas and layouts."""

    def __init__(self, operators: Sequence[RegionOperator]) -> None:
        self._operators = operators
        self._library: Any = None

    def __enter__(self) -> list[Any]:
        self._library = _torch.library.Library(_NAMESPACE, "FRAGMENT")
        for each in self._operators:
            self._library.define(each.schema, tags=(EXACT_STRIDES,))
            _torch.library.register_fake(f"{_NAMESPACE}::{each.name}", each.fake, lib=self._library)
        namespace = getattr(_torch.ops, _NAMESPACE)
        return [getattr(namespace, each.name).default for each in self._operators]

    def __exit__(self, *_: object) -> None:
        self._library._destroy()
