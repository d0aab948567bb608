"""A signature becomes a launchable, once; its kernel comes from the cache or the compiler."""

from __future__ import annotations

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from launch_samples import drawn, spec_of

from dispatch_profiler.boo import get_launchable
from dispatch_profiler.boo.interface import LaunchSpec
from dispatch_profiler.boo.launching import loading
from dispatch_profiler.boo.session import SESSION
from dispatch_profiler.command import user_cache
from dispatch_profiler.compiler import BuildRequest, Built, Cache, IreeCompiler
from dispatch_profiler.errors import UsageError
from dispatch_profiler.operations import LayerNorm, Matmul, Operation

THREADS = 8


@dataclass(frozen=True)
class Sample:
    """A signature whose launch takes the operands as they are. All have the same name."""

    operation: Operation
    func_name: str = "sample"

    @property
    def launch(self) -> LaunchSpec:
        return spec_of(self.operation)


MATMUL = Sample(Matmul(4, 8, 16))


@pytest.fixture(autouse=True)
def unset(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "BOO_CACHE_ON",
        "BOO_CACHE_DIR",
        "BOO_TUNING_SPEC_PATH",
        "TURBINE_LOG_LEVEL",
        "TURBINE_DEBUG",
    ):
        monkeypatch.delenv(name, raising=False)
    SESSION.clear("launchables", "packed_launches", "kernels")


@pytest.fixture
def builds(monkeypatch: pytest.MonkeyPatch, in_process: None) -> list[str]:
    """The dispatches that the compiler builds."""
    built, build = [], IreeCompiler.build

    def record(self: IreeCompiler, request: BuildRequest) -> Built:
        built.extend(dispatch.name for dispatch in request.dispatches)
        return build(self, request)

    monkeypatch.setattr(IreeCompiler, "build", record)
    return built


def test_eight_threads_get_right_results_from_one_compilation(builds: list[str]):
    """All ask for the launchable at once, and launch it at once."""
    arguments = drawn(MATMUL.operation)
    barrier = threading.Barrier(THREADS)

    def launch(_: int) -> np.ndarray:
        barrier.wait()
        return get_launchable(MATMUL)(*arguments)

    with ThreadPoolExecutor(THREADS) as pool:
        results = list(pool.map(launch, range(THREADS)))

    lhs, rhs = (each.astype(np.float64) for each in arguments)
    assert all(np.array_equal(each, lhs @ rhs) for each in results)
    assert len(builds) == 1


def test_a_later_process_neither_compiles_nor_measures(builds: list[str], monkeypatch: pytest.MonkeyPatch):
    """Which driver is faster lies beside the kernel in the cache."""
    monkeypatch.setattr(loading, "usable_threads", lambda: 2)
    arguments = drawn(MATMUL.operation)
    get_launchable(MATMUL)(*arguments)
    (entry,) = Cache(user_cache()).entries()
    key = entry.path.stem
    assert set(Cache(user_cache()).notes(key)) == {"2t"}
    for driver in ("local-task", "local-sync"):
        Cache(user_cache()).add_note(key, "2t", driver)
        SESSION.clear("launchables", "packed_launches", "kernels")
        launchable = get_launchable(MATMUL)
        launchable(*arguments)
        assert launchable.driver == driver

    assert len(builds) == 1


def test_equal_signatures_share_a_launchable():
    assert get_launchable(Sample(Matmul(4, 8, 16))) is get_launchable(MATMUL)
    assert get_launchable(MATMUL, threads=1) is not get_launchable(MATMUL)


def test_signatures_that_differ_share_nothing_whatever_their_names():
    assert get_launchable(Sample(LayerNorm(2, 4, eps=1.0))) is not get_launchable(Sample(LayerNorm(2, 4)))


def test_settings_count_from_when_they_are_made(
    monkeypatch: pytest.MonkeyPatch, builds: list[str], tmp_path: Path
):
    before = get_launchable(MATMUL)
    monkeypatch.setenv("BOO_CACHE_DIR", str(tmp_path / "mine"))
    launchable = get_launchable(MATMUL)
    assert launchable is not before
    launchable(*drawn(MATMUL.operation))
    assert [entry.name for entry in Cache(tmp_path / "mine").entries()] == ["sample"]

    monkeypatch.setenv("BOO_CACHE_ON", "no!")
    with pytest.raises(UsageError, match="BOO_CACHE_ON"):
        get_launchable(MATMUL)


def test_only_the_cache_is_used_if_so_requested(builds: list[str]):
    with pytest.raises(UsageError, match="sample for llvm-cpu is not in the launch cache"):
        get_launchable(MATMUL, cache_only=True)(*drawn(MATMUL.operation))
    assert builds == []


@pytest.mark.slow
def test_ten_thousand_launches_of_eight_threads_are_right():
    """Through one cache, of kernels that the threads first ask for at the same time."""
    samples = [Sample(Matmul(4, 8, k)) for k in (4, 8, 16, 32)]
    arguments = [drawn(each.operation, seed) for seed, each in enumerate(samples)]
    expected = [(lhs.astype(np.float64) @ rhs.astype(np.float64)) for lhs, rhs in arguments]

    def launch(first: int) -> int:
        right = 0
        for number in range(first, first + 1250):
            at = number % len(samples)
            right += np.array_equal(get_launchable(samples[at])(*arguments[at]), expected[at])
        return right

    with ThreadPoolExecutor(THREADS) as pool:
        assert sum(pool.map(launch, range(THREADS))) == 10_000
    assert Cache(user_cache()).info().entries == len(samples)


@pytest.mark.slow
def test_processes_that_compile_the_same_kernel_at_once_all_get_it():
    program = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
import numpy as np
from launch_samples import drawn
from test_get_launchable import MATMUL
from dispatch_profiler.boo import get_launchable
lhs, rhs = drawn(MATMUL.operation)
assert np.array_equal(get_launchable(MATMUL)(lhs, rhs), lhs @ rhs)
"""
    processes = [subprocess.Popen([sys.executable, "-c", program]) for _ in range(3)]

    assert [process.wait() for process in processes] == [0, 0, 0]
    assert Cache(user_cache()).info().entries == 1


@pytest.mark.slow
def test_a_forked_process_compiles_and_launches():
    """A DataLoader's worker, after its parent has compiled and launched; the parent then finds what it compiled."""
    program = f"""
import os, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
import numpy as np
from launch_samples import drawn
from test_get_launchable import MATMUL, Sample
from dispatch_profiler.boo import get_launchable
from dispatch_profiler.operations import Matmul

def is_right(sample, **options):
    lhs, rhs = drawn(sample.operation)
    return np.array_equal(get_launchable(sample, **options)(lhs, rhs), lhs @ rhs)

other = Sample(Matmul(4, 8, 32))
assert is_right(MATMUL)
if (child := os.fork()) == 0:
    os._exit(7 if is_right(MATMUL) and is_right(other) else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), is_right(other, cache_only=True))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)

    assert done.stdout == "7 True\n", done.stderr
