"""The union of the spaces of every kind, configurations as numbers, and where a search starts."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from every_kind import EVERY_MODE, IDS
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
    shipped_configurations,
    spaces,
)
from dispatch_profiler.dispatches import Dispatch
from dispatch_profiler.library import Entry, Estimate, Library
from dispatch_profiler.operations import Conv2d, Matmul
from dispatch_profiler.profiler.records.record import Provenance
from dispatch_profiler.targets import fastest_form, packed_microkernel, parse_target
from dispatch_profiler.tuner.spaces.seeds import baselines, known_kernels, seeds
from dispatch_profiler.tuner.spaces.space import (
    ABSENT,
    FEATURES,
    Encoder,
    Point,
    SearchSpace,
    family,
    features,
)


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


@pytest.mark.slow
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


def test_tiles_are_described_relative_to_the_problem_vectors_and_cores():
    """Sizes are logarithms to base 2."""
    found = features(CpuTiles((32, 64), (8, 32, 4), (16, 64, 32)), Matmul(100, 128, 64), 4)
    expected = {
        "workgroup rows": 5, "workgroup columns": 6, "workgroup terms": 6,
        "cache rows": 4, "cache columns": 6, "cache terms": 5, "cached": 1,
        "vector rows": 3, "vector columns": 5, "vector terms": 2,
        "registers": 4,  # 8 rows of two vectors of 16
        "idle lanes": 0,
        "workgroups": 3,  # 4 x 2
        "workgroups of a core": 1,
        "idle cores": 0,
        "padding": math.log2(128 / 100),
        "remainder": 4 / 100,
        "divided": 2,
        "extent columns": 7, "extent terms": 6,
    }  # fmt: skip
    assert {name: found[name] for name in expected} == pytest.approx(expected)


def test_vectors_that_are_not_filled_and_cores_that_wait_are_seen():
    found = features(CpuTiles((32, 8), (8, 8, 4)), Matmul(96, 8, 64), 4)
    assert found["idle lanes"] == 1  # 8 of 16
    assert found["idle cores"] == pytest.approx(math.log2(4 / 3))


def test_packing_is_not_moved_in_an_execution():
    """Of this form, the weight is all that is moved; the same encoder tells both apart, in any order."""
    linear = Matmul(64, 96, 32, rhs_layout="n")
    plain, packed = Formed("panels"), Formed("panels", packed=True)
    assert features(plain, linear, 4)["moved"] == pytest.approx(
        math.log2(96 * 32 / (64 * 32 + 96 * 32 + 64 * 96))
    )
    assert features(packed, linear, 4)["moved"] == ABSENT
    rows = Encoder(linear, 4).vectors([packed, plain, packed])
    assert (rows[0] == rows[2]).all() and (rows[0] != rows[1]).any()
    assert family(plain) != family(packed)


def test_without_tiles_their_values_are_absent():
    found = features(Default(), MATMUL, 4)
    assert found["registers"] == found["workgroups"] == ABSENT
    assert found["kind default"] == 1


def test_forms_are_described_by_their_kernels_and_what_they_move():
    direct, formed = features(Default(), CONVOLUTION, 4), features(Formed("im2col"), CONVOLUTION, 4)
    assert formed["form im2col"] == 1
    assert direct["form im2col"] == 0
    assert formed["moved"] > direct["moved"] == ABSENT
    assert formed["extent columns"] == math.log2(64)
    assert features(Formed("winograd"), CONVOLUTION, 4)["flops"] < 0
    flow = features(Formed("im2col", Flow("data_tiling")), CONVOLUTION, 4)
    assert flow["flow data_tiling"] == flow["form im2col"] == 1


@pytest.mark.parametrize("operation", EVERY_MODE, ids=IDS)
@pytest.mark.parametrize("target", ["llvm-cpu", "cuda:sm_90", "rocm:gfx942", "vulkan-spirv"])
def test_every_configuration_of_every_kind_has_the_same_features(operation, target: str):
    """And finite numbers in rows of the same length within a search space, alone or with others."""
    space = SearchSpace(operation, parse_target(target).limits, cores=16)
    rng = np.random.default_rng(0)
    drawn = [space.configuration(space.draw(rng, i)) for i in range(len(space.spaces)) for _ in range(20)]
    valid = [each for each in dict.fromkeys([Default(), *drawn]) if space.is_valid(each)]
    # Of these, the valid ones are found out later.
    assert np.isfinite(space.vectors(drawn)).all()
    names = list(features(Default(), operation, 16))
    assert tuple(names) == FEATURES
    assert all(list(features(each, operation, 16)) == names for each in valid)
    vectors = space.vectors(valid)
    assert np.isfinite(vectors).all()
    assert np.array_equal(vectors, np.concatenate([space.vectors([each]) for each in valid]))


TARGET = parse_target("llvm-cpu:znver4")
OPERATION = Matmul(128, 768, 768)
SLOW_DIRECTLY = Conv2d(1, 7, 7, 512, 512, 3, 3, padding=(1, 1), layout="nhwc_fhwc_nhwc")


def entry(operation: Matmul, tiles: CpuTiles, target: str = "llvm-cpu:znver4") -> Entry:
    speed = Estimate(2.0, 1.9, 2.1)
    return Entry(Dispatch(operation, tiles), speed, speed, Provenance("local-task", target, "compiler x", 7))


def test_baselines_are_the_default_and_the_fastest_form():
    form = fastest_form(SLOW_DIRECTLY, TARGET)
    assert form is not None
    assert baselines(SLOW_DIRECTLY, TARGET) == (Default(), form)
    assert baselines(OPERATION, TARGET) == (Default(),)


def test_microkernels_that_are_suggested_are_packed_if_weights_are_constants(host_has):
    """And not tried unpacked, which does the same with more work."""
    host_has("avx")
    target = parse_target("llvm-cpu")
    narrow = Microkernel.likely(OPERATION, target.limits, packed_weights=True)
    assert narrow and {(each.lanes, each.packed) for each in narrow} == {(8, True)}
    found = seeds(OPERATION, target, packed_weights=True)
    assert set(narrow) <= set(found) and found[0] not in narrow
    assert not {replace(each, packed=False) for each in narrow} & set(found)


def test_where_rules_know_kernels_that_pack_the_weight_their_ranking_comes_first(host_has):
    """In place of what their kinds suggest."""
    host_has("avx512f")
    target = parse_target("llvm-cpu")
    known = known_kernels(OPERATION, target)
    found = seeds(OPERATION, target, packed_weights=True)
    assert known[0] == packed_microkernel(OPERATION, target) and len(known) > 10
    assert found[: len(known)] == known
    assert not any(isinstance(each, Microkernel) and each.packed for each in found[len(known) :])
    assert not set(known) & set(seeds(OPERATION, target))


def test_seeds_are_the_valid_configurations_of_the_shipped_list():
    """Then the microkernels that their rule suggests."""
    suggested = Microkernel.likely(OPERATION, TARGET.limits)
    found = tuple(each for each in seeds(OPERATION, TARGET) if each not in suggested)
    assert set(suggested) <= set(seeds(OPERATION, TARGET)) and suggested
    listed = [each.configuration for each in shipped_configurations("llvm-cpu") if each.is_for(OPERATION)]
    valid = [each for each in listed if rejection_reason(each, OPERATION, TARGET.limits) is None]
    assert list(found[: len(valid)]) == valid and len(valid) > 0
    assert all(each.split_k > 1 for each in found[len(valid) :])
    assert not set(seeds(SLOW_DIRECTLY, TARGET)) & set(found)


def test_winners_of_a_library_come_first_that_of_the_operation_before_similar_ones():
    """None of another target, and none that is invalid for the operation."""
    own, near, far, foreign = (CpuTiles((64, 64), (8, 32, each)) for each in (1, 2, 4, 8))
    library = Library(
        [
            entry(Matmul(1024, 1024, 1024), far),
            entry(Matmul(128, 768, 512), near),
            entry(OPERATION, own),
            entry(Matmul(128, 768, 640), foreign, "cuda:sm_90"),
            entry(Matmul(100, 768, 768), CpuTiles((100, 64), (7, 32, 1), peel=False)),
        ]
    )
    found = seeds(OPERATION, TARGET, library)
    expected = [own, near, far]
    assert [each for each in found if each in (own, near, far, foreign)][:3] == expected
    assert found[0] == own and foreign not in found
    assert all(rejection_reason(each, OPERATION, TARGET.limits) is None for each in found)
