"""Kernels are compiled ahead of their first launch: each once, with a reason for each that fails."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from dispatch_profiler.boo.driver.preload import CachePopulator, CachePrepopulator, main
from dispatch_profiler.boo.environment import launch_settings
from dispatch_profiler.boo.kernels import OperationKernels
from dispatch_profiler.boo.session import SESSION
from dispatch_profiler.command import user_cache
from dispatch_profiler.compiler import Cache
from dispatch_profiler.errors import UsageError
from dispatch_profiler.runtime.device_uri import DeviceUri

CONV = "conv -n 1 -c 4 -H 8 -W 8 -k 4 -y 3 -x 3 -p 1 -q 1 -F 1"
OTHER = f"{CONV[:-1]}2"
BAD = "conv -n 1 -c four"
NULL = DeviceUri("null")

pytestmark = pytest.mark.usefixtures("in_process")


@pytest.fixture(autouse=True)
def unset(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("BOO_CACHE_ON", "BOO_CACHE_DIR", "BOO_TUNING_SPEC_PATH"):
        monkeypatch.delenv(name, raising=False)
    SESSION.clear("kernels")


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """`broken("name")`: the null compiler rejects dispatches with that in their names."""
    from dispatch_profiler.boo.driver import preload
    from dispatch_profiler.targets import NullTarget

    def reject(part: str) -> None:
        Path("faults.yaml").write_text(f'"*{part}*": {{not_compiled: no such tile}}\n')
        monkeypatch.setattr(
            preload, "target_of", lambda device: NullTarget(str(Path("faults.yaml").absolute()))
        )

    return reject


def populator(*commands: str, **options: object) -> CachePopulator:
    return CachePopulator(commands=commands, devices=["null"], **options)


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in Cache(folder).entries())


def test_kernels_are_compiled_where_launches_find_them(builds: list[str]):
    preloaded = populator(CONV, OTHER)
    preloaded.run(max_processes=2)

    found = [signature.func_name for signature in preloaded.signatures]
    assert names(user_cache()) == sorted(found) and len(builds) == 2
    for signature in preloaded.signatures:
        kernels = OperationKernels(
            signature.operation, signature.func_name, launch_settings(), cache_only=True
        )
        assert kernels.kernel(NULL).function in builds
    assert len(builds) == 2
    assert preloaded.get_failures() == {}


def test_a_signature_that_is_there_twice_is_compiled_once(builds: list[str]):
    preloaded = populator(CONV, shlex.split(CONV), signatures=populator(CONV).signatures)
    preloaded.run()

    assert len(preloaded.signatures) == len(builds) == 1


def test_one_string_is_one_command_and_one_device():
    single = CachePopulator(commands=CONV, devices="null")
    assert single.signatures == populator(CONV).signatures and single.devices == (NULL,)


def test_a_second_run_compiles_nothing(builds: list[str]):
    for _ in range(2):
        populator(CONV).run()

    assert len(builds) == 1


def test_the_status_is_that_of_the_cache():
    preloaded = populator(CONV)
    (name,) = (signature.func_name for signature in preloaded.signatures)
    assert preloaded.get_cache_status(name) == {"null": "missing"}
    preloaded.run()
    assert preloaded.get_cache_status(name) == {"null": "cached"}
    Cache(user_cache()).clear()
    assert preloaded.get_cache_status(name) == {"null": "missing"}

    with pytest.raises(UsageError, match="no signature is called nothing"):
        preloaded.get_cache_status("nothing")


def test_a_kernel_that_fails_has_a_reason_and_affects_no_other(broken: Callable[[str], None]):
    good, bad = populator(CONV, OTHER).signatures
    broken(bad.operation.name)
    preloaded = populator(CONV, OTHER)
    preloaded.run()

    assert list(preloaded.get_failures()) == [bad.func_name]
    assert "no such tile" in preloaded.get_failures()[bad.func_name]
    assert preloaded.get_cache_status(good.func_name) == {"null": "cached"}
    status = preloaded.get_cache_status(bad.func_name)["null"]
    assert status.startswith("failed: ") and "no such tile" in status


def test_a_bad_command_has_a_reason_and_affects_no_other(builds: list[str]):
    preloaded = populator(BAD, CONV)
    preloaded.run()

    assert list(preloaded.get_failures()) == ["command 1"]
    assert len(builds) == 1


def test_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """With it, the cache need not be on."""
    monkeypatch.setenv("BOO_CACHE_ON", "0")
    populator(CONV, cache_dir=tmp_path / "mine").run()
    assert len(names(tmp_path / "mine")) == 1

    with pytest.raises(UsageError, match="BOO_CACHE_ON is 0"):
        populator(CONV).run()


def test_a_folder_that_cannot_be_written_to_is_an_error(tmp_path: Path, builds: list[str]):
    """Nothing would be kept for launches."""
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=r"cannot write to the cache .*file: ") as raised:
        populator(CONV, cache_dir=tmp_path / "file").run()
    assert "BOO_CACHE_DIR" in raised.value.hint and builds == []


def test_at_least_one_process_compiles():
    with pytest.raises(UsageError, match="max_processes must be at least 1, but is 0"):
        populator(CONV).run(max_processes=0)


def test_both_documented_names_are_the_same_class():
    assert CachePrepopulator is CachePopulator


# -- the command -----------------------------------------------------------------------------------


@pytest.fixture
def preload(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    """`preload("file", ...)` -> (status, standard error)."""

    def call(*arguments: str) -> tuple[int, str]:
        status = main([*arguments])
        out, err = capsys.readouterr()
        assert out == ""
        return status, err

    return call


def test_a_file_is_compiled_and_a_bad_line_is_named(preload, builds: list[str]):
    Path("commands.txt").write_text(f"# comment\n{CONV}\n\n{BAD}\n{OTHER}\n")

    status, err = preload("commands.txt", "-d", "null", "-j", "1", "-o", "mine")

    assert status == 1 and len(builds) == 2
    first, header, *failures = err.splitlines()
    assert first == "2 kernels for null in mine; 0 failed"
    assert header == "Failures:"
    assert [line.split("  ")[1:2] for line in failures] == [["line 4"]]


def test_without_a_device_only_mlir_is_written(preload, builds: list[str]):
    """As the documents have it. The text is what a generated tree has for the default."""
    Path("commands.txt").write_text(f"{CONV}\n{OTHER}\n")

    assert preload("commands.txt", "--device", "") == (0, "Wrote 2 files to mlir\n")
    assert preload("commands.txt", "-d", "", "-o", "mine") == (0, "Wrote 2 files to mine\n")

    texts = [path.read_text() for path in sorted(Path("mlir").iterdir())]
    assert all("func.func @" in text and "tile_config_default" in text for text in texts)
    assert len(texts) == 2 and builds == []


def test_a_device_beside_none_is_an_error(preload):
    Path("commands.txt").write_text(CONV)
    status, err = preload("commands.txt", "-d", "", "-d", "null")

    assert status == 2 and '--device="" excludes other devices' in err


def test_a_file_that_is_missing_is_an_error(preload):
    status, err = preload("commands.txt", "-d", "null")

    assert status == 2 and "commands.txt" in err


def test_the_documented_module_is_the_same_command():
    Path("commands.txt").write_text(f"{CONV}\n")
    command = [
        sys.executable,
        "-m",
        "dispatch_profiler.boo.driver.preload",
        "commands.txt",
        "-d",
        "",
        "-o",
        "mine",
    ]
    done = subprocess.run(command, capture_output=True, text=True)

    assert (done.returncode, done.stderr) == (0, "Wrote 1 file to mine\n")


def test_the_commands_of_the_package_all_compile(builds: list[str]):
    """By their name alone, unless the current folder has a file with it."""
    preloaded = CachePopulator(commands_file="sample_commands.txt", devices=["null"])
    preloaded.run()
    assert preloaded.get_failures() == {}
    assert len(builds) == len(preloaded.signatures) > 5

    Path("sample_commands.txt").write_text(CONV)
    mine = CachePopulator(commands_file="sample_commands.txt", devices=["null"])
    assert len(mine.signatures) == 1
