"""Kernels for AMX through the compiler: results are verified where this CPU has AMX, and the code has its instructions."""

from __future__ import annotations

from dataclasses import replace

import pytest
from compiled_helpers import verify_compiled

from dispatch_profiler.amx_permission import may_use_amx
from dispatch_profiler.configurations import AmxMicrokernel
from dispatch_profiler.dispatches import Dispatch
from dispatch_profiler.operations import Conv1d, Conv2d, Conv3d, ElementTypes, Epilogue, Matmul
from dispatch_profiler.targets import host_cpu, parse_target

TARGET = parse_target("llvm-cpu:sapphirerapids")
BF16, WIDE = ElementTypes("bf16", "bf16", "bf16"), ElementTypes("bf16", "bf16", "f32")
I8, F16 = ElementTypes("i8", "i8", "i32"), ElementTypes("bf16", "bf16", "f16")
REAL, SCALED = ElementTypes("i8", "i8", "f32"), Epilogue.parse("row_scale+channel_scale+bias+silu")
FHWC, HWCF = "nhwc_fhwc_nhwc", "nhwc_hwcf_nhwc"
ALL = Epilogue.parse("scale_shift+residual+gelu")
CASES = [
    (Matmul(100, 200, 96, BF16, rhs_layout="n", epilogue=ALL), AmxMicrokernel((64, 64), (32, 32))),
    (Matmul(7, 40, 24, WIDE, epilogue=Epilogue.parse("bias+relu")), AmxMicrokernel((16, 96), (16, 48))),
    (Matmul(50, 64, 128, I8), AmxMicrokernel((32, 32), (32, 32))),
    (Matmul(50, 72, 128, REAL, epilogue=SCALED), AmxMicrokernel((32, 32), (32, 32))),
    (Matmul(19, 40, 64, BF16, epilogue=Epilogue.parse("row_scale")), AmxMicrokernel((16, 32), (16, 32))),
    (Conv2d(2, 9, 7, 16, 40, 3, 3, padding=(1, 1), types=BF16, layout=FHWC, epilogue=ALL), AmxMicrokernel((48, 32), (48, 16))),
    (Conv2d(1, 20, 20, 24, 24, 3, 3, stride=(2, 2), dilation=(1, 2), types=BF16, layout=HWCF), AmxMicrokernel((32, 32), (32, 32))),
    (Conv2d(1, 9, 9, 32, 48, 1, 1, types=I8, layout=HWCF), AmxMicrokernel((32, 64), (32, 32))),
    (Conv1d(2, 30, 16, 24, 3, types=F16), AmxMicrokernel((32, 32), (32, 32))),
    (Conv3d(2, 4, 5, 6, 16, 24, 2, 3, 3, types=BF16), AmxMicrokernel((16, 16), (16, 16))),
]  # fmt: skip


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    "cases", [pytest.param(CASES[::3], id="some"), pytest.param(CASES, id="all", marks=pytest.mark.slow)]
)
def test_results_are_verified(packed: bool, cases):
    """Compiled for a CPU with AMX on every machine, and executed where this process may use it."""
    runs = "amx_bf16" in host_cpu().features and may_use_amx()
    dispatches = [Dispatch(operation, replace(each, packed=packed)) for operation, each in cases]
    for each in dispatches:
        assert each.configuration.invalid_reason(each.operation, TARGET.limits) is None
    verify_compiled(dispatches, TARGET.compile_flags, runs=runs)
