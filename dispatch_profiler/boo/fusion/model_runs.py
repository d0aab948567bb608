"""Runs a user's model once to get its graphs, without side effects on the model or the process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FunctionType
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

_torch: Any = torch


def compiled_alone(
    model: Callable[..., Any], backend: Callable[..., Any] | str, **options: Any
) -> Callable[..., Any]:
    """`torch.compile(model, backend=backend, dynamic=False)`, independent of other compilations of the model.

    `options` are other arguments of `torch.compile`.

    Dynamo keeps compiled code with the code object of a function, and compiles each code object only a few times. It
    also stores modules whose functions are called in the function's globals. Dynamo of torch 2.6 fails if a module of
    the same name has been loaded again since, as `explain` does with a file. So the model is called by a new function
    with a new code object and its own globals.
    """

    def run(*arguments: Any, **keywords: Any) -> Any:
        return model(*arguments, **keywords)

    alone = FunctionType(run.__code__.replace(), dict(globals()), closure=run.__closure__)
    return _torch.compile(alone, backend=backend, dynamic=False, **options)


def arguments_of(inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and keyword arguments of a call with `inputs`: a tensor, a sequence, or a mapping."""
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    if isinstance(inputs, (tuple, list)):
        return tuple(inputs), {}
    return (inputs,), {}


@contextmanager
def unchanged(model: Any, inputs: Any) -> Iterator[None]:
    """A context that restores the model's buffers, such as statistics of batch norms, and torch's random states.

    These are the random states of the CPU and of each GPU with parameters, buffers or `inputs`, a tree of tensors. Buffers
    without values, on the meta device or of torch's fake tensors, stay as they are.
    """
    buffers = [
        (each, each.detach().clone()) for each in getattr(model, "buffers", list)() if _has_values(each)
    ]
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


def _has_values(tensor: Any) -> bool:
    return not tensor.is_meta and not isinstance(tensor, FakeTensor)
