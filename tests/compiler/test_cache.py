"""What was compiled once is found again, by content; what is damaged is never given out."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dispatch_profiler.compiler import BuildOutcome, Built, Cache, Origin
from dispatch_profiler.dispatches import State

ROOT = Path(__file__).parents[2]
BUILT = Built(
    b"verify \x00\xff",
    b"profile",
    {
        "good": BuildOutcome(State.COMPILED, applied="tiles", kernel="0af3"),
        "bad": BuildOutcome(State.NOT_COMPILED, "no such tile"),
    },
    "all that was said",
)
KEY = "ab" + "0" * 62

pytestmark = pytest.mark.usefixtures("in_process")


def entry(folder: Path) -> Path:
    (path,) = folder.rglob("*.built")
    return path


def test_what_was_put_is_got(tmp_path: Path):
    """Vmfbs, outcomes and diagnostics, as they were."""
    cache = Cache(tmp_path)
    cache.put(KEY, BUILT)

    assert cache.get(KEY) == BUILT
    assert cache.get(KEY.replace("a", "c")) is None


def test_a_build_without_vmfbs_is_kept_too(tmp_path: Path):
    """That nothing compiled need not be found out twice."""
    nothing = Built(b"", b"", {"bad": BuildOutcome(State.NOT_COMPILED, "no")})
    cache = Cache(tmp_path)
    cache.put(KEY, nothing)

    assert cache.get(KEY) == nothing


def test_what_may_come_out_otherwise_is_not_kept(tmp_path: Path):
    """What lacked memory may have it next time."""
    cache, fine = Cache(tmp_path), BuildOutcome(State.COMPILED)
    failed = BuildOutcome(State.NOT_COMPILED, "out of memory", is_transient=True, is_deterministic=False)
    cache.put(KEY, Built(b"v", b"p", {"x": failed, "y": fine}))

    assert cache.get(KEY) is None


def test_a_crash_of_the_compiler_is_kept_with_its_reason(tmp_path: Path):
    """It takes seconds, and the same compiler crashes again."""
    crash = BuildOutcome(State.NOT_COMPILED, "killed by SIGABRT: LLVM ERROR: no", is_transient=True)
    cache, origin = Cache(tmp_path), Origin("3.13 @ 89ece87b", "llvm-cpu (a CPU)")
    cache.put(KEY, Built(b"", b"", {"x": crash}), "conv_2d", origin)

    assert cache.get(KEY) == Built(b"", b"", {"x": crash})
    (listed,) = cache.entries()
    assert (listed.name, listed.origin, listed.failures) == ("conv_2d", origin, {"x": crash})


def test_what_ran_out_of_time_is_tried_again_with_more(tmp_path: Path):
    """And found until then."""
    slow = BuildOutcome(State.NOT_COMPILED, "no answer within 2 s", is_transient=True, seconds=2.0)
    built = Built(b"", b"", {"x": slow, "y": BuildOutcome(State.NOT_COMPILED, "no")})
    cache = Cache(tmp_path)
    cache.put(KEY, built)

    assert [cache.get(KEY, seconds) for seconds in (0.5, 2.0, 2.1, 120.0)] == [built, built, None, None]


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(position=st.floats(0, 1), junk=st.binary(min_size=1, max_size=40))
def test_random_bytes_over_an_entry_never_reach_a_user(tmp_path: Path, position: float, junk: bytes):
    """It is a miss and goes; what is right is put in its place."""
    cache = Cache(tmp_path / "cache")
    cache.put(KEY, BUILT)
    path = entry(tmp_path / "cache")
    whole = path.read_bytes()
    at = int(position * (len(whole) - 1))
    damaged = whole[:at] + junk + whole[at + len(junk) :]
    path.write_bytes(damaged)

    assert cache.get(KEY) == (BUILT if damaged == whole else None)
    cache.put(KEY, BUILT)
    assert cache.get(KEY) == BUILT


@pytest.mark.parametrize("size", [0, 10, 64, 80, 100])
def test_an_entry_that_was_cut_is_a_miss_and_goes(tmp_path: Path, size: int):
    cache = Cache(tmp_path)
    cache.put(KEY, BUILT)
    path = entry(tmp_path)
    path.write_bytes(path.read_bytes()[:size])

    assert cache.get(KEY) is None
    assert not path.exists()


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text())
def test_a_text_is_found_again(tmp_path: Path, text: str):
    Cache(tmp_path).put_text(KEY, text, "a_label")

    assert Cache(tmp_path).get_text(KEY) == text


def test_texts_and_builds_are_not_each_other(tmp_path: Path):
    cache = Cache(tmp_path)
    cache.put_text(KEY, "a text", "a_label")
    (found,) = cache.entries()
    assert (found.name, found.dispatches, found.compiled) == ("a_label", 0, 0)
    assert cache.get(KEY) is None
    assert cache.get_text(KEY) is None  # what is none of both goes

    cache.put(KEY, BUILT)
    assert cache.get_text(KEY) is None


@pytest.mark.parametrize("size", [0, 64, 80, -1])
def test_a_text_that_was_cut_is_a_miss_and_goes(tmp_path: Path, size: int):
    cache = Cache(tmp_path)
    cache.put_text(KEY, "a text", "a_label")
    path = entry(tmp_path)
    path.write_bytes(path.read_bytes()[:size])

    assert cache.get_text(KEY) is None
    assert not path.exists()


def test_the_longest_unused_goes_first(tmp_path: Path):
    """Three fit; the first was used again, so the second goes when a fourth comes."""
    keys = [f"{i:02d}" + "0" * 62 for i in range(4)]
    Cache(tmp_path).put(keys[0], BUILT)
    cache = Cache(tmp_path, max_bytes=3 * entry(tmp_path).stat().st_size)
    for age, key in enumerate(keys[:3]):
        cache.put(key, BUILT)
        os.utime(next(tmp_path.rglob(f"{key}.built")), (age + 1, age + 1))
    cache.get(keys[0])

    cache.put(keys[3], BUILT)

    assert [cache.get(key) is not None for key in keys] == [True, False, True, True]


def test_a_cache_that_cannot_be_written_is_only_slower(tmp_path: Path):
    (tmp_path / "file").touch()
    cache = Cache(tmp_path / "file" / "below")

    cache.put(KEY, BUILT)

    assert cache.get(KEY) is None


def test_info_counts_and_clear_removes(tmp_path: Path):
    cache = Cache(tmp_path)
    cache.put(KEY, BUILT)
    size = entry(tmp_path).stat().st_size

    assert (cache.info().entries, cache.info().bytes) == (1, size)
    assert cache.clear() == 1
    assert (cache.info().entries, cache.info().bytes) == (0, 0)


def test_equal_vmfbs_are_stored_once(tmp_path: Path):
    """A launch has one vmfb, and so has a large operation."""
    cache, once = Cache(tmp_path), b"v" * 10_000
    cache.put(KEY, replace(BUILT, verify=once, profile=once))

    assert cache.get(KEY) == replace(BUILT, verify=once, profile=once)
    assert entry(tmp_path).stat().st_size < 2 * len(once)


def test_entries_are_listed_by_their_labels(tmp_path: Path):
    """The last used first. Without a label, an entry has the name of its first dispatch; damage does not hide it."""
    keys = [f"{i:02d}" + "0" * 62 for i in range(3)]
    cache = Cache(tmp_path)
    for age, (key, label) in enumerate(zip(keys, ("conv", "", "layer norm"), strict=True)):
        cache.put(key, BUILT, label)
        os.utime(next(tmp_path.rglob(f"{key}.built")), (age + 1, age + 1))
    damaged = next(tmp_path.rglob(f"{keys[0]}.built"))
    damaged.write_bytes(damaged.read_bytes()[:90])
    os.utime(damaged, (1, 1))

    found = list(cache.entries())

    assert [each.name for each in found] == ["layer norm", "good", ""]
    assert [(each.compiled, each.dispatches) for each in found] == [(1, 2), (1, 2), (0, 0)]
    assert [each.used for each in found] == [3, 2, 1]
    assert sum(each.bytes for each in found) == cache.info().bytes


def test_listed_entries_can_be_removed(tmp_path: Path):
    cache, other = Cache(tmp_path), KEY.replace("a", "c")
    cache.put(KEY, BUILT, "mine")
    cache.put(other, BUILT, "yours")

    assert cache.remove(each for each in cache.entries() if each.name == "mine") == 1
    assert (cache.get(KEY), cache.get(other)) == (None, BUILT)


def test_notes_live_as_long_as_their_entry(tmp_path: Path):
    cache = Cache(tmp_path)
    cache.add_note(KEY, "2t", "local-task")
    assert cache.notes(KEY) == {}  # there is no such entry

    cache.put(KEY, BUILT)
    cache.add_note(KEY, "2t", "local-task")
    cache.add_note(KEY, "1t", "local-sync")
    assert cache.notes(KEY) == {"2t": "local-task", "1t": "local-sync"}

    cache.clear()
    assert not list(tmp_path.rglob("*.notes"))


@pytest.mark.parametrize("junk", [b"", b"junk", b"[]", b'{"2t": 1}', b"9" * 2**17])
def test_damaged_notes_are_none(tmp_path: Path, junk: bytes):
    cache = Cache(tmp_path)
    cache.put(KEY, BUILT)
    cache.add_note(KEY, "2t", "local-task")
    (path,) = tmp_path.rglob("*.notes")
    path.write_bytes(junk)

    assert cache.notes(KEY) == {}
    cache.add_note(KEY, "2t", "local-sync")
    assert cache.notes(KEY) == {"2t": "local-sync"}


# -- through compile.py ----------------------------------------------------------------------------

SHAPE = ("--target=null", "--problem-m=16", "--problem-n=32", "--problem-k=8", "--lhs=f32")


def test_another_tree_takes_it_from_the_cache(run):
    for folder in ("one", "two"):
        run("generator", f"--generated-dir={folder}", *SHAPE)

    first = run("compile", "--generated-dir=one")
    second = run("compile", "--generated-dir=two")

    assert first.err.splitlines()[-1].endswith("0 were up to date")
    assert second.err == "9 dispatches: 9 compiled; 0 were up to date, 9 from the cache\n"
    vmfbs = [sorted(p.read_bytes() for p in Path(folder).rglob("*.vmfb")) for folder in ("one", "two")]
    assert vmfbs[0] == vmfbs[1]


@pytest.mark.parametrize("option", ["--no-cache", "--force-compile"])
def test_the_cache_can_be_passed_over(run, option: str):
    run("generator", *SHAPE)
    run("compile")
    shutil.rmtree("generated")
    run("generator", *SHAPE)

    assert "from the cache" not in run("compile", option).err


def test_the_cache_says_what_it_holds_and_is_cleared(run):
    run("generator", *SHAPE)
    run("compile", "--cache-dir=mine")

    assert run("compile", "--cache-dir=mine", "--cache-info").out.startswith(
        "mine: 3 entries, 0.0 of 5120 MiB"
    )
    assert run("compile", "--cache-dir=mine", "--cache-clear").out == "removed 3 entries from mine\n"
    assert run("compile", "--cache-dir=mine", "--cache-info").out.startswith("mine: 0 entries")


def test_a_file_in_place_of_the_cache_is_an_error(run):
    run("generator", *SHAPE)
    Path("file").touch()

    outcome = run("compile", "--cache-dir=file")

    assert outcome.status == 2 and "--cache-dir: file is a file" in outcome.err


def test_contradicting_options_are_refused(run):
    outcome = run("compile", "--no-cache", "--cache-info").checked(2)
    assert "--no-cache excludes the other cache options" in outcome.err


def test_it_lies_where_the_system_says(run, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(Path("elsewhere").absolute()))
    run("generator", *SHAPE)
    run("compile")

    assert len(list(Path("elsewhere/dispatch_profiler").rglob("*.built"))) == 3


@pytest.mark.slow
def test_many_processes_leave_one_right_copy_of_each_entry(run):
    """Four compile the same tree at once, on one cache."""
    run("generator", *SHAPE)
    command = [sys.executable, str(ROOT / "compile.py"), "-j1", "--cache-dir=mine", "--force-compile"]
    processes = [subprocess.Popen(command, stderr=subprocess.DEVNULL) for _ in range(4)]

    assert [process.wait() for process in processes] == [0] * 4
    assert len(list(Path("mine").rglob("*.built"))) == 3
    shutil.rmtree("generated")
    run("generator", *SHAPE)
    assert "9 from the cache" in run("compile", "--cache-dir=mine").err
    assert not list(Path().rglob("*.tmp"))
