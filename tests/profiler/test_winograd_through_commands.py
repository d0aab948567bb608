"""Winograd's forms through all three commands."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

SHAPE = ("--conv-h=9", "--conv-w=7", "--conv-c=16", "--conv-k=16", "--conv-padding=1")
FILE = "configurations: [{form: winograd}, {form: winograd_2, distribution: [5, 16], vector: [5, 16, 1]}]"


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
    run("profiler", "--profiling-enabled=false", "--output=data.csv", "--device=local-sync")
    rows = list(csv.DictReader(Path("data.csv").read_text().splitlines()))
    assert [(row["form"], row["Verification"], row["reason"]) for row in rows] == [
        ("winograd", "SUCCESS", ""),
        ("winograd_2", "SUCCESS", ""),
    ]
