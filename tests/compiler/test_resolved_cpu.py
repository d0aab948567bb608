"""`host` stands for a CPU for which the compiler works: tried once in a worker, kept, and part of every key."""

from __future__ import annotations

import json
import logging
import platform
from pathlib import Path

import pytest
from cpu_fakes import IMPLIED, MASKED, Masked
from worker_helpers import InProcessWorker

from dispatch_profiler.command import user_cache
from dispatch_profiler.compiler import Cache, IreeCompiler, build_key, launch_key
from dispatch_profiler.compiler.backends import host_cpu
from dispatch_profiler.compiler.backends.host_cpu import HOST, CpuChoice, chosen_cpu, resolved_flags
from dispatch_profiler.configurations import Default
from dispatch_profiler.dispatches import Dispatch
from dispatch_profiler.operations import Matmul
from dispatch_profiler.targets import CpuTarget

NAMES = ("icelake-server", "cascadelake")
LEVELS = ("x86-64-v4", "x86-64-v3", "x86-64-v2")


@pytest.fixture(autouse=True)
def nothing_is_known(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(host_cpu, "known_cpus", {})
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "empty"))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing aborts: no processes, which take longer to start than all else in these tests."""
    monkeypatch.setattr(host_cpu, "Worker", InProcessWorker)


def test_the_cpu_that_the_compiler_finds_is_the_first_choice():
    found = chosen_cpu(Masked())

    assert (found.cpu, found.features) == ("emeraldrapids", MASKED)
    assert str(found) == "emeraldrapids: as the compiler finds it"


@pytest.mark.slow
def test_if_it_aborts_the_most_similar_name_has_the_same_features(caplog: pytest.LogCaptureFixture):
    """Not those of names that imply what is masked, but for what no generated code uses; the reason says why."""
    found = chosen_cpu(Masked(aborts=("emeraldrapids",)))

    assert (found.cpu, found.features) == ("icelake-server", MASKED)
    assert "emeraldrapids, which the compiler finds here, fails" in found.reason
    assert found.reason.endswith("killed by SIGABRT: LLVM ERROR: no bf16 here")
    assert [each.levelno for each in caplog.records] == [logging.WARNING]


@pytest.mark.parametrize(
    "count", [0, pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow)]
)
def test_if_all_names_abort_it_is_the_highest_level_that_works(count: int):
    found = chosen_cpu(Masked(aborts=("emeraldrapids", *NAMES, *LEVELS[:count])))
    assert (found.cpu, found.features) == (LEVELS[count], "")


@pytest.mark.slow
def test_if_everything_aborts_it_is_the_cpu_that_the_compiler_finds():
    """Most operations compile all the same."""
    assert chosen_cpu(Masked(aborts=tuple(IMPLIED))).cpu == "emeraldrapids"


@pytest.mark.slow
def test_the_answer_is_kept_for_this_compiler(monkeypatch: pytest.MonkeyPatch):
    """In the user's cache: neither this process nor another one tries again, but it does for another compiler."""
    first = chosen_cpu(Masked(aborts=("emeraldrapids",)))

    monkeypatch.setattr(host_cpu, "Worker", lambda limits: pytest.fail("it is known"))
    assert chosen_cpu(Masked()) == first
    host_cpu.known_cpus.clear()
    assert chosen_cpu(Masked()) == first
    with pytest.raises(pytest.fail.Exception):
        chosen_cpu(Masked(revision="2"))


@pytest.mark.slow
def test_what_failed_for_want_of_memory_is_not_kept():
    """This process compiles for the CPU that the compiler finds, and the next call tries again."""
    found = chosen_cpu(Masked(lacks=("emeraldrapids",)))

    assert (found.cpu, found.is_settled) == ("emeraldrapids", False)
    assert list(Cache(user_cache() / "cpus").entries()) == []
    assert chosen_cpu(Masked(aborts=("emeraldrapids",))).cpu == "icelake-server"


def test_without_processes_it_is_what_the_compiler_finds(monkeypatch: pytest.MonkeyPatch):
    def no_process(*_: object, **__: object) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr("dispatch_profiler.isolation.subprocess.Popen", no_process)
    assert resolved_flags(Masked(), (HOST, "--more")) == (HOST, "--more")
    assert not host_cpu.known_cpus


@pytest.mark.some(2)
@pytest.mark.parametrize(
    "change",
    [{"cpu": "nonsense"}, {"features": "+avx2 --iree-hal-dump=/"}, {"features": 3}, {"reason": None}],
)
def test_what_others_wrote_there_is_no_flag(change: dict[str, object], in_this_process: None):
    (folder := user_cache() / "cpus").mkdir(parents=True)
    right = chosen_cpu(Masked())
    (entry,) = Cache(folder).entries()
    damaged = json.dumps({**vars(right), **change})
    Cache(folder).put_text(entry.path.stem, damaged, "cpu")
    host_cpu.known_cpus.clear()

    assert chosen_cpu(Masked()) == right


def test_features_of_the_user_are_added(in_this_process: None):
    flags = resolved_flags(Masked(), ("--a", HOST, "--iree-llvmcpu-target-cpu-features=-avx2", "--b"))
    assert flags == ("--a", "--iree-llvmcpu-target-cpu=emeraldrapids",
                     f"--iree-llvmcpu-target-cpu-features={MASKED},-avx2", "--b")  # fmt: skip


def test_other_cpus_are_not_resolved(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(host_cpu, "chosen_cpu", lambda *_: pytest.fail("not needed"))
    flags = CpuTarget("znver4").compile_flags
    assert resolved_flags(Masked(), flags) == flags


def test_a_folder_keeps_the_answer_if_the_users_cache_cannot(
    in_this_process: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    chosen_cpu(Masked(), tmp_path / "launches")
    assert len(list(Cache(tmp_path / "launches" / "cpus").entries())) == 1


def test_keys_differ_with_the_choice(make_request, monkeypatch: pytest.MonkeyPatch):
    """What was compiled for another CPU is compiled again."""
    dispatch, keys = Dispatch(Matmul(4, 4, 4), Default()), set()
    for cpu in ("znver4", "x86-64-v3"):
        monkeypatch.setattr(host_cpu, "chosen_cpu", lambda *_, cpu=cpu: CpuChoice(cpu, "", ""))
        keys.add(launch_key(dispatch, CpuTarget(), IreeCompiler()))
        keys.add(build_key(make_request(dispatch.operation, [Default()]), CpuTarget(), IreeCompiler()))
    assert len(keys) == 4


@pytest.mark.slow
def test_the_compiler_here_works_for_this_machine(monkeypatch: pytest.MonkeyPatch):
    """Or for another name of it: each probe compiles."""
    monkeypatch.undo()
    found = chosen_cpu(IreeCompiler())
    assert found.cpu in host_cpu.CPU_NAMES["x86_64-linux-gnu"] or platform.machine() != "x86_64"
