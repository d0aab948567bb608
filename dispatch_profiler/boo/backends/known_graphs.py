"""Keeps inference graphs that consist of runs in the launch cache, so that a new process does not trace them again.

Dynamo traces a model, then AOTAutograd traces Dynamo's graph again, into the operators whose regions are matched and
replaced. With all kernels cached, this second trace takes a fifth of the compile time. Its result follows from Dynamo's
graph and the properties of its inputs. So the result is kept if it consists of calls of runs, which neither write to
inputs nor return views of them.
"""

from __future__ import annotations

import json
import logging
import operator
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import BuiltinFunctionType, FunctionType
from typing import Any

import torch

from dispatch_profiler.boo.environment import LOGGER, launch_settings
from dispatch_profiler.boo.fusion.execute.run_graphs import RunGraph
from dispatch_profiler.boo.fusion.spec import strides
from dispatch_profiler.boo.fusion.traced_graphs import returns_new_tensors
from dispatch_profiler.boo.launching.torch_types import PLAIN, TYPES
from dispatch_profiler.compiler import Cache
from dispatch_profiler.errors import UsageError
from dispatch_profiler.files.regular import sha256
from dispatch_profiler.sources import GRAPHS
from dispatch_profiler.version import __version__

_torch: Any = torch
#: Modules whose functions are identified by name.
_MODULES = {
    each.__name__: each
    for each in (operator, torch, _torch._C, torch._C._nn, torch.functional, torch.nn.functional)
}
_TORCH_FOLDER = str(Path(torch.__file__).parent)
#: Origins of functions that torch imports, or wraps its own functions with.
_STANDARD_LIBRARY = os.path.dirname(os.__file__)
_TYPING_EXTENSIONS = "typing_extensions.py"
#: Dynamo's mark of parameters and buffers, whose memory stays the same.
STATIC = "_dynamo_static_input_type"
_log = logging.getLogger(LOGGER)


class _Unknowable(Exception):
    """A graph cannot be kept, for the reason in the message, and is traced in each process."""


@dataclass(frozen=True)
class GraphEntry:
    """The place of one of Dynamo's graphs in the cache. `outputs` are the fake tensors that the graph returns."""

    key: str
    cache: Cache
    inputs: int
    outputs: tuple[Any, ...]

    def find(self) -> RunGraph | None:
        """The runs of the graph; None if they are not in the cache."""
        text = self.cache.get_text(self.key)
        try:
            graph = None if text is None else RunGraph.parse(text)
        except UsageError:
            return None
        return graph if graph is not None and self.fits(graph) else None

    def keep(self, graph: RunGraph) -> bool:
        """Keep `graph` for `find` if it computes what Dynamo's graph computes. Returns whether it does.

        Like `returns_new_tensors`, call this while AOTAutograd waits for the compiled graph.
        """
        is_same = self.fits(graph) and returns_new_tensors()
        if is_same:
            self.cache.put_text(self.key, graph.text, f"graph_of_{len(graph.regions)}_regions")
        return is_same

    def fits(self, graph: RunGraph) -> bool:
        """Whether `graph` takes as many inputs as Dynamo's graph, and returns new results with the same shapes.

        Strides and types must be the same, too.
        """
        results = [-1 if at is None else at - graph.inputs for at in graph.outputs]
        are_new = len(set(results)) == len(results) and all(at >= 0 for at in results)
        if graph.inputs != self.inputs or len(results) != len(self.outputs) or not are_new:
            return False
        returned = zip((graph.results[at] for at in results), self.outputs, strict=True)
        return all(
            (shape, strides(shape, reading), TYPES[type_]) == (tuple(each.shape), each.stride(), each.dtype)
            for (shape, reading, type_), each in returned
        )


def _log_reason(reason: object) -> None:
    _log.debug("a graph is traced in each process: %s", reason)


def entry_of(
    module: Any,
    example_inputs: Sequence[Any],
    backend: Sequence[str],
    report: Callable[[object], None] = _log_reason,
) -> GraphEntry | None:
    """The cache entry of a graph module of Dynamo; None if the graph cannot be kept, after a call of `report`.

    `backend` has the settings of the backend that the runs depend on. A graph cannot be kept if it depends on more than
    the key can express, such as functions of the user, replaced functions of torch, dynamic shapes or autocast, if it
    may compute gradients, if it is not on the CPU, or without a cache.
    """
    try:
        folder = launch_settings().cache_folder
        if folder is None:
            raise _Unknowable("the launch cache is off (BOO_CACHE_ON is 0)")
        _check_torch()
        nodes = list(map(_node, module.graph.nodes))
        tensors = list(_inputs(module.graph, example_inputs))
        outputs = tuple(_outputs(module.graph))
    except Exception as reason:  # torch may put anything into a graph
        report(reason)
        return None
    # Kernels of torch's operators that were registered in Python, such as `aten/relu/AutogradCPU`.
    registered = getattr(torch.library, "_impls", ())
    replaced = sorted(each for each in registered if each.startswith("aten/") and not each.endswith("/Meta"))
    content = [
        *("graph", __version__, GRAPHS.hash(), torch.__version__, replaced, *backend),
        *(torch.is_grad_enabled(), torch.are_deterministic_algorithms_enabled(), nodes, tensors),
    ]
    return GraphEntry(sha256(json.dumps(content).encode()), Cache(folder), len(tensors), outputs)


def _check_torch() -> None:
    """Raise _Unknowable if torch's caches are off, or if autocast or replaced functions change what a graph computes."""
    # Versions after torch 2.6 also have this setting elsewhere, but inductor's is valid. Dynamo has imported it.
    if getattr(sys.modules.get("torch._inductor.config"), "force_disable_caches", False):
        raise _Unknowable("the caches of torch are off")
    if _torch._C._is_any_autocast_enabled():
        raise _Unknowable("autocast is on")
    for where, holder in (*_MODULES.items(), ("torch.Tensor", torch.Tensor)):
        for name, function in vars(holder).items():
            if type(function) is FunctionType and not _is_of_torch(function):
                raise _Unknowable(f"{where}.{name} was replaced")


def _is_of_torch(function: FunctionType) -> bool:
    """Whether torch or a library that it uses defines a function; False if a program has replaced it."""
    folder, name = os.path.split(function.__code__.co_filename)
    return folder.startswith(_TORCH_FOLDER) or folder == _STANDARD_LIBRARY or name == _TYPING_EXTENSIONS


def _node(node: Any) -> tuple[str, ...]:
    """A complete description of a node as texts. Raises _Unknowable."""
    if node.op in ("placeholder", "output", "call_method"):
        target = str(node.target)
    elif node.op == "call_function":
        target = function_name(node.target)
    else:
        raise _Unknowable(f"{node.name} reads an attribute or calls a module")
    return node.op, node.name, target, repr(node.args), repr(node.kwargs)


def function_name(target: Any) -> str:
    """The name of a function of torch or Python, for `function_named`. Raises _Unknowable for other functions."""
    name = getattr(target, "__name__", "")
    for path, module in _MODULES.items():
        if getattr(module, name, None) is target and isinstance(target, (BuiltinFunctionType, FunctionType)):
            return f"{path}.{name}"
    raise _Unknowable(f"it calls {target}")


def function_named(name: str) -> Any:
    """The function of a node of `entry_of`, by its name in descriptions of nodes."""
    path, _, function = name.rpartition(".")
    return getattr(_MODULES[path], function)


def _inputs(graph: Any, example_inputs: Sequence[Any]) -> Iterator[tuple[Any, ...]]:
    """The properties of each input that the graph may depend on. Raises _Unknowable."""
    nodes = [node for node in graph.nodes if node.op == "placeholder"]
    computes_gradients = torch.is_grad_enabled()
    for node, tensor in zip(nodes, example_inputs, strict=True):
        if type(tensor) not in PLAIN or tensor.layout is not torch.strided or tensor.device.type != "cpu":
            raise _Unknowable(f"{node.name} is not a plain tensor on the CPU")
        if computes_gradients and tensor.requires_grad:
            raise _Unknowable(f"{node.name} may need a gradient")
        if tensor.is_conj() or tensor.is_neg():
            raise _Unknowable(f"{node.name} has a lazy negation or conjugation")
        _static_value(node)
        yield (
            *(str(tensor.dtype), list(tensor.shape), tensor.stride(), tensor.is_inference()),
            *(tensor.requires_grad, type(tensor).__name__, node.meta.get("tensor_dict", {}).get(STATIC)),
        )


def _outputs(graph: Any) -> Iterator[Any]:
    """The fake tensors that the graph returns. Raises _Unknowable."""
    (output,) = [node for node in graph.nodes if node.op == "output"]
    for node in output.args[0]:
        if not isinstance(node, torch.fx.Node):
            raise _Unknowable("it returns a value that is not a tensor")
        yield _static_value(node)


def _static_value(node: Any) -> Any:
    """The fake tensor of a node of Dynamo. Raises _Unknowable unless it is a tensor with a static shape."""
    tensor = node.meta.get("example_value")
    if not isinstance(tensor, torch.Tensor) or not all(
        type(each) is int for each in (*tensor.shape, *tensor.stride())
    ):
        raise _Unknowable(f"{node.name} is not a tensor of a static shape")
    return tensor
