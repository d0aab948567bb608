"""Graphs of inference that the launch cache knows as runs alone: a new process calls these at once.

Dynamo traces a model, then AOTAutograd traces Dynamo's graph again, into the operators whose regions are matched and
replaced. With all kernels cached, this second trace is a fifth of the compile time. What it leads to follows from Dynamo's
graph and from what its inputs are, so it is kept, if it is nothing but calls of runs that neither write to inputs nor return
views of them.
"""

from __future__ import annotations

import json
import logging
import operator
import os
import sys
from collections.abc import Iterator, Sequence
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
#: Modules whose functions are known by their names.
_MODULES = {
    each.__name__: each for each in (operator, torch, torch._C._nn, torch.functional, torch.nn.functional)
}
_TORCH_FOLDER = str(Path(torch.__file__).parent)
#: Where functions come from that torch imports, or with which it wraps its own.
_STANDARD_LIBRARY = os.path.dirname(os.__file__)
_TYPING_EXTENSIONS = "typing_extensions.py"
#: Dynamo's mark of parameters and buffers, whose memory stays the same.
_STATIC = "_dynamo_static_input_type"
_log = logging.getLogger(LOGGER)


class _Unknowable(Exception):
    """Why a graph is traced in each process."""


@dataclass(frozen=True)
class GraphEntry:
    """The place of one of Dynamo's graphs in the cache. `outputs` are the fake tensors that the graph returns."""

    key: str
    cache: Cache
    inputs: int
    outputs: tuple[Any, ...]

    def find(self) -> RunGraph | None:
        """The runs of the graph; None if they are not known."""
        text = self.cache.get_text(self.key)
        try:
            graph = None if text is None else RunGraph.parse(text)
        except UsageError:
            return None
        return graph if graph is not None and self._fits(graph) else None

    def keep(self, graph: RunGraph) -> bool:
        """Let `find` return this, if it does what Dynamo's graph does. Whether it does.

        Call this while AOTAutograd has the graph compiled, as `returns_new_tensors`.
        """
        is_same = self._fits(graph) and returns_new_tensors()
        if is_same:
            self.cache.put_text(self.key, graph.text, f"graph_of_{len(graph.regions)}_regions")
        return is_same

    def _fits(self, graph: RunGraph) -> bool:
        """Whether it takes as many inputs as Dynamo's graph, and returns results of runs with the same shapes."""
        results = [-1 if at is None else at - graph.inputs for at in graph.outputs]
        are_new = len(set(results)) == len(results) and all(at >= 0 for at in results)
        if graph.inputs != self.inputs or len(results) != len(self.outputs) or not are_new:
            return False
        found = (graph.results[at] for at in results)
        return all(
            (shape, strides(shape, reading), TYPES[type_]) == (tuple(each.shape), each.stride(), each.dtype)
            for (shape, reading, type_), each in zip(found, self.outputs, strict=True)
        )


def entry_of(module: Any, example_inputs: Sequence[Any], backend: Sequence[str]) -> GraphEntry | None:
    """The entry of a graph module of Dynamo; None if there can be none. `backend` has what the runs depend on of it.

    None for graphs that depend on more than the key can have, such as functions of the user, changes of torch's
    own functions, dynamic shapes or autocast, for graphs that may compute gradients or are not on the CPU, and without a
    cache.
    """
    try:
        folder = launch_settings().cache_folder
        if folder is None:
            return None
        _check_torch()
        nodes = list(map(_node, module.graph.nodes))
        tensors = list(_inputs(module.graph, example_inputs))
        outputs = tuple(_outputs(module.graph))
    except Exception as reason:  # also of what torch may have in a graph that this does not know
        _log.debug("a graph is traced in each process: %s", reason)
        return None
    content = [
        *(
            "graph",
            __version__,
            GRAPHS.hash(),
            torch.__version__,
            _replaced_operators(),
            *backend,
        ),
        *(torch.is_grad_enabled(), torch.are_deterministic_algorithms_enabled(), nodes, tensors),
    ]
    return GraphEntry(sha256(json.dumps(content).encode()), Cache(folder), len(tensors), outputs)


def _check_torch() -> None:
    """Raise _Unknowable if torch's caches are off, or if operators may do something else than their names say."""
    # Of inductor, which torch 2.6 has nowhere else and later versions forward; Dynamo has imported it.
    if getattr(sys.modules.get("torch._inductor.config"), "force_disable_caches", False):
        raise _Unknowable("the caches of torch are off")
    if _torch._C._is_any_autocast_enabled():
        raise _Unknowable("autocast is on")
    for where, holder in (*_MODULES.items(), ("torch.Tensor", torch.Tensor)):
        for name, found in vars(holder).items():
            if type(found) is FunctionType and not _is_of_torch(found):
                raise _Unknowable(f"{where}.{name} was replaced")


def _is_of_torch(function: FunctionType) -> bool:
    """Whether torch, or a library that it uses, has defined a function: not a program that replaces one."""
    folder, name = os.path.split(function.__code__.co_filename)
    return folder.startswith(_TORCH_FOLDER) or folder == _STANDARD_LIBRARY or name == _TYPING_EXTENSIONS


def _replaced_operators() -> list[str]:
    """The kernels of torch's operators that were registered in Python, such as `aten/relu/AutogradCPU`."""
    every = getattr(torch.library, "_impls", ())
    return sorted(each for each in every if each.startswith("aten/") and not each.endswith("/Meta"))


def _node(node: Any) -> tuple[str, ...]:
    """Everything that a node computes, as text. Raises _Unknowable."""
    if node.op in ("placeholder", "output", "call_method"):
        target = str(node.target)
    elif node.op == "call_function":
        target = _function(node.target)
    else:
        raise _Unknowable(f"{node.name} is an attribute or a module")
    return node.op, node.name, target, repr(node.args), repr(node.kwargs)


def _function(target: Any) -> str:
    """The name of a function of torch or Python. Raises _Unknowable for others."""
    name = getattr(target, "__name__", "")
    for module, found in _MODULES.items():
        if getattr(found, name, None) is target and isinstance(target, (BuiltinFunctionType, FunctionType)):
            return f"{module}.{name}"
    raise _Unknowable(f"it calls {target}")


def _inputs(graph: Any, example_inputs: Sequence[Any]) -> Iterator[tuple[Any, ...]]:
    """What the graph may depend on in each input. Raises _Unknowable."""
    nodes = [node for node in graph.nodes if node.op == "placeholder"]
    computes_gradients = torch.is_grad_enabled()
    for node, tensor in zip(nodes, example_inputs, strict=True):
        if type(tensor) not in PLAIN or tensor.layout is not torch.strided or tensor.device.type != "cpu":
            raise _Unknowable(f"{node.name} is no plain tensor on the CPU")
        if computes_gradients and tensor.requires_grad:
            raise _Unknowable(f"{node.name} may need a gradient")
        if tensor.is_conj() or tensor.is_neg():
            raise _Unknowable(f"{node.name} is a view that changes values")
        _static_value(node)
        yield (
            *(str(tensor.dtype), list(tensor.shape), tensor.stride(), tensor.is_inference()),
            *(tensor.requires_grad, type(tensor).__name__, node.meta.get("tensor_dict", {}).get(_STATIC)),
        )


def _outputs(graph: Any) -> Iterator[Any]:
    """The fake tensors that the graph returns. Raises _Unknowable."""
    (output,) = [node for node in graph.nodes if node.op == "output"]
    for node in output.args[0]:
        if not isinstance(node, torch.fx.Node):
            raise _Unknowable("it returns what is no tensor")
        yield _static_value(node)


def _static_value(node: Any) -> Any:
    """The fake tensor that a node of Dynamo yields. Raises _Unknowable if it yields none, or one of a dynamic shape."""
    found = node.meta.get("example_value")
    if not isinstance(found, torch.Tensor) or not all(
        type(each) is int for each in (*found.shape, *found.stride())
    ):
        raise _Unknowable(f"{node.name} is no tensor of a fixed shape")
    return found
