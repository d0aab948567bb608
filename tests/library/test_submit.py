"""`library submit`: a patch of the shipped libraries that git applies, and entries without evidence, which are refused."""

from __future__ import annotations

import math
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from library_samples import FIRST, HERE, SECOND, THIRD, entry

from dispatch_profiler.__main__ import main
from dispatch_profiler.library import Entry, Estimate, Library, find_library, merge
from dispatch_profiler.library.submit import rejection_reason
from dispatch_profiler.operations import Matmul, Operation
from dispatch_profiler.profiler.records.machine import Machine

NAME = "xeon-avx512"
PLACE = Path("dispatch_profiler/library/shipped")


def compilers() -> str:
    """The IREE version of the shipped library."""
    ((_, iree),) = {each.software for each in Library.load(find_library(Path(NAME))).entries}
    return iree


def measured(operation: Operation = FIRST, gflops: float = 100.0, **machine: Any) -> Entry:
    """An entry with all evidence."""
    where = Machine(**{**vars(HERE.machine), "threads": 2, "cpu_level": "x86-64-v4", **machine})
    return entry(operation, gflops, origin=replace(HERE, iree=compilers(), machine=where))


@pytest.fixture
def clone() -> Path:
    """The shipped libraries where a clone has them."""
    shutil.copytree(find_library(Path(NAME)).parent, "clone" / PLACE)
    return Path("clone")


def submit(*entries: Entry, options: tuple[str, ...] = ()) -> int:
    Library(entries).save(Path("mine"))
    return main(["library", "submit", "mine", *options])


def applied(clone: Path, patch: str) -> Library:
    """The shipped library after `git apply`."""
    Path("a.patch").write_text(patch)
    subprocess.run(["git", "apply", "../a.patch"], cwd=clone, check=True, capture_output=True)
    return Library.load(clone / PLACE / NAME)


def test_git_applies_the_patch_and_the_shipped_library_has_the_entries(clone: Path, capsys):
    """Also those of a device for which it had no file."""
    new = [measured(), measured(SECOND, threads=48)]
    assert submit(*new) == 0
    found = applied(clone, capsys.readouterr().out)

    expected = merge(Library.load(find_library(Path(NAME))), Library(new)).library
    assert set(found.entries) == set(expected.entries) >= set(new)
    assert not found.unlisted


def test_a_faster_entry_replaces_the_shipped_one_and_a_slower_one_is_refused(clone: Path, capsys):
    shipped = [each for each in Library.load(find_library(Path(NAME))).entries if each.hardware.threads == 2]
    better, worse = (
        replace(
            each,
            gflops=Estimate(
                *(factor * end for end in (each.gflops.value, each.gflops.low, each.gflops.high))
            ),
        )
        for each, factor in zip(shipped, (2.0, 0.5), strict=False)
    )
    assert submit(better, worse) == 1
    out, err = capsys.readouterr()
    assert (
        f"replaced: {better.operation.name}" in out
        and f"; before: {better.dispatch.configuration.name}, " in out
    )
    assert "1 entry refused:" in err
    assert worse.operation.name in err and f"{NAME} has an entry that is as fast or faster" in " ".join(
        err.split()
    )
    entries = applied(clone, out).entries
    assert len(entries) == len(Library.load(find_library(Path(NAME))))
    assert {each.purpose: each.gflops.value for each in entries if each.hardware == better.hardware}[
        better.purpose
    ] == pytest.approx(better.gflops.value, rel=1e-4)


def test_the_patch_says_what_was_measured_where_and_how_to_repeat_it(capsys):
    assert submit(measured()) == 0
    evidence = capsys.readouterr().out.partition("diff --git")[0].splitlines()
    assert evidence[0] == f"Subject: [PATCH] {NAME}: 1 tuned kernel (1 added)"
    for line in (
        "Machine: A, 2 cores, 8.0 GiB, L",
        "Tuned for: x86-64-v4, 2 threads",
        "Target: llvm-cpu",
        f"IREE: {compilers()}",
        "Measured: 2026-11-22",
        f"  added: {FIRST.name}",
        "      2.00x (1.90-2.10), 100 GFLOP/s (90-110), tile_config_64x128_8x32x4",
        f"  dispatch-profiler library check {NAME} --recheck",
    ):
        assert line in evidence


def test_the_evidence_cannot_pass_for_a_part_of_the_patch(capsys):
    """The name of a machine may be anything."""
    assert submit(measured(cpu="A\ndiff --git a/setup.py b/setup.py\n")) == 0
    patch = capsys.readouterr().out
    assert "\nMachine: A diff --git a/setup.py b/setup.py" in patch
    assert "\ndiff --git a/setup.py" not in patch


UNKNOWN = Estimate(2.0, 0.0, math.inf)


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"gflops": Estimate(0.0, 0.0, 0.0)}, "it has no speed, as after merge --no_eff"),
        ({"gflops": UNKNOWN}, "the samples do not determine the interval of its speed"),
        ({"speedup": UNKNOWN}, "the samples do not determine the interval of its speedup"),
        ({"speedup": Estimate(1.1, 0.98, 1.2)}, "its speedup may be 1: the interval begins at 0.98"),
        (
            {"machine": Machine(threads=2, cpu_level="x86-64-v4")},
            "the machine that it was measured on is unknown",
        ),
        ({"iree": ""}, "the compiler that it was measured with is unknown"),
        ({"module_key": ""}, "the module that was measured is unknown"),
        (
            {"machine": Machine("A", 2, threads=2, cpu_level="x86-64-v2")},
            "no library is shipped for x86-64-v2, 2 threads",
        ),
        (
            {"target": "rocm:gfx950", "machine": Machine("A", gpu="B")},
            "no library is shipped for rocm:gfx950",
        ),
        (
            {"target": "cuda:sm_90", "machine": Machine("A", 2)},
            "the machine that it was measured on is unknown",
        ),
        ({}, ""),
    ],
)
def test_an_entry_without_evidence_is_refused(changed: dict[str, Any], reason: str):
    own = {name: value for name, value in changed.items() if name in ("gflops", "speedup")}
    origin = {name: value for name, value in changed.items() if name not in own}
    given = measured()
    assert rejection_reason(replace(given, provenance=replace(given.provenance, **origin), **own)) == reason


def test_refused_entries_do_not_hide_the_others(capsys):
    unknown = replace(measured(SECOND), speedup=UNKNOWN)
    assert submit(measured(), unknown) == 1
    out, err = capsys.readouterr()
    assert FIRST.name in out and SECOND.name not in out
    assert SECOND.name in err and "do not determine the interval of its speedup" in err


def test_only_chosen_entries_are_submitted_to_a_file(capsys):
    assert submit(measured(), measured(SECOND), options=(SECOND.name, "-o", "a.patch")) == 0
    assert "Writing 1 entry to a.patch" in capsys.readouterr().err
    text = Path("a.patch").read_text()
    assert f'"name": "{SECOND.name}"' in text and f'+{{"name": "{FIRST.name}"' not in text


def test_nothing_to_submit_is_an_error(capsys):
    assert submit(replace(measured(), speedup=UNKNOWN)) == 2
    out, err = capsys.readouterr()
    assert out == "" and "no entry of mine can be submitted" in err


def test_entries_of_another_compiler_are_refused(capsys):
    other = measured(THIRD)
    assert (
        submit(replace(other, provenance=replace(other.provenance, iree="compiler 3.14.0, runtime 3.14.0")))
        == 2
    )
    said = " ".join(capsys.readouterr().err.split())
    assert f"it was measured for llvm-cpu with compiler 3.14.0, runtime 3.14.0, and {NAME} is for " in said


def test_every_shipped_entry_has_a_library_and_most_are_evidence():
    for name in ("epyc-avx2", "h200", NAME):
        entries = Library.load(find_library(Path(name))).entries
        assert sum(not rejection_reason(each) for each in entries) > len(entries) / 2, name
    assert rejection_reason(measured(Matmul(1, 2, 3))) == ""
