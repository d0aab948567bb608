"""Running on a GPU in tests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from dispatch_profiler.operations import Operation
from dispatch_profiler.profiler.measurement.kernels import open_kernels
from dispatch_profiler.runtime.cuda_driver import find_gpu


def need_gpu() -> None:
    """Skips the test without an NVIDIA GPU."""
    if find_gpu("cuda") is None:
        pytest.skip("no NVIDIA GPU, or no driver for it")


def run(built: tuple[str, Path], operation: Operation, inputs: Sequence[np.ndarray]) -> np.ndarray:
    """The result of one execution on the first GPU."""
    need_gpu()
    function, vmfb = built
    device = open_kernels("cuda")
    return device.load(vmfb.read_bytes()).bind(function, device.put(operation, inputs)).run()[0]
