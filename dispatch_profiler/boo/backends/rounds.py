"""Ways to compute one graph, timed in turns on tensors like its inputs."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch

_torch: Any = torch
#: Functions -> the seconds per call of each, round by round. Lists that are shorter are of functions that were given up.
Rounds = Callable[[Sequence[Callable[[], object]]], Sequence[Sequence[float]]]
#: Calls before the first round: they load kernels, choose their drivers, and derive operands from parameters.
_WARM = 3
_ROUNDS, _LEAST_ROUNDS = 9, 3
#: Seconds of calls of one function in a round, and those after which no further round begins.
_SLICE, _BUDGET = 0.08, 8.0
#: Threads of torch and of IREE spin after a call: each function begins after a pause.
_PAUSE = 3e-3
#: A function that takes this many times as long as the fastest one in every round so far is given up.
_HOPELESS = 1.3
#: What is measured must take at most this part of the first function's time to be preferred to it.
_FASTER = 0.98


def in_rounds(functions: Sequence[Callable[[], object]]) -> list[list[float]]:
    """The seconds per call of each function, called in turns. Raises what they raise."""
    counts = [_calls_of(function) for function in functions]
    taken: list[list[float]] = [[] for _ in functions]
    left = list(range(len(functions)))
    end = time.perf_counter() + _BUDGET
    for number in range(_ROUNDS):
        for at in left if number % 2 == 0 else left[::-1]:
            taken[at].append(_seconds(functions[at], counts[at]))
        if number + 1 >= _LEAST_ROUNDS - 1:
            left = [at for at in left if not _is_hopeless(taken[at], [taken[each] for each in left])]
        if len(left) == 1 or (number + 1 >= _LEAST_ROUNDS and time.perf_counter() > end):
            break
    return taken


def _calls_of(function: Callable[[], object]) -> int:
    """How many calls take as long as a round."""
    for _ in range(_WARM):
        function()
    start = time.perf_counter()
    function()
    return max(1, round(_SLICE / max(time.perf_counter() - start, 1e-6)))


def _seconds(function: Callable[[], object], count: int) -> float:
    time.sleep(_PAUSE)
    function()  # loads what the other functions displaced
    start = time.perf_counter()
    for _ in range(count):
        function()
    return (time.perf_counter() - start) / count


def _is_hopeless(one: Sequence[float], every: Sequence[Sequence[float]]) -> bool:
    fastest = [min(each) for each in zip(*every, strict=True)]
    return all(slow > _HOPELESS * fast for slow, fast in zip(one, fastest, strict=True))


def fastest(taken: Sequence[Sequence[float]]) -> int:
    """Which function is the fastest, by the median over rounds of its time relative to another's in the same round.

    The first function is preferred to those that are faster by less than 2 %.
    """
    rounds = max(map(len, taken))
    left = [at for at, each in enumerate(taken) if len(each) == rounds]

    def relative(at: int) -> float:
        return statistics.median(one / other for one, other in zip(taken[at], taken[left[0]], strict=True))

    best = min(left, key=relative)
    return best if left[0] != 0 or relative(best) <= _FASTER else 0


def samples(example_inputs: Sequence[Any], real: Sequence[Any]) -> list[Any]:
    """Tensors for the inputs of a graph, whose example inputs may be fake: with their shapes, strides and types.

    Values are copied from the tensors of `real` if these are like the example inputs, each in its place; otherwise they
    are random, and 0 for integers, which is a valid index. Global random states stay as they are.
    """
    is_known = len(real) == len(example_inputs) and all(map(_is_like, real, example_inputs))
    generator = torch.Generator().manual_seed(0)
    with _torch.inference_mode(False), torch.no_grad():
        return [
            _sample(each, real[at] if is_known else None, generator) for at, each in enumerate(example_inputs)
        ]


def _is_like(real: Any, example: Any) -> bool:
    if not isinstance(example, torch.Tensor):
        return type(real) is type(example) and bool(real == example)
    return (
        type(real) in (torch.Tensor, torch.nn.Parameter)
        and real.layout == torch.strided
        and (real.shape, real.stride(), real.dtype, real.device)
        == (example.shape, example.stride(), example.dtype, example.device)
    )


def _sample(example: Any, real: Any, generator: Any) -> Any:
    if not isinstance(example, torch.Tensor):
        return example
    count = 1 + sum(
        (extent - 1) * stride for extent, stride in zip(example.shape, example.stride(), strict=True)
    )
    count = count if example.numel() else 0
    if real is not None:
        flat = real.detach().as_strided((count,), (1,)).clone()
    elif example.dtype.is_floating_point or example.dtype.is_complex:
        # In [0.5, 1): also valid as a variance.
        flat = torch.rand(count, generator=generator).mul_(0.5).add_(0.5).to(example.device, example.dtype)
    else:
        flat = torch.zeros(count, dtype=example.dtype, device=example.device)
    return flat.as_strided(example.shape, example.stride())


def keeps_random_states(inputs: Sequence[Any]) -> AbstractContextManager[Any]:
    """A context after which the random states of torch, on all devices of `inputs`, are as before."""
    devices = {each.device.index or 0 for each in inputs if isinstance(each, torch.Tensor) and each.is_cuda}
    return _torch.random.fork_rng(devices=sorted(devices))


def as_call(function: Callable[..., Any], inputs: Sequence[Any]) -> Callable[[], object]:
    """A call of a compiled graph, which takes one list and empties it, on `inputs`; waits for a GPU."""
    device = next((each.device for each in inputs if isinstance(each, torch.Tensor) and each.is_cuda), None)

    def call() -> object:
        found = function(list(inputs))
        if device is not None:
            torch.cuda.synchronize(device)
        return found

    return call
