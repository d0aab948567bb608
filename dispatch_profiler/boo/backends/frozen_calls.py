"""Calls of frozen models, which neither check nor pass the weights.

Before each call of a compiled model, Dynamo checks the type and the attributes of all modules and all of their tensors,
and then passes the tensors. A model of 60 convolutions has 300 tensors and 4,000 checks. That takes 0.2 ms if all of it
is in the caches, and three to five times as long after kernels have displaced it: a fifth of the time of a MobileNetV3 on
two cores.

A frozen model has promised that its weights do not change. So its weights are removed from the inputs of Dynamo's graph, and
the checks of what a frozen model cannot change are removed: tensors, types of modules and their hooks, and the attributes of
torch's own modules. Instead, one check asks whether it is the same model. `training`, and attributes of the user's own
modules, are still checked, those that are constants together (`module_attributes.py`).
"""

from __future__ import annotations

import logging
import operator
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from dispatch_profiler.boo.backends.module_attributes import Attribute, guard_of, is_of_torch
from dispatch_profiler.boo.environment import LOGGER
from dispatch_profiler.boo.fusion.execute.repeated_calls import RepeatedCall
from dispatch_profiler.boo.fusion.execute.run_graphs import RunFunction
from dispatch_profiler.boo.launching.torch_types import PLAIN, Tensor
from dispatch_profiler.boo.session import SESSION
from dispatch_profiler.boo.weights.derivations import WeightsNeeded
from dispatch_profiler.boo.weights.snapshots import SNAPSHOTS
from dispatch_profiler.errors import UsageError
from dispatch_profiler.files.regular import sha256

_torch: Any = torch
_log = logging.getLogger(LOGGER)
#: Parts of modules that a frozen model does not change, and a part of the names of others.
_OF_MODULES, _HOOKS = frozenset(("_buffers", "_modules", "_parameters")), "_hooks"
_TRAINING = "training"
#: Checks of Dynamo that compare a value with a constant.
_CONSTANTS = ("CONSTANT_MATCH", "EQUALS_MATCH", "BOOL_MATCH", "NONE_MATCH")
#: Calls that try to prepare a repetition: the first ones choose kernels and record them.
_ATTEMPTS = 4
#: Code of a program -> hash of a graph -> the model whose compiled form of the graph has no weights among its inputs.
_models: weakref.WeakKeyDictionary[Any, dict[str, weakref.ref[Any]]] = SESSION.keep(
    "frozen_models", weakref.WeakKeyDictionary()
)


@dataclass(frozen=True, eq=False)
class _Weight:
    """A parameter or buffer of a model, found by its name there when the model is refrozen."""

    model: weakref.ref[torch.nn.Module]
    name: str
    tensor: weakref.ref[Tensor]
    like: tuple[object, ...]

    @classmethod
    def of(cls, model: torch.nn.Module, name: str, tensor: Tensor) -> _Weight:
        return cls(weakref.ref(model), name, weakref.ref(tensor), _properties(tensor))

    def current(self) -> _Weight:
        """The weight that the model has now. Raises UsageError if it is another kind of tensor, or if it is gone."""
        model = self.model()
        try:
            tensor = operator.attrgetter(self.name)(model)
        except AttributeError:
            tensor = None
        if model is None or not isinstance(tensor, torch.Tensor) or _properties(tensor) != self.like:
            raise UsageError(
                f"{self.name} of a frozen model was replaced by {_described(tensor)}",
                hint="compile the model again after torch.compiler.reset()",
            )
        return _Weight.of(model, self.name, tensor)


def _properties(tensor: Tensor) -> tuple[object, ...]:
    return tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.device


def _described(tensor: object) -> str:
    return (
        f"a tensor of {tensor.dtype} {tuple(tensor.shape)} with strides {tensor.stride()}"
        if isinstance(tensor, torch.Tensor)
        else type(tensor).__name__
    )


class FrozenCall:
    """A compiled function with some inputs left out, which are weights of a model that lives as long as the calls."""

    def __init__(self, function: Callable[..., Any], count: int, weights: Mapping[int, _Weight]) -> None:
        """`function` takes `count` inputs; `weights` has the places of those that are left out."""
        self._function, self._count = function, count
        self._weights = dict(weights)
        self._left = [at for at in range(count) if at not in weights]
        self._without: list[Any] = [None] * count
        self._generation = SNAPSHOTS.generation
        self._repeated: RepeatedCall | None = None
        self._attempts = _ATTEMPTS

    def __call__(self, *given: Any) -> Any:
        if self._repeated is not None:
            outputs = self._repeated(given)
            if outputs is not None:
                return outputs
        if len(given) == self._count:  # a version of Dynamo that passes all inputs
            return self._function(*given)
        inputs = self._without.copy()
        for at, each in zip(self._left, given, strict=True):
            inputs[at] = each
        if isinstance(self._function, RunFunction):
            try:
                outputs = self._function(*inputs)
            except WeightsNeeded:
                self._attempts = _ATTEMPTS
            else:
                if self._attempts:
                    self._attempts -= 1
                    self._repeat(self._function, inputs)
                return outputs
        self._add_weights(inputs)
        return self._function(*inputs)

    def _repeat(self, function: RunFunction, inputs: Sequence[Any]) -> None:
        """Prepare calls like the one with `inputs`."""
        try:
            found = function.repeated(inputs)
        except WeightsNeeded:  # another thread has thawed them meanwhile
            return
        if found is not None:
            self._repeated = found.renumbered({at: number for number, at in enumerate(self._left)})
            self._attempts = 0

    def _add_weights(self, inputs: list[Any]) -> None:
        """Put the weights in their places. After a refreeze, they are those that the model has now."""
        generation = SNAPSHOTS.generation
        is_current = generation is self._generation
        for at, weight in list(self._weights.items()):
            tensor = weight.tensor() if is_current else None
            if tensor is None:
                weight = self._weights[at] = weight.current()
                tensor = weight.tensor()
            inputs[at] = tensor
        self._generation = generation


def without_weights(
    function: Callable[..., Any], module: Any, example_inputs: Sequence[Any]
) -> Callable[..., Any]:
    """`function`, the compiled form of a graph module of Dynamo, without the weights among its inputs.

    Call this while Dynamo waits for the compiled function, in the thread that it calls. Returns `function` if the weights
    have to be passed: if they are not on the CPU, if the code changes the model, if another model runs the
    same code, as equal layers do that are compiled one by one, or if this version of torch is organized differently.
    """
    try:
        frame = Frame.current(module)
        weights = frame.weights(example_inputs)
        if not weights or not frame.belongs_to_one_model():
            return function
        frame.remove_guards(weights)
        frame.remove_inputs(weights)
    except Exception as error:  # all of this is private to torch
        _log.debug("the weights of a frozen model are checked and passed in each call: %s", error)
        return function
    return FrozenCall(function, len(example_inputs), weights)


class Frame:
    """What Dynamo knows of the frame whose graph is compiled."""

    def __init__(self, output: Any, nodes: Sequence[Any]) -> None:
        self._output, self._nodes = output, nodes
        self._values: dict[str, Any] = {}

    @classmethod
    def current(cls, module: Any) -> Frame:
        """The frame of Dynamo's graph `module`. Raises the errors of versions of torch that lack something."""
        output = _torch._dynamo.symbolic_convert.InstructionTranslator.current_tx().output
        if module.graph is not output.graph:
            raise RuntimeError("the graph is not the one of Dynamo")
        return cls(output, [node for node in module.graph.nodes if node.op == "placeholder"])

    @cached_property
    def _models(self) -> dict[Any, torch.nn.Module]:
        """The source and the outermost module of each input that is part of a module."""
        found = {}
        for node in self._nodes:
            for source in self._sources(node.meta["grapharg"].source):
                module = self._value(source)
                if isinstance(module, torch.nn.Module):
                    found[source] = module
                    break
        return found

    def weights(self, example_inputs: Sequence[Any]) -> dict[int, _Weight]:
        """The inputs that are weights of models on the CPU, by their places; none if the code changes a model."""
        effects = self._output.side_effects
        changed = (each.source for each in effects.id_to_variable.values() if effects.is_modified(each))
        if any(map(self._is_of_model, changed)):
            return {}
        names = {
            id(tensor): (model, name)
            for model in self._models.values()
            for tensors in (model.named_parameters, model.named_buffers)
            for name, tensor in tensors(remove_duplicate=False)
        }
        found = {}
        for at, (node, tensor) in enumerate(zip(self._nodes, example_inputs, strict=True)):
            is_of_model = self._is_of_model(node.meta["grapharg"].source)
            if is_of_model and id(tensor) in names and type(tensor) in PLAIN and tensor.device.type == "cpu":
                found[at] = _Weight.of(*names[id(tensor)], tensor)
        return found

    def _is_of_model(self, source: Any) -> bool:
        """Whether Dynamo found a value in a model that has inputs of the graph."""
        return any(each in self._models for each in self._sources(source))

    def belongs_to_one_model(self) -> bool:
        """Whether the weights are those of one model, and no other living model has the same code and graph.

        Equal layers that are compiled one by one have. The first one has a compiled form of its own, and the others share
        one that takes the weights: Dynamo limits the number of compiled forms.
        """
        if len(self._models) != 1:
            return False
        (model,) = self._models.values()
        known = _models.setdefault(self._output.root_tx.f_code, {})
        for gone in [key for key, each in known.items() if each() is None]:
            del known[gone]
        shapes = [str(node.meta.get("example_value")) for node in self._nodes]
        key = sha256(f"{self._output.graph}{shapes}".encode())
        return known.setdefault(key, weakref.ref(model))() is model

    def remove_guards(self, weights: Mapping[int, _Weight]) -> None:
        """Remove the checks of what a frozen model cannot change, and check that it is the same model."""
        guards: Any = _torch._guards.TracingContext.get().guards_context.dynamo_guards
        left_out = {self._nodes[at].meta["grapharg"].source for at in weights}
        kept = [each for each in guards.inner if self._is_needed(each, left_out)]
        (source,) = self._models
        attributes = {each: found for each in kept if (found := self._attribute(each)) is not None}
        compared = {(id(each.module), each.name) for each in attributes.values()}
        joined = {each for each in kept if each in attributes or self._looked_for(each) in compared}
        kept = [each for each in kept if each not in joined]
        kept.append(guard_of(source, list(attributes.values()), joined))
        kept.append(source.make_guard(_torch._dynamo.guards.GuardBuilder.ID_MATCH))
        guards.clear() if hasattr(guards, "clear") else guards.inner.clear()
        for each in kept:
            guards.add(each, collect_debug_stack=False)

    def _attribute(self, guard: Any) -> Attribute | None:
        """The attribute of a module that a guard compares with a constant; None if it checks something else."""
        source = guard.originating_source
        if not self._is_of_model(source) or guard.create_fn_name() not in _CONSTANTS:
            return None
        return Attribute.of(self._owner(source), getattr(source, "member", ""))

    def _owner(self, source: Any) -> Any:
        """What has the value at `source` as an attribute; None if it is no attribute."""
        return self._value(source.base) if hasattr(source, "member") else None

    def _looked_for(self, guard: Any) -> tuple[int, str | None] | None:
        """The module and the name of an attribute that a guard only looks for."""
        if guard.create_fn_name() != "HASATTR":
            return None
        attribute = getattr(guard.create_fn, "keywords", {}).get("attr")
        return id(self._value(guard.originating_source)), attribute

    def _is_needed(self, guard: Any, left_out: set[Any]) -> bool:
        """Whether a frozen model may change what a guard checks."""
        source = guard.originating_source
        name = _name(source)
        if not self._is_of_model(source) or name.endswith(_TRAINING):
            return True
        if source in left_out:
            return False
        value = self._value(source)
        if isinstance(value, torch.Tensor):  # an input that is left
            return True
        if isinstance(value, torch.nn.Module):
            # Not whether an object has a method of its own, but whether it has an attribute that its class lacks.
            attribute = getattr(guard.create_fn, "keywords", {}).get("attr")
            return attribute is not None and not hasattr(type(value), attribute)
        member = name.rpartition(".")[2]
        if member in _OF_MODULES or _HOOKS in member:
            return False
        owners = map(self._value, reversed(self._sources(source)))
        owner = next((each for each in owners if isinstance(each, torch.nn.Module)), None)
        return not is_of_torch(owner, member if self._owner(source) is owner else "")

    def remove_inputs(self, weights: Mapping[int, _Weight]) -> None:
        """Let Dynamo pass the other inputs only. `module` stays as it is."""
        graph = torch.fx.Graph()
        for at, node in enumerate(self._nodes):
            if at not in weights:
                graph.node_copy(node)
        self._output.graph = graph
        for at in weights:
            self._nodes[at].meta.pop("grapharg").erase()

    def _sources(self, source: Any) -> list[Any]:
        """Where Dynamo found a value, from the outermost object to the value."""
        found = []
        while source is not None:
            found.append(source)
            source = getattr(source, "base", None)
        return found[::-1]

    def _value(self, source: Any) -> Any:
        name = _name(source)
        if name not in self._values:
            scope = {"L": self._output.local_scope, "G": self._output.global_scope}
            try:
                self._values[name] = eval(name, scope)
            except Exception:  # names may use functions of Dynamo
                self._values[name] = None
        return self._values[name]


def _name(source: Any) -> str:
    """A source as an expression. In torch 2.6, the name is a method."""
    name = source.name
    return str(name() if callable(name) else name)
