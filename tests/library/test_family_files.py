"""A library as a folder: one file for each device and family of operations, which git and people can compare."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from library_samples import FIRST, HERE, OTHER, SECOND, entry

from dispatch_profiler.errors import UsageError
from dispatch_profiler.library import Entry, Estimate, Library, family_files
from dispatch_profiler.library.entry import Hardware
from dispatch_profiler.operations import Conv2d, Matmul, Operation
from dispatch_profiler.profiler.records.machine import Machine

CONVOLUTION = Conv2d(1, 28, 28, 64, 64, 3, 3, padding=(1, 1))
INDEX = Path("tuned/library.json")


def on(threads: int, operation: Operation = FIRST, level: str = "x86-64-v4", **more: Any) -> Entry:
    """An entry that was measured with so many threads."""
    machine = replace(HERE.machine, threads=threads, cpu_level=level)
    return entry(operation, origin=replace(HERE, machine=machine, **more))


EVERY = (on(2), on(16), on(16, SECOND), on(16, CONVOLUTION), on(0, SECOND, "", target="cuda:sm_90", flags=()))
FILES = (
    "cuda-sm_90/product.json",
    "llvm-cpu-x86-64-v4-16-threads/convolution.json",
    "llvm-cpu-x86-64-v4-16-threads/product.json",
    "llvm-cpu-x86-64-v4-2-threads/product.json",
)


def saved(*entries: Entry) -> None:
    Library(entries or EVERY).save(Path("tuned"))


def files() -> dict[str, str]:
    """The texts of all files with entries, by their place in the folder."""
    return {
        path.relative_to("tuned").as_posix(): path.read_text() for path in sorted(Path("tuned").glob("*/*"))
    }


def damage(name: str, text: str) -> None:
    Path("tuned", name).write_text(text)


def test_each_device_and_family_has_a_file_of_its_own():
    saved()
    assert tuple(files()) == FILES
    assert json.loads(INDEX.read_text()) == {
        "format": "dispatch_profiler library",
        "version": 3,
        "files": [*FILES],
    }
    library = Library.load(Path("tuned"))
    assert set(library.entries) == set(EVERY) and len(library) == len(EVERY)
    assert library.files == (INDEX, *(Path("tuned", name) for name in FILES))


def test_a_file_of_a_folder_is_a_library_too():
    saved()
    assert set(Library.load(Path("tuned", FILES[2])).entries) == {EVERY[1], EVERY[2]}


def test_a_lookup_reads_the_files_of_its_family_only(monkeypatch: pytest.MonkeyPatch):
    saved()
    read: list[str] = []
    plain = family_files.read_file
    monkeypatch.setattr(
        family_files, "read_file", lambda file: read.append(file.parent.name + "/" + file.name) or plain(file)
    )
    library = Library.load(Path("tuned"))
    assert read == ["tuned/library.json"]

    assert library.find(CONVOLUTION) == EVERY[3]
    assert list(library.readable(CONVOLUTION.name, CONVOLUTION.family)) == [EVERY[3]]
    assert read[1:] == [FILES[1]]

    assert library.find(FIRST, hardware=Hardware("x86-64-v4", 16)) == EVERY[1]
    assert sorted(read[1:]) == sorted(FILES)
    library.find(SECOND)
    assert len(read) == 1 + len(FILES)


def test_an_added_entry_changes_no_other_line():
    """Although it was measured on another machine, and sorts before the others."""
    saved()
    before = files()
    new = on(16, Matmul(1, 64, 32))
    new = replace(new, provenance=replace(new.provenance, machine=replace(new.provenance.machine, cpu="B")))
    saved(*EVERY, new)
    after = files()

    changed = [name for name in after if after[name] != before[name]]
    assert changed == [FILES[2]]
    assert set(before[FILES[2]].splitlines()) <= set(after[FILES[2]].splitlines())


def test_a_difference_begins_with_the_operation_and_its_speedup():
    saved()
    before = files()[FILES[2]].splitlines()
    faster = replace(EVERY[1], speedup=Estimate(3.14159265, 3.0, 3.25))
    saved(faster, *EVERY[2:])
    (line,) = set(files()[FILES[2]].splitlines()) - set(before)
    assert line.startswith(f'{{"name": "{FIRST.name}", "speedup": [3.1416, 3.0, 3.25], "gflops": [')


def test_files_that_lose_their_entries_are_removed_and_others_stay():
    saved()
    Path("tuned/cuda-sm_90/notes.txt").write_text("mine")
    saved(EVERY[0])
    assert set(files()) == {"cuda-sm_90/notes.txt", FILES[3]}
    assert not Path("tuned", FILES[1]).parent.exists()


def test_unchanged_files_are_not_written():
    saved()
    before = {name: Path("tuned", name).stat().st_ino for name in FILES}
    saved(*EVERY[:4], replace(EVERY[4], speedup=Estimate(9.0, 8.0, 10.0)))
    after = {name: Path("tuned", name).stat().st_ino for name in FILES}
    assert [name for name in FILES if before[name] != after[name]] == [FILES[0]]


def test_a_damaged_file_does_not_affect_the_others_and_each_is_named():
    saved()
    damage(FILES[1], "{")
    Path("tuned", FILES[3]).unlink()
    library = Library.load(Path("tuned"))

    assert [each.name for each in library.damaged] == [f"tuned/{FILES[1]}", f"tuned/{FILES[3]}"]
    assert library.damaged[0].reason.startswith(f"tuned/{FILES[1]}: not a library (not JSON")
    assert library.damaged[1].reason.startswith(f"cannot read tuned/{FILES[3]}: No such file")
    assert set(library.sound) == {EVERY[1], EVERY[2], EVERY[4]} == set(library.readable())
    with pytest.raises(
        UsageError, match=r"2 files or entries are damaged.*convolution\.json.*2-threads/product\.json"
    ):
        _ = library.entries
    with pytest.raises(UsageError, match=r"convolution\.json: not a library"):
        library.find(CONVOLUTION)


def test_an_entry_in_the_file_of_another_family_is_damaged():
    """It would never be found."""
    saved()
    text = files()[FILES[2]]
    damage(FILES[1], text)
    damaged = Library.load(Path("tuned")).damaged
    assert [each.name for each in damaged] == [SECOND.name, FIRST.name]
    assert all(each.reason.endswith(": it belongs into product.json") for each in damaged)


@pytest.mark.parametrize(
    "name",
    [
        "../other/product.json",
        "/etc/product.json",
        "a/b/product.json",
        "product.json",
        "a/product.txt",
        ".x/a.json",
    ],
)
def test_an_index_lists_files_of_its_own_folder_only(name: str):
    saved()
    INDEX.write_text(json.dumps({"format": "dispatch_profiler library", "version": 3, "files": [name]}))
    with pytest.raises(UsageError, match=r"files: expected FOLDER/FAMILY\.json"):
        Library.load(Path("tuned"))


@pytest.mark.parametrize("version", [1, 2])
def test_libraries_of_earlier_versions_are_read_and_become_folders(version: int):
    Library([EVERY[0], on(2, SECOND)]).save(Path("new.json"))
    data = json.loads(Path("new.json").read_text())
    (origin,) = data["origins"].values()
    if version == 1:
        del origin["machine"]["threads"], origin["machine"]["cpu_level"]
    rows = [{**row, "origin": 0} for row in data["entries"]]
    INDEX.parent.mkdir()
    INDEX.write_text(json.dumps({**data, "version": version, "origins": [origin], "entries": rows}))

    old = Library.load(Path("tuned"))
    threads = HERE.machine.cores if version == 1 else 2
    assert {each.hardware for each in old.entries} == {Hardware("x86-64-v4" if version == 2 else "", threads)}
    old.save(Path("tuned"))
    assert len(files()) == 1
    assert set(Library.load(Path("tuned")).entries) == set(old.entries)


def test_names_of_targets_are_no_paths():
    odd = "null:../../etc/times of mine.yaml"
    saved(entry(FIRST, origin=replace(HERE, target=odd, flags=(), machine=Machine("A", 2))))
    (name,) = files()
    assert name == "null-etc-times-of-mine.yaml/product.json"
    assert len(Library.load(Path("tuned")).entries) == 1


def test_two_branches_that_add_entries_are_merged_by_git():
    """Each adds an operation to the same file."""

    def git(*words: str) -> None:
        subprocess.run(
            ["git", "-c", "user.name=a", "-c", "user.email=a@b", *words], check=True, capture_output=True
        )

    sizes = [Matmul(size, 64, 32) for size in (16, 32, 64, 128, 256, 512)]
    both = [on(16, each) for each in sizes[1:5]]
    git("init", "-q", "-b", "main")
    saved(*both)
    git("add", "tuned")
    git("commit", "-qm", "base")
    git("checkout", "-qb", "mine")
    saved(*both, on(16, sizes[0]))
    git("commit", "-qam", "mine")
    git("checkout", "-q", "main")
    saved(*both, on(16, sizes[5]), on(2, sizes[5]))
    git("add", "tuned")
    git("commit", "-qam", "theirs")
    git("merge", "-q", "mine")

    found = [each.operation for each in Library.load(Path("tuned")).entries if each.hardware.threads == 16]
    assert sorted(found, key=lambda each: each.m) == sizes


def test_another_configuration_of_an_operation_replaces_its_lines_in_place():
    saved(on(2), on(2, SECOND))
    before = files()[FILES[3]].splitlines()
    other = entry(FIRST, configuration=OTHER, origin=EVERY[0].provenance)
    saved(other, on(2, SECOND))
    after = files()[FILES[3]].splitlines()
    assert sum(one != two for one, two in zip(before, after, strict=True)) == 1
