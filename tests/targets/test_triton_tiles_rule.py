"""Triton kernels of products, convolutions and layer norms that launches use without an entry."""

from __future__ import annotations

import gzip
import json
import statistics
from pathlib import Path

import pytest

from dispatch_profiler.configurations import TritonRows, TritonTiles, configuration_from_dict
from dispatch_profiler.operations import (
    BatchMatmul,
    Conv2d,
    ElementTypes,
    LayerNorm,
    LayerNormInputBackward,
    LayerNormWeightBackward,
    Matmul,
    operation_from_dict,
)
from dispatch_profiler.targets import parse_target, untuned_kernels
from dispatch_profiler.targets.untuned.triton.rows import ranked_triton_rows
from dispatch_profiler.targets.untuned.triton.tiles import ranked_triton_tiles

H200, A100 = parse_target("cuda:h200"), parse_target("cuda:sm_80")
HELD_OUT = Path(__file__).parents[2] / "benchmarks/triton_kernels/h200-2026-11-30.jsonl.gz"
F16, F8, I8 = (
    ElementTypes("f16", "f16", "f16"),
    ElementTypes("f8", "f8", "f32"),
    ElementTypes("i8", "i8", "i32"),
)
CONV = Conv2d(2, 10, 12, 8, 16, 3, 3, padding=(1, 1))
OPERATIONS = (
    Matmul(300, 500, 700),
    Matmul(33, 17, 5, F16),
    Matmul(128, 512, 512, F8),
    Matmul(8, 64, 64, I8),
    BatchMatmul(3, 70, 40, 30, F16, rhs_layout="n"),
    CONV,
    *(Conv2d(2, 10, 12, 8, 16, 3, 3, types=F16, layout="nchw", mode=mode) for mode in ("input_backward", "weight_backward")),
    LayerNorm(1000, 77, "f16"),
    LayerNormInputBackward(4, 768),
    LayerNormWeightBackward(1000, 768, "bf16"),
)  # fmt: skip


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda each: each.name)
def test_no_operation_falls_back_to_the_default_on_a_gpu(operation):
    for target in (H200, A100) if operation.element_type.bits != 8 else (H200,):
        kernels = list(untuned_kernels(operation, target))
        assert kernels and all(isinstance(each, (TritonTiles, TritonRows)) for each in kernels)
        assert len(set(kernels)) == len(kernels)
        assert [each.invalid_reason(operation, target.limits) for each in kernels] == [None] * len(kernels)


def test_what_no_kernel_computes_has_none():
    depthwise = Conv2d(1, 8, 8, 8, 8, 3, 3, groups=8, types=F16)
    assert ranked_triton_tiles(depthwise, H200) == ()
    assert ranked_triton_tiles(LayerNorm(4, 5), H200) == ranked_triton_rows(Matmul(4, 4, 4), H200) == ()
    assert ranked_triton_tiles(Matmul(64, 64, 64, F16), parse_target("llvm-cpu")) == ()
    assert ranked_triton_tiles(Matmul(64, 64, 64, F16), parse_target("cuda:sm_75")) == ()


def test_the_first_choice_is_near_the_fastest_for_operations_that_no_constant_was_fitted_to():
    """Recorded on an H200: the geometric mean of the time over that of the fastest kernel."""
    ratios = []
    for line in gzip.decompress(HELD_OUT.read_bytes()).decode().splitlines():
        fields = json.loads(line)
        times = {configuration_from_dict(each): us for each, us in fields["times"]}
        ranked = ranked_triton_tiles(operation_from_dict(fields["operation"]), H200)
        ratios.append(times[next(each for each in ranked if each in times)] / min(times.values()))
    assert len(ratios) == 110
    assert statistics.geometric_mean(ratios) < 1.08


def test_few_tiles_have_slices_and_few_rows_are_exchanged():
    first = ranked_triton_tiles(Matmul(4, 2048, 8192, F16), H200)[0]
    assert first.split_k > 1 and first.swapped and first.tile[0] == 16
    assert ranked_triton_tiles(Matmul(8192, 8192, 512, F16), H200)[0].split_k == 1
    assert min(ranked_triton_tiles(Matmul(8192, 8192, 512, F16), H200)[0].tile[:2]) >= 128


def test_blocks_of_norms_have_whole_rows_and_several_if_they_are_short():
    assert ranked_triton_rows(LayerNorm(12000, 384, "bf16"), H200)[0] == TritonRows(
        block=(4, 512), warps=2, stages=1
    )
    assert ranked_triton_rows(LayerNorm(1, 1024, "bf16"), H200)[0] == TritonRows(
        block=(1, 1024), warps=4, stages=1
    )
    assert ranked_triton_rows(LayerNorm(8, 60000), H200)[0].block == (1, 65536)
