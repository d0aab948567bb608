"""`read_dataframe`: results as a DataFrame in which numbers are numbers, from both files of a run."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from dispatch_profiler import read_dataframe
from dispatch_profiler.configurations import CpuTiles, Default
from dispatch_profiler.dispatches import Dispatch
from dispatch_profiler.errors import MissingDependency, UsageError
from dispatch_profiler.operations import Matmul
from dispatch_profiler.profiler.measurement.measure import Measurement
from dispatch_profiler.profiler.records.record import Provenance, Record, Verdict
from dispatch_profiler.profiler.report.csv_columns import columns, usual_columns
from dispatch_profiler.profiler.report.outputs import RunOutputs
from dispatch_profiler.profiler.report_files import ReportFiles

ORIGIN = Provenance("local-task", "llvm-cpu", "compiler 1, runtime 2", 7, "2026-01-02T03:04:05+01:00")
DEFAULT = Record(
    Dispatch(Matmul(4, 6, 8), Default()), ORIGIN, Verdict.SUCCESS, "", Measurement((1.0, 2.0, 3.0), 10)
)
TILED = replace(
    DEFAULT,
    dispatch=Dispatch(Matmul(4, 6, 8), CpuTiles((64, 128), (8, 32, 4), (8, 64, 64))),
    measurement=Measurement((1.0, 1.0), 10),
)
FAILED = TILED.failed(Verdict.FAILED, "1 of 24 elements,\nis wrong")


def written(names: str | None = None) -> None:
    """`data.csv` and `data.jsonl` of a run of three dispatches."""
    with RunOutputs("table", {"run": "3", "card": "H200"}, ReportFiles()) as outputs:
        outputs.to_csv(Path("data.csv"), names=names)
        for record in (DEFAULT, TILED, FAILED):
            outputs.add(record)


@pytest.mark.parametrize("source", ["data.csv", "data.jsonl"])
def test_each_column_has_a_type(source: str) -> None:
    """The same from both files."""
    written("all")
    frame = read_dataframe(source)
    assert list(frame.columns) == ["run", "card", *columns()] and len(frame) == 3
    types = {name: str(frame[name].dtype) for name in frame.columns}
    assert {types[name] for name in ("Runtime(ms)", "GFLOPs", "vs_default", "low(ms)", "max(ms)")} == {
        "float64"
    }
    assert {types[name] for name in ("run", "m", "flops", "samples", "seed")} == {"Int64"}
    assert types["peel"] == "boolean" and types["when"].startswith("datetime64[") and "UTC" in types["when"]
    assert {types[name] for name in ("card", "Operation", "Verification", "reason", "conv-h")} == {"string"}
    assert frame["Runtime(ms)"].tolist()[:2] == [2.0, 1.0] and frame["vs_default"].tolist()[:2] == [1.0, 2.0]
    assert frame["Runtime(ms)"].isna().tolist() == frame["samples"].isna().tolist() == [False, False, True]
    assert frame["reason"].tolist()[2] == FAILED.reason
    assert frame["when"][0].hour == 2


def test_a_short_csv_has_its_columns() -> None:
    written()
    frame = read_dataframe(Path("data.csv"))
    assert list(frame.columns) == ["run", "card", *usual_columns()]
    assert frame.nlargest(1, "GFLOPs")["Configuration"].tolist() == [TILED.dispatch.configuration.name]


def test_a_row_that_was_cut_is_read_as_far_as_it_goes() -> None:
    """The program was killed while it wrote."""
    Path("data.csv").write_text("Dispatch,Runtime(ms),samples\na,0.5,3\nb,0.2")
    frame = read_dataframe("data.csv")
    assert frame["Runtime(ms)"].tolist() == [0.5, 0.2] and frame["samples"].isna().tolist() == [False, True]


def test_columns_of_other_results_have_the_type_of_their_values() -> None:
    Path("raw_results.csv").write_text("operation,count,speedup,kept\nx,3,1.5,true\ny,,2,\n")
    frame = read_dataframe("raw_results.csv")
    assert [str(each) for each in frame.dtypes] == ["string", "Int64", "float64", "boolean"]


@pytest.mark.parametrize("text", ["", "no columns\n", "a,a\n1,2\n"])
def test_what_is_no_table_is_an_error(text: str) -> None:
    Path("data.csv").write_text(text)
    with pytest.raises(UsageError, match=r"data\.csv is not a CSV of results"):
        read_dataframe("data.csv")
    with pytest.raises(UsageError, match=r"cannot read nothing\.csv"):
        read_dataframe("nothing.csv")


def test_without_pandas_one_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(
        MissingDependency, match="read_dataframe needs pandas, which is not installed"
    ) as caught:
        read_dataframe("data.csv")
    assert caught.value.hint == "python -m pip install pandas"
