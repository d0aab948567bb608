"""A cache that another user may write to is not used: its entries are code that would be executed."""

from __future__ import annotations

import logging
import os
import stat
from pathlib import Path

import pytest

from dispatch_profiler.__main__ import main
from dispatch_profiler.boo.kernels import provider
from dispatch_profiler.compiler import BuildOutcome, Built, Cache
from dispatch_profiler.dispatches import State
from dispatch_profiler.files import private_files
from dispatch_profiler.files.private_files import NotPrivate, others_reason

KEY, OTHER = "ab" + 62 * "0", "cd" + 62 * "0"
BUILT = Built(b"code", b"code", {"f": BuildOutcome(State.COMPILED)})


@pytest.fixture(autouse=True)
def _no_warnings_yet() -> None:
    private_files.warn_once.cache_clear()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of a cache with one entry, its notes and a text."""
    path = tmp_path / "above" / "cache"
    cache = Cache(path)
    cache.put(KEY, BUILT)
    cache.add_note(KEY, "driver", "local-sync")
    cache.put_text(OTHER, "graph", "label")
    assert is_used(cache)
    return path


def is_used(cache: Cache) -> bool:
    """Whether an entry, its notes and a text are found; all of them are, or none."""
    found = {cache.get(KEY) == BUILT, cache.notes(KEY) != {}, cache.get_text(OTHER) == "graph"}
    assert len(found) == 1
    return found.pop()


def widen(path: Path, bits: int) -> None:
    path.chmod(stat.S_IMODE(path.stat().st_mode) | bits)


@pytest.mark.parametrize("bits", [stat.S_IWGRP, stat.S_IWOTH, stat.S_IWOTH | stat.S_ISVTX])
def test_a_folder_that_others_may_write_to(folder: Path, bits: int, caplog: pytest.LogCaptureFixture) -> None:
    """Nothing is read, written, listed or removed; one warning names the folder and its mode."""
    before = sorted(folder.rglob("*"))
    widen(folder, bits)
    cache = Cache(folder)
    assert not is_used(cache)
    cache.put("ef" + 62 * "0", BUILT)
    cache.add_note(KEY, "driver", "changed")
    assert (cache.info().entries, list(cache.entries()), cache.clear()) == (0, [], 0)
    assert sorted(folder.rglob("*")) == before
    (message,) = [each.getMessage() for each in caplog.records]
    assert message.startswith(f"the cache {folder} is not used: other users may write to {folder} (mode ")
    assert "BOO_CACHE_DIR" in message
    with pytest.raises(NotPrivate, match="other users may write"):
        cache.check_writable()


@pytest.mark.parametrize(("bits", "used"), [(stat.S_IWOTH, False), (stat.S_IWOTH | stat.S_ISVTX, True)])
def test_a_folder_above_that_others_may_write_to(folder: Path, bits: int, used: bool) -> None:
    """They could replace the cache, unless the sticky bit keeps what belongs to this user, as in /tmp."""
    widen(folder.parent, bits)
    assert is_used(Cache(folder)) == used


def test_a_folder_inside_and_the_temporary_files(folder: Path) -> None:
    for name in ("ab", "cd"):
        widen(folder / name, stat.S_IWOTH)
    assert not is_used(Cache(folder))
    for name in ("ab", "cd"):
        (folder / name).chmod(0o755)
    widen(folder / "unfinished", stat.S_IWOTH)
    Cache(folder).put("ef" + 62 * "0", BUILT)
    assert not (folder / "ef").exists()


def test_an_entry_that_others_may_write_to(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It is named, and replaced by the next build."""
    entry = folder / "ab" / f"{KEY}.built"
    widen(entry, stat.S_IWOTH)
    cache = Cache(folder)
    assert cache.get(KEY) is None
    assert cache.get_text(OTHER) == "graph"
    (message,) = [each.getMessage() for each in caplog.records]
    assert f"an entry of the cache {folder} is not used: other users may write to {entry}" in message
    cache.put(KEY, BUILT)
    assert cache.get(KEY) == BUILT
    assert not stat.S_IMODE(entry.stat().st_mode) & 0o022


def test_an_entry_that_is_a_link_into_a_folder_that_others_may_write_to(folder: Path, tmp_path: Path) -> None:
    entry, elsewhere = folder / "ab" / f"{KEY}.built", tmp_path / "elsewhere"
    elsewhere.mkdir()
    entry.rename(elsewhere / "entry")
    entry.symlink_to(elsewhere / "entry")
    assert Cache(folder).get(KEY) == BUILT
    widen(elsewhere, stat.S_IWOTH)
    assert Cache(folder).get(KEY) is None


def test_notes_that_others_may_write_to(folder: Path) -> None:
    widen(folder / "ab" / f"{KEY}.notes", stat.S_IWGRP)
    assert Cache(folder).notes(KEY) == {}
    assert Cache(folder).get(KEY) == BUILT


def test_a_cache_of_another_user(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Root is trusted; to this test's user, that of the cache is another one, unless it is root."""
    own = os.geteuid()
    _give_to_somebody(folder, monkeypatch)
    assert not is_used(Cache(folder))
    assert "belongs to" in caplog.records[0].getMessage()
    monkeypatch.setattr(os, "geteuid", lambda: own)


def _give_to_somebody(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `path` belong to a user who is neither root nor the one that asks."""
    if os.geteuid() == 0:
        for each in (path, *path.rglob("*")):
            os.lchown(each, 65534, 65534)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 65534)


def test_an_entry_of_another_user_in_a_folder_of_this_one(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if os.geteuid() == 0:
        os.chown(folder / "ab" / f"{KEY}.built", 65534, 65534)
        assert Cache(folder).get(KEY) is None
        assert Cache(folder).get_text(OTHER) == "graph"
    else:
        _give_to_somebody(folder, monkeypatch)
        with pytest.raises(NotPrivate, match="belongs to"):
            private_files.read_private(folder / "ab" / f"{KEY}.built", 2**20)


def test_links(folder: Path, tmp_path: Path) -> None:
    """Every folder on the way counts, as do those that links lead through."""
    link, way = tmp_path / "link", tmp_path / "way"
    way.mkdir()
    (way / "second").symlink_to("../above/../above/cache")
    link.symlink_to("way/second")
    assert is_used(Cache(link))
    widen(way, stat.S_IWOTH)
    assert others_reason(link) == f"other users may write to {way} (mode 757)"
    assert not is_used(Cache(link))
    loop = tmp_path / "loop"
    loop.symlink_to("loop")
    assert "links" in (others_reason(loop) or "")


def test_the_link_of_another_user(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The owner of a link in a folder with the sticky bit may let it lead elsewhere."""
    link = tmp_path / "link"
    link.symlink_to(folder)
    _give_to_somebody(link, monkeypatch)
    assert "belongs to" in (others_reason(link) or "")


@pytest.mark.parametrize("umask", [0o000, 0o002, 0o022, 0o077])
def test_a_new_cache_is_private_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    """So is every folder that is created for it."""
    path = tmp_path / "new" / "folders" / "cache"
    before = os.umask(umask)
    try:
        cache = Cache(path)
        cache.put(KEY, BUILT)
        cache.add_note(KEY, "driver", "local-sync")
        cache.put_text(OTHER, "graph", "label")
        Cache(tmp_path / "checked" / "cache").check_writable()
    finally:
        os.umask(before)
    assert is_used(cache)
    assert others_reason(tmp_path / "checked" / "cache") is None
    assert not [each for each in path.rglob("*.built") if each.stat().st_mode & 0o022]


def test_a_folder_that_does_not_exist_yet(tmp_path: Path) -> None:
    assert others_reason(tmp_path / "none" / "yet") is None
    widen(tmp_path, stat.S_IWOTH)
    assert others_reason(tmp_path / "none" / "yet") is not None


def test_a_launch_warns_once(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    widen(folder, stat.S_IWOTH)
    provider.warn_unless_writable.cache_clear()
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            Cache(folder).get(KEY)
            provider.warn_unless_writable(folder)
    assert len(caplog.records) == 1


def test_a_list_of_entries_leaves_them_out(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    widen(folder, stat.S_IWOTH)
    assert main(["cache", "list", f"--cache-dir={folder}"]) == 0
    out, err = capsys.readouterr()
    assert not out
    assert f"{folder}: 0 entries" in err
