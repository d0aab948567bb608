"""Kernels for several sizes are built, compared with numpy at each size, and timed in turns."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from dispatch_profiler.compiler import Cache, compiler_for
from dispatch_profiler.configurations import RowsMicrokernel
from dispatch_profiler.dispatches import Dispatch
from dispatch_profiler.operations import Epilogue, Matmul
from dispatch_profiler.targets import LARGEST_BATCH, parse_target, rows_microkernel
from dispatch_profiler.tuner.evaluation.building import BuildOptions
from dispatch_profiler.tuner.ranges.batch_bench import BatchBench, BenchOptions

TARGET = parse_target("llvm-cpu")
LINEAR = Matmul(9, 70, 40, rhs_layout="n", epilogue=Epilogue.parse("bias+relu"))
KERNEL = RowsMicrokernel((2, 32), ((4, 1, 32), (9, 2, 96)))


@pytest.fixture
def bench(shared_builds: Path, tmp_path: Path) -> Iterator[BatchBench]:
    if rows_microkernel(replace(LINEAR, m=LARGEST_BATCH), TARGET) is None:
        pytest.skip("no kernel for this CPU is for any number of rows")
    build = BuildOptions(workers=1)
    options = BenchOptions(TARGET, compiler_for(TARGET), build, Cache(shared_builds), tmp_path, 7, 60.0)
    with BatchBench(options) as opened:
        yield opened


def test_kernels_are_verified_and_timed_at_each_size(bench: BatchBench):
    kernels = bench.build([Dispatch(LINEAR, KERNEL)])
    for rows in (1, 4, 5, 9):
        (times,) = bench.seconds_at(replace(LINEAR, m=rows), kernels, 3).values()
        assert len(times) == 3
        assert min(times) > 0.0
    assert bench.failures == {}
    where = bench.provenance(kernels[0])
    assert (where.target, where.module_key) == ("llvm-cpu", kernels[0].module_key)
    assert where.flags
    assert where.iree.startswith(f"compiler {compiler_for(TARGET).revision}, runtime")


def test_a_kernel_that_computes_something_else_is_rejected(bench: BatchBench):
    """The kernel has a relu, the operation has none."""
    kernels = bench.build([Dispatch(LINEAR, KERNEL)])
    other = replace(LINEAR, m=5, epilogue=Epilogue.parse("bias"))
    assert bench.seconds_at(other, kernels, 3) == {}
    assert "elements are wrong" in bench.failures[kernels[0].name]
    assert bench.seconds_at(replace(LINEAR, m=5), kernels, 3) == {}


def test_a_kernel_that_does_not_compile_is_left_out(bench: BatchBench):
    invalid = Dispatch(LINEAR, replace(KERNEL, divisions=((4, 1, 32),)))
    assert bench.build([invalid]) == []
    assert "up to 4 rows" in bench.failures[invalid.name]
