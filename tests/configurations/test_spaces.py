"""Spaces of GPU configurations: what can be drawn, and that all of it follows the rules."""

from __future__ import annotations

import itertools
import random

import pytest

from dispatch_profiler.configurations import (
    MmaTiles,
    SimtTiles,
    Space,
    configuration_from_dict,
    draw_valid,
    gpu_spaces,
    rejection_reason,
    triton_spaces,
    with_narrow_sums,
)
from dispatch_profiler.operations import BatchMatmul, Conv2d, ElementTypes, Matmul
from dispatch_profiler.targets import parse_target

F16 = ElementTypes("f16", "f16", "f16")
OPERATIONS = [Matmul(1024, 768, 512, F16), Matmul(1000, 500, 300, F16), Matmul(512, 512, 512), BatchMatmul(4, 256, 256, 256, F16),
              Conv2d(8, 58, 58, 64, 64, 3, 3, types=F16), Conv2d(1, 30, 30, 32, 64, 3, 3, layout="nchw", types=F16),
              Conv2d(4, 34, 34, 64, 64, 3, 3, groups=64)]  # fmt: skip
TARGETS = ["cuda:sm_80", "rocm:gfx942", "rocm:gfx1201", "vulkan-spirv"]
TINY = Space(
    SimtTiles,
    {"promote": (True, False)},
    {"workgroup": ((32, 64), (32,)), "thread": ((4,), (4, 8)), "reduction": ((8,),)},
)


def test_a_space_has_every_combination_once():
    """Its length is how many there are."""
    points = list(TINY.points())
    assert len(points) == len(TINY) == len(set(points)) == 8
    assert SimtTiles(workgroup=(64, 32), reduction=(8,), thread=(4, 8), promote=False) in points


def test_what_is_drawn_is_a_point_and_every_point_can_be_drawn():
    rng = random.Random(0)
    assert {TINY.draw(rng) for _ in range(200)} == set(TINY.points())


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda op: op.name)
def test_what_is_drawn_for_an_operation_is_valid_different_and_the_same_for_a_seed(name, operation):
    limits = parse_target(name).limits
    spaces = gpu_spaces(operation, limits)

    def drawn():
        return list(itertools.islice(draw_valid(spaces, operation, limits, random.Random(7), 20_000), 15))

    points = drawn()

    assert points == drawn()
    assert len(set(points)) == len(points)
    assert len(points) == 15 or not spaces or limits.gpu.arch == "vp_android_baseline_2022"
    for point in points:
        assert rejection_reason(point, operation, limits) is None
        assert point.lowering(operation).compilation_info
        assert configuration_from_dict(point.to_dict()) == point
        assert point.stages in limits.gpu.stages


def test_what_there_is_to_choose_follows_from_the_target():
    """Families and shapes of instructions, stages, size of subgroups."""

    def instructions(target, operation):
        spaces = gpu_spaces(operation, parse_target(target).limits)
        return {
            (s.parameters["instruction"][0], s.parameters["shape"][0]) for s in spaces if s.kind is MmaTiles
        }

    product = OPERATIONS[0]
    assert instructions("cuda:sm_80", product) == {("mmasync", ())}
    assert instructions("cuda:sm_80", Matmul(512, 512, 512)) == set()
    assert instructions("rocm:gfx942", product) == {("mfma", (16, 16, 16)), ("mfma", (32, 32, 8))}
    assert instructions("rocm:gfx1201", product) == {("wmmar4", ())}


def test_narrow_sums_are_drawn_only_where_they_are_asked_for():
    """They change what is computed."""
    limits, rng = parse_target("cuda:sm_80").limits, random.Random(0)
    spaces = gpu_spaces(OPERATIONS[0], limits)

    def drawn(spaces):
        points = itertools.islice(draw_valid(spaces, OPERATIONS[0], limits, rng), 40)
        return {point.accumulator for point in points if isinstance(point, MmaTiles)}

    assert drawn(spaces) == {""}
    assert drawn([with_narrow_sums(space, OPERATIONS[0]) for space in spaces]) == {"", "f16"}
    assert with_narrow_sums(spaces[0], OPERATIONS[2]) == spaces[0]


def test_a_convolution_is_tried_directly_and_as_an_implicit_gemm():
    """With and without matrix instructions; a depthwise one only directly, without."""
    limits = parse_target("cuda:sm_80").limits

    def ways(operation):
        return {(s.kind.kind, len(s.tiles["reduction"])) for s in gpu_spaces(operation, limits)}

    assert ways(OPERATIONS[4]) == {("mma_tiles", 1), ("mma_tiles", 3), ("simt_tiles", 1), ("simt_tiles", 3)}
    assert ways(OPERATIONS[6]) == {("simt_tiles", 3)}


def test_tiles_that_are_no_power_of_two_are_tried_where_they_divide():
    """56 columns have tiles of 28 and 56 besides."""
    (space, *_) = gpu_spaces(OPERATIONS[4], parse_target("cuda:sm_80").limits)
    assert {28, 56} <= set(space.tiles["workgroup"][2])


@pytest.mark.parametrize("name", ["llvm-cpu", "vmvx"])
def test_there_is_no_such_space_where_there_is_no_gpu(name):
    limits = parse_target(name).limits
    assert gpu_spaces(OPERATIONS[0], limits) == ()
    assert list(draw_valid((), OPERATIONS[0], limits, random.Random(0))) == []


@pytest.mark.parametrize("name", ["cuda:sm_80", "cuda:sm_90"])
@pytest.mark.parametrize("operation", OPERATIONS[:6], ids=lambda op: op.name)
def test_triton_tiles_are_drawn_for_what_has_a_product(name, operation):
    """Valid ones; descriptors only for products on what has the bulk copy engine."""
    limits = parse_target(name).limits
    points = list(
        itertools.islice(
            draw_valid(triton_spaces(operation, limits), operation, limits, random.Random(7), 20_000), 40
        )
    )
    assert len(points) == 40
    assert all(rejection_reason(point, operation, limits) is None for point in points)
    has = any(point.descriptors for point in points)
    assert has == (name == "cuda:sm_90" and operation.reduction_axes == ("k",) and operation.n % 8 == 0)


def test_there_is_no_triton_kernel_but_for_nvidia_gpus_and_none_for_depthwise():
    """The space is empty, or every point of it is invalid."""
    for name in ("llvm-cpu", "rocm:gfx942", "vulkan-spirv"):
        assert triton_spaces(OPERATIONS[0], parse_target(name).limits) == ()
    limits = parse_target("cuda:sm_90").limits
    (space,) = triton_spaces(OPERATIONS[6], limits)
    assert all(rejection_reason(space.draw(random.Random(i)), OPERATIONS[6], limits) for i in range(50))
