"""The CSV: columns that never change, rows that are never lost, numbers that are numbers; also of several files."""

from __future__ import annotations

import csv
import json
import math
import os
import threading
from collections.abc import Iterator, Sequence
from dataclasses import MISSING, fields, replace
from pathlib import Path

import pandas
import pytest

from dispatch_profiler import operations
from dispatch_profiler.configurations import (
    FLOWS,
    AmxMicrokernel,
    AttentionMicrokernel,
    CpuTiles,
    DecodingMicrokernel,
    Default,
    DepthwiseGradient,
    DotMicrokernel,
    Flow,
    Formed,
    ImagesMicrokernel,
    Int4Microkernel,
    Microkernel,
    MmaTiles,
    PackedInCalls,
    RowsMicrokernel,
    SimtTiles,
    TritonAttention,
    TritonRows,
    TritonTiles,
    Tuned,
    WinogradMicrokernel,
)
from dispatch_profiler.configurations import KINDS as CONFIGURATIONS
from dispatch_profiler.dispatches import Dispatch
from dispatch_profiler.errors import UsageError
from dispatch_profiler.operations import Conv2d, ElementTypes, Epilogue, Int4Matmul, Matmul, Operation
from dispatch_profiler.profiler.measurement.measure import Measurement, included
from dispatch_profiler.profiler.providers.library_calls import LibraryCall
from dispatch_profiler.profiler.records.machine import Machine
from dispatch_profiler.profiler.records.record import Provenance, Record, Verdict, stored
from dispatch_profiler.profiler.records.record_file import read_records, to_line
from dispatch_profiler.profiler.report import outputs
from dispatch_profiler.profiler.report.column_meanings import MEANINGS
from dispatch_profiler.profiler.report.console import table
from dispatch_profiler.profiler.report.csv_columns import chosen_columns, columns, usual_columns
from dispatch_profiler.profiler.report.join_cli import main
from dispatch_profiler.profiler.report.outputs import CsvReport, RunOutputs
from dispatch_profiler.profiler.report_files import ReportFiles

PROVENANCE = Provenance("local-task", "llvm-cpu", "compiler 1, runtime 2", 7)
MEASUREMENT = Measurement((0.1 + 0.2, 1 / 3, 0.125), 640, includes=included(weights=True, call=False))
RECORD = Record(Dispatch(Matmul(4, 6, 8), Default()), PROVENANCE, Verdict.SUCCESS, "", MEASUREMENT)
TILED = replace(RECORD, dispatch=Dispatch(Matmul(4, 6, 8), CpuTiles((64, 128), (8, 32, 4), (8, 64, 64))))
FAILED = RECORD.failed(Verdict.FAILED, '1 of 24 elements, "result[0, 7]"\nis wrong')


def written(
    path: Path, *records: Record, earlier: Sequence[Record] = (), **tags: str
) -> list[dict[str, str]]:
    """What any reader of CSV finds after `records` were written."""
    with CsvReport(path, tags=tags, earlier=[stored(each) for each in earlier]) as report:
        for record in records:
            report.add(record)
    return rows_of(path)


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file, strict=True))


# -- columns ---------------------------------------------------------------------------------------


def test_columns_stand_in_the_documented_order(tmp_path):
    """Tags, the fields of the block, counts, arguments, tiles, samples, origin."""
    written(tmp_path / "a.csv", card="H200", run="3")
    header = (tmp_path / "a.csv").read_text().splitlines()[0].split(",")
    assert header[:11] == [
        "card", "run", "Dispatch", "Provider", "OpKind", "Operation", "Configuration", "Arguments",
        "Verification", "Runtime(ms)", "GFLOPs",
    ]  # fmt: skip
    assert header[11:20] == ["bytes", "flops", "batch_count", "m", "n", "k", "lhs", "rhs", "result"]
    assert header[-64:] == [
        "distribution_tile", "cache_tile", "vector_tile", "peel",
        "workgroup_tile", "k_tile", "stages", "core", "instruction", "pipeline", "inner_tile", "options", "form", "tuned", "tuned_from",
        "min(ms)", "p20(ms)", "p80(ms)", "max(ms)", "low(ms)", "high(ms)", "spread", "samples",
        "executions_per_sample", "mode", "includes", "overhead(ms)", "eager(ms)", "library_call(ms)", "ended_by", "warnings", "limit(ms)",
        "sm_mhz", "memory_mhz", "watts", "celsius",
        "vs_default", "vs_default_low", "vs_default_high",
        "vs_reference", "vs_reference_low", "vs_reference_high", "reference", "of_limit", "confirmed", "confirmed_speed", "confirmed_low", "confirmed_high",
        "gpu", "driver", "cpu", "cores", "memory_bytes", "system", "device", "target", "iree", "library",
        "seed", "when", "flags", "module_key", "reason", "reproduce",
    ]  # fmt: skip


def test_no_column_stands_twice():
    """pandas would rename the second."""
    assert len(set(columns())) == len(columns())


def example(kind: type[Operation]) -> Operation:
    """An operation with everything that an argument can name: every extent 1, if possible, and a bias where there is one."""
    if kind is Int4Matmul:
        return kind.smallest()
    extents = {f.name: 1 for f in fields(kind) if f.default is MISSING}
    has_epilogue = any(f.name == "epilogue" for f in fields(kind))
    return kind(**extents, **({"epilogue": Epilogue.parse("bias+relu")} if has_epilogue else {}))


def without_column() -> Iterator[str]:
    """Arguments of operations and fields of configurations that `columns` lacks."""
    for kind in operations.KINDS.values():
        yield from set(Dispatch(example(kind), Default()).arguments()) - set(columns())
    mma = MmaTiles(workgroup=(64, 64), reduction=(32,))
    simt = SimtTiles(workgroup=(64, 64), reduction=(16,), thread=(4, 4))
    triton = TritonTiles(tile=(64, 64, 32), persistent=132)
    for configuration in (
        Default(4),
        TILED.dispatch.configuration,
        Microkernel((7, 64), (1, 7, 32)),
        AmxMicrokernel((64, 64)),
        WinogradMicrokernel(4, (9, 32), 9, (3, 32)),
        DepthwiseGradient((16, 64), (1, 4, 32)),
        DotMicrokernel((8, 96), (4, 4)),
        RowsMicrokernel((12, 32), ((16, 1, 32), (100, 3, 96))),
        ImagesMicrokernel((14, 64), (1, 14, 32)),
        AttentionMicrokernel(4, 96),
        DecodingMicrokernel(256),
        Int4Microkernel(6, 4, 128, 96),
        PackedInCalls(Microkernel((7, 64), (1, 7, 32), packed=True)),
        *map(Flow, FLOWS),
        mma,
        simt,
        triton,
        TritonAttention(tile=(64, 64)),
        TritonRows(block=(1, 1024)),
        Formed("im2col"),
        Tuned(mma),
    ):
        yield from set(configuration.fields()) - set(columns())


def test_every_argument_of_every_kind_has_its_column():
    """An argument without a column could not be told apart in a spreadsheet."""
    assert list(without_column()) == []
    assert set(CONFIGURATIONS) == {
        "default", "cpu_tiles", "microkernel", "amx_microkernel", "winograd_microkernel", "flow", "mma_tiles", "simt_tiles", "triton", "triton_attention", "triton_rows", "extern", "formed",
        "packed_in_calls", "depthwise_gradient", "dot_microkernel", "rows_microkernel", "images_microkernel", "attention_microkernel", "decoding_microkernel", "int4_microkernel", "tuned",
    }, "add the new kind to without_column"  # fmt: skip


def test_an_argument_without_a_column_would_be_noticed(monkeypatch):
    """The checker above can fail: here a kind names something that its smallest problem lacks."""

    class Sparse(Matmul):
        def shape_arguments(self) -> dict[str, str]:
            return {**super().shape_arguments(), "sparsity": "2:4"}

        @classmethod
        def smallest(cls) -> Matmul:
            return Matmul(1, 1, 1)

    monkeypatch.setitem(operations.KINDS, "sparse", Sparse)
    assert list(without_column()) == ["sparsity"]


def test_columns_do_not_depend_on_what_was_run(tmp_path):
    """Files of different runs can be put together."""
    conv = replace(RECORD, dispatch=Dispatch(Conv2d(1, 8, 8, 4, 4, 3, 3), Default()))
    headers = [list(written(tmp_path / "a.csv", record)[0]) for record in (RECORD, TILED, FAILED, conv)]
    assert all(header == list(columns()) for header in headers)


# -- a choice of columns ---------------------------------------------------------------------------

#: The columns of the IREE dispatch profiler that are in its documents, as we spell them.
UPSTREAM = (
    "Provider", "OpKind", "Operation", "bytes", "flops", "batch_count", "m", "n", "k", "lhs", "rhs", "result",
    "split_k_mode", "split_k_slices", "Configuration", "core", "instruction", "Verification", "Runtime(ms)", "GFLOPs",
)  # fmt: skip


def test_few_columns_are_usual():
    """In the order of all, and with every column of the program that this one follows."""
    usual = usual_columns()
    assert len(usual) <= 36 and {*UPSTREAM, "low(ms)", "high(ms)", "vs_default", "reason"} <= {*usual}
    assert [name for name in columns() if name in usual] == list(usual)
    assert chosen_columns(None) == usual and chosen_columns("all") == columns()


def test_columns_are_chosen_by_name(tmp_path):
    """In the order of the user, behind the tags; rows that come later are as short."""
    names = chosen_columns("GFLOPs,Operation,GFLOPs")
    with CsvReport(tmp_path / "a.csv", tags={"run": "1"}, chosen=names) as report:
        report.add(RECORD)
    ((run, gflops, operation),) = [list(row.values()) for row in rows_of(tmp_path / "a.csv")]
    assert (run, operation) == ("1", RECORD.dispatch.operation.name) and float(gflops) > 0
    assert chosen_columns("default,seed") == (*usual_columns(), "seed")
    with pytest.raises(UsageError, match="unknown column 'GFLOP'") as caught:
        chosen_columns("GFLOP")
    assert caught.value.hint == "did you mean 'GFLOPs'?"


def test_a_file_that_is_extended_keeps_its_columns(tmp_path):
    """Unless the user names others, or the file has columns that this version does not know."""
    path, few = tmp_path / "a.csv", ["Dispatch", "seed"]
    for names, header in ((",".join(few), few), (None, few), ("all", list(columns()))):
        with RunOutputs("table", {}, ReportFiles()) as report:
            report.to_csv(path, [stored(RECORD)], names)
        assert list(rows_of(path)[0]) == header
    path.write_text("Dispatch,a column of an older version\nx,y\n")
    with RunOutputs("table", {}, ReportFiles()) as report:
        report.to_csv(path, [stored(RECORD)])
    assert tuple(rows_of(path)[0]) == usual_columns()


# -- values ----------------------------------------------------------------------------------------


def test_a_row_says_what_the_record_says(tmp_path):
    """Every value of a measured dispatch, spelled out."""
    (row,) = written(tmp_path / "a.csv", TILED, card="H200")
    filled = {name: value for name, value in row.items() if value}
    assert filled == {
        "card": "H200",
        "Dispatch": "matmul_4x6x8_f32t_f32t_f32t_tile_config_64x128_8x64x64_8x32x4",
        "Provider": "IREE Codegen",
        "OpKind": "OperationKind.Matmul",
        "Operation": "matmul_4x6x8_f32t_f32t_f32t",
        "Configuration": "tile_config_64x128_8x64x64_8x32x4",
        "Arguments": TILED.arguments_text(),
        "Verification": "SUCCESS",
        "Runtime(ms)": "0.30000000000000004",
        "GFLOPs": repr(2 * 4 * 6 * 8 / (0.1 + 0.2) / 1e6),
        "bytes": str(4 * (4 * 8 + 8 * 6 + 4 * 6)), "flops": str(2 * 4 * 6 * 8),
        "batch_count": "1", "m": "4", "n": "6", "k": "8",
        "lhs": "f32t", "rhs": "f32t", "result": "f32t", "split_k_mode": "N/A", "split_k_slices": "N/A",
        "distribution_tile": "64x128", "cache_tile": "8x64x64", "vector_tile": "8x32x4", "peel": "false",
        "min(ms)": "0.125", "p20(ms)": repr(0.125 + 0.4 * (0.1 + 0.2 - 0.125)),
        "p80(ms)": repr((0.1 + 0.2) + 0.6 * (1 / 3 - (0.1 + 0.2))), "max(ms)": repr(1 / 3),
        "low(ms)": repr(MEASUREMENT.interval_ms[0]), "high(ms)": repr(MEASUREMENT.interval_ms[1]), "spread": repr(MEASUREMENT.spread),
        "samples": "3", "executions_per_sample": "640", "mode": "warm", "includes": "kernels; fills and copies; weight conversion", "overhead(ms)": "0.0",
        "ended_by": "count", "reference": "default",
        "device": "local-task", "target": "llvm-cpu", "iree": "compiler 1, runtime 2", "seed": "7",
    }  # fmt: skip


def test_a_single_sample_has_no_interval(tmp_path):
    """As after Ctrl-C: the interval is empty in CSV and null in JSON, and a table has no half width."""
    single = replace(RECORD, measurement=Measurement((2.0,), 640))
    (row,) = written(tmp_path / "a.csv", single)
    assert (row["Runtime(ms)"], row["low(ms)"], row["high(ms)"], row["spread"]) == ("2.0", "", "", "")
    assert json.loads(to_line(stored(single)))["derived"]["interval_ms"] is None
    (line,) = (each for each in table([stored(single)]).splitlines() if "SUCCESS" in each)
    assert line.split()[:5] == ["2.000", "0.0", "1.00x", "-", "-"]


def test_a_failure_has_its_reason_and_no_figure(tmp_path):
    """Commas, quotes and line breaks of the reason survive; figures are empty, not zero."""
    (row,) = written(tmp_path / "a.csv", FAILED)
    assert row["reason"] == FAILED.reason and row["Verification"] == "FAILED"
    assert not any(row[name] for name in ("Runtime(ms)", "GFLOPs", "min(ms)", "max(ms)", "spread", "samples"))


def test_pandas_reads_numbers_as_numbers(tmp_path):
    """As it stands: no converters, no exact digit lost, integers as integers."""
    written(tmp_path / "a.csv", RECORD, TILED, run="3")
    frame = pandas.read_csv(tmp_path / "a.csv")
    numbers = ["Runtime(ms)", "GFLOPs", "min(ms)", "max(ms)", "spread"]
    counts = [
        "run",
        "bytes",
        "flops",
        "batch_count",
        "m",
        "n",
        "k",
        "samples",
        "executions_per_sample",
        "seed",
    ]
    assert {str(frame[name].dtype) for name in numbers} == {"float64"}
    assert {str(frame[name].dtype) for name in counts} == {"int64"}
    assert frame["Runtime(ms)"].tolist() == pytest.approx([MEASUREMENT.median_ms] * 2, rel=1e-15)
    assert frame["spread"].tolist() == [MEASUREMENT.spread] * 2


def test_pandas_reads_every_kind_and_verdict_together(tmp_path):
    """What a dispatch does not have is missing, not text among numbers."""
    conv = Conv2d(1, 8, 8, 4, 4, 3, 3, types=ElementTypes("i8", "i8", "i32"), epilogue=Epilogue.parse("bias"))
    written(tmp_path / "a.csv", RECORD, FAILED, replace(RECORD, dispatch=Dispatch(conv, Default())))
    frame = pandas.read_csv(tmp_path / "a.csv")
    assert frame["Verification"].tolist() == ["SUCCESS", "FAILED", "SUCCESS"]
    assert math.isnan(frame["Runtime(ms)"][1]) and frame["Runtime(ms)"].dtype == "float64"
    assert frame["m"][0] == 4 and math.isnan(frame["m"][2])
    assert frame["conv-h"][2] == 8 and frame["epilogue"][2] == "bias"


# -- rows are never lost ---------------------------------------------------------------------------


def test_every_row_is_on_disk_before_the_next_begins(tmp_path):
    """Between two records a reader finds the first one whole."""
    path = tmp_path / "a.csv"
    with CsvReport(path) as report:
        assert rows_of(path) == []
        for count, record in enumerate([RECORD, FAILED, TILED], start=1):
            report.add(record)
            assert [row["Dispatch"] for row in rows_of(path)][count - 1] == record.dispatch.name
            assert len(rows_of(path)) == count


def test_an_error_on_the_way_loses_no_row(tmp_path):
    """What was added before stays."""
    with pytest.raises(KeyboardInterrupt), CsvReport(tmp_path / "a.csv") as report:
        report.add(RECORD)
        raise KeyboardInterrupt
    assert len(rows_of(tmp_path / "a.csv")) == 1


def test_a_file_is_replaced_unless_asked_otherwise(tmp_path):
    """Without `append` the old rows go."""
    assert len(written(tmp_path / "a.csv", RECORD, RECORD)) == 2
    assert len(written(tmp_path / "a.csv", TILED)) == 1


# -- append ----------------------------------------------------------------------------------------


def test_rows_of_earlier_records_come_first_under_one_header(tmp_path):
    """Whatever the file held: it is derived from the records."""
    path = tmp_path / "a.csv"
    path.write_text("Dispatch,a column of an older version\nx,y\nand half a li")
    with CsvReport(path, tags={"run": "2"}, earlier=[stored(RECORD, {"run": "1", "card": "H200"})]) as report:
        for record in (TILED, FAILED):
            report.add(record)
    assert path.read_text().count("Dispatch,Provider") == 1
    assert list(rows_of(path)[0])[:3] == ["run", "card", "Dispatch"]
    assert [(row["run"], row["card"]) for row in rows_of(path)] == [("1", "H200"), ("2", ""), ("2", "")]


def test_the_header_depends_on_nothing_but_the_version(tmp_path):
    """Not on the arguments, fields or tags of records of another version."""
    old = replace(
        stored(RECORD), arguments={"gone": 1}, configuration_fields={"also": 2}, tags={"Dispatch": "x"}
    )
    with CsvReport(tmp_path / "a.csv", earlier=[old]):
        pass
    (row,) = rows_of(tmp_path / "a.csv")
    assert tuple(row) == columns()
    assert row["Dispatch"] == RECORD.dispatch.name


def test_an_error_while_it_is_written_anew_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "a.csv"
    written(path, RECORD)
    before = path.read_bytes()
    monkeypatch.setattr(outputs, "csv_row", lambda *_: (_ for _ in ()).throw(OSError(28, "no space")))
    with pytest.raises(OSError, match="no space"):
        CsvReport(path, earlier=[stored(RECORD)])
    assert path.read_bytes() == before


# -- rejections ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["Dispatch", "m", "reason", "conv-h", "Runtime(ms)"])
def test_a_tag_with_the_name_of_a_column_is_refused(tmp_path, name):
    """One of the two would be lost."""
    with pytest.raises(UsageError, match="is already the name of a column"):
        CsvReport(tmp_path / "a.csv", tags={name: "1"})
    assert not (tmp_path / "a.csv").exists()


def test_a_missing_folder_is_refused_by_its_name(tmp_path):
    """It is not made: a slip of the pen would scatter reports."""
    with pytest.raises(UsageError, match=r"there is no folder .*nowhere"):
        CsvReport(tmp_path / "nowhere" / "a.csv")
    assert not (tmp_path / "nowhere").exists()


def test_a_folder_is_no_file(tmp_path):
    """The path itself may be a folder."""
    with pytest.raises(UsageError, match="is a folder"):
        CsvReport(tmp_path)


# -- speeds ----------------------------------------------------------------------------------------

LIBRARY = replace(
    RECORD,
    dispatch=Dispatch(RECORD.dispatch.operation, LibraryCall("numpy", "matmul")),
    provider="numpy",
    measurement=Measurement((0.6,), 1),
)


def speeds(path: Path) -> list[tuple[str, str]]:
    return [(row["vs_default"], row["vs_reference"]) for row in rows_of(path)]


def test_a_row_gets_its_speeds_when_what_it_is_compared_with_comes(tmp_path):
    """It is on disk before; rows of another operation stay as they are."""
    path = tmp_path / "a.csv"
    other = replace(RECORD, dispatch=Dispatch(Matmul(5, 6, 8), Default()))
    with CsvReport(path, "numpy", earlier=[stored(other)]) as report:
        report.add(RECORD)
        assert speeds(path) == [("1.0", ""), ("1.0", "")]
        report.add(LIBRARY)
        double = repr(0.6 / RECORD.measurement.median_ms)
        assert speeds(path)[1:] == [("1.0", double), (repr(1 / (0.6 / (0.1 + 0.2))), "1.0")]
        report.add(TILED)
    assert speeds(path)[-1] == ("1.0", double)
    assert [row["Configuration"] for row in rows_of(path)] == [
        "tile_config_default", "tile_config_default", "numpy_matmul", TILED.dispatch.configuration.name,
    ]  # fmt: skip


def test_a_speed_has_its_interval(tmp_path):
    """Empty for what is compared with itself, and where a single sample tells nothing of it."""
    rows = written(tmp_path / "a.csv", RECORD, TILED)
    ends = [(row["vs_default_low"], row["vs_default_high"]) for row in rows]
    assert ends[0] == ("1.0", "1.0")
    assert 0.0 < float(ends[1][0]) < 1.0 < float(ends[1][1])
    (_, single) = written(tmp_path / "b.csv", RECORD, replace(TILED, measurement=Measurement((0.3,), 1)))
    assert (float(single["vs_default"]), single["vs_default_low"]) == (pytest.approx(1.0), "")


def test_an_interrupted_measurement_gives_way_to_the_finished_one(tmp_path):
    """In its run, so that what it is compared with stays; another run is another row."""
    path, early = tmp_path / "a.csv", replace(MEASUREMENT, ended_by="interrupted")
    interrupted = replace(TILED, measurement=early)
    written(path, TILED, earlier=[RECORD, interrupted])
    assert [row["ended_by"] for row in rows_of(path)] == ["count", "count"]
    assert speeds(path)[1][0] == "1.0"
    written(path, TILED, earlier=[RECORD, TILED])
    assert len(rows_of(path)) == 3


def test_a_run_without_a_default_is_compared_with_that_of_the_run_before(tmp_path):
    """By the same compiler only."""
    newer = replace(TILED, provenance=replace(PROVENANCE, iree="compiler 2, runtime 2"))
    rows = written(tmp_path / "a.csv", TILED, newer, earlier=[RECORD, TILED])
    assert [row["vs_default"] for row in rows] == ["1.0", "1.0", "1.0", ""]


def test_what_cannot_be_rewritten_is_written_once(tmp_path):
    """A pipe: rows come as they are known."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.extend(path.read_text().splitlines()))
    reader.start()
    with CsvReport(path, "numpy") as report:
        for record in (RECORD, LIBRARY, TILED):
            report.add(record)
    reader.join()
    found = list(csv.DictReader(read))
    assert [row["vs_reference"] != "" for row in found] == [False, True, True]


HERE = Provenance("local-task", "llvm-cpu", "compiler 1, runtime 2", 7, "2026-01-01", Machine("A", 2, 5, "L"))
THERE = replace(HERE, device="cuda", target="cuda:sm_80", machine=Machine("B", 16, 9, "L"))
DEFAULT = Dispatch(Matmul(4, 6, 8), Default())
TILES = Dispatch(Matmul(4, 6, 8), CpuTiles((64, 128), (8, 32, 4), (8, 64, 64), peel=True))
CONV = Dispatch(Conv2d(1, 8, 8, 4, 4, 3, 3), Default())


def record(dispatch: Dispatch, milliseconds: float, origin: Provenance = HERE, **more) -> Record:
    """Measured without noise."""
    return Record(dispatch, origin, Verdict.SUCCESS, "", Measurement((milliseconds,) * 5, 10), **more)


def numpy(milliseconds: float, origin: Provenance = HERE) -> Record:
    call = Dispatch(DEFAULT.operation, LibraryCall("numpy", "matmul"))
    origin = replace(origin, iree="", library="numpy 2")
    return record(call, milliseconds, origin, provider="numpy")


def written_run(name: str, *records: Record, reference: str = "default", **tags: str) -> Path:
    """As a run of profiler.py leaves it: `name` and the samples beside it."""
    with RunOutputs("table", tags, ReportFiles(), None, reference) as outputs:
        outputs.to_csv(Path(name), names="all")
        for each in records:
            outputs.add(each)
    return Path(name).with_suffix(".jsonl")


def joined(*arguments: str | Path) -> list[dict[str, str]]:
    assert main([*map(str, arguments), "--output=all.csv", "--columns=all"]) == 0
    with Path("all.csv").open(newline="") as file:
        return list(csv.DictReader(file, strict=True))


FAILED_RUN = record(TILES, 1.0).failed(Verdict.NOT_COMPILED, 'no "such" tile,\nsee above')


def test_one_run_is_joined_to_what_it_was():
    """Byte for byte, with libraries, failures and tags."""
    run = [record(DEFAULT, 2.0), numpy(1.0), record(TILES, 1.0, limit_ms=0.5), FAILED_RUN, record(CONV, 3.0)]
    samples = written_run("data.csv", *run, reference="numpy", card="H200", run="3")

    joined(samples)

    assert Path("all.csv").read_bytes() == Path("data.csv").read_bytes()
    assert Path("all.jsonl").read_bytes() == samples.read_bytes()


def test_what_stands_in_two_files_comes_once(capsys):
    """Joining again changes nothing; another run of the same dispatch is another record."""
    first = written_run("first.csv", record(DEFAULT, 2.0), record(TILES, 1.0))
    second = written_run("second.csv", record(DEFAULT, 2.0, replace(HERE, when="2026-01-02")))

    rows = joined(first, second)
    again = joined("all.jsonl", second, first)

    assert [row["when"] for row in rows] == ["2026-01-01", "2026-01-01", "2026-01-02"]
    assert again == rows
    assert "Writing 3 records (3 duplicates removed)" in capsys.readouterr().err


def test_speeds_are_relative_to_the_same_machine():
    """Not to the default of another device, also when it is joined once more."""
    here = written_run("here.csv", record(DEFAULT, 8.0), record(TILES, 4.0))
    there = written_run(
        "there.csv", record(DEFAULT, 2.0, THERE), numpy(3.0, THERE), record(TILES, 1.0, THERE)
    )

    for _ in range(2):
        rows = joined(here, there, *Path().glob("all.jsonl"))
        assert [float(row["vs_default"]) for row in rows] == pytest.approx([1.0, 2.0, 1.0, 2.0 / 3.0, 2.0])
        assert [row["vs_reference"] and float(row["vs_reference"]) for row in rows] == ["", "", 1.5, 1.0, 3.0]
        assert {row["reference"] for row in rows} == {"numpy"}


def test_the_reference_may_be_chosen(capsys):
    samples = written_run("data.csv", record(DEFAULT, 2.0), numpy(1.0))

    (first, _) = joined(samples, "--reference=default")

    assert first["vs_reference"] == "1.0"
    assert main([str(samples), "--output=all.csv", "--reference=torch"]) == 2
    assert "--reference=torch is not among the providers" in capsys.readouterr().err


def test_kernels_from_outside_are_no_library():
    """What they are compared with is the compiler's default, as profiler.py has it."""
    rows = joined(written_run("data.csv", record(DEFAULT, 2.0), record(TILES, 1.0, provider="Triton")))

    assert {row["reference"] for row in rows} == {"default"}
    assert Path("all.csv").read_bytes() == Path("data.csv").read_bytes()


def test_each_keeps_its_tags():
    """Columns of all of them; empty where a run had none."""
    rows = joined(
        written_run("a.csv", record(DEFAULT, 1.0), card="H200"),
        written_run("b.csv", record(TILES, 1.0, THERE), run="3"),
    )

    assert [(row["card"], row["run"]) for row in rows] == [("H200", ""), ("", "3")]
    assert list(rows[0])[:3] == ["card", "run", "Dispatch"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["nowhere.jsonl", "--output=all.csv"], "cannot read nowhere.jsonl"),
        (["data.jsonl", "--output=nowhere/all.csv"], "--output: there is no folder nowhere"),
        (["data.jsonl", "--output=all.jsonl"], "all.jsonl is the name of the sample file"),
        (["data.jsonl", "--output=all.json"], "all.json has the ending of another format"),
        (
            ["data.jsonl", "--output=other.csv"],
            "other.jsonl gets every sample, but is not known to belong to",
        ),
        (["data.jsonl"], "the following arguments are required: -o/--output"),
    ],
)
def test_what_cannot_be_joined_is_told(arguments, sentence, capsys):
    """In one sentence, and no file is touched."""
    before = written_run("data.csv", record(DEFAULT, 1.0)).read_bytes()
    Path("other.jsonl").write_text("another program's\n")

    assert main(arguments) == 2
    assert Path("other.jsonl").read_text() == "another program's\n"

    assert sentence in capsys.readouterr().err
    assert Path("data.jsonl").read_bytes() == before
    assert sorted(path.name for path in Path().iterdir()) == ["data.csv", "data.jsonl", "other.jsonl"]


def test_a_full_disk_leaves_the_old_files(monkeypatch):
    """Both are written_run before either takes its place."""
    samples = written_run("data.csv", record(DEFAULT, 1.0))
    old = [Path(name).read_bytes() for name in ("data.csv", "data.jsonl")]

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("dispatch_profiler.profiler.report.outputs.csv_row", full)

    assert main([str(samples), str(samples), "--output=data.csv"]) == 1
    assert [Path(name).read_bytes() for name in ("data.csv", "data.jsonl")] == old
    assert len(read_records(samples)) == 1


def test_every_column_has_a_meaning_and_every_meaning_a_column():
    assert set(MEANINGS) == set(columns())
