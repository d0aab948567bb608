"""Graphs of Dynamo as plain data that another process can compile, and what came of it.

A graph is handed over without the values of its tensors: their shapes, strides and types are enough to compile kernels
and to measure them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from dispatch_profiler.boo.backends.known_graphs import STATIC, GraphEntry, function_name, function_named
from dispatch_profiler.boo.environment import Autotune, launch_settings
from dispatch_profiler.boo.fusion.execute.mixed_graphs import MixedGraph
from dispatch_profiler.boo.fusion.execute.run_graphs import RunGraph
from dispatch_profiler.boo.fusion.schema import FusionSchema
from dispatch_profiler.boo.kernels import Toolchain, target_of
from dispatch_profiler.boo.launching.torch_types import product_precision
from dispatch_profiler.compiler import Cache
from dispatch_profiler.cores import usable_threads
from dispatch_profiler.errors import UsageError
from dispatch_profiler.files.regular import sha256
from dispatch_profiler.runtime.device_uri import DeviceUri
from dispatch_profiler.sources import LAUNCHES

_torch: Any = torch
#: Prefixes of variables of the environment that settings of this package come from.
_VARIABLES = ("BOO_", "TURBINE_", "XDG_CACHE_HOME", "HOME")


@dataclass(frozen=True)
class BackgroundSettings:
    """The settings of a backend that what it makes of a graph depends on. See `Backend`."""

    nested: str | Callable[..., Any] | None
    schema: FusionSchema
    autotune: Autotune
    freeze: bool


@dataclass(frozen=True)
class TensorLike:
    """The properties of a tensor on the CPU. `static` is Dynamo's mark of parameters and buffers."""

    type: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    requires_grad: bool = False
    is_inference: bool = False
    static: str | None = None

    @classmethod
    def of(cls, tensor: Any, static: str | None = None) -> TensorLike:
        """The properties of `tensor`."""
        is_inference = bool(tensor.is_inference())
        sizes = tuple(tensor.shape), tuple(tensor.stride())
        return cls(tensor.dtype, *sizes, bool(tensor.requires_grad), is_inference, static)

    def empty(self, device: str = "cpu") -> Any:
        """An uninitialized tensor with these properties."""
        with _torch.inference_mode(self.is_inference):
            tensor = torch.empty_strided(self.shape, self.strides, dtype=self.type, device=device)
        return tensor.requires_grad_() if self.requires_grad and not self.is_inference else tensor


@dataclass(frozen=True)
class _Reference:
    """A node among the arguments of another one, by its name."""

    name: str


@dataclass(frozen=True)
class _HandedNode:
    op: str
    name: str
    target: str
    args: Any
    kwargs: Any


@dataclass(frozen=True)
class HandedGraph:
    """A graph of Dynamo that has an entry in the cache (see `entry_of`), and the settings under which it was made."""

    settings: BackgroundSettings
    nodes: tuple[_HandedNode, ...]
    inputs: tuple[TensorLike, ...]
    outputs: tuple[TensorLike, ...]
    #: The entry of the graph, and the folder of the cache.
    key: str
    folder: str
    environment: Mapping[str, str]
    threads: int
    precision: str
    is_deterministic: bool
    has_grad: bool

    @classmethod
    def of(
        cls, settings: BackgroundSettings, module: Any, example_inputs: Sequence[Any], entry: GraphEntry
    ) -> HandedGraph:
        """The graph of `module`, which has `entry`."""
        nodes = list(module.graph.nodes)
        marks = [node.meta.get("tensor_dict", {}).get(STATIC) for node in nodes if node.op == "placeholder"]
        return cls(
            settings,
            tuple(map(_handed, nodes)),
            tuple(TensorLike.of(each, mark) for each, mark in zip(example_inputs, marks, strict=True)),
            tuple(map(TensorLike.of, entry.outputs)),
            entry.key,
            str(entry.cache.folder),
            {name: value for name, value in os.environ.items() if name.startswith(_VARIABLES)},
            torch.get_num_threads(),
            product_precision(),
            torch.are_deterministic_algorithms_enabled(),
            torch.is_grad_enabled(),
        )

    @property
    def entry(self) -> GraphEntry:
        """The entry of the graph, in any process."""
        cache = Cache(Path(self.folder))
        return GraphEntry(
            self.key, cache, len(self.inputs), tuple(each.empty("meta") for each in self.outputs)
        )

    def rebuilt(self) -> tuple[Any, list[Any]]:
        """The graph as a graph module of Dynamo, and its inputs. In a fake mode, they are fake."""
        from torch._dynamo.source import LocalSource

        graph: Any = torch.fx.Graph()
        inputs = [each.empty() for each in self.inputs]
        known: dict[str, Any] = {}
        for node in self.nodes:
            target = function_named(node.target) if node.op == "call_function" else node.target
            args, kwargs = (
                _mapped(each, _Reference, lambda one: known[one.name]) for each in (node.args, node.kwargs)
            )
            known[node.name] = graph.create_node(node.op, target, args, kwargs, name=node.name)
        placeholders = [node for node in graph.nodes if node.op == "placeholder"]
        for placeholder, like, tensor in zip(placeholders, self.inputs, inputs, strict=True):
            placeholder.meta["example_value"] = tensor
            placeholder.meta["tensor_dict"] = {STATIC: like.static} if like.static else {}
            placeholder._dynamo_source = LocalSource(placeholder.name)
        module: Any = torch.fx.GraphModule({}, graph)
        module._param_name_to_source = {}
        module.meta["dynamo_compile_id"] = None
        return module, inputs


def _handed(node: Any) -> _HandedNode:
    target = function_name(node.target) if node.op == "call_function" else str(node.target)
    args, kwargs = (
        _mapped(each, torch.fx.Node, lambda one: _Reference(one.name)) for each in (node.args, node.kwargs)
    )
    return _HandedNode(node.op, node.name, target, args, kwargs)


def _mapped(value: Any, type_: type, function: Callable[[Any], Any]) -> Any:
    """`value` with `function` applied to everything of `type_` in it."""
    if isinstance(value, type_):
        return function(value)
    if type(value) is slice:
        return slice(*(_mapped(each, type_, function) for each in (value.start, value.stop, value.step)))
    if isinstance(value, Mapping):
        return {key: _mapped(each, type_, function) for key, each in value.items()}
    if isinstance(value, (tuple, list)):
        kind = tuple if isinstance(value, tuple) else list
        return kind(_mapped(each, type_, function) for each in value)
    return value


# -- outcomes --------------------------------------------------------------------------------------

#: Ways to compute a graph: by the nested backend, by runs, by runs and torch's operators, by runs and inductor.
NESTED, RUNS, MIXED, INDUCTOR = "nested", "runs", "mixed", "inductor"
_LONGEST = 16_000_000


@dataclass(frozen=True)
class GraphOutcome:
    """How a graph is computed, once its kernels are compiled, verified and measured.

    `graph` is the text of a `RunGraph` or a `MixedGraph`. With inductor, it is the key of the compiled graph in inductor's
    cache, and `strides` maps the numbers of results to their strides.
    """

    kind: str
    graph: str = ""
    strides: Mapping[int, tuple[int, ...]] | None = None

    @property
    def text(self) -> str:
        """The outcome as JSON, for `parse`."""
        strides = {str(at): list(each) for at, each in (self.strides or {}).items()}
        return json.dumps({"kind": self.kind, "graph": self.graph, "strides": strides})

    @classmethod
    def parse(cls, text: str) -> GraphOutcome:
        """Inverse of `text`. Raises UsageError for any other text."""
        try:
            if len(text) > _LONGEST:
                raise ValueError("it is too long")
            data = json.loads(text)
            kind, graph, strides = data["kind"], data["graph"], data["strides"]
            if kind not in (NESTED, RUNS, MIXED, INDUCTOR) or not isinstance(graph, str):
                raise ValueError("unknown kind")
            return cls(kind, graph, {int(at): tuple(map(int, each)) for at, each in strides.items()})
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise UsageError(f"the text is no outcome of a graph: {error}"[:300]) from error

    @property
    def compiled(self) -> RunGraph | MixedGraph | None:
        """The graph; None if the nested backend, or inductor with runs, computes it. Raises UsageError."""
        if self.kind == RUNS:
            return RunGraph.parse(self.graph)
        return MixedGraph.parse(self.graph) if self.kind == MIXED else None


@dataclass(frozen=True)
class Answer:
    """What a worker returns: the outcome of a graph, or why it has none, and messages for the log with their levels."""

    outcome: GraphOutcome | None
    reason: str
    messages: tuple[tuple[int, str], ...]


def outcome_key(key: str) -> str:
    """The key of the outcome of the graph with the entry `key`, on this machine.

    An outcome depends on everything that kernels and their times depend on: the CPU, the threads, the compiler and the
    library. Raises UsageError if the library cannot be read.
    """
    settings = launch_settings()
    target = target_of(DeviceUri("local-task"))
    toolchain = Toolchain.of(target, settings.tuning)
    libraries = (toolchain.tuning.configurations, toolchain.tuning.included)
    named = [file for each in libraries if each is not None for file in each.library.files]
    files = [*named, *(flag.partition("=")[2] for flag in toolchain.tuning.flags)]
    content: list[object] = [
        *("outcome", key, LAUNCHES.hash(), toolchain.compiler.revision, target.fingerprint, target.host),
        *(torch.get_num_threads(), usable_threads(), product_precision()),
        *[_hash_of(each) for each in files if each],
    ]
    return sha256(json.dumps(content).encode())


def _hash_of(file: Any) -> str:
    """The hash of a file; empty if it cannot be read, as a damaged file of a library, whose entries are not used."""
    try:
        with open(file, "rb") as opened:
            return sha256(opened.read())
    except OSError:
        return ""


def find_outcome(entry: GraphEntry) -> GraphOutcome | None:
    """The outcome of a graph in the cache; None if it is missing or damaged."""
    text = entry.cache.get_text(outcome_key(entry.key))
    try:
        return None if text is None else GraphOutcome.parse(text)
    except UsageError:
        return None


def keep_outcome(entry: GraphEntry, outcome: GraphOutcome) -> None:
    """Keep an outcome for `find_outcome`."""
    entry.cache.put_text(outcome_key(entry.key), outcome.text, "graph_of_background")
