"""Measures a model as users would run it: eager, with inductor, and with our backend before and after tuning.

    sides -> each compiled, and its results compared with eager's -> all called in turns -> a figure a round for each side

Sides that compute something else, or fail, have a reason instead of times. Figures of one round are of the same seconds, so
that the ratio of two sides is the one of their rounds.
"""

from __future__ import annotations

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
from dispatch_profiler.boo.environment import TUNING_VARIABLE
from dispatch_profiler.boo.fusion.model_runs import arguments_of, compiled_alone, unchanged
from dispatch_profiler.console.plurals import counted
from dispatch_profiler.cores import wait_for_idle_threads
from dispatch_profiler.errors import raise_interrupt, reason_of
from dispatch_profiler.profiler.statistics.comparison import Ratio, signed_rank_ratio

_torch: Any = torch
EAGER, INDUCTOR, BEFORE, AFTER = "eager", "inductor", "before tuning", "after tuning"
#: The ends of intervals hold with this probability.
_CONFIDENCE = 0.95
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
    """The sides of a model by their names, in the order of the table. `note` says why results were not compared, if so."""

    model: str
    threads: int
    sides: Mapping[str, ModelSide]
    note: str = ""

    def speedup(self, side: str, over: str) -> Ratio | None:
        """How many times as fast `side` is as `over`, with its 95 % interval; None if one of them has no times."""
        mine, other = (self.sides[each].milliseconds if each in self.sides else () for each in (side, over))
        if not mine or not other:
            return None
        return signed_rank_ratio(
            [math.log(slow / fast) for slow, fast in zip(other, mine, strict=True)], _CONFIDENCE
        )

    def has_times(self, side: str) -> bool:
        """Whether a side was measured."""
        return side in self.sides and bool(self.sides[side].milliseconds)

    @property
    def ours(self) -> str:
        """The side of our backend that a user would choose: after tuning, unless it has no times or is slower."""
        gain = self.speedup(AFTER, BEFORE)
        is_slower = gain is not None and gain.high < 1.0
        return AFTER if self.has_times(AFTER) and not is_slower else BEFORE

    @property
    def rival(self) -> str | None:
        """The faster one of eager PyTorch and inductor; None if neither has times."""
        timed = [each for each in (EAGER, INDUCTOR) if self.has_times(each)]
        return min(timed, key=lambda each: self.sides[each].median, default=None)


@dataclass(frozen=True)
class Way:
    """How a side is compiled, None for eager; and the library that is used beside the included one, if any."""

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


@dataclass(frozen=True)
class SideCall:
    """A call of the model in one way, on inputs of its own. The library in the environment is the way's."""

    call: Callable[[], Any]
    library: str | None

    @contextmanager
    def environment(self) -> Iterator[None]:
        """The environment in which it is compiled and called: launches look for their library there."""
        before = os.environ.pop(TUNING_VARIABLE, None)
        if self.library is not None:
            os.environ[TUNING_VARIABLE] = self.library
        try:
            yield
        finally:
            os.environ.pop(TUNING_VARIABLE, None)
            if before is not None:
                os.environ[TUNING_VARIABLE] = before


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
    """Compile and measure `model` in all `ways`, eager first, in this process. `say` is called with a line for each side.

    With `training`, a call computes the gradients of the parameters, too, and these are compared. Results of a model that
    draws random numbers are not. Buffers and random states are restored, and `inputs` are not changed.
    """
    with unchanged(model, inputs):
        calls = {side: _side_call(model, inputs, way, training=training) for side, way in ways.items()}
        expected, note = _expected(_side_call(model, inputs, Way(), training=training))
        sides = {}
        for side, call in calls.items():
            say(f"{name}: {'running' if side == EAGER else 'compiling'} {side}")
            sides[side] = _started(call, None if note else expected)
        running = {side: call for side, call in calls.items() if not sides[side].failure}
        say(f"{name}: measuring {counted(len(running), 'side')} in turns")
        taken = in_turns(running, effort)
    proven = {
        side: ModelSide(tuple(taken.get(side, ())), each.first_seconds, each.failure)
        for side, each in sides.items()
    }
    return ModelProof(name, _torch.get_num_threads(), proven, note)


def _side_call(model: Any, inputs: Any, way: Way, *, training: bool) -> SideCall:
    """A call of the model, compiled in `way` when it is first called."""
    positional, named = arguments_of(_copied(inputs))
    compiled = model
    if way.backend is not None:
        options = {"options": {"freeze": True}} if way.freezes else {}
        compiled = compiled_alone(model, way.backend, **options)

    def call() -> Any:
        with _torch.set_grad_enabled(training):
            results = compiled(*positional, **named)
            return _gradients(model, results) if training else results

    return SideCall(finished(call, _torch.utils._pytree.tree_leaves(inputs)), way.library)


def _copied(inputs: Any) -> Any:
    """Inputs that a model may change."""

    def copied(tensor: Any) -> Any:
        return tensor.detach().clone().requires_grad_(tensor.requires_grad)

    return _torch.utils._pytree.tree_map_only(torch.Tensor, copied, inputs)


def _gradients(model: Any, results: Any) -> Any:
    """The gradients of the sum of all results, which are not stored in the parameters."""
    total = sum(each.float().sum() for each in _tensors(results) if each.requires_grad)
    parameters = [each for each in model.parameters() if each.requires_grad]
    return _torch.autograd.grad(total, parameters, allow_unused=True)


# -- results ---------------------------------------------------------------------------------------


def _expected(eager: SideCall) -> tuple[Any, str]:
    """Eager PyTorch's results, and why others are not compared with them; empty if they are. Raises the model's errors."""
    results = [_seeded(eager, seed) for seed in (0, 1)]
    if not _tensors(results[0]):
        return None, "results are not compared, because no tensors were found in them"
    if _difference(*results):
        return (
            None,
            "results are not compared, because the model draws random numbers or changes with each call",
        )
    return results[0], ""


def _seeded(call: SideCall, seed: int) -> Any:
    _torch.manual_seed(seed)
    with call.environment():
        return call.call()


def _started(call: SideCall, expected: Any) -> ModelSide:
    """A side after its first call. It fails if its results differ from `expected`; without these, they may be any."""
    start = time.perf_counter()
    try:
        results = _seeded(call, 0)
    except Exception as error:  # whatever a backend raises for a model
        raise_interrupt(error)
        return ModelSide(failure=f"fails: {reason_of(error)}")
    first = time.perf_counter() - start
    return ModelSide(first_seconds=first, failure="" if expected is None else _difference(results, expected))


def _difference(results: Any, expected: Any) -> str:
    """Why `results` are not `expected`; empty if they are the same but for rounding."""
    found, wanted = _tensors(results), _tensors(expected)
    if len(found) != len(wanted):
        return f"is wrong: {len(found)} results instead of {len(wanted)}"
    for one, other in zip(found, wanted, strict=True):
        if one.shape != other.shape:
            return f"is wrong: a result of shape {tuple(one.shape)} instead of {tuple(other.shape)}"
        if reason := _deviation(one, other):
            return reason
    return ""


def _deviation(one: Any, other: Any) -> str:
    """Why the elements of a tensor are not those of `other`."""
    if not (other.is_floating_point() or other.is_complex()):
        return "" if _torch.equal(one, other) else "is wrong: other whole numbers or truth values"
    found, wanted = (_torch.view_as_real(each.to(_torch.complex128)) for each in (one, other))
    is_finite = wanted.isfinite()
    if not _torch.equal(found[~is_finite].nan_to_num(), wanted[~is_finite].nan_to_num()):
        return "is wrong: infinite or NaN elsewhere"
    if not is_finite.any():
        return ""
    distances = (found - wanted)[is_finite].abs()
    error = float(distances.nan_to_num(nan=math.inf, posinf=math.inf).max())
    scale = float(wanted[is_finite].abs().max())
    limit = _TOLERANCES[max(2, other.element_size() // (2 if other.is_complex() else 1))]
    return (
        f"is wrong: an error of {error:.2g} where the largest element is {scale:.2g}"
        if error > limit * scale
        else ""
    )


def _tensors(tree: Any) -> list[Any]:
    return [each for each in _torch.utils._pytree.tree_leaves(tree) if isinstance(each, torch.Tensor)]


# -- times -----------------------------------------------------------------------------------------


def in_turns(calls: Mapping[str, SideCall], effort: ProofEffort) -> dict[str, list[float]]:
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


def _count(call: SideCall, effort: ProofEffort) -> int:
    return max(1, round(effort.round_seconds / max(1e-9, min(_seconds(call, 1) for _ in range(2)))))


def _seconds(call: SideCall, count: int) -> float:
    """Seconds of a call: the mean of `count`, after one that is not timed and once other threads are idle."""
    wait_for_idle_threads()
    with call.environment():
        call.call()
        start = time.perf_counter()
        for _ in range(count):
            call.call()
        return (time.perf_counter() - start) / count
