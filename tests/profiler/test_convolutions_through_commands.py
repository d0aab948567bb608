"""Convolutions of every rank and mode, and Winograd's forms, through all three commands."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from dispatch_profiler.operations import CONV_ROLES, operation_from_dict
from dispatch_profiler.profiler.records.record_file import read_records

MODES = f"--conv-mode={','.join(CONV_ROLES)}"
SHAPES = {
    "conv1d": ("--conv-w=13", "--conv-c=4", "--conv-k=6", "--conv-stride=2", "--conv-groups=2", "--lhs=f32"),
    "conv2d": (
        "--conv-n=2", "--conv-h=6", "--conv-w=7", "--conv-c=4", "--conv-k=6", "--conv-padding=1",
        "--conv-padding-after=0x2", "--layout=nhwc_kyxc_nchw", "--lhs=f32",
    ),
    "conv3d": ("--conv-d=4", "--conv-h=6", "--conv-w=7", "--conv-c=3", "--conv-k=2", "--conv-padding=1", "--lhs=f32"),
}  # fmt: skip


def rows(path: str = "data.csv") -> list[dict[str, str]]:
    return list(csv.DictReader(Path(path).read_text().splitlines()))


@pytest.mark.some(2)
@pytest.mark.parametrize("kind", SHAPES)
@pytest.mark.usefixtures("in_process")
def test_every_mode_is_measured_beside_the_libraries(null_tree, run, kind):
    """Every row has its figure and its columns."""
    pytest.importorskip("torch")
    null_tree(*SHAPES[kind], MODES, "--default-config=only")
    run(
        "profiler", "--providers=iree,numpy,torch", "--output=data.csv", "--columns=all", "--benchmark-repetitions=2",
        "--batch-size=1",
    ).checked()  # fmt: skip
    found = rows()
    assert {(row["Provider"], row["conv-mode"] or "forward") for row in found} == {
        (provider, mode) for provider in ("IREE Codegen", "numpy", "torch") for mode in CONV_ROLES
    }
    assert {row["Verification"] for row in found} == {"SUCCESS"}
    assert {row["conv-padding-after"] for row in found} == ({"0x2"} if kind == "conv2d" else {""})
    assert all(row["Runtime(ms)"] for row in found)
    for record in read_records(Path("data.jsonl")):
        assert record.op_kind == f"OperationKind.{kind.capitalize()}"


@pytest.mark.slow
def test_a_transposed_convolution_has_a_bias_for_each_channel_of_its_output(null_tree, run):
    """4 channels become 6: the gradient of an input with 6 channels."""
    shapes = ("--conv-h=5", "--conv-w=6", "--conv-c=4", "--conv-k=6", "--lhs=f32", "--epilogue=bias")
    null_tree(
        *shapes, "--conv-transposed", "--conv-stride=2", "--conv-output-padding=1", "--default-config=only"
    )
    assert run("profiler", "--output=data.csv", "--columns=all").status == 0
    (row,) = rows()
    assert row["Operation"].startswith("conv2d_input_backward_1x5x6x4_3x3x6x4_1x12x14x6_")
    assert (row["conv-h"], row["conv-c"], row["conv-k"]) == ("12", "6", "4")


def test_a_manifest_entry_with_a_malformed_mode_is_an_error_of_its_own():
    """Data that is no operation raises the error of operations, not another."""
    from dispatch_profiler.errors import OperationError
    from dispatch_profiler.operations import Conv2d

    data = Conv2d(1, 4, 4, 2, 2, 3, 3).to_dict()
    for wrong in (
        {"mode": "sideways"},
        {"mode": 3},
        {"layout": 7},
        {"mode": {}},
        {"layout": {}},
        {"layout": ["nhwc"]},
        {"padding_after": "1x1"},
        {"stride": 2},
    ):
        with pytest.raises(OperationError):
            operation_from_dict({**data, **wrong})


SHAPE = ("--conv-h=9", "--conv-w=7", "--conv-c=16", "--conv-k=16", "--conv-padding=1")
FILE = "configurations: [{form: winograd}, {form: winograd_2, distribution: [5, 16], vector: [5, 16, 1]}]"


@pytest.mark.slow
@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(
            ("--layout=nhwc_fhwc_nhwc", "--epilogue=bias+relu", "--lhs=f32"), marks=pytest.mark.slow
        ),
        ("--layout=nchw", "--conv-mode=input_backward", "--lhs=f32"),
        pytest.param(("--layout=nhwc", "--lhs=f64"), marks=pytest.mark.slow),
    ],
)
def test_the_forms_of_a_file_are_verified(run, arguments):
    Path("mine.yaml").write_text(FILE)
    only = ("--configurations=mine.yaml", "--dispatches=*winograd*")
    run("generator", *SHAPE, *arguments, *only).checked()
    assert run("compile").status == 0, run("compile").err
    run("profiler", "--profiling-enabled=false", "--output=data.csv", "--columns=all", "--device=local-sync")
    rows = list(csv.DictReader(Path("data.csv").read_text().splitlines()))
    assert [(row["form"], row["Verification"], row["reason"]) for row in rows] == [
        ("winograd", "SUCCESS", ""),
        ("winograd_2", "SUCCESS", ""),
    ]
