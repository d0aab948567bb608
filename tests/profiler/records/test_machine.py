"""The machine that a record was made on, in records and where they are compared."""

from __future__ import annotations

import os
import platform
from dataclasses import replace
from pathlib import Path

import pytest
from sample_records import MACHINE, invented

from dispatch_profiler.profiler.compare.pairing import CompareOptions, FailOn, RunComparison, compare_records
from dispatch_profiler.profiler.compare.render import FORMATS
from dispatch_profiler.profiler.evaluation.machine import this_machine
from dispatch_profiler.profiler.records.machine import Machine
from dispatch_profiler.profiler.records.record_file import StoredRecord, read_records

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
    for form in FORMATS.values():
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
