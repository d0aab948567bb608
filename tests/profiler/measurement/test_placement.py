"""Where operands lie: how many places, and that samples really go over them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatch_profiler.operations import Distribution, Matmul
from dispatch_profiler.profiler.measurement.kernels import DeviceKernels
from dispatch_profiler.profiler.measurement.placement import Places, Rotation, Stage, cold_places, warm_places
from dispatch_profiler.profiler.verification.inputs import draw
from dispatch_profiler.runtime import NullDevice, RunError

extents = st.integers(1, 5000)
operations = st.builds(Matmul, extents, extents, extents)
SMALL = Matmul(4, 6, 8)


@given(operations)
def test_warm_places_are_few_and_not_large(operation):
    places = warm_places(operation)
    assert 1 <= places <= 64
    assert places == 1 or places * operation.bytes <= 256 * 2**20


@given(operations, st.integers(1, 2**30))
def test_between_two_uses_of_a_cold_place_lie_three_times_the_caches(operation, cache_bytes):
    """What is used in between is all places but the one itself."""
    assert (cold_places(operation, cache_bytes) - 1) * operation.bytes >= 3 * cache_bytes


def test_caches_that_are_not_known_cannot_be_cold():
    with pytest.raises(RunError, match="--mode=warm"):
        cold_places(SMALL, 0)


def test_places_are_made_once_and_hold_the_same_values():
    made = []

    class Counting(DeviceKernels):
        def put(self, operation, inputs):
            made.append(inputs)
            return super().put(operation, inputs)

    inputs = draw(SMALL, Distribution.REALS, 1)
    places = Places(Counting(NullDevice()), SMALL, inputs)

    three = places.first(3)

    assert places.first(2) == three[:2] and places.at(1) is three[1]
    assert len(made) == 3
    assert all(each is inputs for each in made)


class Recorded:
    """A call that writes down when it was called."""

    def __init__(self, name: str, log: list[str]) -> None:
        self._name, self._log = name, log

    def time(self, calls: int) -> float:
        self._log.append(f"{self._name}*{calls}")
        return 1.0


def rotation(log: list[str], places: int, begin: int = 0) -> Rotation:
    """Calls that write down at which place they are."""

    def stage(number: int) -> Stage:
        place = number % places
        return Stage(Recorded(f"{place}", log), Recorded(f"warm {place}", log))

    return Rotation(stage, places, begin)


def test_a_rotation_warms_each_place_before_it_times_there():
    log: list[str] = []
    turns = rotation(log, 2)
    for place in (0, 1, 0):
        assert turns.advance() == place
        turns.time(5)
    assert log == ["warm 0*1", "0*5", "warm 1*1", "1*5", "warm 0*1", "0*5"]


def test_a_rotation_goes_on_where_the_one_before_ended():
    assert rotation([], 64, begin=70).advance() == 6


def test_a_single_place_is_warmed_once_and_stays_warm_by_itself():
    log: list[str] = []
    turns = rotation(log, 1)
    for _ in range(2):
        assert turns.advance() == 0
        turns.time(5)
    assert log == ["warm 0*1", "0*5", "0*5"]
