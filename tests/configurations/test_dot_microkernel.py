"""Kernels that multiply along terms: how they add up lanes, what they are for, and their names."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from dispatch_profiler.configurations import DotMicrokernel, configuration_from_dict, draw_valid
from dispatch_profiler.configurations.cpu.plans.dot import folds
from dispatch_profiler.errors import ConfigurationError
from dispatch_profiler.operations import BatchMatmul, Conv1d, Conv2d, ElementTypes, Matmul, Operation
from dispatch_profiler.targets import parse_target

CPU = parse_target("llvm-cpu")
PRODUCT = Matmul(10, 40, 70, rhs_layout="n")
TILES = DotMicrokernel((12, 16), (4, 8))


@pytest.mark.parametrize(
    ("lanes", "count"), [(lanes, n) for lanes in (8, 16) for n in (4, 8, 16) if n <= lanes]
)
def test_lanes_of_each_vector_are_added_up_in_order(lanes: int, count: int):
    vectors = list(np.random.default_rng(1).integers(-9, 9, (count, lanes)))
    expected = [int(vector.sum()) for vector in vectors]
    for step in folds(lanes, count):
        assert [each.result for each in step] == list(range(len(step)))
        both = [np.concatenate([vectors[each.first], vectors[each.second]]) for each in step]
        vectors = [
            lanes_of[list(each.low)] + lanes_of[list(each.high)]
            for each, lanes_of in zip(step, both, strict=True)
        ]
    assert [vector.tolist() for vector in vectors] == [expected]


def test_row_tiles_prefetch_the_next_filters_together():
    for (rows, filters), (height, width) in (((12, 16), (4, 8)), ((10, 16), (1, 8)), ((4, 8), (4, 4))):
        plan = DotMicrokernel((rows, filters), (height, width)).plan(PRODUCT)
        prefetched = {
            min(tile * plan.prefetched + n, width - 1)
            for tile in range(plan.row_tiles)
            for n in range(plan.prefetched)
        }
        assert prefetched == set(range(width))


OTHERS = {
    "batch": (BatchMatmul(2, 8, 8, 8, rhs_layout="n"), "not for batch_matmul"),
    "rhs": (replace(PRODUCT, rhs_layout="t"), "lhs in layout t and rhs in layout n, not t and t"),
    "lhs": (replace(PRODUCT, lhs_layout="n"), "lhs in layout t and rhs in layout n, not n and n"),
    "types": (replace(PRODUCT, types=ElementTypes("f16", "bf16", "f32")), "f32, bf16, f16, i8 and weights of i8, not for f16 and bf16"),
    "taps": (Conv2d(1, 4, 4, 8, 8, 3, 3, padding=(1, 1), layout="nhwc_fhwc_nhwc"), "one tap"),
    "stride": (Conv2d(1, 8, 8, 8, 8, 1, 1, (2, 2), layout="nhwc_fhwc_nhwc"), "one tap, without stride and padding"),
    "padding": (Conv2d(1, 4, 4, 8, 8, 1, 1, padding=(1, 1), layout="nhwc_fhwc_nhwc"), "without stride and padding"),
    "groups": (Conv2d(1, 4, 4, 8, 8, 1, 1, groups=2, layout="nhwc_fhwc_nhwc"), "without groups"),
    "channels first": (Conv2d(1, 4, 4, 8, 8, 1, 1, layout="nchw"), "channels last"),
    "filters last": (Conv2d(1, 4, 4, 8, 8, 1, 1, layout="nhwc_hwcf_nhwc"), "filters in fhwc or fchw"),
    "gradient": (Conv2d(1, 4, 4, 8, 8, 1, 1, layout="nhwc_fhwc_nhwc", mode="input_backward"), "forward convolutions"),
}  # fmt: skip


@pytest.mark.parametrize(("operation", "reason"), OTHERS.values(), ids=OTHERS)
def test_other_operations_are_rejected_with_the_reason(operation: Operation, reason: str):
    assert reason in (TILES.invalid_reason(operation, CPU.limits) or "")
    assert DotMicrokernel.space(operation, CPU.limits) is None


INVALID = {
    "a register tile has 11 rows, but there are 10": DotMicrokernel((11, 8), (11, 4)),
    "a register tile has 4 rows, but a workgroup has 3": DotMicrokernel((3, 8), (4, 4)),
    "a workgroup has 16 rows, but there are 10": DotMicrokernel((16, 8), (4, 4)),
    "8 filters of a register tile do not divide 12 of a workgroup": DotMicrokernel((4, 12), (4, 8)),
    "a workgroup has 48 filters, but there are 40": DotMicrokernel((4, 48), (4, 8)),
    "a register tile has 5 filters, but must have one of 4, 8, 16": DotMicrokernel((4, 5), (4, 5)),
    "a register tile has 16 filters, but must have one of 4, 8": DotMicrokernel((1, 16), (1, 16), lanes=8),
    "4x8 needs 37 vector registers of 16 elements, but 32 are available": DotMicrokernel((4, 8), (4, 8)),
    "4x4 needs 21 vector registers of 8 elements, but 16 are available": DotMicrokernel((4, 4), (4, 4), lanes=8),
}  # fmt: skip


@pytest.mark.parametrize(("reason", "tiles"), INVALID.items())
def test_tiles_that_do_not_fit_are_rejected_with_the_values(reason: str, tiles: DotMicrokernel):
    assert tiles.invalid_reason(PRODUCT, CPU.limits) == reason


@pytest.mark.parametrize("fields", [{"distribution": (3,)}, {"registers": (2, 4, 4)}, {"lanes": 4}])
def test_fields_are_checked(fields: dict):
    with pytest.raises(ConfigurationError):
        replace(TILES, **fields)


def test_lanes_shorten_the_chains_of_sums():
    """A lane has 70 / 16 products, and 4 additions fold 16 lanes."""
    assert TILES.error_bound(PRODUCT).longest_chain(PRODUCT) == 5 + 4


def test_very_long_sums_are_rejected():
    tiles = DotMicrokernel((4, 8), (4, 4))
    assert tiles.invalid_reason(replace(PRODUCT, k=16 * 764), CPU.limits) is None
    reason = tiles.invalid_reason(replace(PRODUCT, k=16 * 765), CPU.limits)
    assert reason == "12240 terms take 769 additions one after another, but at most 768 are allowed"


@pytest.mark.parametrize(
    "operation", [PRODUCT, Matmul(1, 4, 3, rhs_layout="n"), Conv1d(3, 30, 24, 24, 1, layout="nwc_fwc_nwc")]
)
def test_draws_are_valid_and_can_be_written(operation: Operation):
    space = DotMicrokernel.space(operation, CPU.limits)
    assert space is not None
    drawn = list(itertools.islice(draw_valid([space], operation, CPU.limits, np.random.default_rng(2)), 20))
    assert drawn
    for each in drawn:
        assert configuration_from_dict(each.to_dict()) == each


def test_names_have_every_field():
    assert TILES.name == "tile_config_dot_microkernel_12x16_4x8"
    assert replace(TILES, lanes=8).name == "tile_config_dot_microkernel_12x16_4x8_lanes8"
