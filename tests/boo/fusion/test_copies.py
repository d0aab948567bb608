"""Views that move rows of elements are one copy, which moves what torch moves."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch

from dispatch_profiler.boo.driver.launch import get_launchable
from dispatch_profiler.boo.fusion.nodes import NotFusible
from dispatch_profiler.boo.fusion.programs.copies import CopyPlan, copy_plan
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
    "all": program(Value((3, 300), "f32", "rows"), [("reshape", [900])], Value((900,), "f32", "rows")),
}


@pytest.mark.parametrize("name", CASES)
def test_rows_are_copied(name: str) -> None:
    case = CASES[name]
    assert KERNEL in case.mlir("f")
    operands = [np.arange(each.elements, dtype=np.float32).reshape(each.shape) for each in case.operands]
    found = get_launchable(RegionSignature(case))(torch.from_numpy(operands[0].reshape(-1)))
    (expected,) = evaluate_stored(case, operands)
    assert np.array_equal(found.numpy().reshape(expected.shape), expected)


def test_rows_are_as_long_as_possible() -> None:
    plan = copy_plan(CASES["unfold"])
    assert plan == CopyPlan(20, 0, (2, 2, 2, 3, 4), (960, 160, 20, 320, 40))
    assert copy_plan(CASES["all"]) == CopyPlan(900, 0, (), ())
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
        assert copy_plan(CASES["slice"]).offset == 3


def test_short_rows_are_left_to_iree() -> None:
    case = program(Value((40, 30), "f32", "rows"), [("t",)], Value((30, 40), "f32", "rows"))
    assert KERNEL not in case.mlir("f")
    with pytest.raises(NotFusible, match="rows"):
        copy_plan(case)
