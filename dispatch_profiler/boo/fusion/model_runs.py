"""Running a user's model once for its graphs, which leaves nothing behind in the model or in the process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FunctionType
from typing import Any

import torch

_torch: Any = torch


def compiled_alone(model: Callable[..., Any], backend: Callable[..., Any]) -> Callable[..., Any]:
    """`torch.compile(model, backend=backend, dynamic=False)`, apart from what else is compiled of the model.

    Dynamo keeps what it compiles with the code of a function, and compiles each code a few times only. It keeps the
    modules whose functions are called among the function's globals, and torch 2.6's Dynamo fails where a module of that
    name has been loaded again since, as `explain` does with a file.
    """

    def run(*arguments: Any, **keywords: Any) -> Any:
        return model(*arguments, **keywords)

    alone = FunctionType(run.__code__.replace(), dict(globals()), closure=run.__closure__)
    compiled: Callable[..., Any] = _torch.compile(alone, backend=backend, dynamic=False)
    return compiled


@contextmanager
def unchanged(model: Any, inputs: Any) -> Iterator[None]:
    """Buffers, such as statistics of batch norms, and torch's random numbers are as before afterwards.

    Random numbers are the numbers of the CPU and of each GPU that has parameters, buffers or `inputs`, any tree of tensors.
    """
    buffers = [(each, each.detach().clone()) for each in getattr(model, "buffers", list)()]
    every = [*getattr(model, "parameters", list)(), *(each for each, _ in buffers)]
    every += [each for each in _torch.utils._pytree.tree_leaves(inputs) if isinstance(each, torch.Tensor)]
    devices = sorted({each.device.index or 0 for each in every if each.is_cuda})
    try:
        with _torch.random.fork_rng(devices=devices):
            yield
    finally:
        with _torch.no_grad():
            for buffer, before in buffers:
                if not _torch.equal(buffer, before):
                    buffer.copy_(before)
