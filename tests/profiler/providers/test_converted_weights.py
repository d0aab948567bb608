"""Libraries say which filters and weights they convert before they are timed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dispatch_profiler.operations import Conv2d, Distribution, LayerNorm, Matmul, Operation
from dispatch_profiler.profiler.providers.libraries import open_library
from dispatch_profiler.profiler.verification.inputs import draw

CONVOLUTION = Conv2d(1, 4, 4, 2, 3, 3, 3)
ROWS = [
    ("numpy", CONVOLUTION, True),
    ("numpy", replace(CONVOLUTION, mode="weight_backward"), False),
    ("numpy", Matmul(4, 6, 8), False),
    ("numpy", LayerNorm(3, 5), False),
    ("torch", CONVOLUTION, True),
    ("torch", replace(CONVOLUTION, mode="input_backward"), True),
    ("torch", replace(CONVOLUTION, mode="weight_backward"), False),
    ("torch", Matmul(4, 6, 8), False),
    ("torch", LayerNorm(3, 5), False),
    ("torch", LayerNorm(3, 5, type="bf16"), True),
]


def stored(handle: Any) -> tuple[int, list[int]]:
    """Bytes of an element, and strides in bytes in any order of axes: a view has those of its array."""
    if isinstance(handle, np.ndarray):
        return handle.itemsize, sorted(handle.strides)
    return handle.itemsize, sorted(stride * handle.itemsize for stride in handle.stride())


@pytest.mark.parametrize(("name", "operation", "is_ahead"), ROWS)
def test_what_is_converted_before_it_is_timed_is_declared(name: str, operation: Operation, is_ahead: bool):
    """Seen in the operands: those that were converted are stored in another order or type."""
    pytest.importorskip(name)
    library = open_library(name, "local-sync", 1)
    inputs = draw(operation, Distribution.REALS, 1)
    prepared = library.put(operation, inputs).handles[: len(inputs)]

    assert library.converts_weights_ahead(operation) is is_ahead
    assert ([stored(each) for each in prepared] != [stored(each) for each in inputs]) is is_ahead
