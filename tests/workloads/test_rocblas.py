"""Profile logs of rocBLAS (ROCBLAS_LAYER=4): products, and functions that are none."""

from __future__ import annotations

from pathlib import Path

import pytest

from dispatch_profiler.errors import UnsupportedFeature
from dispatch_profiler.operations import BatchMatmul, ElementTypes, Epilogue, Matmul, Operation
from dispatch_profiler.workloads import read_workload
from dispatch_profiler.workloads.hipblaslt import gemm_call, parse_flow_map
from dispatch_profiler.workloads.rocblas import rocblas_fields, trace_reason

TYPED = "atomics_mode: atomics_allowed, transA: 'N', transB: 'T', M: 3, N: 5, K: 4, alpha: 1, lda: 3, ldb: 5, beta: {beta}, ldc: 3"
F16 = ElementTypes("f16", "f16", "f16")


def typed(function: str, rest: str = "", beta: str = "0") -> str:
    """A line of a function with its type in its name."""
    return f'- {{ rocblas_function: "{function}", {TYPED.format(beta=beta)}{rest}, call_count: 7 }}'


def extended(
    function: str, *, a: str = "f16_r", compute: str = "f32_r", rest: str = "", flags: str = "none"
) -> str:
    """A line of a function with its types as arguments."""
    types = f'a_type: "{a}", b_type: "f16_r", c_type: "f16_r", d_type: "f16_r", compute_type: "{compute}"'
    return (
        f'- {{ rocblas_function: "{function}", {types}, {TYPED.format(beta="0")}, ldd: 3{rest}, algo: 0, '
        f"solution_index: 0, flags: {flags}, call_count: 7 }}"
    )


def operation_of(line: str) -> Operation:
    return gemm_call(rocblas_fields(parse_flow_map(line))).operation


STRIDES = ", stride_a: 12, stride_b: 20, stride_c: 15"


@pytest.mark.parametrize(
    ("line", "operation"),
    [
        (typed("rocblas_sgemm"), Matmul(5, 3, 4, lhs_layout="n")),
        (typed("rocblas_sgemm_64"), Matmul(5, 3, 4, lhs_layout="n")),
        (typed("rocblas_dgemm"), Matmul(5, 3, 4, ElementTypes("f64", "f64", "f64"), lhs_layout="n")),
        (typed("rocblas_hgemm"), Matmul(5, 3, 4, ElementTypes("f16", "f16", "f16", "f16"), lhs_layout="n")),
        (typed("rocblas_sgemm", beta="-1"), Matmul(5, 3, 4, lhs_layout="n", epilogue=Epilogue.parse("residual(-1)"))),
        (typed("rocblas_sgemm", beta="1"), Matmul(5, 3, 4, lhs_layout="n", epilogue=Epilogue.parse("residual"))),
        (
            typed("rocblas_sgemm_strided_batched", f"{STRIDES}, batch_count: 6"),
            BatchMatmul(6, 5, 3, 4, lhs_layout="n"),
        ),
        (typed("rocblas_sgemm_batched", ", batch_count: 6"), BatchMatmul(6, 5, 3, 4, lhs_layout="n")),
        (extended("rocblas_gemm_ex"), Matmul(5, 3, 4, F16, lhs_layout="n")),
        (extended("rocblas_gemm_ex_64", flags="use_cu_efficiency"), Matmul(5, 3, 4, F16, lhs_layout="n")),
        (
            extended("rocblas_gemm_strided_batched_ex", rest=f"{STRIDES}, stride_d: 15, batch_count: 6"),
            BatchMatmul(6, 5, 3, 4, F16, lhs_layout="n"),
        ),
    ],
)  # fmt: skip
def test_products_of_every_kind_are_read(line: str, operation: Operation):
    assert operation_of(line) == operation


def test_only_dense_matrices_have_no_note():
    dense = typed("rocblas_sgemm_strided_batched", f"{STRIDES}, batch_count: 6")
    assert not gemm_call(rocblas_fields(parse_flow_map(dense))).has_gaps
    for line in (dense.replace("ldc: 3", "ldc: 4"), typed("rocblas_sgemm_batched", ", batch_count: 6")):
        assert gemm_call(rocblas_fields(parse_flow_map(line))).has_gaps


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (typed("rocblas_strsm"), "rocblas_strsm: only matrix products are supported"),
        (typed("rocblas_sgemmt"), "rocblas_sgemmt: only matrix products are supported"),
        (typed("rocblas_sgemv"), "rocblas_sgemv: only matrix products are supported"),
        (typed("rocblas_gemm"), "rocblas_gemm: only matrix products are supported"),
        (typed("rocblas_zgemm_batched"), "rocblas_zgemm_batched: complex types are not supported"),
        (extended("rocblas_gemm_ex3"), "rocblas_gemm_ex3: only matrix products are supported"),
        (extended("rocblas_gemm_ex", flags="fp16_alt_impl"), "rocblas_gemm_ex: flags=fp16_alt_impl: other"),
        (extended("rocblas_gemm_ex", a="f32_c"), "a_type=f32_c: available: f64_r"),
    ],
)
def test_other_functions_are_not_supported_by_name(line: str, reason: str):
    with pytest.raises(UnsupportedFeature) as raised:
        operation_of(line)
    assert str(raised.value)[: len(reason)] == reason


def test_a_log_of_all_layers_counts_each_call_once(tmp_path: Path):
    """ROCBLAS_LAYER=7: the profile counts what trace and bench lines repeat."""
    path = tmp_path / "rocblas.log"
    bench = "./rocblas-bench -f gemm -r f32_r --transposeA N --transposeB T -m 3 -n 5 -k 4 --lda 3 --ldb 5 --ldc 3"
    other = "hipblaslt-bench -m 3 -n 5 -k 4"
    lines = [
        "rocblas_create_handle",
        "rocblas_sgemm,N,T,3,5,4",
        bench,
        other,
        typed("rocblas_sgemm"),
        typed("rocblas_strsm"),
    ]
    path.write_text("\n".join(lines))
    found = read_workload(path)
    assert {entry.operation: entry.count for entry in found.workload.entries} == {
        Matmul(5, 3, 4, lhs_layout="n"): 7,
        Matmul(5, 3, 4, F16): 1,
    }
    assert [line.line for line in found.unsupported] == [1, 2, 6] and not found.damaged
    assert found.notes == (
        "rocblas.log: 1 rocblas-bench line left out, because the log counts the same calls in its `call_count`s",
    )


def test_a_line_of_a_trace_says_how_to_log_calls():
    assert trace_reason("rocblas_sgemm,N,T,8").startswith(
        "rocblas_sgemm: a line of a trace; log the calls with ROCBLAS_LAYER=4"
    )
    assert trace_reason("conv -n 1") == ""
