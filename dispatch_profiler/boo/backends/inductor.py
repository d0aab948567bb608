"""What inductor needs to know of a graph, and before its first kernel.

Even if all kernels are in its cache, it asks whether libraries with vector instructions can be loaded, reads the whole
of Triton for the keys of its cache (500 MB), and preprocesses the headers of kernels. Each takes 0.3 to 2 s, in other
processes or in C, while importing inductor takes about a second of Python. A program that compiles a model waits for
both, so here they are done at once. Inductor remembers the answers.
"""

from __future__ import annotations

import contextvars
import importlib
import logging
import threading
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch

from dispatch_profiler.boo.backends.vector_instructions import ask_for_vector_instructions
from dispatch_profiler.boo.environment import LOGGER, launch_settings
from dispatch_profiler.boo.fusion.nodes import static_inputs, value

_torch: Any = torch


def prepare_inductor(module: Any) -> None:
    """Find out, once in a process, if `module` computes anything on the CPU, while inductor is imported.

    Returns once the vector instructions are known: two threads that ask at once change each other's compiler flags, so
    that kernels are compiled with flags that no other process uses, which then compiles them again.
    """
    if any(_is_on_cpu(node) for node in module.graph.nodes):
        asking = _start()
        importlib.import_module("torch._inductor.compile_fx")
        asking.join()


def _is_on_cpu(node: Any) -> bool:
    found = value(node)
    return found is not None and bool(found.device.type == "cpu")


@cache
def _start() -> threading.Thread:
    """The thread that ends when the vector instructions are known; another one goes on with the headers."""
    return _in_thread(_ask)


def _ask() -> None:
    _try("the key of Triton", _hash_triton)
    _try("the vector instructions", lambda: ask_for_vector_instructions(launch_settings().cache_folder))
    _in_thread(lambda: _try("the headers", _preprocess_headers))


def _in_thread(step: Callable[[], None]) -> threading.Thread:
    # With the settings of this thread, since inductor keeps some in context variables.
    context = contextvars.copy_context()
    thread = threading.Thread(target=context.run, args=(step,), name="preparing inductor", daemon=True)
    thread.start()
    return thread


def _try(what: str, step: Callable[[], None]) -> None:
    try:
        step()
    except Exception as error:  # inductor does it again, and says what is wrong
        logging.getLogger(LOGGER).debug("%s, for inductor: %s", what, error)


def _hash_triton() -> None:
    """In another thread; the keys of inductor's cache have it, also for the CPU."""
    from torch._inductor import codecache

    key: Any = codecache.triton_key
    key.prefetch()


def _preprocess_headers() -> None:
    """Those of kernels, if an earlier process compiled them: inductor compares the results before it uses that.

    Inductor does this for a kernel, so it gets an empty one, which is not compiled.
    """
    from torch._inductor import codecache

    found: Any = codecache
    if Path(found._HEADER_DIR).is_dir():
        found.CppPythonBindingsCodeCache.load_async("", submit_fn=lambda compile_it: None)


def informed(compiler: Callable[..., Any], module: Any, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    """`compiler`, which is inductor, and AOTAutograd, with what they cannot see of each other.

    Inductor learns which inputs are parameters from Dynamo, whose graph it has not got: CUDA graphs read parameters where
    they are, and copy other inputs in each call. AOTAutograd learns from inductor which strides the results of a forward
    have, for the graph of the backward, which reads them. Call this where the AOTAutograd that made `module` waits for
    what computes it.
    """
    places = static_inputs(module.graph) if _uses_gpu(example_inputs) else []
    wanted = wanted_strides()
    if not places and wanted is None:
        return compiler
    if places:  # caches of torch find what was compiled by what is in the module
        module.meta["dispatch_profiler_static_inputs"] = tuple(places)
    config = getattr(compiler, "config", None)

    def compile_graph(module: Any, inputs: Sequence[Any]) -> Any:
        from torch._inductor.compile_fx import compile_fx, compile_fx_inner

        def inner(graph: Any, graph_inputs: Sequence[Any], **given: Any) -> Any:
            if places and len(graph_inputs) == len(inputs):
                given["static_input_idxs"] = places
            compiled = compile_fx_inner(graph, graph_inputs, **given)
            if wanted is not None:  # the AOTAutograd of inductor has a list of its own
                wanted[:] = _torch._guards.TracingContext.get().output_strides or ()
            return compiled

        return compile_fx(module, inputs, inner_compile=inner, config_patches=config)

    return compile_graph


def wanted_strides() -> list[Any] | None:
    """Where AOTAutograd finds the strides of the results of the graph that it has compiled now; None if it needs none.

    Graphs that inductor's caches know report them to the tracing context of the call.
    """
    context = _torch._guards.TracingContext.try_get()
    found: list[Any] | None = getattr(context, "output_strides", None)
    return found


def check_strides(found: list[Any] | None, module: Any) -> None:
    """Empty what `wanted_strides` has given unless it is about the results of `module`."""
    (output,) = [node for node in module.graph.nodes if node.op == "output"]
    if found and len(found) != len(output.args[0]):
        found.clear()


def _uses_gpu(inputs: Sequence[Any]) -> bool:
    return any(isinstance(each, torch.Tensor) and each.is_cuda for each in inputs)
