"""What inductor needs to know of a graph and of the CPU.

It asks about the CPU before its first kernel; here, that is asked while it is imported. It starts a process for each set of vector instructions, to see whether code with it can be loaded: 1 to 2 s, even if all
of its kernels are in its cache. Importing inductor takes about as long, and a program that compiles a model waits for
both. Inductor remembers the answers.
"""

from __future__ import annotations

import contextvars
import logging
import threading
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch

from dispatch_profiler.boo.environment import LOGGER
from dispatch_profiler.boo.fusion.nodes import static_inputs, value


def prepare_inductor(module: Any) -> None:
    """Start to ask, once in a process, if `module` computes anything on the CPU."""
    if any(_is_on_cpu(node) for node in module.graph.nodes):
        _start()


def _is_on_cpu(node: Any) -> bool:
    found = value(node)
    return found is not None and bool(found.device.type == "cpu")


@cache
def _start() -> None:
    # With the settings of this thread, since inductor keeps some in context variables.
    context = contextvars.copy_context()
    threading.Thread(target=context.run, args=(_ask,), name="vector instructions", daemon=True).start()


def _ask() -> None:
    try:
        from torch._inductor.cpu_vec_isa import valid_vec_isa_list

        valid_vec_isa_list()
    except Exception as error:  # inductor asks again, and says what is wrong
        logging.getLogger(LOGGER).debug("the vector instructions for inductor: %s", error)


def knowing_static_inputs(
    compiler: Callable[..., Any], module: Any, example_inputs: Sequence[Any]
) -> Callable[..., Any]:
    """`compiler`, which is inductor, with what it cannot see of a graph on a GPU: which inputs are parameters.

    It learns that from Dynamo, whose graph it has not got. CUDA graphs read parameters where they are, and copy other
    inputs in each call.
    """
    places = static_inputs(module.graph)
    if not places or not _uses_gpu(example_inputs):
        return compiler
    # Caches of torch find what was compiled by what is in the module.
    module.meta["dispatch_profiler_static_inputs"] = tuple(places)
    config = getattr(compiler, "config", None)

    def compile_graph(module: Any, inputs: Sequence[Any]) -> Any:
        from torch._inductor.compile_fx import compile_fx, compile_fx_inner

        def inner(graph: Any, graph_inputs: Sequence[Any], **given: Any) -> Any:
            if len(graph_inputs) == len(inputs):
                given["static_input_idxs"] = places
            return compile_fx_inner(graph, graph_inputs, **given)

        return compile_fx(module, inputs, inner_compile=inner, config_patches=config)

    return compile_graph


def _uses_gpu(inputs: Sequence[Any]) -> bool:
    return any(isinstance(each, torch.Tensor) and each.is_cuda for each in inputs)
