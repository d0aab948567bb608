"""Search spaces: what can be enumerated, drawn and reached, for every kind that has one."""

from __future__ import annotations

import itertools
import pickle
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatch_profiler.configurations import (
    KINDS,
    Axis,
    CpuTiles,
    Default,
    Flow,
    Limits,
    MmaTiles,
    SimtTiles,
    Space,
    TritonTiles,
    configuration_from_dict,
    draw_valid,
    rejection_reason,
    spaces,
    with_narrow_sums,
)
from dispatch_profiler.operations import (
    BatchMatmul,
    BiasBackward,
    Conv2d,
    ElementTypes,
    LayerNorm,
    LayerNormInputBackward,
    LayerNormWeightBackward,
    Matmul,
)
from dispatch_profiler.targets import parse_target

F16 = ElementTypes("f16", "f16", "f16")
OPERATIONS = [Matmul(1024, 768, 512, F16), Matmul(1000, 500, 300, F16), Matmul(512, 512, 512), BatchMatmul(4, 256, 256, 256, F16),
              Conv2d(8, 58, 58, 64, 64, 3, 3, types=F16), Conv2d(1, 30, 30, 32, 64, 3, 3, layout="nchw", types=F16),
              Conv2d(4, 34, 34, 64, 64, 3, 3, groups=64)]  # fmt: skip
CPU_OPERATIONS = [Matmul(128, 256, 512), Matmul(197, 147, 63), Matmul(1, 1000, 768), BatchMatmul(4, 96, 64, 80), Conv2d(2, 28, 28, 64, 64, 3, 3),
                  Conv2d(1, 14, 14, 32, 48, 3, 3, padding=(1, 1)), Conv2d(1, 7, 7, 256, 96, 1, 1), Conv2d(1, 35, 35, 24, 40, 3, 3, stride=(2, 2)),
                  Conv2d(2, 28, 28, 64, 64, 3, 3, groups=64), Conv2d(2, 14, 14, 32, 64, 3, 3, groups=4), Conv2d(2, 28, 28, 32, 48, 3, 3, layout="nchw"),
                  LayerNorm(128, 768), LayerNorm(1576, 34, affine=False), LayerNormInputBackward(7, 33, "f16"), LayerNormWeightBackward(128, 768), LayerNormWeightBackward(197, 384, "bf16"),
                  BiasBackward(784, 512), BiasBackward(8, 63, 35, "f64")]  # fmt: skip
TARGETS = ["llvm-cpu", "cuda:sm_80", "cuda:sm_90", "rocm:gfx942", "rocm:gfx1201", "vulkan-spirv"]
TINY = Space(
    SimtTiles,
    (
        Axis("promote", (True, False)),
        Axis("workgroup_m", (32, 64, 128), "workgroup"),
        Axis("workgroup_n", (32,), "workgroup"),
        Axis("reduction_k", (8,), "reduction"),
        Axis("thread_m", (4,), "thread"),
        Axis("thread_n", (4, 8), "thread"),
    ),
)


def limits_of(target: str) -> Limits:
    return parse_target(target).limits


# -- a space by itself -----------------------------------------------------------------------------


def test_a_space_has_every_combination_once():
    """Its size is how many there are."""
    points = list(TINY.points())
    assert len(points) == TINY.size == len(set(points)) == 12
    found = {TINY.to_configuration(point) for point in points}
    assert SimtTiles(workgroup=(64, 32), reduction=(8,), thread=(4, 8), promote=False) in found
    assert len(found) == 12


def test_what_is_drawn_is_a_point_and_every_point_can_be_drawn():
    rng = np.random.default_rng(0)
    assert {TINY.draw(rng) for _ in range(300)} == set(TINY.points())


def test_the_same_seed_draws_the_same_points():
    def drawn(seed):
        rng = np.random.default_rng(seed)
        return [TINY.draw(rng) for _ in range(20)]

    assert drawn(3) == drawn(3) != drawn(4)


def test_neighbours_differ_in_one_axis_the_nearest_choices_first():
    """And there is no other point that does."""
    point = (True, 32, 32, 8, 4, 4)
    assert list(TINY.neighbours(point)) == [
        (False, 32, 32, 8, 4, 4),
        (True, 64, 32, 8, 4, 4),
        (True, 128, 32, 8, 4, 4),
        (True, 32, 32, 8, 4, 8),
    ]
    for at in TINY.points():
        near = {other for other in TINY.points() if sum(a != b for a, b in zip(at, other, strict=True)) == 1}
        assert set(TINY.neighbours(at)) == near


def test_a_large_space_is_enumerated_one_point_at_a_time():
    """It has more points than fit into memory."""
    space = CpuTiles.space(Conv2d(8, 58, 58, 64, 64, 3, 3), limits_of("llvm-cpu"))
    assert space.size > 10**9
    assert len(list(itertools.islice(space.points(), 5))) == 5


def test_a_space_crosses_process_borders_whole():
    for target in TARGETS:
        for space in spaces(OPERATIONS[0], limits_of(target)):
            assert pickle.loads(pickle.dumps(space)) == space


# -- the space of every kind -----------------------------------------------------------------------


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("operation", OPERATIONS + CPU_OPERATIONS[3:6], ids=lambda op: op.name)
def test_every_point_is_a_configuration_and_axes_are_sound(target, operation):
    """Names and choices are unique, and a point in a corner of the space can be named and written down."""
    rng = np.random.default_rng(0)
    for space in spaces(operation, limits_of(target)):
        names = [axis.name for axis in space.axes]
        assert len(set(names)) == len(names)
        assert all(axis.choices and len(set(axis.choices)) == len(axis.choices) for axis in space.axes)
        corners = (tuple(axis.choices[i] for axis in space.axes) for i in (0, -1))
        for point in (*corners, *(space.draw(rng) for _ in range(5))):
            configuration = space.to_configuration(point)
            assert isinstance(configuration, space.kind)
            assert configuration_from_dict(configuration.to_dict()) == configuration
            rejection_reason(configuration, operation, limits_of(target))


def test_kinds_have_spaces_where_the_compiler_has_code_for_them():
    def kinds(target, operation):
        return {space.kind.kind for space in spaces(operation, limits_of(target))}

    product, depthwise = OPERATIONS[0], OPERATIONS[6]
    assert kinds("llvm-cpu", product) == {"default", "cpu_tiles", "flow", "formed"}
    assert kinds("llvm-cpu", depthwise) == {"default", "cpu_tiles", "formed"}
    assert kinds("cuda:sm_80", product) == {"default", "mma_tiles", "simt_tiles", "triton"}
    assert kinds("cuda:sm_80", depthwise) == {"default", "simt_tiles", "formed"}
    assert kinds("rocm:gfx942", product) == {"default", "mma_tiles", "simt_tiles"}
    assert kinds("vulkan-spirv", product) == {"default", "simt_tiles"}
    assert kinds("vulkan-spirv", depthwise) == {"default", "formed"}
    assert kinds("vmvx", product) == {"default"}
    assert KINDS["extern"].space(product, limits_of("cuda:sm_80")) is None


def test_a_reduction_is_cut_where_the_result_is_small():
    """By what divides it."""
    (axis,) = Default.space(Matmul(64, 64, 63), Limits()).axes
    assert axis.choices == (1, 3, 7, 9)
    for operation in (Matmul(2048, 2048, 64), BatchMatmul(2, 8, 8, 8), Conv2d(1, 8, 8, 8, 8, 3, 3)):
        assert Default.space(operation, Limits()).size == 1


def test_flows_are_points():
    (axis,) = Flow.space(Matmul(64, 64, 64), Limits()).axes
    assert axis.choices == ("data_tiling", "ukernels", "inner_tiled")
    (axis,) = Flow.space(Conv2d(1, 8, 8, 8, 8, 3, 3), Limits()).axes
    assert axis.choices == ("tiled_convolutions",)
    f8 = ElementTypes("f8", "f8", "f32")
    assert Flow.space(Matmul(64, 64, 64, f8), Limits()).axes[0].choices == ("data_tiling",)


# -- drawing what is valid -------------------------------------------------------------------------


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda op: op.name)
def test_what_is_drawn_for_an_operation_is_valid_different_and_the_same_for_a_seed(name, operation):
    limits = limits_of(name)
    among = spaces(operation, limits)

    def drawn():
        rng = np.random.default_rng(7)
        return list(itertools.islice(draw_valid(among, operation, limits, rng, 3_000), 15))

    points = drawn()

    assert points == drawn()
    assert len(set(points)) == len(points)
    assert len(points) == 15 or len(among) == 1 or limits.gpu.arch == "vp_android_baseline_2022"
    for point in points:
        assert rejection_reason(point, operation, limits) is None
        lowering = point.lowering(operation)
        assert lowering is None or lowering.compilation_info


def test_drawing_ends_when_every_point_was_drawn():
    """Long before the tries are spent."""
    operation, limits = Matmul(64, 64, 64), limits_of("llvm-cpu")
    among = [Default.space(operation, limits), Flow.space(operation, limits)]
    drawn = list(draw_valid(among, operation, limits, np.random.default_rng(0), sys.maxsize))
    assert len(drawn) == 5 + 3
    assert list(draw_valid((), operation, limits, np.random.default_rng(0))) == []


# -- CPUs ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("operation", CPU_OPERATIONS, ids=lambda op: op.name)
def test_nearly_every_point_for_a_cpu_fits(operation):
    """Only tiles that the compiler would not hold in a vector are left to be rejected."""
    limits, rng = limits_of("llvm-cpu:znver4"), np.random.default_rng(0)
    space = CpuTiles.space(operation, limits)
    reasons = [space.to_configuration(space.draw(rng)).invalid_reason(operation, limits) for _ in range(100)]
    assert [reason for reason in reasons if reason and " B of " not in reason] == []
    assert reasons.count(None) > 60


@given(st.integers(0, 2**32), st.sampled_from(CPU_OPERATIONS))
def test_levels_of_a_cpu_tile_are_multiples_of_each_other(seed, operation):
    """And what the vector tile leaves over is peeled, if it leaves something."""
    space = CpuTiles.space(operation, Limits())
    tiles = space.to_configuration(space.draw(np.random.default_rng(seed)))
    extents = {loop.name: loop.extent for loop in operation.loops}
    if "k" in operation.reduction_axes:
        extents["k"] //= tiles.split_k
    axes = (*operation.parallel_axes, *operation.reduction_axes)
    blocks = tiles.cache or tiles.vector
    for axis, vector, block in zip(axes, tiles.vector, blocks, strict=True):
        assert 1 <= vector <= block <= extents.get(axis, 1)
        assert block % vector == 0
    for axis, block, share in zip(operation.parallel_axes, blocks, tiles.distribution, strict=False):
        assert share % block == 0
        assert share <= extents[axis]
    left_over = any(extents.get(axis, 1) % tile for axis, tile in zip(axes, tiles.vector, strict=True))
    assert tiles.peel == left_over


def test_a_cpu_tile_may_be_whatever_divides_an_odd_extent():
    """And a power of two, which needs peeling."""
    choices = {axis.name: axis.choices for axis in CpuTiles.space(Matmul(197, 147, 63), Limits()).axes}
    assert choices["vector_n"] == (1, 2, 3, 4, 7, 8, 16, 21, 32, 49, 64, 128)
    assert choices["vector_k"] == (1, 2, 3, 4, 7, 8, 9, 16, 21, 32, 63)
    assert 197 in choices["distribution_m"]
    assert choices["cached"] == (False, True)


def test_dimensions_of_a_cpu_tile_are_drawn():
    """Every level, with and without a cache tile, peeling and slices."""
    space, rng = CpuTiles.space(Matmul(197, 147, 63), Limits()), np.random.default_rng(0)
    drawn = [space.to_configuration(space.draw(rng)) for _ in range(100)]
    for value in ("distribution", "vector", "cache", "peel", "split_k"):
        assert len({getattr(tiles, value) for tiles in drawn}) > 1
    assert {bool(tiles.cache) for tiles in drawn} == {True, False}


# -- GPUs ------------------------------------------------------------------------------------------


def choices_of(space, name):
    return next((axis.choices for axis in space.axes if axis.name == name), ())


def test_what_there_is_to_choose_follows_from_the_target():
    """Families and shapes of instructions, stages, size of subgroups."""

    def instructions(target, operation):
        space = MmaTiles.space(operation, limits_of(target))
        return space and choices_of(space, "instruction")

    product = OPERATIONS[0]
    assert instructions("cuda:sm_80", product) == ("mmasync",)
    assert instructions("cuda:sm_80", Matmul(512, 512, 512)) is None
    assert instructions("rocm:gfx942", product) == ("mfma 16x16x16", "mfma 32x32x8")
    assert instructions("rocm:gfx1201", product) == ("wmmar4",)
    for target in TARGETS[1:]:
        for space in spaces(product, limits_of(target)):
            if space.kind in (MmaTiles, SimtTiles):
                stages = set(choices_of(space, "stages"))
                assert stages <= set(limits_of(target).gpu.stages)


def test_narrow_sums_are_drawn_only_where_they_are_asked_for():
    """They change what is computed."""
    space = MmaTiles.space(OPERATIONS[0], limits_of("cuda:sm_80"))
    assert choices_of(space, "accumulator") == ("",)
    assert choices_of(with_narrow_sums(space, OPERATIONS[0]), "accumulator") == ("", "f16")
    assert with_narrow_sums(space, OPERATIONS[2]) == space


def test_a_convolution_is_tried_directly_and_as_an_implicit_gemm():
    """With and without matrix instructions; a depthwise one only directly, without."""
    limits = limits_of("cuda:sm_80")

    def ways(operation):
        among = [s for s in spaces(operation, limits) if s.kind in (MmaTiles, SimtTiles)]
        drawn = draw_valid(among, operation, limits, np.random.default_rng(0))
        return {(each.kind, len(each.reduction)) for each in itertools.islice(drawn, 40)}

    assert ways(Conv2d(8, 58, 66, 64, 64, 3, 3, types=F16)) == {
        ("mma_tiles", 1),
        ("mma_tiles", 3),
        ("simt_tiles", 1),
        ("simt_tiles", 3),
    }
    assert ways(OPERATIONS[6]) == {("simt_tiles", 3)}


def test_tiles_that_are_no_power_of_two_are_tried_where_they_divide():
    """56 columns have tiles of 28 and 56 besides."""
    space = MmaTiles.space(OPERATIONS[4], limits_of("cuda:sm_80"))
    assert {28, 56} <= set(choices_of(space, "workgroup_ow"))


@pytest.mark.parametrize("name", ["cuda:sm_80", "cuda:sm_90"])
@pytest.mark.parametrize("operation", OPERATIONS[:6], ids=lambda op: op.name)
def test_triton_tiles_are_drawn_for_what_has_a_product(name, operation):
    """Valid ones; descriptors only on what has the bulk copy engine, for rows of a multiple of 16 bytes."""
    limits = limits_of(name)
    among = [TritonTiles.space(operation, limits)]
    points = list(itertools.islice(draw_valid(among, operation, limits, np.random.default_rng(7)), 40))
    assert len(points) == 40
    has = any(point.descriptors for point in points)
    convolution = operation.convolution
    rows_fit = operation.n % 8 == 0 if convolution is None else convolution.is_channels_last
    assert has == (name == "cuda:sm_90" and rows_fit)
    if convolution is not None:
        assert any(point.windows_only for point in points) == has
        assert any(point.split_k > 1 for point in points)
