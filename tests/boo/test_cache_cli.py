"""`dispatch-profiler cache list|clear`: what launches and trees compiled, in one list."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from dispatch_profiler.__main__ import main
from dispatch_profiler.command import user_cache
from dispatch_profiler.compiler import BuildOutcome, Built, Cache, Origin
from dispatch_profiler.dispatches import State

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def cache(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Call:
    """`cache("list", ...)` -> (status, standard output, standard error)."""
    monkeypatch.delenv("BOO_CACHE_DIR", raising=False)

    def call(*arguments: str) -> tuple[int, str, str]:
        status = main(["cache", *arguments])
        return status, *capsys.readouterr()

    return call


def fill(folder: Path, *labels: str) -> None:
    """An entry for each label, and one of a tree, which has none."""
    compiled, failed = BuildOutcome(State.COMPILED), BuildOutcome(State.NOT_COMPILED, "no")
    for number, label in enumerate([*labels, ""]):
        outcomes = {f"matmul_{number}_default": compiled, **({} if label else {"other": failed})}
        Cache(folder).put(f"{number:064x}", Built(bytes(1024), b"", outcomes), label)


def names(out: str) -> list[str]:
    return [line.split()[0] for line in out.splitlines()[1:]]


def test_kernels_and_modules_are_listed(cache: Call):
    fill(user_cache(), "conv_2d", "layer_norm")

    status, out, err = cache("list")

    assert (status, sorted(names(out))) == (0, ["conv_2d", "layer_norm", "matmul_2_default"])
    assert out.splitlines()[0].split("  ")[0] == "name"
    (line,) = [line for line in out.splitlines() if line.startswith("matmul")]
    assert "1 of 2" in line and "1.4 KiB" in line and line.endswith("not compiled: no")
    assert err.startswith(f"{user_cache()}: 3 entries, 0.0 of 5120 MiB")


def test_the_folder_of_the_environment_is_listed_too(cache: Call, monkeypatch, tmp_path: Path):
    fill(user_cache())
    fill(tmp_path / "mine", "conv_2d")
    monkeypatch.setenv("BOO_CACHE_DIR", str(tmp_path / "mine"))

    assert cache("list", "conv*")[1].count("conv_2d") == 1
    assert cache("list")[2].count("entr") == 2
    assert names(cache("list", f"--cache-dir={user_cache()}")[1]) == ["matmul_0_default"]


def test_named_entries_are_removed(cache: Call):
    fill(user_cache(), "conv_2d", "conv_3d", "layer_norm")

    assert cache("clear", "conv*")[1] == f"removed 2 entries from {user_cache()}\n"
    assert sorted(names(cache("list")[1])) == ["layer_norm", "matmul_3_default"]
    assert cache("clear")[1] == f"removed 2 entries from {user_cache()}\n"
    assert cache("list")[1] == ""


def test_failures_are_listed_with_what_makes_them_repeat_and_can_be_cleared_alone(cache: Call):
    """The reason, the time limit, the target and the compiler."""
    slow = BuildOutcome(State.NOT_COMPILED, "the compiler gave no answer\nwithin 2 s", seconds=2.0)
    crash = BuildOutcome(State.NOT_COMPILED, "killed by SIGABRT: LLVM ERROR: no")
    origin = Origin("3.13 @ 89ece87b", "llvm-cpu (znver4 on x86_64)")
    Cache(user_cache()).put("f" * 64, Built(b"", b"", {"a": slow, "b": crash}), "conv_3d", origin)
    fill(user_cache(), "conv_2d")

    (line,) = (each for each in cache("list")[1].splitlines() if each.startswith("conv_3d"))
    assert line.endswith(
        "not compiled: the compiler gave no answer within 2 s (time limit 2 s); not compiled: killed by SIGABRT: "
        "LLVM ERROR: no [llvm-cpu (znver4 on x86_64), 3.13 @ 89ece87b]"
    )
    assert sorted(names(cache("list", "--failures")[1])) == ["conv_3d", "matmul_1_default"]
    assert cache("clear", "--failures")[1] == f"removed 2 entries from {user_cache()}\n"
    assert names(cache("list")[1]) == ["conv_2d"]


def test_a_pattern_that_matches_nothing_is_an_error(cache: Call):
    fill(user_cache(), "conv_2d")

    status, out, err = cache("clear", "conf*")

    assert (status, out) == (2, "")
    assert "no entry matches 'conf*'" in err and "conv_2d" in err


def test_graphs_are_listed_and_removed(cache: Call):
    fill(user_cache(), "conv_2d")
    Cache(user_cache()).put_text("f" * 64, "{}", "graph_of_5_regions")

    out = cache("list", "graph_*")[1]
    assert names(out) == ["graph_of_5_regions"]
    assert out.splitlines()[1].split()[1] == "-"
    assert cache("clear", "graph_*")[1] == f"removed 1 entry from {user_cache()}\n"
    assert len(names(cache("list")[1])) == 2


def test_a_damaged_entry_is_listed_and_removed(cache: Call):
    fill(user_cache())
    (path,) = user_cache().rglob("*.built")
    path.write_bytes(b"junk")

    assert names(cache("list")[1]) == ["(damaged)"]
    assert cache("clear")[1] == f"removed 1 entry from {user_cache()}\n"


@pytest.mark.parametrize("action", ["list", "clear"])
def test_a_file_is_no_cache(cache: Call, action: str, tmp_path: Path):
    file = tmp_path / "net.py"
    file.touch()

    status, out, err = cache(action, f"--cache-dir={file}")

    assert (status, out) == (2, "") and f"--cache-dir: {file} is a file" in err
