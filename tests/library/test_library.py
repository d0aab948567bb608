"""`library.json`: written and read back, checked, and quick to open."""

from __future__ import annotations

import gc
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from library_samples import FIRST, HERE, OTHER, SECOND, THIRD, TILES, entry

from dispatch_profiler.configurations import Flow, Formed
from dispatch_profiler.errors import UsageError
from dispatch_profiler.library import Estimate, Library
from dispatch_profiler.library import library as library_module
from dispatch_profiler.operations import Conv2d, ElementTypes, LayerNorm, Matmul
from dispatch_profiler.profiler.records.machine import Machine

CONVOLUTION = Conv2d(1, 28, 28, 64, 64, 3, 3, padding=(1, 1))
EVERY = (
    entry(FIRST),
    entry(SECOND, configuration=OTHER, origin=replace(HERE, when="later", module_key="k2")),
    entry(CONVOLUTION, configuration=Formed("im2col", TILES)),
    entry(THIRD, configuration=Flow("data_tiling"), origin=replace(HERE, machine=Machine("B", 16))),
    replace(entry(LayerNorm(128, 768)), speedup=Estimate(2.0, 1.5, float("inf"))),
)


def test_what_is_written_is_read_back():
    file = Library(EVERY).save(Path("tuned"))
    assert file == Path("tuned/library.json")
    for path in (Path("tuned"), file):
        assert set(Library.load(path).entries) == set(EVERY)
    assert file.read_text() == Library.load(file).save(Path("again")).read_text()


def test_the_order_of_entries_does_not_change_the_file():
    one, other = Library(EVERY).save(Path("one")), Library(EVERY[::-1]).save(Path("other"))
    rows = [sorted(row["name"] for row in json.loads(path.read_text())["entries"]) for path in (one, other)]
    assert rows[0] == rows[1] == [row["name"] for row in json.loads(one.read_text())["entries"]]


def test_the_file_states_everything_in_plain_words():
    data = json.loads(Library([EVERY[2]]).save(Path("a.json")).read_text())
    (row,) = data["entries"]
    assert (data["format"], data["version"]) == ("dispatch_profiler library", 1)
    assert row["configuration"]["form"] == "im2col"
    assert row["operation"]["kind"] == "conv2d"
    assert row["flags"] == ["--iree-llvmcpu-target-cpu=host", "-O2"]
    assert (row["gflops"], row["speedup"]) == ([100.0, 90.0, 110.00000000000001], [2.0, 1.9, 2.1])
    assert (row["module_key"], row["when"]) == ("k1", "2026-11-22T10:00:00+00:00")
    origin = data["origins"][row["origin"]]
    assert (origin["target"], origin["iree"], origin["machine"]["cpu"]) == ("llvm-cpu", HERE.iree, "A")


def test_an_entry_is_found_by_its_operation():
    Library(EVERY).save(Path("tuned"))
    library = Library.load(Path("tuned"))
    assert library.find(CONVOLUTION) == EVERY[2]
    assert library.find(Matmul(1, 2, 3)) is None
    assert library.find(Matmul(64, 64, 32, ElementTypes("f16", "f16", "f32"))) is None
    assert (len(library), len(Library())) == (5, 0)


def test_an_entry_that_is_not_used_is_not_constructed(monkeypatch):
    """Finding one operation among many constructs that one."""
    Library(EVERY).save(Path("tuned"))
    made: list[str] = []
    read = library_module.entry_of
    monkeypatch.setattr(
        library_module, "entry_of", lambda row, origins: made.append(row["name"]) or read(row, origins)
    )
    library = Library.load(Path("tuned"))
    assert made == []
    library.find(SECOND)
    assert made == [SECOND.name]


def test_a_damaged_entry_does_not_affect_the_others():
    """Until it is used."""
    file = Library(EVERY).save(Path("tuned"))
    data = json.loads(file.read_text())
    at = next(at for at, row in enumerate(data["entries"]) if row["name"] == FIRST.name)
    data["entries"][at]["configuration"]["kind"] = "cpu_tile"
    file.write_text(json.dumps(data))
    library = Library.load(file)
    assert library.find(SECOND) == EVERY[1]
    for use in (lambda: library.find(FIRST), lambda: library.entries):
        with pytest.raises(
            UsageError, match=f"library.json, entry {at + 1} \\({FIRST.name}\\): .*'cpu_tile'"
        ):
            use()


def test_only_entries_with_the_prefix_are_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    library = Library.load(Library(EVERY).save(Path("tuned")))
    parsed: list[str] = []
    parse = library_module.entry_of
    monkeypatch.setattr(
        library_module, "entry_of", lambda row, origins: (parsed.append(row["name"]), parse(row, origins))[1]
    )
    assert set(library.readable("conv2d_")) == {EVERY[2]}
    assert parsed == [CONVOLUTION.name]
    assert set(library.readable()) == set(EVERY)


def changed(**values: Any) -> None:
    """A library of one entry, in which these fields are others."""
    file = Library(EVERY[:1]).save(Path("tuned"))
    data = json.loads(file.read_text())
    data["entries"][0].update(values)
    file.write_text(json.dumps(data))


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("name", "matmul_1x1x1_f32t_f32t_f32t", f"name: expected {FIRST.name}, but got 'matmul_1x1x1"),
        ("gflops", [1, 2], "gflops: expected [value, low, high]"),
        ("gflops", [1.0, 2.0, 3.0], "gflops: expected 0 <= low <= value <= high"),
        ("gflops", [None, 0.0, 3.0], "gflops: expected three numbers"),
        ("speedup", [2.0, True, 3.0], "speedup: expected three numbers"),
        ("speedup", [10**400, 0, 10**400], "speedup: "),
        ("speedup", [float("nan"), 0, 1], "speedup: "),
        ("origin", 1, "origin: expected a whole number from 0 to 0, but got 1"),
        ("origin", True, "origin: expected a whole number"),
        ("flags", "-O2", "flags: expected a list, but got '-O2'"),
        ("operation", {"kind": "matmull"}, "operation or configuration: unknown operation kind 'matmull'"),
        ("operation", {"kind": "matmul", "m": 10**30}, "operation: expected numbers"),
        ("configuration", [], "configuration: expected an object"),
    ],
)
def test_a_wrong_value_is_named(field: str, value: Any, said: str):
    changed(**{field: value})
    with pytest.raises(UsageError) as raised:
        _ = Library.load(Path("tuned")).entries
    assert said in raised.value.message and "entry 1 (matmul_" in raised.value.message


def test_two_entries_of_one_operation_are_an_error():
    with pytest.raises(UsageError, match=f"{FIRST.name} has two entries"):
        Library([entry(FIRST), entry(FIRST, configuration=OTHER)])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "not JSON"),
        ("[]", "expected an object"),
        ("{}", 'expected "format": "dispatch_profiler library"'),
        ('{"format": "dispatch_profiler library", "version": 2}', "unsupported version 2"),
        ('{"format": "dispatch_profiler library", "version": 1}', "origins: missing"),
        ('{"format": "dispatch_profiler library", "version": 1, "origins": [], "entries": [3]}', "entries: "),
        (
            '{"format": "dispatch_profiler library", "version": 1, "origins": [], "entries": [{}]}',
            "name: missing",
        ),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_another_file_is_no_library(text: str, said: str):
    Path("library.json").write_text(text)
    with pytest.raises(UsageError) as raised:
        Library.load(Path("."))
    assert said in raised.value.message and raised.value.message.startswith("library.json: not a library")


@pytest.mark.parametrize("enabled", [True, False])
def test_loading_leaves_the_garbage_collector_as_it_was(monkeypatch, enabled: bool):
    """Also if the file is no library."""
    seen: list[bool] = []
    parse = library_module.parse_json
    monkeypatch.setattr(library_module, "parse_json", lambda data: seen.append(gc.isenabled()) or parse(data))
    Library(EVERY).save(Path("tuned"))
    Path("library.json").write_text("{")
    (gc.enable if enabled else gc.disable)()
    try:
        Library.load(Path("tuned"))
        with pytest.raises(UsageError):
            Library.load(Path("."))
        assert (gc.isenabled(), seen) == (enabled, [False, False])
    finally:
        gc.enable()


def test_a_library_that_is_missing_or_a_pipe():
    with pytest.raises(UsageError, match=r"cannot read missing/library\.json: No such file"):
        Library.load(Path("missing"))
    os.mkfifo("library.json")
    with pytest.raises(UsageError, match="named pipe"):
        Library.load(Path("."))
