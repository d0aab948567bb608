"""Command lines of hipblaslt-bench and rocblas-bench, and logs in CSV: defaults, options, columns."""

from __future__ import annotations

from pathlib import Path

import pytest

from dispatch_profiler.errors import UnsupportedFeature, UsageError, WorkloadError
from dispatch_profiler.operations import BatchMatmul, ElementTypes, Epilogue, Matmul, Operation
from dispatch_profiler.workloads import read_workload
from dispatch_profiler.workloads.bench_lines import bench_fields
from dispatch_profiler.workloads.hipblaslt import gemm_call

BENCH = "hipblaslt-bench -m 3 -n 5 -k 4"
ROCBLAS = "./rocblas-bench -f gemm_ex -m 3 -n 5 -k 4"
F16 = ElementTypes("f16", "f16", "f16")


def operation_of(line: str) -> Operation:
    return gemm_call(bench_fields(line)).operation


@pytest.mark.parametrize(
    ("line", "operation"),
    [
        ("hipblaslt-bench", Matmul(128, 128, 128, F16)),
        (BENCH, Matmul(5, 3, 4, F16)),
        (f"{BENCH} --precision bf16_r", Matmul(5, 3, 4, ElementTypes("bf16", "bf16", "bf16"))),
        (f"{BENCH} --d_type f32_r", Matmul(5, 3, 4, ElementTypes("f16", "f16", "f32"))),
        (f"{BENCH} -r s --compute_type s", Matmul(5, 3, 4)),
        (f"{BENCH} -r d --compute_type d", Matmul(5, 3, 4, ElementTypes("f64", "f64", "f64"))),
        (f"{BENCH} --bias_vector --bias_type default", Matmul(5, 3, 4, F16, epilogue=Epilogue.parse("bias"))),
        (f"{BENCH} --beta 1", Matmul(5, 3, 4, F16, epilogue=Epilogue.parse("residual"))),
        (f"{BENCH} --alpha 0.5 --beta -1", Matmul(5, 3, 4, F16, epilogue=Epilogue.parse("scale(0.5)+residual(-1)"))),
        (
            f"{BENCH} --beta 1 --bias_vector --activation_type relu",
            Matmul(5, 3, 4, F16, epilogue=Epilogue.parse("bias+residual+relu")),
        ),
        (ROCBLAS, Matmul(5, 3, 4)),
        ("rocblas-bench -f gemm", Matmul(128, 128, 128)),
        (f"{ROCBLAS} -r f16_r --compute_type f32_r", Matmul(5, 3, 4, F16)),
        (f"{ROCBLAS} --transposeA T --transposeB C", Matmul(5, 3, 4, lhs_layout="n", rhs_layout="n")),
        (
            "rocblas-bench -f gemm_strided_batched -r d -m 3 -n 5 -k 4 --batch_count 6",
            BatchMatmul(6, 5, 3, 4, ElementTypes("f64", "f64", "f64")),
        ),
    ],
)  # fmt: skip
def test_what_a_line_leaves_out_is_the_programs_default(line: str, operation: Operation):
    assert operation_of(line) == operation


@pytest.mark.parametrize(
    "options",
    [
        "--iters 100 -i 3 -j 2 --cold_iters 5 --rotating 512 --flush --use_gpu_timer --HMM false",
        "--algo_method all --requested_solution -1 --solution_index 7 --splitk 4 --wgm 2 --api_method cpp -v",
        "--print_kernel_info --initialization trig_float --device 1 --workspace 1024 --skip_slow_solution_ratio 0.5",
        "--precision default --a_type default --compute_type default --bias_type default",
        "--amaxScaleA false --swizzleA 0 --scaleA 0 --gradient false --use_e=0 --compute_input_typeA f16_r",
        "> log.txt 2>&1",
        "| tee log.txt",
        "; hipblaslt-bench -m 9",
    ],
)
def test_options_that_set_how_the_program_measures_are_ignored(options: str):
    assert operation_of(f"{BENCH} {options}") == Matmul(5, 3, 4, F16)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ("--amaxScaleA", "amaxScaleA=true: operands are not scaled by their largest magnitude"),
        ("--swizzleB", "swizzleB=true: operands are not swizzled"),
        ("--swizzle_a 1", "swizzleA=1: operands are not swizzled"),
        ("--scaleB 1001", "scaleB=1001: operands are not scaled by vectors or blocks"),
        (
            "--compute_input_typeB f8_r",
            "compute_input_typeB=f8_r and b_type=f16_r: operands are not converted",
        ),
        ("--compute_type x", "compute_type=xf32_r: f16 products are summed in f32"),
        (
            "--b_type i32_r",
            "a_type=f16_r, b_type=i32_r, d_type=f16_r, compute_type=f32_r: i32 is the result type of i8",
        ),
        ("--alpha 0", "alpha=0: nothing is multiplied"),
        ("--grouped_gemm -m 5 -n 6 -k 7", "grouped_gemm=true: products of a group have different shapes"),
        ("--sparse_a", "--sparse_a: an unknown option of hipblaslt-bench, which may change the result"),
        (
            "--activaton_type relu",
            "--activaton_type: an unknown option of hipblaslt-bench, which may change the result; "
            "did you mean --activation_type?",
        ),
    ],
)
def test_options_that_change_the_result_are_rejected_with_their_reason(options: str, reason: str):
    with pytest.raises(UnsupportedFeature) as raised:
        operation_of(f"{BENCH} {options}")
    assert str(raised.value)[: len(reason)] == reason


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("rocblas-bench -f trsm --side L -m 8", "rocblas_trsm: only matrix products are supported"),
        ("rocblas-bench --function=axpy --incx 1", "rocblas_axpy: only matrix products are supported"),
        ("rocblas-bench -f gemm -r f32_c", "rocblas_cgemm: complex types are not supported"),
        (f"{ROCBLAS} --flags 4", "rocblas_gemm_ex: flags=4: other arithmetic is not supported"),
        (f"{ROCBLAS} --alphai 2", "alphai=2: an unknown field that may change the result"),
        (f"{ROCBLAS} --bias_vector", "--bias_vector: an unknown option of rocblas-bench"),
    ],
)
def test_other_functions_of_rocblas_bench_are_not_supported(line: str, reason: str):
    with pytest.raises(UnsupportedFeature) as raised:
        operation_of(line)
    assert str(raised.value)[: len(reason)] == reason


@pytest.mark.parametrize(
    "program",
    ["hipblaslt-bench.exe", "C:\\rocm\\hipblaslt-bench.exe", '"C:\\Program Files\\hipblaslt-bench.exe"', "'./hipblaslt-bench'"],
)  # fmt: skip
def test_the_program_may_have_a_path_and_quotes(program: str):
    assert operation_of(f"{program} -m 3 -n 5 -k 4") == Matmul(5, 3, 4, F16)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (f"{BENCH} 7", "expected an option of hipblaslt-bench, but got '7'"),
        (f"{BENCH} -m 5.5", "M: expected a whole number, but got '5.5'"),
        (f"{BENCH} -m {10**20}", f"M: expected a whole number of at most 18 digits, but got '{10**20}'"),
        ("rocblas-bench -m 3", "expected a function, such as -f gemm_ex"),
    ],
)
def test_a_malformed_line_is_damaged(line: str, reason: str):
    with pytest.raises(WorkloadError) as raised:
        operation_of(line)
    assert (str(raised.value), type(raised.value)) == (reason, WorkloadError)


COLUMNS = "transA,transB,batch_count,m,n,k,a_type,b_type,c_type,d_type,compute_type"
ROW = "T,N,1,3,5,4,bf16_r,bf16_r,bf16_r,bf16_r,f32_r"
BF16 = Matmul(5, 3, 4, ElementTypes("bf16", "bf16", "bf16"), rhs_layout="n")


@pytest.fixture
def read(tmp_path: Path):
    """A function that reads these lines as a file."""

    def read(*lines: str):
        path = tmp_path / "log.csv"
        path.write_text("\n".join(lines) + "\n")
        return read_workload(path)

    return read


@pytest.mark.parametrize(
    "column", ["swizzle_a", "swizzleB", "SwizzleA", "amaxScaleA", "amax_d", "scaleC", "new_scale"]
)
def test_a_column_that_changes_the_result_is_read_row_by_row(read, column: str):
    found = read(
        f"[0]:{COLUMNS},{column},us,hipblaslt-Gflops", f"    {ROW},0,3.5,100", f"    {ROW},1,3.5,100"
    )
    assert found.workload.operations == (BF16,)
    assert [line.line for line in found.unsupported] == [3]


def test_a_column_precision_has_all_types(read):
    found = read("transA,transB,M,N,K,precision,compute_type", "T,N,3,5,4,bf16_r,f32_r")
    assert found.workload.operations == (BF16,)


def test_a_log_without_types_is_an_error_that_shows_both_forms(read):
    with pytest.raises(
        UsageError, match=r"log\.csv:1: .* needs the columns a_type, b_type, compute_type, d_type"
    ) as raised:
        read("transA,transB,M,N,K", "T,N,3,5,4")
    assert (
        raised.value.hint == "row-major products have the columns m,n,k,type,layout, and no transA and transB"
    )


def test_counts_of_uniq_precede_rows(read):
    found = read(COLUMNS, f"      4 {ROW}", ROW).workload
    assert [entry.count for entry in found.entries] == [5]
