"""Graphs as AOTAutograd gives them to a backend."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def inference_graph(function: Callable[..., Any], *inputs: Any, dynamic: bool = False) -> Any:
    """The aten graph of `function` on `inputs` without grad: a graph module with `meta["val"]`."""
    from torch._dynamo.backends.common import aot_autograd

    found: list[Any] = []

    def keep(module: Any, example_inputs: Any) -> Any:
        found.append(module)
        return module.forward

    torch._dynamo.reset()
    with torch.no_grad():
        torch.compile(function, backend=aot_autograd(fw_compiler=keep), dynamic=dynamic)(*inputs)
    (module,) = found
    return module
