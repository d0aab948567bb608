"""Views that move rows of elements are one copy, which moves what torch moves."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch

from dispatch_profiler.boo.driver.launch import get_launchable
from dispatch_profiler.boo.fusion.nodes import NotFusible
from dispatch_profiler.boo.fusion.programs.copies import CopyPlan, TablePlan, copy_plan
from dispatch_profiler.boo.fusion.programs.operators import evaluate_stored
from dispatch_profiler.boo.fusion.programs.programs import OperatorProgram
from dispatch_profiler.boo.fusion.programs.values import Value
from dispatch_profiler.boo.fusion.spec import RegionSignature

pytestmark = pytest.mark.usefixtures("kernels_of_this_run")
KERNEL = "hal.executable.source"
IMAGE, TOKENS = Value((2, 20, 6, 8), "f32", "channels"), Value((8, 12, 20), "f32", "rows")
UNFOLDED: list[Any] = [
    *(("reshape", [120, 2, 4, 2]), ("transpose.int", 1, 2), ("reshape", [2, 20, 12, 4])),
    *(("transpose.int", 1, 3), ("reshape", [8, 12, 20])),
]
FOLDED: list[Any] = [
    *(("reshape", [2, 4, 12, 20]), ("transpose.int", 1, 3), ("reshape", [120, 4, 2, 2])),
    *(("transpose.int", 1, 2), ("reshape", [2, 20, 6, 8])),
]


def program(source: Value, calls: list[Any], result: Value) -> OperatorProgram:
    """A program of views, each of which takes the one before."""
    listed = [[name, [{"value": at}, *arguments], {}] for at, (name, *arguments) in enumerate(calls)]
    return OperatorProgram("views", (source,), json.dumps(listed), (len(calls),), (result,))


CASES: dict[str, OperatorProgram] = {
    # In the order of the memory, pixels of an image as windows of 2 x 2 pixels, and back.
    "unfold": program(IMAGE, UNFOLDED, TOKENS),
    "fold": program(TOKENS, FOLDED, IMAGE),
    "heads": program(
        Value((2, 7, 96), "f32", "rows"),
        [("reshape", [2, 7, 3, 32]), ("transpose.int", 1, 2)],
        Value((2, 3, 7, 32), "f32", "rows"),
    ),
    "slice": program(
        Value((5, 70), "f32", "rows"), [("slice.Tensor", 1, 3, 40)], Value((5, 37), "f32", "rows")
    ),
    "expand": program(
        Value((1, 3, 17), "f32", "rows"), [("expand", [4, 3, 17])], Value((4, 3, 17), "f32", "rows")
    ),
    "roll": program(
        Value((2, 6, 8, 20), "f32", "rows"),
        [("roll", [-3, 2], [1, 2])],
        Value((2, 6, 8, 20), "f32", "rows"),
    ),
    "pad": program(
        Value((2, 5, 20), "f32", "rows"),
        [("constant_pad_nd", [0, 0, 1, 2, 0, 1])],
        Value((3, 8, 20), "f32", "rows"),
    ),
    # Patches of 2 x 2 pixels become one.
    "merge": OperatorProgram(
        "slices",
        (Value((1, 6, 8, 20), "f32", "rows"),),
        json.dumps(
            [
                *(["slice.Tensor", [{"value": 0}, 1, each, 6, 2], {}] for each in (0, 1)),
                *(["slice.Tensor", [{"value": each}, 2, at, 8, 2], {}] for at in (0, 1) for each in (1, 2)),
                ["cat", [[{"value": each} for each in (3, 4, 5, 6)], -1], {}],
            ]
        ),
        (7,),
        (Value((1, 3, 4, 80), "f32", "rows"),),
    ),
    "token": OperatorProgram(
        "cat",
        (Value((1, 1, 48), "f32", "rows"), Value((2, 9, 48), "f32", "rows")),
        json.dumps(
            [
                ["expand", [{"value": 0}, [2, 1, 48]], {}],
                ["cat", [[{"value": 2}, {"value": 1}], 1], {}],
            ]
        ),
        (3,),
        (Value((2, 10, 48), "f32", "rows"),),
    ),
    "all": program(Value((3, 300), "f32", "rows"), [("reshape", [900])], Value((900,), "f32", "rows")),
}


@pytest.mark.some(5)
@pytest.mark.parametrize("name", CASES)
def test_rows_are_copied(name: str) -> None:
    assert KERNEL in CASES[name].mlir("f")
    check(CASES[name])


def check(case: OperatorProgram) -> None:
    """Assert that a program moves what torch moves."""
    operands = [
        (1 + at / 4 + np.arange(each.elements, dtype=np.float32)).reshape(each.shape)
        for at, each in enumerate(case.operands)
    ]
    found = get_launchable(RegionSignature(case))(*(torch.from_numpy(each.reshape(-1)) for each in operands))
    (expected,) = evaluate_stored(case, operands)
    assert np.array_equal(found.numpy().reshape(expected.shape), expected)


def test_elements_are_rolled_without_rows() -> None:
    image = Value((2, 6, 5, 8), "f32", "channels")
    case = program(image, [("roll", [3, -2], [1, 3])], image)
    assert KERNEL not in case.mlir("f")
    check(case)


def test_rows_are_as_long_as_possible() -> None:
    plan = copy_plan(CASES["unfold"])
    assert plan == CopyPlan(20, 0, (2, 2, 2, 3, 4), (960, 160, 20, 320, 40))
    assert copy_plan(CASES["all"]) == CopyPlan(900, 0, (), ())
    table = copy_plan(CASES["pad"])
    assert isinstance(table, TablePlan)
    assert table.row == 20
    assert [(each.source, each.targets) for each in table.parts] == [
        (None, (0, 6, 7, 8, 14, 15, *range(16, 24))),
        (0, (*range(1, 6), *range(9, 14))),
    ]
    assert copy_plan(CASES["slice"]) == CopyPlan(37, 3, (5,), (70,))


def test_narrow_types_are_copied() -> None:
    case = program(
        Value((2, 3, 21), "bf16", "rows"), [("transpose.int", 0, 1)], Value((3, 2, 21), "bf16", "rows")
    )
    assert KERNEL in case.mlir("f")
    x = torch.randn(2, 3, 21).bfloat16()
    found = get_launchable(RegionSignature(case))(x.reshape(-1))
    assert torch.equal(found.reshape(3, 2, 21), x.transpose(0, 1))


def test_a_plan_is_made_while_torch_compiles() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    copy_plan.cache_clear()
    with FakeTensorMode():
        assert copy_plan(CASES["slice"]) == CopyPlan(37, 3, (5,), (70,))


def test_short_rows_are_left_to_iree() -> None:
    case = program(Value((40, 30), "f32", "rows"), [("t",)], Value((30, 40), "f32", "rows"))
    assert KERNEL not in case.mlir("f")
    with pytest.raises(NotFusible, match="rows"):
        copy_plan(case)
