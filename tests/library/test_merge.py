"""`merge`: which entry the result has, what is said about each, and what is written."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from library_samples import FIRST, HERE, IREE, OTHER, SECOND, THIRD, TILES, entry, speeds

from dispatch_profiler.errors import UsageError
from dispatch_profiler.library import Entry, Library, MergeOutcome, merge, merge_outcome
from dispatch_profiler.library.merge_cli import main
from dispatch_profiler.operations import Operation
from dispatch_profiler.profiler.records.machine import Machine

OLD = IREE.replace("3.13", "3.12")


def of(*gflops: float | None) -> Library:
    """An entry of this speed for FIRST, SECOND and THIRD, unless None."""
    found = zip((FIRST, SECOND, THIRD), gflops, strict=False)
    return Library(entry(operation, speed) for operation, speed in found if speed is not None)


def written(name: str, *gflops: float | None) -> str:
    of(*gflops).save(Path(name))
    return name


def read(name: str) -> dict[str, float]:
    return speeds(Library.load(Path(name)).entries)


def named(*values: float) -> dict[str, float]:
    operations: Sequence[Operation] = (FIRST, SECOND, THIRD)
    return {operation.name: value for operation, value in zip(operations, values, strict=False)}


# -- the rule --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("known", "new", "forced", "otherwise"),
    [
        (None, 5.0, "added", "added"),
        (None, 0.0, "added", "added"),
        (4.0, 5.0, "replaced", "replaced"),
        (5.0, 5.0, "forced", "kept"),
        (6.0, 5.0, "forced", "kept"),
        (0.0, 5.0, "replaced", "replaced"),
        (0.0, 0.0, "replaced", "replaced"),
        (5.0, 0.0, "forced", "kept"),
    ],
)
def test_the_outcome_depends_on_speeds_alone(known, new, forced: str, otherwise: str):
    assert merge_outcome(known, new, force=True).value == forced
    assert merge_outcome(known, new, force=False).value == otherwise


@pytest.mark.parametrize("order", list(itertools.permutations([10.0, 30.0, 20.0])))
def test_without_forcing_the_fastest_remains_in_any_order(order):
    library = Library()
    for speed in order:
        library = merge(library, of(speed), force=False).library
    assert speeds(library.entries) == named(30.0)


@pytest.mark.parametrize("order", list(itertools.permutations([10.0, 30.0, 20.0])))
def test_with_forcing_the_last_remains(order):
    library = Library()
    for speed in order:
        library = merge(library, of(speed)).library
    assert speeds(library.entries) == named(order[-1])


def test_without_speeds_any_later_entry_replaces():
    once = merge(of(100.0), of(200.0), keep_speeds=False).library
    assert speeds(once.entries) == named(0.0)
    assert speeds(merge(once, of(1.0), force=False).library.entries) == named(1.0)


def test_speeds_are_compared_before_they_are_dropped():
    merged = merge(of(100.0, 100.0), of(200.0, 50.0), force=False, keep_speeds=False)
    assert speeds(merged.library.entries) == named(0.0, 100.0)
    assert [change.outcome for change in merged.changes] == [MergeOutcome.REPLACED, MergeOutcome.KEPT]


def test_merging_changes_neither_library():
    base, new = of(100.0), of(50.0, 60.0)
    merge(base, new)
    assert (speeds(base.entries), speeds(new.entries)) == (named(100.0), named(50.0, 60.0))


# -- the command -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("option", "result", "outcomes"),
    [
        ([], (50.0, 200.0, 10.0), ["forced", "replaced", "added"]),
        (["--force_merge", "True"], (50.0, 200.0, 10.0), ["forced", "replaced", "added"]),
        (["--force_merge", "False"], (100.0, 200.0, 10.0), ["kept", "replaced", "added"]),
        (["--no_eff"], (0.0, 0.0, 0.0), ["forced", "replaced", "added"]),
        (["--no_eff", "--force_merge=false"], (100.0, 0.0, 0.0), ["kept", "replaced", "added"]),
    ],
)
def test_each_problem_is_logged_with_its_outcome(capsys, option, result, outcomes):
    base, new = written("base", 100.0, 100.0), written("new", 50.0, 200.0, 10.0)
    assert main([*option, base, new, "out"]) == 0
    out, err = capsys.readouterr()
    *logged, summary = err.splitlines()
    names = sorted(named(1, 2, 3))
    by_name = dict(zip(named(1, 2, 3), outcomes, strict=True))
    assert (out, [line.split() for line in logged]) == ("", [[by_name[name], name] for name in names])
    counts = [f"{outcomes.count(each.value)} {each.value}" for each in MergeOutcome]
    assert summary == f"Writing 3 entries to out/library.json: {', '.join(counts)}"
    assert read("out") == named(*result)
    assert (read("base"), read("new")) == (named(100.0, 100.0), named(50.0, 200.0, 10.0))


def test_what_is_told_depends_on_the_verbosity(capsys):
    Library([entry(FIRST, 100.0, TILES), entry(SECOND)]).save(Path("base"))
    Library([entry(FIRST, 80.0, OTHER), entry(THIRD)]).save(Path("new"))

    def told(*options: str) -> list[str]:
        assert main(["--dry-run", *options, "base", "new", "out"]) == 0
        return capsys.readouterr().err.splitlines()

    assert len(told("-v", "0")) == 1
    assert told() == told("-v", "1") == told("--verbosity=1")
    assert f"forced    {FIRST.name}" in told("-v1")
    both = f"{TILES.name} (100 GFLOP/s, 2 threads) by {OTHER.name} (80 GFLOP/s, 2 threads)"
    assert f"forced    {FIRST.name}: {both}" in told("-v", "2")
    assert f"added     {THIRD.name}: {TILES.name} (100 GFLOP/s, 2 threads)" in told("-v", "2")
    kept = f"{TILES.name} (100 GFLOP/s, 2 threads), not {OTHER.name} (80 GFLOP/s, 2 threads)"
    assert f"kept      {FIRST.name}: {kept}" in told("-v2", "--force_merge=false")
    assert told("-q", "-v2") == []


def test_the_output_may_be_the_first_library():
    base, new = written("base", 100.0, 100.0), written("new", None, 50.0, 10.0)
    assert main([base, new, base]) == 0
    assert read(base) == named(100.0, 50.0, 10.0)


def test_a_dry_run_writes_nothing(capsys):
    base, new = written("base", 100.0), written("new", 50.0)
    assert main([base, new, base, "--dry-run"]) == 0
    assert read(base) == named(100.0)
    assert main([base, new, "out", "--dry-run"]) == 0
    assert not Path("out").exists()
    assert (
        "Would write 1 entry to out/library.json: 0 added, 0 replaced, 1 forced, 0 kept"
        in capsys.readouterr().err
    )


def foreign(**origin: Any) -> Entry:
    return entry(SECOND, 50.0, origin=replace(HERE, **origin))


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (foreign(target="cuda:sm_80", flags=()), f"ORIGINAL is for llvm-cpu with {IREE}, but INCREMENTAL has entries for cuda:sm_80 with"),
        (foreign(iree=OLD), f"but INCREMENTAL has entries for llvm-cpu with {OLD}"),
    ],
)  # fmt: skip
def test_another_target_or_version_is_rejected_unless_allowed(capsys, other: Entry, said: str):
    base = written("base", 100.0)
    Library([other]).save(Path("new"))
    assert main([base, "new", base]) == 2
    error, hint = capsys.readouterr().err.splitlines()
    assert said in error and hint.endswith("or add --allow-mismatch")
    assert read(base) == named(100.0)
    assert main([base, "new", base, "--allow-mismatch"]) == 0
    assert read(base) == named(100.0, 50.0)


def test_an_empty_library_has_no_target():
    empty, new = written("empty"), written("new", 50.0)
    assert main([empty, new, "out"]) == 0
    assert main([new, empty, "other"]) == 0
    assert read("out") == read("other") == named(50.0)


def test_speeds_of_another_machine_are_compared_with_a_warning(capsys):
    base = written("base", 100.0)
    Library([entry(FIRST, 50.0, origin=replace(HERE, machine=Machine("B", 16)))]).save(Path("new"))
    assert main(["-q", base, "new", "out"]) == 0
    assert capsys.readouterr().err == (
        "warning: the speeds were measured on different machines: "
        "ORIGINAL on A, 2 cores, INCREMENTAL on B, 16 cores\n"
    )


@pytest.mark.parametrize("broken", ["base", "new"])
def test_a_library_that_cannot_be_read_leaves_the_output_as_it_was(capsys, broken: str):
    written("base", 100.0), written("new", 50.0), written("out", 1.0)
    Path(broken, "library.json").write_text("{")
    assert main(["base", "new", "out"]) == 2
    assert f"error: {broken}/library.json: not a library (not JSON" in capsys.readouterr().err
    assert read("out") == named(1.0)
    assert main(["base", "missing", "elsewhere"]) == 2
    assert not Path("elsewhere").exists()


def test_a_file_is_no_folder_for_the_output(capsys):
    base, new = written("base", 100.0), written("new", 50.0)
    Path("out").write_text("mine")
    assert main([base, new, "out"]) == 2
    assert "error: OUTPUT: out is a file\nhint: name a folder\n" in capsys.readouterr().err
    assert Path("out").read_text() == "mine"


def test_a_failing_write_leaves_the_output_as_it_was(monkeypatch):
    """A full disk, for example: the file is replaced as a whole or not at all."""
    base, new = written("base", 100.0), written("new", 50.0)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    assert main([base, new, base]) == 1
    assert read(base) == named(100.0)
    files = {path.name for path in Path(base).rglob("*") if path.is_file()}
    assert files == {"library.json", ".library.json.lock", "product.json"}


def test_merging_nothing_in_common_takes_both():
    with pytest.raises(UsageError):
        Library.load(Path("out"))
    assert main([written("base", 1.0), written("new", None, 2.0, 3.0), "out"]) == 0
    assert read("out") == named(1.0, 2.0, 3.0)
