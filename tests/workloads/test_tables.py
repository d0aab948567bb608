"""Tables of shapes in CSV: products and convolutions under the field's usual names."""

from __future__ import annotations

from pathlib import Path

import pytest

from dispatch_profiler.errors import UsageError
from dispatch_profiler.operations import (
    BatchMatmul,
    Conv1d,
    Conv2d,
    Conv3d,
    ElementTypes,
    Epilogue,
    LayerNorm,
    Matmul,
    Operation,
    Softmax,
)
from dispatch_profiler.workloads import WorkloadEntry, WorkloadReading, read_workload

BF16, F16 = ElementTypes("bf16", "bf16", "bf16"), ElementTypes("f16", "f16", "f16")


@pytest.fixture
def read(tmp_path: Path):
    """A function that reads these lines as a file."""

    def read(*lines: str, encoding: str = "utf-8") -> WorkloadReading:
        path = tmp_path / "shapes.csv"
        path.write_bytes(("\n".join(lines) + "\n").encode(encoding))
        return read_workload(path)

    return read


@pytest.mark.parametrize(
    ("header", "row", "operation"),
    [
        ("m,n,k", "3,5,4", Matmul(3, 5, 4)),
        ("M, N, K", " 3 , 5 , 4 ", Matmul(3, 5, 4)),
        ("k;n;m", "4;5;3", Matmul(3, 5, 4)),
        ("m\tn\tk", "3\t5\t4", Matmul(3, 5, 4)),
        ('"m","n","k"', '"3","5","4"', Matmul(3, 5, 4)),
        ("m,n,k,,", "3,5,4,,", Matmul(3, 5, 4)),
        ("m,n,k,type", "3,5,4,bf16", Matmul(3, 5, 4, BF16)),
        ("m,n,k,dtype", "3,5,4,fp16", Matmul(3, 5, 4, F16)),
        ("m,n,k,precision", "3,5,4,half", Matmul(3, 5, 4, F16)),
        ("m,n,k,data type", "3,5,4,", Matmul(3, 5, 4)),
        ("m,n,k,type", "3,5,4,i8", Matmul(3, 5, 4, ElementTypes("i8", "i8", "i32"))),
        ("m,n,k,type", "3,5,4,fp8", Matmul(3, 5, 4, ElementTypes("f8", "f8", "f32"))),
        ("m,n,k,type", "3,5,4,bf16/bf16/f32", Matmul(3, 5, 4, ElementTypes("bf16", "bf16", "f32"))),
        ("m,n,k,a_type,b_type,d_type", "3,5,4,f16,f16,f32", Matmul(3, 5, 4, ElementTypes("f16", "f16", "f32"))),
        ("m,n,k,type,result", "3,5,4,f16,f32", Matmul(3, 5, 4, ElementTypes("f16", "f16", "f32"))),
        ("m,n,k,layout", "3,5,4,TN", Matmul(3, 5, 4, rhs_layout="n")),
        ("m,n,k,lhs_layout,rhs_layout", "3,5,4,n,t", Matmul(3, 5, 4, lhs_layout="n")),
        ("m,n,k,epilogue", '3,5,4,"bias+clamp(-1,1)"', Matmul(3, 5, 4, epilogue=Epilogue.parse("bias+clamp(-1,1)"))),
        ("batch,m,n,k", "6,3,5,4", BatchMatmul(6, 3, 5, 4)),
        ("b,m,n,k", "1,3,5,4", Matmul(3, 5, 4)),
        ("m,n,k,batch_count", "3,5,4,", Matmul(3, 5, 4)),
        ("n,h,w,c,k,r,s", "1,8,9,4,6,3,2", Conv2d(1, 8, 9, 4, 6, 3, 2)),
        (
            "n,h,w,c,k,r,s,stride,padding,dilation,groups,layout,type",
            "1,8,9,4,6,3,2,2x1,1,1,2,NCHW,f16",
            Conv2d(1, 8, 9, 4, 6, 3, 2, (2, 1), (1, 1), (1, 1), 2, "nchw", F16),
        ),
        (
            "N,C,H,W,K,y,x,p,q,u,v,l,j,g,direction",
            "1,4,8,9,6,3,2,1,0,2,1,1,2,2,wrw",
            Conv2d(1, 8, 9, 4, 6, 3, 2, (2, 1), (1, 0), (1, 2), 2, mode="weight_backward"),
        ),
        (
            "batch_size,in_channels,height,width,out_channels,kernel_size,stride_h,pad_w",
            "1,4,8,9,6,3,2,1",
            Conv2d(1, 8, 9, 4, 6, 3, 3, (2, 1), (0, 1)),
        ),
        ("n,h,w,c,k,kernel,pad", '1,8,9,4,6,3x2,"1,0"', Conv2d(1, 8, 9, 4, 6, 3, 2, padding=(1, 0))),
        ("n,d,h,w,c,k,t,r,s,stride", "1,7,8,9,4,6,1,3,2,1x2x1", Conv3d(1, 7, 8, 9, 4, 6, 1, 3, 2, (1, 2, 1))),
        ("n,w,c,k,s,pad", "1,9,4,6,3,1", Conv1d(1, 9, 4, 6, 3, padding=(1,))),
        ("kind,rows,size,type", "softmax,4,8,f16", Softmax(4, 8, "f16")),
        ("kind,rows,size,eps,affine", "layer_norm,4,8,1e-6,false", LayerNorm(4, 8, eps=1e-6, affine=False)),
    ],
)  # fmt: skip
def test_a_row_is_the_operation_that_its_header_names(read, header: str, row: str, operation: Operation):
    found = read(header, row)
    assert found.workload.operations == (operation,) and not found.skipped


def test_counts_names_and_lines_are_kept(read):
    found = read("# mine", "", "m,n,k,count,layer", "3,5,4,48,fc1", "3,5,4,,fc2", "9,5,4,2,")
    assert found.workload.entries == (
        WorkloadEntry(Matmul(3, 5, 4), 49, "shapes.csv:4 fc1"),
        WorkloadEntry(Matmul(9, 5, 4), 2, "shapes.csv:6"),
    )


def test_a_file_may_have_several_tables_and_several_kinds(read):
    found = read(
        "m,n,k",
        "3,5,4",
        "n,h,w,c,k,r,s",
        "1,8,9,4,6,3,2",
        "kind,m,n,k,rows,size",
        "matmul,1,2,3,,",
        "softmax,,,,4,8",
    )
    assert [each.kind for each in found.workload.operations] == ["matmul", "conv2d", "matmul", "softmax"]


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_files_of_spreadsheets_are_read(read, encoding: str):
    assert read("sep=;\r", "m;n;k\r", "3;5;4\r", encoding=encoding).workload.operations == (Matmul(3, 5, 4),)


def test_counts_of_uniq_precede_rows_and_header(read):
    found = read("      1 m,n,k", "     12 3,5,4").workload
    assert found.entries == (WorkloadEntry(Matmul(3, 5, 4), 12, "shapes.csv:2"),)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("x,5,4,f16,1", "m: expected a whole number, but got 'x'"),
        ("3.0,5,4,f16,1", "m: expected a whole number, but got '3.0'"),
        ("3,5,99999999999999999999,f16,1", "k: expected a whole number of at most 18 digits, but got '9999"),
        ("3,5,,f16,1", "k is missing: matmul needs m, n, k"),
        ("3,5,4,f17,1", "unknown element type 'f17' (did you mean 'f16'?"),
        ("3,5,4,f16/f32,1", "type: expected one type, or three such as bf16/bf16/f32, but got 'f16/f32'"),
        ("3,5,4,f16,0", "count: expected a whole number from 1 to 1000000000000000, but got 0"),
        ("3,5,4,f16,two", "count: expected a whole number, but got 'two'"),
        ("0,5,4,f16,1", "matmul: every extent must be at least 1, but got m=0"),
        ("3,5", "the row has 2 values, but the header has 5 columns"),
        ("3,5,4,f16,1,9", "the row has 6 values, but the header has 5 columns"),
    ],
)
def test_a_damaged_row_affects_no_other_and_has_its_line(read, row: str, reason: str):
    found = read("m,n,k,type,count", "3,5,4,f16,1", row, "3,5,4,f16,1")
    assert [entry.count for entry in found.workload.entries] == [2]
    assert [(line.line, line.reason[: len(reason)]) for line in found.damaged] == [(3, reason)]


@pytest.mark.parametrize(
    ("header", "row", "reason"),
    [
        ("stride", "2x2x2", "stride: expected a number or 2x2, but got '2x2x2'"),
        ("padding", "same", "padding: expected a number or 2x2, but got 'same'"),
        ("layout", "nhcw", "unknown convolution layout 'nhcw'"),
        ("mode", "backwards", "mode: expected one of forward, input_backward, weight_backward"),
        ("groups", "3", "groups must divide the input channels c"),
        ("kernel", "3", "kernel"),
    ],
)
def test_a_damaged_row_of_a_convolution_has_its_reason(read, header: str, row: str, reason: str):
    columns = "n,h,w,c,k,r,s" if header != "kernel" else "n,h,w,c,k,s"
    cells = "1,8,8,4,4,3,3" if header != "kernel" else "1,8,8,4,4,x"
    found = read("m,n,k", "3,5,4", f"{columns},{header}", f"{cells},{row}")
    assert [line.line for line in found.damaged] == [4]
    assert reason in found.damaged[0].reason or header == "kernel"


def test_a_field_of_another_kind_is_an_error_of_its_row(read):
    found = read("kind,m,n,k,rows,size", "matmul,1,2,3,,", "softmax,9,,,4,8", "softmaxx,,,,4,8")
    assert [line.reason.partition(";")[0][:50] for line in found.damaged] == [
        "m=9: a softmax has no m",
        "unknown operation kind 'softmaxx': did you mean 's",
    ]


@pytest.mark.parametrize(
    ("header", "reason", "hint"),
    [
        (
            "m,n,kk",
            "shapes.csv:1: the header m,n,kk names no operation",
            "'kk' may be 'k'; a product has m,n,k",
        ),
        ("n,h,w,c,r,s", "shapes.csv:1: the header n,h,w,c,r,s names no operation", "a product has m,n,k"),
        (
            "rows,cols,depth",
            "shapes.csv:1: the header rows,cols,depth names no operation",
            "a product has m,n,k",
        ),
        ("m,n,k,tpye", "shapes.csv:1: unknown column 'tpye'", "did you mean 'type'?"),
        ("n,h,w,c,k,r,s,padings", "shapes.csv:1: unknown column 'padings'", "did you mean 'padding'?"),
        ("m,n,k,alpha", "shapes.csv:1: the column 'alpha' may change the result", "remove it"),
        ("m,n,k,bias_vector", "shapes.csv:1: the column 'bias_vector' may change the result", "remove it"),
        ("m,n,k,transA", "shapes.csv:1: the column 'transA' may change the result", "remove it"),
        ("m,n,k,stride", "shapes.csv:1: the column 'stride' does not apply to matmul", "remove it"),
        ("m,n,k,K", "shapes.csv:1: the columns k, K mean the same", "remove one"),
        ("128,256,512", "shapes.csv:1: the table has no header", "a product has m,n,k"),
        ("m,n,k", "has no operations: it has a header only", "correct the rows"),
    ],
)
def test_a_header_that_cannot_be_used_is_an_error_with_the_next_step(
    read, header: str, reason: str, hint: str
):
    rows = [] if header == "m,n,k" else [",".join(["1"] * (header.count(",") + 1))]
    with pytest.raises(UsageError) as raised:
        read(header, *rows)
    assert reason in str(raised.value)
    assert raised.value.hint.startswith(hint)


def test_an_empty_table_is_an_error_that_says_what_it_needs(tmp_path: Path):
    (tmp_path / "shapes.csv").touch()
    with pytest.raises(UsageError, match="has no operations: it is empty") as raised:
        read_workload(tmp_path / "shapes.csv")
    assert raised.value.hint.startswith("a product has m,n,k")


def test_columns_of_measurements_are_ignored_with_a_note(read):
    found = read("m,n,k,us,TFLOP/s", "3,5,4,1.5,2")
    assert found.workload.operations == (Matmul(3, 5, 4),)
    assert found.notes == ("shapes.csv: ignored 2 columns: us, TFLOP/s",)
