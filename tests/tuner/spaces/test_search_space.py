"""The union of the spaces of every kind."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from search_spaces import CONVOLUTION, CPU, MATMUL, every_valid, search_spaces

from dispatch_profiler.configurations import (
    CpuTiles,
    Default,
    Flow,
    Formed,
    Microkernel,
    SimtTiles,
    rejection_reason,
    spaces,
)
from dispatch_profiler.operations import Matmul
from dispatch_profiler.targets import parse_target
from dispatch_profiler.tuner.spaces.space import Point, SearchSpace


def test_it_is_the_union_of_the_spaces_of_every_kind():
    space = SearchSpace(CONVOLUTION, CPU)
    assert space.spaces == spaces(CONVOLUTION, CPU)
    assert space.size == sum(each.size for each in spaces(CONVOLUTION, CPU))
    forms = {getattr(space.configuration(space.draw(np.random.default_rng(0), i)), "form", None) for i in range(len(space.spaces))}  # fmt: skip
    assert {"permuted", "im2col", "winograd"} <= forms


def test_configurations_are_valid_by_the_rules_of_their_kinds():
    space = SearchSpace(MATMUL, CPU)
    too_large = CpuTiles((128, 128), (128, 32, 4))
    assert rejection_reason(too_large, MATMUL, CPU)
    assert not space.is_valid(too_large)
    assert space.is_valid(CpuTiles((32, 64), (8, 32, 4)))
    assert space.is_valid(Default())


def test_only_those_of_a_recorded_sweep_are_valid_if_it_is_given():
    recorded = [CpuTiles((32, 64), (8, 32, 4)), Default()]
    space = SearchSpace(MATMUL, CPU, only=recorded)
    assert all(map(space.is_valid, recorded))
    assert not space.is_valid(CpuTiles((32, 32), (8, 32, 4)))


@settings(max_examples=25)
@given(search_spaces())
def test_a_small_space_is_enumerated_with_a_point_for_each_valid_configuration(space: SearchSpace):
    found = [each for i in range(len(space.spaces)) for each in space.enumerate_valid(i).items()]
    assert {configuration for configuration, _ in found} == every_valid(space)
    assert all(space.configuration(point) == configuration for configuration, point in found)


@settings(max_examples=25)
@given(search_spaces(), st.integers(0, 100))
def test_neighbours_differ_in_one_axis(space: SearchSpace, seed: int):
    point = space.draw(np.random.default_rng(seed), seed % len(space.spaces))
    for other in space.neighbours(point):
        assert other.space == point.space
        assert sum(a != b for a, b in zip(point.choices, other.choices, strict=True)) == 1


# -- points of configurations ------------------------------------------------------------------------


@pytest.mark.parametrize("operation", [MATMUL, CONVOLUTION], ids=["matmul", "conv2d"])
@pytest.mark.parametrize("target", ["llvm-cpu", "cuda:sm_80", "rocm:gfx942"])
def test_the_point_of_a_configuration_of_the_space_is_found(operation, target: str):
    """In every space of every target, also where axes are not fields of the configuration."""
    space = SearchSpace(operation, parse_target(target).limits)
    rng = np.random.default_rng(1)
    for index in range(len(space.spaces)):
        drawn = [space.configuration(space.draw(rng, index)) for _ in range(40)]
        valid = [each for each in drawn if space.is_valid(each)][:2]
        for configuration in valid:
            point = space.nearest_point(configuration)
            assert point is not None
            assert space.configuration(point) == configuration


def test_a_configuration_from_elsewhere_has_a_point_nearby():
    """The space has no tile of 48, and rounds tiles to multiples of the vector."""
    space = SearchSpace(MATMUL, CPU)
    point = space.nearest_point(CpuTiles((48, 64), (8, 32, 4)))
    assert point is not None
    near = space.configuration(point)
    assert isinstance(near, CpuTiles)
    assert near.vector == (8, 32, 4)
    assert near.distribution in {(32, 64), (48, 64), (64, 64)}


def test_packed_microkernels_have_points_of_their_own():
    operation = Matmul(64, 128, 32, rhs_layout="n")
    space = SearchSpace(operation, CPU, spaces(operation, CPU, packed_weights=True))
    for packed in (False, True):
        wanted = Microkernel((64, 64), (4, 1, 32), packed=packed)
        point = space.nearest_point(wanted)
        assert point is not None
        assert space.configuration(point) == wanted


def test_forms_and_flows_have_points_of_their_own():
    space = SearchSpace(CONVOLUTION, CPU)
    wanted = Formed("im2col", Flow("data_tiling"))
    point = space.nearest_point(wanted)
    assert point is not None
    assert space.configuration(point) == wanted


def test_a_configuration_of_no_kind_in_the_space_has_no_point():
    space = SearchSpace(MATMUL, CPU)
    assert space.nearest_point(SimtTiles(workgroup=(64, 32), reduction=(8,), thread=(4, 8))) is None
    assert space.nearest_point(Formed("permuted")) is None


def test_points_are_values():
    assert Point(0, (1, 2)) == Point(0, (1, 2))
    assert len({Point(0, (1, 2)), Point(0, (1, 2)), Point(1, (1, 2))}) == 2
