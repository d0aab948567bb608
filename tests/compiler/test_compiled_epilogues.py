"""Every step of an epilogue, and sequences of them, through the compiler on this CPU: results are verified."""

from __future__ import annotations

import itertools

import pytest
from compiled_helpers import TARGET, verify_compiled
from epilogue_helpers import OF_ROWS, SEQUENCES, STEP_TEXTS

from dispatch_profiler.configurations import Default
from dispatch_profiler.dispatches import Dispatch
from dispatch_profiler.errors import OperationError
from dispatch_profiler.operations import (
    BatchMatmul,
    Conv2d,
    ElementTypes,
    Epilogue,
    Matmul,
    Operation,
)

TYPES = {
    "f32": ElementTypes(),
    "f16": ElementTypes("f16", "f16", "f16"),
    "bf16": ElementTypes("bf16", "bf16", "f32"),
    "f64": ElementTypes("f64", "f64", "f64"),
    "f8": ElementTypes("f8", "f8", "f8"),
    "i8": ElementTypes("i8", "i8", "i32"),
}
#: What stays small, with channels that are no multiple of a vector.
SHAPES = {
    "matmul": (Matmul, {"m": 12, "n": 19, "k": 24}),
    "batch_matmul": (BatchMatmul, {"batch": 2, "m": 8, "n": 16, "k": 12, "rhs_layout": "n"}),
    "nhwc": (Conv2d, {"n": 2, "h": 6, "w": 5, "c": 4, "k": 6, "r": 3, "s": 3, "padding": (1, 1)}),
    "nchw": (Conv2d, {"n": 2, "h": 6, "w": 5, "c": 4, "k": 6, "r": 3, "s": 2, "groups": 2, "layout": "nchw"}),
}
Row = tuple[str, str, str]


def operation_of(row: Row) -> Operation | None:
    """None if the types do not take the epilogue, or the compiler does not."""
    text, shape, types = row
    make, extents = SHAPES[shape]
    try:
        operation: Operation = make(**extents, types=TYPES[types], epilogue=Epilogue.parse(text))
    except OperationError:
        return None
    return None if TARGET.unsupported_reason(operation) else operation


def rows_of(texts: tuple[str, ...]) -> list[Row]:
    return [row for row in itertools.product(texts, SHAPES, TYPES) if operation_of(row)]


def rotated(rows: list[Row]) -> list[Row]:
    """One row for each text: with other shapes and types than the text before."""
    found = []
    for number, text in enumerate(dict.fromkeys(text for text, *_ in rows)):
        own = [row for row in rows if row[0] == text]
        found.append(own[5 * number % len(own)])
    return found


#: Every step and every sixth sequence once, with shapes and types in turn.
CHOSEN = [*rotated(rows_of((*STEP_TEXTS, *OF_ROWS))), *rotated(rows_of(SEQUENCES))[::6]]
FULL = [row for row in rows_of((*STEP_TEXTS, *OF_ROWS, *SEQUENCES)) if row not in CHOSEN]


def groups(rows: list[Row], size: int = 12) -> list[list[Row]]:
    """The rows of each module: starting the compiler takes as long as ten of them."""
    return [rows[begin : begin + size] for begin in range(0, len(rows), size)]


@pytest.mark.slow
@pytest.mark.parametrize(
    "rows",
    [
        *(pytest.param(rows, id=f"chosen{number}") for number, rows in enumerate(groups(CHOSEN))),
        *(
            pytest.param(rows, id=f"full{number}", marks=pytest.mark.slow)
            for number, rows in enumerate(groups(FULL))
        ),
    ],
)
def test_a_compiled_epilogue_is_verified(rows: list[Row]):
    """On integers and on reals, within the bound of a kernel that rounds once."""
    operations = filter(None, map(operation_of, rows))
    verify_compiled([Dispatch(operation, Default()) for operation in operations])
