"""Records survive the file: every sample, every field, whatever names hold."""

from __future__ import annotations

import json
import math
import statistics
from dataclasses import replace
from pathlib import Path

import pytest

from dispatch_profiler.configurations import CpuTiles, Default
from dispatch_profiler.dispatches import Dispatch
from dispatch_profiler.errors import UsageError
from dispatch_profiler.operations import Conv2d, Matmul
from dispatch_profiler.profiler.measurement.included import included
from dispatch_profiler.profiler.measurement.measure import Measurement
from dispatch_profiler.profiler.measurement.peaks import Peaks
from dispatch_profiler.profiler.records.machine import Machine
from dispatch_profiler.profiler.records.record import Provenance, Record, Verdict
from dispatch_profiler.profiler.records.record_file import JsonLines, beside_csv, read_records, stored

MACHINE = Machine("Some CPU", 2, 8 * 2**30, "Linux 6.1.0 x86_64")
PROVENANCE = Provenance(
    "local-task", "llvm-cpu", "compiler x, runtime y", 42, "2026-11-20T12:00:00+00:00", MACHINE,
    module_key="0123", flags=("--iree-opt-level=O2", "--other"),
)  # fmt: skip
PEAKS = Peaks({"f32": 0.1 + 0.2, "f64": 1 / 3}, 1e10)
MEASUREMENT = Measurement(
    (0.1 + 0.2, 1 / 3, 0.125), 64, "cold", 1e-5, "budget", ("drifted", 'said "so"'),
    includes=included(weights=False, call=True),
)  # fmt: skip
RECORDS = [
    Record(
        Dispatch(Matmul(4, 6, 8), Default()),
        PROVENANCE,
        Verdict.SUCCESS,
        "",
        MEASUREMENT,
        limit_ms=0.5,
        peaks=PEAKS,
    ),
    Record(Dispatch(Conv2d(1, 6, 6, 8, 8, 3, 3), Default()), PROVENANCE, Verdict.FAILED, "worst\nelement"),
    Record(Dispatch(Matmul(4, 6, 8), CpuTiles((2, 2), (1, 2, 4))), PROVENANCE, Verdict.CRASHED, "\u2603"),
]


def written(path: Path, *, append: bool = False) -> Path:
    with JsonLines(path, append=append, tags={"card": "H200"}) as file:
        for record in RECORDS:
            file.add(record)
    return path


def test_records_are_read_as_they_were_written(tmp_path: Path):
    assert list(read_records(written(tmp_path / "a.jsonl"))) == [stored(r, {"card": "H200"}) for r in RECORDS]


def test_appending_keeps_what_was_there(tmp_path: Path):
    path = written(tmp_path / "a.jsonl")

    assert len(read_records(written(path, append=True))) == 6
    assert len(read_records(written(path))) == 3


def test_what_follows_from_the_samples_stands_beside_them(tmp_path: Path):
    row = json.loads(written(tmp_path / "a.jsonl").read_text().splitlines()[0])

    assert row["measurement"]["samples_ms"] == [0.1 + 0.2, 1 / 3, 0.125]
    assert row["derived"]["median_ms"] == 0.1 + 0.2
    samples = [0.1 + 0.2, 1 / 3, 0.125]
    reach = 4.302652729749464 * statistics.stdev(samples) / math.sqrt(3)  # Student's, of three
    assert row["derived"]["interval_ms"] == pytest.approx([0.3 - reach, 0.3 + reach])
    assert row["derived"]["gflops"] == 2 * 4 * 6 * 8 / (0.1 + 0.2) / 1e6


def test_half_a_last_line_is_left_out_and_appending_starts_a_new_one(tmp_path: Path):
    path = written(tmp_path / "a.jsonl")
    path.write_text(path.read_text()[:-40])

    assert len(read_records(path)) == 2


@pytest.mark.parametrize(
    "line", ["", "not json", "{}", '{"format": "dispatch_profiler record", "version": 99}', "[1]"]
)
def test_a_line_that_is_not_a_record_is_rejected_with_its_number(tmp_path: Path, line: str):
    path = written(tmp_path / "a.jsonl")
    first, *rest = path.read_text().splitlines()
    path.write_text("\n".join([first, line, *rest]))

    with pytest.raises(UsageError, match="line 2: not a dispatch_profiler record") as caught:
        read_records(path)

    assert ".jsonl" in caught.value.hint


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("flops", "1", "flops: expected a whole number of at least 0, but got '1'"),
        ("flops", 10**400, "flops: expected a whole number of at least 0, but got an integer beyond 64 bits"),
        ("flops", True, "flops: expected a whole number"),
        ("limit_ms", math.nan, "limit_ms: expected a number of at least 0, but got nan"),
        ("measurement/samples_ms", [0.1, 10**400], "measurement.samples_ms: expected a number"),
        ("measurement/samples_ms", [], "measurement.samples_ms: expected at least one sample"),
        ("measurement/samples_ms", "0.1", "measurement.samples_ms: expected a list, but got '0.1'"),
        ("measurement/executions", 0, "measurement.executions: expected a whole number of at least 1"),
        ("measurement/batches", [1], "measurement.batches: expected 3 samples in all, but got 1"),
        ("measurement/places", [1], "measurement.places: expected one for each of the 3 samples"),
        (
            "measurement/includes",
            ["lunch"],
            "measurement.includes: expected some of kernels, fills and copies, ",
        ),
        ("verdict", "fine", "verdict: 'fine' is not a verdict"),
        ("provenance", None, "provenance: expected an object, but got None"),
        ("provenance/flags", "-O2", "provenance.flags: expected a list"),
        ("arguments/m", {}, "arguments.m: expected a string or a number, but got an object"),
        ("peaks/flops_per_second", {}, "peaks.f32: missing"),
        ("tags/card", 1, "tags.card: expected a string, but got 1"),
    ],
)
def test_a_field_of_the_wrong_type_is_one_sentence(tmp_path: Path, path: str, value: object, message: str):
    file = written(tmp_path / "a.jsonl")
    first, *rest = file.read_text().splitlines()
    row = json.loads(first)
    *parents, name = path.split("/")
    place = row
    for parent in parents:
        place = place[parent]
    place[name] = value
    file.write_text("\n".join([json.dumps(row), *rest, ""]))

    with pytest.raises(UsageError) as caught:
        read_records(file)

    assert message in caught.value.message


def test_deep_nesting_is_one_sentence(tmp_path: Path):
    (tmp_path / "a.jsonl").write_text("[" * 100_000 + "\n")
    with pytest.raises(UsageError, match="nested too deeply"):
        read_records(tmp_path / "a.jsonl")


def test_a_damaged_line_at_the_end_is_not_taken_for_one_that_was_cut_off(tmp_path: Path):
    path = written(tmp_path / "a.jsonl")
    path.write_text(path.read_text().replace('"Crashed"', '"Fine"'))
    with pytest.raises(UsageError, match="line 3: not a dispatch_profiler record"):
        read_records(path)


def test_a_file_whose_only_line_was_cut_off_holds_no_records(tmp_path: Path):
    path = written(tmp_path / "a.jsonl")
    path.write_text(path.read_text()[:30])
    assert read_records(path) == ()


def test_a_file_that_is_not_there_is_told(tmp_path: Path):
    with pytest.raises(UsageError, match=r"cannot read .*nothing\.jsonl: No such file"):
        read_records(tmp_path / "nothing.jsonl")


def test_the_samples_lie_beside_the_csv():
    assert beside_csv(Path("out/data.csv")) == Path("out/data.jsonl")
    with pytest.raises(UsageError, match="name of the sample file"):
        beside_csv(Path("data.jsonl"))


def test_a_failed_record_has_no_figures(tmp_path: Path):
    path = tmp_path / "a.jsonl"
    with JsonLines(path) as file:
        file.add(replace(RECORDS[0], measurement=None))

    assert "derived" not in json.loads(path.read_text())
    assert read_records(path)[0].measurement is None


def test_a_file_from_before_machines_were_described_is_read(tmp_path: Path):
    path = written(tmp_path / "a.jsonl")
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for row in rows:
        row["version"] = 1
        del (
            row["peaks"],
            row["provenance"]["machine"],
            row["provenance"]["module_key"],
            row["provenance"]["flags"],
        )
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))

    records = read_records(path)

    assert {record.provenance.machine for record in records} == {Machine()}
    assert [record.peaks for record in records] == [None] * 3
    assert records[0].measurement == MEASUREMENT


def test_a_file_with_the_names_of_version_0_1_is_read(tmp_path: Path):
    path = written(tmp_path / "a.jsonl")
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for row in rows:
        row["version"] = 1
        del row["provenance"]["module_key"], row["provenance"]["flags"]
        row["ceilings"] = row.pop("peaks")
        if row["measurement"]:
            row["measurement"]["visits"] = row["measurement"].pop("batches")
    old = tmp_path / "old.jsonl"
    old.write_text("".join(f"{json.dumps(row)}\n" for row in rows))

    unkeyed = [replace(each.provenance, module_key="", flags=()) for each in read_records(path)]
    assert read_records(old) == tuple(
        replace(each, provenance=origin) for each, origin in zip(read_records(path), unkeyed, strict=True)
    )
