"""Graphs as AOTAutograd gives them to a backend."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def inference_graph(
    function: Callable[..., Any], *inputs: Any, dynamic: bool = False, writes: bool = False
) -> Any:
    """The aten graph of `function` on `inputs` without grad: a graph module with `meta["val"]`.

    With `writes`, the graph writes to inputs that the function changes.
    """
    from torch._dynamo.backends.common import aot_autograd

    found: list[Any] = []

    def keep(module: Any, example_inputs: Any) -> Any:
        found.append(module)
        return module.forward

    compiler = aot_autograd(fw_compiler=keep, keep_inference_input_mutations=writes)
    torch._dynamo.reset()
    with torch.no_grad():
        torch.compile(function, backend=compiler, dynamic=dynamic)(*inputs)
    (module,) = found
    return module
