"""Launches the kernels of programs, and compares their results with references."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from dispatch_profiler.boo.driver.launch import get_launchable
from dispatch_profiler.boo.driver.torch_functions import to_numpy, to_torch
from dispatch_profiler.boo.fusion.programs.programs import OperatorProgram
from dispatch_profiler.boo.fusion.spec import RegionSignature
from dispatch_profiler.operations import Reference

CPU = torch.device("cpu")


def launched(program: OperatorProgram, operands: Sequence[np.ndarray]) -> list[np.ndarray]:
    """What the kernel computes, in float64, which has all numbers of the other types."""
    given = [
        to_torch(each.reshape(-1), of.type, CPU) for each, of in zip(operands, program.operands, strict=True)
    ]
    found = get_launchable(RegionSignature(program))(*given)
    results = found if isinstance(found, tuple) else (found,)
    return [
        to_numpy(each, of.type).astype(np.float64).reshape(of.shape)
        for each, of in zip(results, program.results, strict=True)
    ]


def check_close(found: np.ndarray, reference: Reference) -> None:
    """NaN and infinities are those of the reference, and other numbers are within its tolerance."""
    expected, tolerance = reference.expected, reference.tolerance
    assert tolerance is not None
    finite = np.isfinite(expected)
    assert np.array_equal(found[~finite], expected[~finite], equal_nan=True)
    assert (np.abs(found[finite] - expected[finite]) <= tolerance[finite]).all()
