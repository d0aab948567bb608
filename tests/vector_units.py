"""Marks for tests that need the vector instructions of some CPUs."""

from __future__ import annotations

import pytest

from dispatch_profiler.configurations.cpu.microkernel import vector_lanes
from dispatch_profiler.targets import parse_target

needs_avx512 = pytest.mark.skipif(
    vector_lanes(parse_target("llvm-cpu").limits) != 16, reason="this CPU has no AVX-512"
)
