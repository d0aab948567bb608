"""The measurement of `autotune` finds the fastest function, also where the speed of the machine changes."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from dispatch_profiler.boo.backends import measuring
from dispatch_profiler.boo.backends.measuring import finished, in_turns, samples
from dispatch_profiler.boo.rounds import Clock, fastest, in_rounds, relative_times


class Machine:
    """A simulated machine with a clock of its own, whose speed drifts and jumps, and that other programs disturb."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self.seconds = 0.0
        self.clock = Clock(lambda: self.seconds, self._pass)
        self._period, self._depth = self._random.uniform(3, 30), self._random.uniform(0, 0.4)
        self._hold = self._random.uniform(0.3, 5)
        self._noise, self._disturbed = self._random.uniform(0.01, 0.06), self._random.uniform(0, 0.1)
        self._level, self._until = 1.0, 0.0
        self._last: object = None

    def _pass(self, seconds: float) -> None:
        self.seconds += seconds

    def function(self, seconds: float) -> Callable[[], None]:
        """A function that takes `seconds` where the machine is at its usual speed, and more after another one."""
        displaced = self._random.uniform(1, 1.2)

        def call() -> None:
            taken = seconds * self._slowness() * self._random.lognormvariate(0, self._noise)
            if self._last is not call:
                taken *= displaced
            self._last = call
            if self._random.random() < self._disturbed:
                taken *= self._random.uniform(1, 2)
            self._pass(taken)

        return call

    def _slowness(self) -> float:
        while self.seconds >= self._until:
            self._until += self._random.expovariate(1 / self._hold)
            self._level = self._random.choice([1.0, 1.0, self._random.uniform(1, 2)])
        return self._level * (1 + self._depth * math.sin(2 * math.pi * self.seconds / self._period))


def still() -> Machine:
    """A machine of constant speed."""
    machine = Machine(0)
    machine._depth = machine._noise = machine._disturbed = 0
    machine._until = math.inf
    return machine


def seconds_of(seed: int) -> list[float]:
    """What two to five functions take: 1 to 160 ms, alike or not."""
    drawn = random.Random(f"functions {seed}")
    least, spread = 10 ** drawn.uniform(-3, -0.8), drawn.choice([0.05, 0.15, 1.0])
    return [least * (1 + drawn.uniform(0, spread)) for _ in range(drawn.randint(2, 5))]


def test_the_choice_is_at_most_three_percent_slower_than_the_best_on_machines_whose_speed_changes() -> None:
    wrong, spent = [], []
    for seed in range(500):
        machine, seconds = Machine(seed), seconds_of(seed)
        chosen = fastest(in_rounds([machine.function(each) for each in seconds], machine.clock))
        spent.append(machine.seconds)
        if seconds[chosen] > 1.03 * min(seconds):
            wrong.append((seed, seconds, chosen))
    assert len(wrong) <= 5, wrong
    assert sum(spent) / len(spent) < 8


def test_rounds_end_when_the_fastest_is_certain() -> None:
    machine = still()
    taken = in_rounds([machine.function(each) for each in (0.010, 0.011, 0.020)], machine.clock)
    # The third one is hopeless, and the second one is slower in each of 10 rounds.
    assert [len(each) for each in taken] == [10, 10, 4]
    assert [each[0] for each in taken] == pytest.approx([0.010, 0.011, 0.020])
    assert fastest(taken) == 0


def test_functions_that_take_many_times_as_long_are_called_twice() -> None:
    machine = still()
    taken = in_rounds([machine.function(each) for each in (7.0, 0.01, 0.011)], machine.clock)
    assert [len(each) for each in taken] == [1, 10, 10]
    assert fastest(taken) == 1
    assert machine.seconds < 14 + 3


def test_slow_functions_have_the_least_number_of_rounds() -> None:
    machine = still()
    taken = in_rounds([machine.function(each) for each in (5.0, 5.5)], machine.clock)
    assert [len(each) for each in taken] == [6, 6]


def test_what_is_alike_is_measured_until_the_time_is_over() -> None:
    machine = Machine(1)
    taken = in_rounds([machine.function(0.1), machine.function(0.1)], machine.clock)
    assert len(taken[0]) == len(taken[1]) > 6
    assert 8 < machine.seconds < 10


def test_the_fastest_is_found_by_rounds_whose_sides_were_measured_one_after_the_other() -> None:
    # The machine becomes three times slower after the first round.
    assert fastest([[1.0, 3.0, 3.0], [0.9, 2.7, 2.7], [5.0]]) == 1
    # Less than 1 % is not worth it.
    assert fastest([[1.0, 3.0, 3.0], [0.995, 2.985, 2.985]]) == 0
    # The first one was given up.
    assert fastest([[9.0, 9.0], [1.0, 1.0, 1.0], [0.99, 0.99, 0.99]]) == 2


def test_times_relative_to_the_first_function_are_those_of_common_rounds() -> None:
    assert relative_times([[1.0, 3.0, 3.0], [0.5, 1.5, 1.5], [2.0]]) == pytest.approx([1, 0.5, 2])
    # The first one was given up.
    assert relative_times([[2.0], [1.0, 3.0, 9.0]]) == pytest.approx([1, 0.5])


def test_what_a_function_raises_is_raised() -> None:
    def fail() -> None:
        raise ZeroDivisionError("planted")

    with pytest.raises(ZeroDivisionError, match="planted"):
        in_rounds([lambda: None, fail], still().clock)


# -- what is measured ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "like",
    [
        torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        torch.randn(1, 3, 1, 1).expand(2, 3, 4, 5),
        torch.randn(6, 8)[::2, ::2],
        torch.zeros(0, 3),
        torch.zeros(3, dtype=torch.int64),
        torch.randn(2, 3, dtype=torch.bfloat16),
        torch.tensor(True),
        torch.randn(2, 2, dtype=torch.complex64),
    ],
)
def test_samples_are_like_the_inputs(like: torch.Tensor) -> None:
    state = torch.random.get_rng_state()
    with torch.inference_mode():
        (random,) = samples([like], [])
        (real,) = samples([like], [like])
    for found in (random, real):
        assert (found.shape, found.stride(), found.dtype) == (like.shape, like.stride(), like.dtype)
        assert not found.is_inference()
        assert not like.numel() or found.data_ptr() != like.data_ptr()
    assert torch.equal(real, like)
    assert torch.equal(torch.random.get_rng_state(), state)
    if like.numel() and not like.is_complex():
        assert (random >= 0).all() and (random < 1).all()


def test_other_inputs_than_those_of_the_graph_are_not_copied() -> None:
    one, other = torch.full((2, 3), 7.0), torch.full((3, 2), 7.0)
    assert not torch.equal(samples([one], [other])[0], one)
    assert not torch.equal(samples([one], [one, one])[0], one)
    assert samples([one, 5], [one, 5])[1] == 5


def test_calls_wait_for_the_gpu_of_their_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    class OnGpu(torch.Tensor):
        is_cuda: Any = True
        device: Any = SimpleNamespace(type="cuda", index=1)

    done: list[Any] = []
    monkeypatch.setattr(torch.cuda, "synchronize", done.append)
    on_gpu = torch.ones(2).as_subclass(OnGpu)
    finished(lambda: done.append("called"), [3, torch.ones(2), on_gpu])()
    assert done == ["called", OnGpu.device]
    finished(lambda: done.append("on the CPU"), [torch.ones(2)])()
    assert done[2:] == ["on the CPU"]


# -- kernels of a region in turns ------------------------------------------------------------------


class Kernel:
    """A function whose calls take these seconds in turn, and the last ones from then on."""

    def __init__(self, *seconds: float) -> None:
        self.seconds, self.timed = list(seconds), 0

    def __call__(self) -> None:
        pass

    def next_seconds(self) -> float:
        self.timed += 1
        return self.seconds[min(self.timed, len(self.seconds)) - 1]


@pytest.fixture
def _given_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "seconds_of", lambda function: function.next_seconds())


@pytest.mark.usefixtures("_given_seconds")
def test_a_slow_kernel_is_given_up_after_two_rounds() -> None:
    kernels = Kernel(1.0), Kernel(1.3), Kernel(1.1), Kernel(2.0, 1.0)
    assert in_turns(*kernels) == [1.0, 1.3, 1.1, 1.0]
    rounds = kernels[0].timed
    assert [each.timed for each in kernels] == [rounds, 2, rounds, rounds]


@pytest.mark.usefixtures("_given_seconds")
def test_a_kernel_that_was_interrupted_in_most_rounds_is_no_slower() -> None:
    interrupted = Kernel(*(1.0 if at % 3 == 0 else 5.0 for at in range(15)))
    assert in_turns(Kernel(1.1), interrupted, Kernel(3.0))[:2] == [1.1, 1.0]


@pytest.mark.usefixtures("_given_seconds")
def test_a_kernel_and_torch_are_compared_by_their_medians() -> None:
    kernels = Kernel(1.0, 2.0, 3.0), Kernel(9.0)
    assert in_turns(*kernels) == [3.0, 9.0]
    assert kernels[0].timed == kernels[1].timed
