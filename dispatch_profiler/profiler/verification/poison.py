"""Initial contents of a result's memory, so that an element that is never written is detected."""

from __future__ import annotations

import numpy as np

from dispatch_profiler.operations import ElementType


def poison(type_: ElementType, shape: tuple[int, ...]) -> np.ndarray:
    """An array that no correct result equals anywhere.

    All bits set is NaN in every floating-point type here. In i32 it is -2**31 + 1, which no sum of i8
    products reaches.
    """
    if type_.is_integer:
        return np.full(shape, np.iinfo(type_.dtype).min + 1, type_.dtype)
    return np.full(int(np.prod(shape)) * type_.bytes, 0xFF, np.uint8).view(type_.dtype).reshape(shape)
