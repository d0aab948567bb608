"""Configurations as numbers: the same names everywhere, values that can be computed by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from every_kind import EVERY_MODE, IDS
from search_spaces import CONVOLUTION, MATMUL

from dispatch_profiler.configurations import CpuTiles, Default, Flow, Formed
from dispatch_profiler.operations import Matmul
from dispatch_profiler.targets import parse_target
from dispatch_profiler.tuner.spaces.features import ABSENT, FEATURES, Encoder, features
from dispatch_profiler.tuner.spaces.space import SearchSpace, family


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
