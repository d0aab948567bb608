"""Makes frozen parameters constants in graphs for inductor, which folds and packs constants.

Inductor can freeze only parameters of the compiled module. But here, parameters are inputs of the graph, and a compiled
graph may be called with the parameters of several equal layers. So the graph is compiled in the first call with each
set of parameters, and again after `refreeze`.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from dispatch_profiler.boo.backends.graph_kernels import copied
from dispatch_profiler.boo.fusion.execute.torch_operator import REGIONS
from dispatch_profiler.boo.fusion.nodes import Node, frozen_inputs
from dispatch_profiler.boo.launching.torch_types import Tensor
from dispatch_profiler.boo.weights.snapshots import SNAPSHOTS, WeightSnapshot

#: A graph module and its inputs -> the compiled function.
Compile = Callable[[Any, Sequence[Any]], Callable[..., Any]]
#: Key in `meta` of graph modules whose constants are frozen parameters.
FROZEN = "dispatch_profiler_frozen_constants"
_ADDRESS: Any = torch.Tensor.data_ptr


@dataclass(frozen=True, eq=False)
class _Compiled:
    """A graph compiled with certain parameters, valid as long as their snapshots are the same."""

    function: Callable[..., Any]
    generation: object
    snapshots: Sequence[WeightSnapshot | None]
    #: They drop the function when the memory of a parameter is freed.
    references: Sequence[weakref.ref[Any]]


class FrozenGraph:
    """A graph whose frozen inputs are constants, except in regions."""

    def __init__(
        self, module: Any, example_inputs: Sequence[Any], places: Sequence[int], compile_: Compile
    ) -> None:
        self._module, self._example_inputs, self._compile = module, list(example_inputs), compile_
        self._places = places
        self._left = _left_inputs(module.graph, places)
        #: Addresses of the parameters -> compiled graph.
        self._compiled: dict[tuple[int, ...], _Compiled] = {}
        self._lock = threading.Lock()

    @classmethod
    def of(cls, module: Any, example_inputs: Sequence[Any], compile_: Compile) -> FrozenGraph | None:
        """The frozen graph of a graph module, compiled by `compile_`; None if the graph has nothing to freeze."""
        inputs = [node for node in module.graph.nodes if node.op == "placeholder"]
        places = [at for at in frozen_inputs(module.graph) if _users(inputs[at])]
        return cls(module, example_inputs, places, compile_) if places else None

    def __call__(self, *inputs: Any) -> Any:
        parameters = [inputs[at] for at in self._places]
        key = tuple(map(_ADDRESS, parameters))
        compiled = self._compiled.get(key)
        if compiled is None or compiled.generation is not SNAPSHOTS.generation:
            compiled = self._current(key, parameters)
        return compiled.function(*(inputs[at] for at in self._left))

    def _current(self, key: tuple[int, ...], parameters: Sequence[Tensor]) -> _Compiled:
        """The graph compiled with the current snapshots of these parameters."""
        with self._lock:
            generation = SNAPSHOTS.generation
            snapshots = [SNAPSHOTS.of(each, frozen=True) for each in parameters]
            before = self._compiled.get(key)
            is_same = before is not None and all(
                one is not None and one is other
                for one, other in zip(snapshots, before.snapshots, strict=True)
            )
            if before is not None and is_same:
                function = before.function
            else:
                module = self.with_constants([each.detach().clone() for each in parameters])
                with _disable_current_modes():  # torch watches a model's first call
                    function = self._compile(module, [self._example_inputs[at] for at in self._left])
            drop = _dropping(weakref.ref(self), key)
            references = [weakref.ref(each.untyped_storage(), drop) for each in parameters]
            compiled = self._compiled[key] = _Compiled(function, generation, snapshots, references)
            return compiled

    def with_constants(self, values: Sequence[Tensor]) -> Any:
        """The graph module with `values` in place of the frozen inputs, except in regions, which freeze theirs."""
        module: Any = copied(self._module)
        graph = module.graph
        inputs = [node for node in graph.nodes if node.op == "placeholder"]
        for at, value in zip(self._places, values, strict=True):
            name = f"frozen_{at}"
            module.register_buffer(name, value)
            with graph.inserting_after(inputs[-1]):
                constant = graph.get_attr(name)
            constant.meta["val"] = inputs[at].meta.get("val")
            for user in _users(inputs[at]):
                user.replace_input_with(inputs[at], constant)
        for at in self._places:
            if not inputs[at].users:
                graph.erase_node(inputs[at])
        module.recompile()
        module.meta[FROZEN] = True
        return module


def _users(node: Node) -> list[Node]:
    """The nodes outside regions that read an input."""
    return [user for user in node.users if user.target is not REGIONS]


def _left_inputs(graph: Any, places: Sequence[int]) -> list[int]:
    """The places of the inputs that are still needed: all but those that become constants everywhere."""
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    frozen = set(places)
    return [
        at
        for at, node in enumerate(inputs)
        if at not in frozen or any(u.target is REGIONS for u in node.users)
    ]


def _dropping(graph: weakref.ref[FrozenGraph], key: tuple[int, ...]) -> Callable[[object], None]:
    def drop(_: object) -> None:
        alive = graph()
        if alive is not None:
            alive._compiled.pop(key, None)

    return drop
