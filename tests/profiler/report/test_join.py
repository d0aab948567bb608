"""Records of several files in one CSV: each once, as its run wrote it."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import pytest

from dispatch_profiler.configurations import CpuTiles, Default
from dispatch_profiler.dispatches import Dispatch
from dispatch_profiler.operations import Conv2d, Matmul
from dispatch_profiler.profiler.measurement.measure import Measurement
from dispatch_profiler.profiler.providers.library_calls import LibraryCall
from dispatch_profiler.profiler.records.machine import Machine
from dispatch_profiler.profiler.records.record_file import Provenance, Record, Verdict, read_records
from dispatch_profiler.profiler.report.join_cli import main
from dispatch_profiler.profiler.report.outputs import RunOutputs
from dispatch_profiler.profiler.report_files import ReportFiles

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


def written(name: str, *records: Record, reference: str = "default", **tags: str) -> Path:
    """As a run of profiler.py leaves it: `name` and the samples beside it."""
    with RunOutputs("table", tags, ReportFiles(), None, reference) as outputs:
        outputs.to_csv(Path(name))
        for each in records:
            outputs.add(each)
    return Path(name).with_suffix(".jsonl")


def joined(*arguments: str | Path) -> list[dict[str, str]]:
    assert main([*map(str, arguments), "--output=all.csv"]) == 0
    with Path("all.csv").open(newline="") as file:
        return list(csv.DictReader(file, strict=True))


FAILED = record(TILES, 1.0).failed(Verdict.NOT_COMPILED, 'no "such" tile,\nsee above')


def test_one_run_is_joined_to_what_it_was():
    """Byte for byte, with libraries, failures and tags."""
    run = [record(DEFAULT, 2.0), numpy(1.0), record(TILES, 1.0, limit_ms=0.5), FAILED, record(CONV, 3.0)]
    samples = written("data.csv", *run, reference="numpy", card="H200", run="3")

    joined(samples)

    assert Path("all.csv").read_bytes() == Path("data.csv").read_bytes()
    assert Path("all.jsonl").read_bytes() == samples.read_bytes()


def test_what_stands_in_two_files_comes_once(capsys):
    """Joining again changes nothing; another run of the same dispatch is another record."""
    first = written("first.csv", record(DEFAULT, 2.0), record(TILES, 1.0))
    second = written("second.csv", record(DEFAULT, 2.0, replace(HERE, when="2026-01-02")))

    rows = joined(first, second)
    again = joined("all.jsonl", second, first)

    assert [row["when"] for row in rows] == ["2026-01-01", "2026-01-01", "2026-01-02"]
    assert again == rows
    assert "Writing 3 records (3 duplicates removed)" in capsys.readouterr().err


def test_speeds_are_relative_to_the_same_machine():
    """Not to the default of another device, also when it is joined once more."""
    here = written("here.csv", record(DEFAULT, 8.0), record(TILES, 4.0))
    there = written("there.csv", record(DEFAULT, 2.0, THERE), numpy(3.0, THERE), record(TILES, 1.0, THERE))

    for _ in range(2):
        rows = joined(here, there, *Path().glob("all.jsonl"))
        assert [float(row["vs_default"]) for row in rows] == pytest.approx([1.0, 2.0, 1.0, 2.0 / 3.0, 2.0])
        assert [row["vs_reference"] and float(row["vs_reference"]) for row in rows] == ["", "", 1.5, 1.0, 3.0]
        assert {row["reference"] for row in rows} == {"numpy"}


def test_the_reference_may_be_chosen(capsys):
    samples = written("data.csv", record(DEFAULT, 2.0), numpy(1.0))

    (first, _) = joined(samples, "--reference=default")

    assert first["vs_reference"] == "1.0"
    assert main([str(samples), "--output=all.csv", "--reference=torch"]) == 2
    assert "--reference=torch is not among the providers" in capsys.readouterr().err


def test_kernels_from_outside_are_no_library():
    """What they are compared with is the compiler's default, as profiler.py has it."""
    rows = joined(written("data.csv", record(DEFAULT, 2.0), record(TILES, 1.0, provider="Triton")))

    assert {row["reference"] for row in rows} == {"default"}
    assert Path("all.csv").read_bytes() == Path("data.csv").read_bytes()


def test_each_keeps_its_tags():
    """Columns of all of them; empty where a run had none."""
    rows = joined(
        written("a.csv", record(DEFAULT, 1.0), card="H200"),
        written("b.csv", record(TILES, 1.0, THERE), run="3"),
    )

    assert [(row["card"], row["run"]) for row in rows] == [("H200", ""), ("", "3")]
    assert list(rows[0])[:3] == ["card", "run", "Dispatch"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["nowhere.jsonl", "--output=all.csv"], "cannot read nowhere.jsonl"),
        (["data.jsonl", "--output=nowhere/all.csv"], "--output: there is no folder nowhere"),
        (["data.jsonl", "--output=all.jsonl"], "all.jsonl is the name of the sample file"),
        (["data.jsonl"], "the following arguments are required: -o/--output"),
    ],
)
def test_what_cannot_be_joined_is_told(arguments, sentence, capsys):
    """In one sentence, and no file is touched."""
    before = written("data.csv", record(DEFAULT, 1.0)).read_bytes()

    assert main(arguments) == 2

    assert sentence in capsys.readouterr().err
    assert Path("data.jsonl").read_bytes() == before
    assert sorted(path.name for path in Path().iterdir()) == ["data.csv", "data.jsonl"]


def test_a_full_disk_leaves_the_old_files(monkeypatch):
    """Both are written before either takes its place."""
    samples = written("data.csv", record(DEFAULT, 1.0))
    old = [Path(name).read_bytes() for name in ("data.csv", "data.jsonl")]

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("dispatch_profiler.profiler.report.outputs.row", full)

    assert main([str(samples), str(samples), "--output=data.csv"]) == 1
    assert [Path(name).read_bytes() for name in ("data.csv", "data.jsonl")] == old
    assert len(read_records(samples)) == 1
