"""Convolutions to try operators with: a few shapes, so that few kernels are compiled, and random ones."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as functional

FUNCTIONS: dict[int, Any] = {1: functional.conv1d, 2: functional.conv2d, 3: functional.conv3d}
LAST: dict[int, Any] = {2: torch.channels_last, 3: torch.channels_last_3d}
#: Relative to the largest element: sums of up to 100 products.
TOLERANCES = {torch.float64: 1e-12, torch.float32: 2e-5, torch.float16: 2e-2, torch.bfloat16: 1e-1}


def conv(*args: Any, **options: Any) -> Any:
    """torch's convolution of as many axes as the weight has."""
    return FUNCTIONS[args[1].dim() - 2](*args, **options)


def close(found: Any, expected: Any, tolerance: float | None = None) -> bool:
    """Whether two results are equal but for roundings, in shape and type too."""
    if found.shape != expected.shape or found.dtype != expected.dtype:
        return False
    if not expected.numel():
        return True
    limit = TOLERANCES[expected.dtype] if tolerance is None else tolerance
    scale = float(expected.detach().abs().max()) + 1e-30
    return float((found.detach().double() - expected.detach().double()).abs().max()) <= limit * scale


def tensors(*, dtype: Any = torch.float32, seed: int = 0, groups: int = 1) -> tuple[Any, Any, Any]:
    """Input (2, 4, 7, 6), weight (6, 4 / groups, 3, 3), bias (6,)."""
    generator = torch.Generator().manual_seed(seed)
    shapes = (2, 4, 7, 6), (6, 4 // groups, 3, 3), (6,)
    drawn = [torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in shapes]
    return drawn[0], drawn[1], drawn[2]
