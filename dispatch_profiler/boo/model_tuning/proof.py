"""Measures a model as users would run it: eager, with inductor, and with our backend before and after tuning.

    sides -> each compiled, and its results compared with eager's -> all called in turns -> a figure a round for each side

Sides that compute something else, or fail, have a reason instead of times. Figures of one round are of the same seconds, so
that the ratio of two sides is the one of their rounds.
"""

from __future__ import annotations

import copy
import math
import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from dispatch_profiler.boo.backends.graph_compiler import iree_boo_inductor
from dispatch_profiler.boo.backends.measuring import finished
from dispatch_profiler.boo.capture.models import arguments_of
from dispatch_profiler.boo.environment import TUNING_VARIABLE
from dispatch_profiler.boo.fusion.model_runs import unchanged
from dispatch_profiler.errors import raise_interrupt, reason_of
from dispatch_profiler.profiler.statistics.comparison import Ratio, signed_rank_ratio

_torch: Any = torch
EAGER, INDUCTOR, BEFORE, AFTER = "eager", "inductor", "before tuning", "after tuning"
#: The ends of intervals hold with this probability.
_CONFIDENCE = 0.95
#: Threads of torch spin after a call: the next side begins when they use less than this part of a core, or after some time.
_IDLE, _PAUSE, _LONGEST_PAUSE = 0.05, 5e-3, 1.0
#: Largest difference from eager's results that is a matter of rounding, in units of the largest element, by the size of an
#: element in bytes.
_TOLERANCES = {2: 1e-1, 4: 1e-2, 8: 1e-6}


@dataclass(frozen=True)
class ProofEffort:
    """How long a proof measures.

    In a round, calls of each side last `round_seconds` or one call. Rounds end after `seconds`, but there are at least
    `least_rounds` and at most `most_rounds`: the interval of a ratio needs six.
    """

    round_seconds: float = 0.05
    seconds: float = 20.0
    least_rounds: int = 7
    most_rounds: int = 31


@dataclass(frozen=True)
class ModelSide:
    """One way to run the model: milliseconds of a call, a figure a round, or why there are none.

    `first_seconds` is the time of the first call, which compiles.
    """

    milliseconds: tuple[float, ...] = ()
    first_seconds: float = 0.0
    failure: str = ""

    @property
    def median(self) -> float:
        """The median of the rounds in milliseconds."""
        return statistics.median(self.milliseconds)


@dataclass(frozen=True)
class ModelProof:
    """The sides of a model by their names, in the order of the table."""

    model: str
    threads: int
    sides: Mapping[str, ModelSide]

    def speedup(self, side: str, over: str) -> Ratio | None:
        """How many times as fast `side` is as `over`, with its 95 % interval; None if one of them has no times."""
        mine, other = (self.sides[each].milliseconds if each in self.sides else () for each in (side, over))
        if not mine or not other:
            return None
        return signed_rank_ratio(
            [math.log(slow / fast) for slow, fast in zip(other, mine, strict=True)], _CONFIDENCE
        )

    @property
    def ours(self) -> str:
        """The side of our backend that a user would choose: after tuning, unless that has no times."""
        return AFTER if AFTER in self.sides and not self.sides[AFTER].failure else BEFORE


@dataclass(frozen=True)
class Way:
    """How a side is compiled, None for eager, and the library of its kernels, None for the included one."""

    backend: Callable[..., Any] | str | None = None
    library: str | None = None
    freezes: bool = False


def usual_ways(library: str | None, *, training: bool) -> dict[str, Way]:
    """The sides of a model. `library` has the tuned kernels; without it, there is nothing after tuning."""
    ways = {
        EAGER: Way(),
        INDUCTOR: Way("inductor"),
        BEFORE: Way(iree_boo_inductor, freezes=not training),
    }
    if library is not None:
        ways[AFTER] = Way(iree_boo_inductor, library, freezes=not training)
    return ways


def prove(
    name: str,
    model: Any,
    inputs: Any,
    ways: Mapping[str, Way],
    *,
    training: bool = False,
    effort: ProofEffort = ProofEffort(),
    say: Callable[[str], None] = lambda line: None,
) -> ModelProof:
    """Compile and measure `model` in all `ways`, in this process. `say` is called with a line for each side.

    With `training`, a call computes the gradients of the parameters, too. Buffers and random states are restored.
    """
    with unchanged(model, inputs):
        calls = {side: _call(model, inputs, way, training=training) for side, way in ways.items()}
        expected: Any = None
        sides = {}
        for side, call in calls.items():
            say(f"{name}: {'running' if side == EAGER else 'compiling'} {side}")
            sides[side], result = _started(call, expected, compares=not training)
            expected = result if side == EAGER else expected
        running = {side: call for side, call in calls.items() if not sides[side].failure}
        say(f"{name}: measuring {len(running)} sides in turns")
        taken = in_turns(running, effort)
    proven = {
        side: ModelSide(tuple(taken.get(side, ())), each.first_seconds, each.failure)
        for side, each in sides.items()
    }
    return ModelProof(name, _torch.get_num_threads(), proven)


def _call(model: Any, inputs: Any, way: Way, *, training: bool) -> Callable[[], Any]:
    """A call of the model, compiled in `way` when it is first called."""
    positional, named = arguments_of(inputs)
    compiled = model
    if way.backend is not None:
        options = {"options": {"freeze": True}} if way.freezes else {}
        compiled = _torch.compile(copy.deepcopy(model), backend=way.backend, dynamic=False, **options)

    def call() -> Any:
        with _library(way.library), _torch.set_grad_enabled(training):
            results = compiled(*positional, **named)
            return _gradients(compiled, results) if training else results

    return finished(call, _torch.utils._pytree.tree_leaves(inputs))


def _gradients(model: Any, results: Any) -> Any:
    """The gradients of the sum of all results, which are not stored in the parameters."""
    total = sum(each.float().sum() for each in _tensors(results) if each.requires_grad)
    parameters = [each for each in model.parameters() if each.requires_grad]
    return _torch.autograd.grad(total, parameters, allow_unused=True)


@contextmanager
def _library(path: str | None) -> Iterator[None]:
    """Name the library in the environment, where launches look for it. None leaves what is there."""
    if path is None:
        yield
        return
    before = os.environ.get(TUNING_VARIABLE)
    os.environ[TUNING_VARIABLE] = path
    try:
        yield
    finally:
        if before is None:
            del os.environ[TUNING_VARIABLE]
        else:
            os.environ[TUNING_VARIABLE] = before


def _started(call: Callable[[], Any], expected: Any, *, compares: bool) -> tuple[ModelSide, Any]:
    """A side after its first call, and the results of the call. It fails if these differ from `expected`."""
    start = time.perf_counter()
    try:
        results = call()
    except Exception as error:  # whatever a backend raises for a model
        raise_interrupt(error)
        return ModelSide(failure=f"failed: {reason_of(error)}"), None
    first = time.perf_counter() - start
    reason = _difference(results, expected) if compares and expected is not None else ""
    return ModelSide(first_seconds=first, failure=reason), results


def _difference(results: Any, expected: Any) -> str:
    """Why `results` are not eager's; empty if they are the same but for rounding."""
    found, wanted = _tensors(results), _tensors(expected)
    if len(found) != len(wanted):
        return f"wrong: {len(found)} results instead of {len(wanted)}"
    for one, other in zip(found, wanted, strict=True):
        if one.shape != other.shape:
            return f"wrong: a result of shape {tuple(one.shape)} instead of {tuple(other.shape)}"
        if not one.numel():
            continue
        limit = _TOLERANCES.get(other.element_size(), 0.0) if other.is_floating_point() else 0.0
        error = float(_torch.nan_to_num(one.double() - other.double()).abs().max())
        scale = float(_torch.nan_to_num(other.double()).abs().max())
        if error > limit * scale or not _torch.equal(one.isnan(), other.isnan()):
            return f"wrong: an error of {error:.2g} where the largest element is {scale:.2g}"
    return ""


def _tensors(tree: Any) -> list[Any]:
    return [each for each in _torch.utils._pytree.tree_leaves(tree) if isinstance(each, torch.Tensor)]


# -- times -----------------------------------------------------------------------------------------


def in_turns(calls: Mapping[str, Callable[[], Any]], effort: ProofEffort) -> dict[str, list[float]]:
    """Milliseconds of each call, a figure a round: the mean of the calls of the round."""
    counts = {side: _count(call, effort) for side, call in calls.items()}
    taken: dict[str, list[float]] = {side: [] for side in calls}
    end = time.perf_counter() + effort.seconds
    for number in range(effort.most_rounds):
        if number >= effort.least_rounds and time.perf_counter() > end:
            break
        for side in _order(list(calls), number):
            taken[side].append(1e3 * _seconds(calls[side], counts[side]))
    return taken


def _order(sides: Sequence[str], number: int) -> Sequence[str]:
    """Every second round is in reverse, so that no side always follows the same one."""
    return sides if number % 2 == 0 else sides[::-1]


def _count(call: Callable[[], Any], effort: ProofEffort) -> int:
    return max(1, round(effort.round_seconds / max(1e-9, min(_seconds(call, 1) for _ in range(2)))))


def _seconds(call: Callable[[], Any], count: int) -> float:
    """Seconds of a call: the mean of `count`, after one that is not timed and once other threads are idle."""
    _wait_for_idle_threads()
    call()
    start = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - start) / count


def _wait_for_idle_threads() -> None:
    end = time.perf_counter() + _LONGEST_PAUSE
    while time.perf_counter() < end:
        before = time.process_time()
        time.sleep(_PAUSE)
        if time.process_time() - before < _IDLE * _PAUSE:
            return
