"""torch's threads end when a chain asks for it, start again, and their number stays as it is."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from launch_samples import Kernels, spec_of

from dispatch_profiler.boo.launching import Launchable, chain, torch_threads
from dispatch_profiler.boo.launching.chain import Chain
from dispatch_profiler.boo.launching.chain_layout import ChainStep
from dispatch_profiler.boo.launching.torch_threads import release_torch_threads
from dispatch_profiler.operations import Matmul

SQUARE = Matmul(8, 8, 8)
#: Runs in a process of its own, whose threads are only those of torch.
THREADS = """
import os, sys, time, torch
from dispatch_profiler.boo.launching.torch_threads import release_torch_threads

def count():
    return len(os.listdir("/proc/self/task"))

torch.set_num_threads(3)
before = count()
x = torch.ones(1 << 20)
during = count()
release_torch_threads()
end = time.monotonic() + 30
while count() > before and time.monotonic() < end:
    time.sleep(0.01)
print(during - before, count() - before, torch.get_num_threads(), x.add(1).sum().item() == 2 << 20, count() - before)
if (child := os.fork()) == 0:
    release_torch_threads()
    os._exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""

needs_openmp = pytest.mark.skipif(
    torch_threads._pause() is None or not torch.backends.openmp.is_available(),
    reason="torch's OpenMP library has no omp_pause_resource_all",
)
needs_proc = pytest.mark.skipif(sys.platform != "linux", reason="counts threads in /proc")


def run(script: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=100, check=True
    )
    return done.stdout.split()


@pytest.mark.slow
@needs_openmp
@needs_proc
def test_threads_end_and_start_again_and_a_forked_process_does_not_wait_for_them():
    started, left, number, is_right, again, child = run(THREADS)
    assert (started, left, number, is_right, again, child) == ("2", "0", "3", "True", "2", "7")


@pytest.mark.slow
@needs_openmp
@needs_proc
def test_the_variable_turns_it_off(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("BOO_RELEASE_TORCH_THREADS", "0")
    script = THREADS.replace("time.monotonic() + 30", "0")
    started, left, *_ = run(script)
    assert started == left == "2"


def test_an_openmp_without_the_function_is_left_alone(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch_threads, "_LIBRARIES", ("missing.so",))
    torch_threads._pause.cache_clear()
    try:
        assert torch_threads._pause() is None
        release_torch_threads()
    finally:
        torch_threads._pause.cache_clear()


@pytest.mark.parametrize(("limit", "releases"), [(0.0, [1, 1]), (1e9, [])])
def test_only_long_chains_release_threads(monkeypatch: pytest.MonkeyPatch, limit: float, releases: list[int]):
    found: list[int] = []
    monkeypatch.setattr(chain, "release_torch_threads", lambda: found.append(1))
    monkeypatch.setattr(chain, "_LONG", limit)
    kernel = Launchable(spec_of(SQUARE), Kernels(SQUARE))
    squares = Chain([ChainStep(kernel, (0, 1)), ChainStep(kernel, (2, 1))], 2, (3,))
    x = torch.eye(8)
    for _ in range(4):  # the first launches one by one, the second takes the first time
        assert torch.equal(squares(x, 2 * x)[0], 4 * x)
    assert found == releases
