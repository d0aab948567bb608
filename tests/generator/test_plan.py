"""Workload x configurations -> what is generated, what is left out, and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from dispatch_profiler.configurations import (
    Configuration,
    CpuTiles,
    Default,
    Flow,
    Limits,
    ListedConfiguration,
)
from dispatch_profiler.dispatches import Selection
from dispatch_profiler.errors import SelectionError
from dispatch_profiler.generator import Choices, LeftOut, Plan, plan_generation
from dispatch_profiler.operations import BatchMatmul, Conv2d, ElementTypes, Matmul, Operation
from dispatch_profiler.operations.contraction.matmul import SPLIT_K_PROBLEMS
from dispatch_profiler.targets import NullTarget
from dispatch_profiler.workloads import Workload, WorkloadEntry, merged

MATMUL = Matmul(16, 32, 8)
BATCH = BatchMatmul(2, 16, 32, 8)
CONV = Conv2d(1, 8, 8, 4, 8, 3, 3)
TILES = CpuTiles((16, 32), (4, 8, 2))
TOO_LARGE = CpuTiles((64, 64), (32, 32, 1))


def workload(*operations: Operation) -> Workload:
    return merged([WorkloadEntry(operation) for operation in operations])


def plan(
    operations: Sequence[Operation],
    configurations: Sequence[Configuration | ListedConfiguration] = (),
    **choices: object,
) -> Plan:
    entries = [c if isinstance(c, ListedConfiguration) else ListedConfiguration(c) for c in configurations]
    return plan_generation(workload(*operations), NullTarget(), Choices(entries, **choices))


def names(planned: Plan) -> list[str]:
    """Configuration names of the first operation."""
    return [dispatch.configuration.name for dispatch in planned.groups[0][1]]


# -- the default -----------------------------------------------------------------------------------


@pytest.mark.parametrize("configurations", [(), (TILES,), (TOO_LARGE,), (Flow("ukernels"),)])
def test_the_default_is_always_there_and_first(configurations):
    """Whatever else fits, so that tuning never makes anything slower."""
    for _, dispatches in plan([MATMUL, BATCH, CONV], configurations).groups:
        assert dispatches[0].configuration == Default()


def test_a_default_in_the_list_comes_once():
    """A user's file may name it."""
    assert names(plan([MATMUL], [TILES, Default(), TILES])) == ["tile_config_default", TILES.name]


def test_default_only_leaves_the_list_aside():
    """Nothing is left out either: nothing else was asked for."""
    planned = plan([MATMUL], [TILES, TOO_LARGE], default_only=True)
    assert (names(planned), planned.left_out) == (["tile_config_default"], ())


def test_the_fastest_form_follows_the_default_if_asked_for():
    """Where the direct form is the fastest known one, nothing is added."""
    other = Conv2d(1, 56, 56, 4, 8, 3, 3, layout="nhwc_fhwc_nhwc")
    planned = plan([other, CONV, MATMUL], [TILES], adds_fastest=True)
    found = [[d.configuration.name for d in dispatches] for _, dispatches in planned.groups]
    assert found[0] == ["tile_config_default", "tile_config_permuted_default"]
    assert found[1:] == [["tile_config_default"], ["tile_config_default", TILES.name]]
    assert names(plan([other])) == ["tile_config_default"]


# -- crossing --------------------------------------------------------------------------------------


def test_operations_and_configurations_keep_their_order():
    """Every operation with every configuration that is valid for it."""
    planned = plan([BATCH, MATMUL], [Flow("ukernels"), TILES])
    assert [operation for operation, _ in planned.groups] == [BATCH, MATMUL]
    assert names(planned) == ["tile_config_default", "flow_config_ukernels", TILES.name]
    assert planned.dispatch_count == 6


def test_what_is_invalid_is_left_out_with_its_reason():
    """By the dispatch's name, with the values."""
    planned = plan([MATMUL], [TOO_LARGE, TILES])
    name = f"{MATMUL.name}_{TOO_LARGE.name}"
    assert planned.left_out == (LeftOut(name, "vector tile 32 exceeds m=16"),)
    assert names(planned) == ["tile_config_default", TILES.name]


def test_an_entry_for_other_operations_is_not_left_out():
    """It was never meant for this one."""
    entries = [ListedConfiguration(TILES, kinds=("conv2d",)), ListedConfiguration(TILES, types=("f16",))]
    planned = plan([MATMUL], entries)
    assert (names(planned), planned.left_out) == (["tile_config_default"], ())


def test_an_entry_is_narrowed_by_the_type_of_the_inputs():
    """f16 alone gets it."""
    half = Matmul(16, 32, 8, ElementTypes("f16", "f16", "f16"))
    planned = plan([MATMUL, half], [ListedConfiguration(TILES, types=("f16",))])
    assert [len(dispatches) for _, dispatches in planned.groups] == [1, 2]


@dataclass(frozen=True)
class NarrowTarget(NullTarget):
    """A target that holds small vectors only."""

    @property
    def limits(self) -> Limits:
        return Limits(max_vector_bytes=128)


def test_limits_of_the_target_count():
    """A vector of 4 x 8 f32 is 128 bytes."""
    choices = Choices([ListedConfiguration(TILES)])
    assert plan_generation(workload(MATMUL), NullTarget(), choices).left_out == ()
    (left_out,) = plan_generation(workload(MATMUL), NarrowTarget(), choices).left_out
    assert "has 128 B of f32, but the compiler needs vectors below 128 B" in left_out.reason


# -- split-k ---------------------------------------------------------------------------------------


def test_a_split_is_a_variant_of_what_is_not_split():
    """Of the default and of tiles, slices by slices; flows stay as they are."""
    planned = plan([MATMUL], [TILES, Flow("ukernels"), Default(8)], split_k=(2, 4))
    assert names(planned) == [
        "tile_config_default",
        TILES.name,
        "flow_config_ukernels",
        "tile_config_default_splitk8",
        "tile_config_default_splitk2",
        f"{TILES.name}_splitk2",
        "tile_config_default_splitk4",
        f"{TILES.name}_splitk4",
    ]


def test_one_slice_is_no_split():
    """Nothing comes twice."""
    assert names(plan([MATMUL], [TILES], split_k=(1,))) == names(plan([MATMUL], [TILES]))


def test_the_same_split_comes_once():
    """From the list and from the slices."""
    planned = plan([MATMUL], [Default(2)], split_k=(2,))
    assert names(planned) == ["tile_config_default", "tile_config_default_splitk2"]


@pytest.mark.parametrize(
    ("operation", "slices", "reason"),
    [
        (MATMUL, 3, "3 slices do not divide k=8"),
        (BATCH, 2, "split-k is defined for matmul, not for batch_matmul"),
        (CONV, 2, "split-k is defined for matmul, not for conv2d"),
    ],
)
def test_a_split_that_cannot_be_is_left_out(operation, slices, reason):
    """The default without a split stays."""
    planned = plan([operation], split_k=(slices,))
    assert [each.reason for each in planned.left_out] == [reason]
    assert names(planned) == ["tile_config_default"]


def test_predefined_split_problems_are_split():
    """Without slices of the user's, by those of the problem; with an empty list, not at all."""
    (problem, slices), *_ = SPLIT_K_PROBLEMS.items()
    expected = [f"tile_config_default_splitk{s}" for s in slices]
    assert names(plan([Matmul(*problem)])) == ["tile_config_default", *expected]
    for none in ({"split_k": ()}, {"default_only": True}):
        assert names(plan([Matmul(*problem)], **none)) == ["tile_config_default"]


def test_slices_that_were_asked_for_split_the_default_alone_too():
    """`default_only` leaves out the list, not the request."""
    planned = plan([MATMUL], [TILES], split_k=(2,), default_only=True)
    assert names(planned) == ["tile_config_default", "tile_config_default_splitk2"]


# -- selection -------------------------------------------------------------------------------------


def test_only_what_is_selected_is_planned():
    """Operations of which nothing is left are not in the plan."""
    planned = plan([MATMUL, BATCH], [TILES], selection=Selection.parse(f"matmul_*{TILES.name}", ""))
    assert [operation for operation, _ in planned.groups] == [MATMUL]
    assert names(planned) == [TILES.name]


@pytest.mark.parametrize(("patterns", "count"), [("matmul_*", 1), ("matmul_*_default", 0), ("", 2)])
def test_only_what_was_asked_for_is_left_out(patterns, count):
    """A user who asks for one dispatch is not told of all the others."""
    planned = plan([MATMUL, BATCH], [TOO_LARGE], selection=Selection.parse(patterns, ""))
    assert len(planned.left_out) == count


def test_a_pattern_that_names_what_is_left_out_says_why():
    """It exists, but it cannot be generated."""
    selection = Selection((f"{MATMUL.name}_{TOO_LARGE.name}",))
    with pytest.raises(
        SelectionError, match=r"no dispatch matches .* was left out: vector tile 32 exceeds m=16"
    ):
        plan([MATMUL], [TOO_LARGE], selection=selection)


def test_a_pattern_that_names_nothing_is_answered_with_the_nearest():
    """As everywhere."""
    with pytest.raises(SelectionError, match=r"^no dispatch matches 'matmull_\*'$") as caught:
        plan([MATMUL], selection=Selection(("matmull_*",)))
    assert "did you mean" in caught.value.hint


def test_what_another_pattern_left_out_is_no_answer():
    """The reason that is given is of the pattern that matches nothing."""
    selection = Selection(("matmul_*", "typo_*"))
    with pytest.raises(SelectionError, match=r"^no dispatch matches 'typo_\*'$") as caught:
        plan([MATMUL], [TOO_LARGE], selection=selection)
    assert "did you mean" in caught.value.hint
