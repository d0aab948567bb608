"""What inductor asks about the CPU before its first kernel, asked while it is imported.

It starts a process for each set of vector instructions, to see whether code with it can be loaded: 1 to 2 s, even if all
of its kernels are in its cache. Importing inductor takes about as long, and a program that compiles a model waits for
both. Inductor remembers the answers.
"""

from __future__ import annotations

import contextvars
import logging
import threading
from functools import cache
from typing import Any

from dispatch_profiler.boo.environment import LOGGER
from dispatch_profiler.boo.fusion.nodes import value


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
