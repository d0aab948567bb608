"""Arrays that a launch reads and writes in place."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import SupportsIndex

import numpy as np
import numpy.typing as npt

#: Alignment in bytes that IREE requires of memory that it does not copy.
ALIGNMENT = 64


def empty_aligned(shape: SupportsIndex | Sequence[SupportsIndex], dtype: npt.DTypeLike) -> np.ndarray:
    """An uninitialized, row-major array whose memory is aligned to 64 bytes: launches do not copy it.

    `numpy.empty` aligns small arrays by chance, and large ones never.
    """
    extents = (shape,) if hasattr(shape, "__index__") else tuple(shape)
    type_ = np.dtype(dtype)
    size = math.prod(map(int, extents)) * type_.itemsize
    memory = np.empty(size + ALIGNMENT - 1, np.uint8)
    start = -memory.__array_interface__["data"][0] % ALIGNMENT
    return np.ndarray(extents, type_, memory, start)
