"""Entries for several sizes: in files, in merges, and found by each of their sizes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dispatch_profiler.configurations import RowsMicrokernel, Tuned
from dispatch_profiler.dispatches import Dispatch
from dispatch_profiler.errors import UsageError
from dispatch_profiler.library import Entry, Library, merge
from dispatch_profiler.library.check import unusable_entries
from dispatch_profiler.library.cli import main
from dispatch_profiler.library.entry import Hardware, SizeTime
from dispatch_profiler.library.submit import submission
from dispatch_profiler.library.tuned import TunedConfigurations
from dispatch_profiler.operations import Matmul
from dispatch_profiler.operations.size_range import SizeRange
from dispatch_profiler.profiler.records.machine import Machine
from dispatch_profiler.targets import Target, parse_target
from tests.library.library_samples import HERE, entry

REVISION = HERE.iree.split(",")[0].removeprefix("compiler ")
LINEAR = Matmul(1, 70, 40, rhs_layout="n")
KERNEL = RowsMicrokernel((12, 32), ((16, 1, 32), (4096, 3, 96)))
V4 = Hardware("x86-64-v4", 2)
ORIGIN = replace(HERE, machine=Machine("A", 2, 8 * 2**30, "L", threads=2, cpu_level="x86-64-v4"))


def for_sizes(least: int, most: int, gflops: float = 100.0, **changes: Any) -> Entry:
    """An entry for these sizes, with times at both ends."""
    kernel = changes.pop("kernel", KERNEL)
    made = entry(replace(LINEAR, m=most), gflops, kernel, changes.pop("origin", ORIGIN))
    times = tuple(SizeTime(size, size / 1000, 1.5 * size / 1000) for size in sorted({least, most}))
    return replace(made, sizes=SizeRange("m", least, most), measured=times, **changes)


LOW, MIDDLE, HIGH = for_sizes(1, 16), for_sizes(17, 256), for_sizes(257, 4096)


def rows(count: int) -> Matmul:
    return replace(LINEAR, m=count)


@pytest.fixture
def target(host_has: Callable[..., None]) -> Target:
    host_has("avx", "avx512f")
    return parse_target("llvm-cpu")


def configurations(*entries: Entry, target: Target) -> TunedConfigurations:
    return TunedConfigurations(Library(entries), target, REVISION, hardware=V4)


def test_an_entry_is_read_back_with_its_sizes_and_times(tmp_path: Path):
    library = Library([HIGH, LOW, MIDDLE, entry(rows(16), origin=ORIGIN)])
    library.save(tmp_path)
    assert set(Library.load(tmp_path).entries) == set(library.entries)
    (file,) = tmp_path.glob("*2-threads/product.json")
    lines = file.read_text().splitlines()
    assert sum('"sizes": "m=17:256"' in line for line in lines) == 1
    assert ' "measured": [[17, 0.017, 0.0255], [256, 0.256, 0.384]]},' in lines


def test_files_of_entries_for_one_size_have_no_further_fields(tmp_path: Path):
    Library([entry()]).save(tmp_path)
    (file,) = tmp_path.glob("*/product.json")
    assert "sizes" not in file.read_text()
    assert "measured" not in file.read_text()


DAMAGED = {
    "no range": ('"m=1:16"', '"m=16"', "sizes: expected DIMENSION=LEAST:MOST"),
    "end": ('"m=1:16"', '"m=1:15"', "m=1:15 does not end with the operation's m"),
    "dimension": ('"m=1:16"', '"n=1:16"', "not for several n"),
    "no times": ('"measured": [[', '"measured": [["a", ', "measured: expected"),
    "time": ("[1, 0.001,", "[1, 0.0,", r"measured: expected \[size"),
    "outside": ("[1, 0.001,", "[17, 0.001,", "a size is outside m=1:16"),
    "no list": ('"measured": [', '"times": [', "measured: expected at most"),
}


@pytest.mark.parametrize(("before", "after", "message"), DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_entry_is_named(before: str, after: str, message: str, tmp_path: Path):
    file = Library([LOW]).save(tmp_path / "one.json")
    text = file.read_text()
    assert before in text
    file.write_text(text.replace(before, after))
    with pytest.raises(UsageError, match=message):
        _ = Library.load(file).entries


def test_sizes_at_every_border_find_their_entry():
    library = Library([HIGH, MIDDLE, LOW])
    found = {size: library.find_for_sizes(rows(size), V4) for size in (1, 16, 17, 256, 257, 4096, 4097)}
    assert found == {1: LOW, 16: LOW, 17: MIDDLE, 256: MIDDLE, 257: HIGH, 4096: HIGH, 4097: None}
    assert library.find_for_sizes(replace(rows(16), k=41), V4) is None


def test_the_entry_for_the_fewest_sizes_counts():
    library = Library([for_sizes(1, 4096), MIDDLE])
    assert library.find_for_sizes(rows(100)) == MIDDLE
    assert library.find_for_sizes(rows(300)) == for_sizes(1, 4096)
    assert library.sizes_of(rows(5)) == (SizeRange("m", 1, 4096), SizeRange("m", 17, 256))


def test_a_damaged_entry_does_not_affect_those_for_other_sizes(target: Target, tmp_path: Path):
    file = Library([LOW, MIDDLE]).save(tmp_path / "one.json")
    file.write_text(file.read_text().replace("[1, 0.001,", "[1, 0.0,"))
    tuned = TunedConfigurations(Library.load(file), target, REVISION, hardware=V4)
    assert tuned.for_sizes(rows(17)).dispatch is not None
    lookup = tuned.for_sizes(rows(16))
    assert lookup.dispatch is None
    assert "measured: expected [size" in lookup.problem
    assert tuned.sizes_of(rows(1)) == (SizeRange("m", 17, 256),)


def test_an_operation_of_one_size_does_not_use_them(target: Target):
    tuned = configurations(LOW, target=target)
    assert tuned.library.find(rows(16), packed_weights=True, hardware=V4) is None
    assert replace(tuned, packed_weights=True, uses_nearest=True).of(rows(16)).dispatch is None


def test_the_dispatch_of_a_lookup_is_of_the_largest_size(target: Target):
    lookup = configurations(MIDDLE, target=target).for_sizes(rows(17))
    assert lookup.dispatch == Dispatch(rows(256), Tuned(KERNEL, MIDDLE.extra_flags))
    assert lookup.sizes == SizeRange("m", 17, 256)
    assert configurations(MIDDLE, target=target).for_sizes(rows(16)).dispatch is None


def test_entries_that_do_not_suit_are_not_used_with_the_reason(target: Target):
    invalid = for_sizes(1, 16, kernel=RowsMicrokernel((12, 32), ((8, 1, 32),)))
    assert "up to 8 rows" in configurations(invalid, target=target).for_sizes(rows(4)).problem
    many = replace(ORIGIN, machine=replace(ORIGIN.machine, threads=16))
    lookup = configurations(for_sizes(1, 16, origin=many), target=target).for_sizes(rows(4))
    assert (lookup.dispatch, lookup.problem) == (None, "it is for x86-64-v4, 16 threads")
    foreign = replace(configurations(LOW, target=target), revision="3.14.0")
    assert foreign.for_sizes(rows(4)).is_foreign


def test_merges_compare_entries_for_the_same_sizes_only():
    better, worse = for_sizes(1, 16, 120.0), for_sizes(17, 256, 80.0)
    merged = merge(Library([LOW, MIDDLE]), Library([better, worse, HIGH]), force=False)
    assert [each.outcome.value for each in merged.changes] == ["replaced", "kept", "added"]
    assert set(merged.library.entries) == {better, MIDDLE, HIGH}


def test_two_entries_for_the_same_sizes_are_an_error():
    with pytest.raises(UsageError, match=r"m=1:16 has two entries with packed weights"):
        Library([LOW, for_sizes(1, 16, 50.0)])


def test_checks_name_them_with_their_sizes(target: Target):
    invalid = for_sizes(1, 16, kernel=RowsMicrokernel((12, 32), ((8, 1, 32),)))
    (found,) = unusable_entries(Library([MIDDLE, invalid]), lambda target: REVISION)
    assert found.name.endswith(" m=1:16")


def test_a_submission_has_their_sizes():
    found = submission(Library([MIDDLE]), [MIDDLE])
    text = found.patch or " ".join(name for name, _ in found.refused)
    assert "m=17:256" in text


def test_commands_show_the_sizes_and_their_times(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    Library([LOW, MIDDLE]).save(tmp_path)
    assert main(["list", str(tmp_path)]) == 0
    assert "m=17:256" in capsys.readouterr().out
    assert main(["show", str(tmp_path), rows(256).name]) == 0
    shown = capsys.readouterr().out
    assert "m=17:256" in shown
    assert "17 us, untuned 25.5 us" in shown
    assert main(["export", str(tmp_path)]) == 0
    header, first, second = capsys.readouterr().out.splitlines()
    assert header.endswith(",sizes")
    assert {first.rpartition(",")[2], second.rpartition(",")[2]} == {"m=1:16", "m=17:256"}


def test_they_are_not_exported_as_code_for_one_size(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    Library([LOW]).save(tmp_path / "tuned")
    main(["export", str(tmp_path / "tuned"), "--format=c", "-o", str(tmp_path / "c")])
    assert "its kernel is for m=1:16, and exports are for one size" in " ".join(
        capsys.readouterr().err.split()
    )
