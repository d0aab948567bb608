"""Records: a verdict with its reason, the machine, the file that keeps every field, and what a resumed run measures."""

from __future__ import annotations

import json
import math
import os
import platform
import shlex
import statistics
from dataclasses import replace
from pathlib import Path

import pytest
from sample_records import MACHINE, invented

from dispatch_profiler.configurations import CpuTiles, Default, TritonTiles
from dispatch_profiler.dispatches import Dispatch
from dispatch_profiler.errors import UsageError
from dispatch_profiler.operations import Conv2d, Epilogue, Matmul
from dispatch_profiler.profiler.compare.pairing import CompareOptions, FailOn, RunComparison, compare_records
from dispatch_profiler.profiler.compare.render import FORMATS
from dispatch_profiler.profiler.evaluation.hardware import this_machine
from dispatch_profiler.profiler.measurement.measure import Measurement, included
from dispatch_profiler.profiler.measurement.peaks import Peaks
from dispatch_profiler.profiler.records.machine import Machine
from dispatch_profiler.profiler.records.record import (
    Provenance,
    Record,
    StoredRecord,
    Verdict,
    kernel_name,
    stored,
)
from dispatch_profiler.profiler.records.record_file import JsonLines, beside_csv, read_records
from dispatch_profiler.profiler.records.resume import Wanted

SOME_MACHINE = Machine("Some CPU", 2, 8 * 2**30, "Linux 6.1.0 x86_64")
NAMED_PROVENANCE = Provenance(
    "local-task", "llvm-cpu", "compiler x, runtime y", 42, "2026-11-20T12:00:00+00:00", SOME_MACHINE,
    module_key="0123", flags=("--iree-opt-level=O2", "--other"),
)  # fmt: skip
PEAKS = Peaks({"f32": 0.1 + 0.2, "f64": 1 / 3}, 1e10)
MEASUREMENT = Measurement(
    (0.1 + 0.2, 1 / 3, 0.125), 64, "cold", 1e-5, "budget", ("drifted", 'said "so"'),
    includes=included(weights=False, call=True),
)  # fmt: skip
OF_EVERY_VERDICT = [
    Record(
        Dispatch(Matmul(4, 6, 8), Default()),
        NAMED_PROVENANCE,
        Verdict.SUCCESS,
        "",
        MEASUREMENT,
        limit_ms=0.5,
        peaks=PEAKS,
    ),
    Record(
        Dispatch(Conv2d(1, 6, 6, 8, 8, 3, 3), Default()), NAMED_PROVENANCE, Verdict.FAILED, "worst\nelement"
    ),
    Record(
        Dispatch(Matmul(4, 6, 8), CpuTiles((2, 2), (1, 2, 4))), NAMED_PROVENANCE, Verdict.CRASHED, "\u2603"
    ),
]


def written(path: Path, *, append: bool = False) -> Path:
    with JsonLines(path, append=append, tags={"card": "H200"}) as file:
        for record in OF_EVERY_VERDICT:
            file.add(record)
    return path


def test_records_are_read_as_they_were_written(tmp_path: Path):
    assert list(read_records(written(tmp_path / "a.jsonl"))) == [
        stored(r, {"card": "H200"}) for r in OF_EVERY_VERDICT
    ]


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
        file.add(replace(OF_EVERY_VERDICT[0], measurement=None))

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


PROVENANCE = Provenance("null", "null", "compiler 1, runtime 2", 3)
RECORD = Record(Dispatch(Matmul(4, 6, 8), Default()), PROVENANCE, Verdict.SUCCESS, "", Measurement((1.0,), 1))


def test_verdicts_are_spelled_as_the_document_and_the_reports_spell_them():
    """These nine, and no other."""
    assert [v.value for v in Verdict] == [
        "SUCCESS", "FAILED", "Not verified", "Not applied", "Not compiled", "Not supported",
        "Implausible", "Crashed", "Timed out",
    ]  # fmt: skip


@pytest.mark.parametrize("verdict", list(Verdict))
def test_only_three_verdicts_are_no_failures(verdict):
    """Every other verdict makes the exit status 1; an operation that a library lacks does not."""
    assert verdict.is_failure is (verdict.value not in ("SUCCESS", "Not verified", "Not supported"))


def test_a_failure_takes_the_measurement_with_it():
    """A wrong kernel has no speed; everything else stays."""
    failed = RECORD.failed(Verdict.FAILED, "1 of 24 elements")
    assert (failed.verdict, failed.reason, failed.measurement) == (Verdict.FAILED, "1 of 24 elements", None)
    assert (failed.dispatch, failed.provenance) == (RECORD.dispatch, RECORD.provenance)
    assert RECORD.measurement is not None


def test_what_should_have_been_verified_and_was_not_is_a_failure():
    """Not verified with a reason is a failure; without one, verification was not requested."""
    assert not RECORD.is_failure
    assert not Record(RECORD.dispatch, PROVENANCE, Verdict.NOT_VERIFIED).is_failure
    assert Record(RECORD.dispatch, PROVENANCE, Verdict.NOT_VERIFIED, "no memory").is_failure
    assert RECORD.failed(Verdict.CRASHED, "SIGSEGV").is_failure


def test_the_arguments_are_those_of_the_document():
    """As they would be given on a command line, split-k last."""
    assert RECORD.arguments_text() == (
        "--batch_count=1 --m=4 --n=6 --k=8 --lhs=f32t --rhs=f32t --result=f32t"
        " --split_k_mode=N/A --split_k_slices=N/A"
    )


def test_the_arguments_may_be_pasted_into_a_shell():
    """A shell would reject the parentheses of a clamp."""
    operation = Matmul(4, 6, 8, epilogue=Epilogue.parse("bias+clamp(-1,1)"))
    text = Record(Dispatch(operation, Default()), PROVENANCE, Verdict.SUCCESS).arguments_text()
    assert " '--epilogue=bias+clamp(-1,1)' " in text
    assert "--epilogue=bias+clamp(-1,1)" in shlex.split(text)


def test_a_split_is_named_with_its_slices():
    """A configuration that splits k says so in the arguments."""
    record = Record(Dispatch(Matmul(4, 6, 8), Default(4)), PROVENANCE, Verdict.SUCCESS)
    assert record.arguments_text().endswith("--split_k_mode=parallel --split_k_slices=4")


def test_a_convolution_has_no_split():
    """Arguments that do not apply are left out."""
    tiles = CpuTiles((1, 1, 4, 4), (1, 1, 4, 4, 1, 1, 1))
    record = Record(Dispatch(Conv2d(1, 8, 8, 4, 4, 3, 3), tiles), PROVENANCE, Verdict.SUCCESS)
    assert "split_k" not in record.arguments_text()
    assert record.op_kind == "OperationKind.Conv2d"


def test_a_kernel_is_named_with_whose_it_is_where_its_name_does_not_say():
    """IREE's, a library's, and another provider's default."""
    assert kernel_name("tile_config_default", "IREE Codegen") == "tile_config_default"
    assert kernel_name("numpy_matmul", "numpy") == "numpy_matmul"
    assert kernel_name("tile_config_default", "torch") == "tile_config_default (torch)"


def test_a_record_is_its_configurations_kernel_unless_told_otherwise():
    """IREE's own, Triton's, or a user's; a library says so itself."""
    here = Provenance("cuda", "cuda:sm_90", "3.13.0", 0)
    triton = Dispatch(Matmul(256, 128, 64), TritonTiles(tile=(64, 64, 32)))
    plain = Dispatch(Matmul(256, 128, 64), Default())

    assert Record(plain, here, Verdict.SUCCESS).provider == "IREE Codegen"
    assert Record(triton, here, Verdict.SUCCESS).provider == "Triton"
    assert Record(triton, here, Verdict.SUCCESS, provider="torch").provider == "torch"
    assert kernel_name(triton.configuration.name, "Triton") == triton.configuration.name


RECORDS = invented(25, samples=9)
OTHER = Machine("Other CPU", 16, 64 * 2**30, "Linux 6.1.0 x86_64")
UNKNOWN = Machine()


def test_this_machine_is_as_the_system_says():
    """CPU and memory as Linux lists them, the cores that the process may use."""
    machine = this_machine()
    assert machine.cpu in Path("/proc/cpuinfo").read_text() or machine.cpu == platform.machine()
    assert machine.cores == len(os.sched_getaffinity(0))
    kibibytes = int(Path("/proc/meminfo").read_text().split()[1])
    assert machine.memory_bytes == pytest.approx(1024 * kibibytes, rel=0.1)
    assert platform.release() in machine.system


def test_its_name_tells_machines_apart_and_its_text_tells_all():
    assert MACHINE.name == "Invented CPU, 2 cores"
    assert replace(MACHINE, cores=1).name == "Invented CPU, 1 core"
    assert MACHINE.text == "Invented CPU, 2 cores, 8.0 GiB, Linux 6.1.0 x86_64"
    assert UNKNOWN.name == UNKNOWN.text == ""


def test_only_what_both_know_differs():
    """What a kernel keeps of the memory for itself is no difference."""
    assert MACHINE.differences(OTHER) == [
        "cpu Invented CPU vs. Other CPU", "cores 2 vs. 16", "memory 8 GiB vs. 64 GiB",
    ]  # fmt: skip
    assert MACHINE.differences(replace(MACHINE, memory_bytes=MACHINE.memory_bytes - 2**20)) == []
    assert MACHINE.differences(UNKNOWN) == []


def on(machine: Machine) -> list[StoredRecord]:
    return [replace(r, provenance=replace(r.provenance, machine=machine)) for r in RECORDS]


def compared(base: list[StoredRecord], new: list[StoredRecord]) -> RunComparison:
    return compare_records(base, new, CompareOptions())


def test_unlike_machines_are_told_in_every_form():
    comparison = compared(RECORDS, on(OTHER))
    sentence = (
        "The sides were measured on different machines: cpu Invented CPU vs. Other CPU; cores 2 vs."
        " 16; memory 8 GiB vs. 64 GiB."
    )
    assert comparison.unlike == sentence
    for name, form in FORMATS.items():
        if name != "csv":  # a table of dispatches, and nothing else
            assert sentence in " ".join(form(comparison, FailOn()).split())


@pytest.mark.parametrize("other", [MACHINE, UNKNOWN])
def test_the_same_machine_and_one_that_nobody_knows_are_no_word_worth(other):
    comparison = compared(RECORDS, on(other))
    assert comparison.unlike == ""
    assert "machines" not in FORMATS["console"](comparison, FailOn())


def test_a_side_of_several_machines_is_told():
    assert compared(RECORDS, [*on(MACHINE), *on(OTHER)]).unlike == (
        "The sides were not measured on the same machines."
    )


@pytest.mark.usefixtures("in_process")
def test_every_record_names_this_machine(null_tree, run):
    """And is not taken for one of another when a run goes on."""
    null_tree()
    run("profiler", "--output=data.csv", "--dispatches=*_default")
    (record,) = read_records(Path("data.jsonl"))
    assert record.provenance.machine == this_machine()
    Path("data.jsonl").write_text(Path("data.jsonl").read_text().replace(this_machine().cpu, "Other CPU"))
    err = run("profiler", "--output=data.csv", "--dispatches=*_default", "--resume").err
    assert "already in data.jsonl: 0 of 1 dispatch" in err


WANTED = Wanted(verify=True, profile=True, mode="batch")


@pytest.mark.parametrize(
    ("verdict", "reason", "is_complete"),
    [
        (Verdict.NOT_COMPILED, "no such tile", True),
        (Verdict.NOT_COMPILED, "killed by SIGABRT: LLVM ERROR: no", True),
        (Verdict.NOT_COMPILED, "out of memory", False),
        (Verdict.NOT_COMPILED, "failed to link executable: sh: 1: Cannot fork", False),
        (Verdict.CRASHED, "killed by SIGSEGV", True),
        (Verdict.CRASHED, "killed by SIGKILL (the system may have run out of memory)", False),
        (Verdict.FAILED, "3 of 4 elements differ", True),
        (Verdict.NOT_SUPPORTED, "", True),
    ],
)
def test_a_failure_is_complete_unless_its_cause_lay_outside(verdict: Verdict, reason: str, is_complete: bool):
    (sample,) = invented(1)
    found = replace(sample, verdict=verdict, reason=reason, measurement=None)
    assert WANTED.is_in(found) is is_complete
