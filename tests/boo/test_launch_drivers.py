"""Launches choose a driver, run in several threads, survive a fork, and leave the process as it was."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import pickle
import subprocess
import sys
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import iree.runtime as rt
import numpy as np
import pytest
from launch_samples import SMALL, Kernels, aligned, drawn, expected_of, spec_of
from process_state import policies, state_of_this_process

from dispatch_profiler.boo import Launchable
from dispatch_profiler.boo.launching import loading
from dispatch_profiler.boo.launching.loading import SYNC, TASK, choice_key, faster_driver
from dispatch_profiler.cores import physical_cores
from dispatch_profiler.errors import TargetError, UsageError
from dispatch_profiler.operations import LayerNorm, Matmul
from dispatch_profiler.runtime import DeviceUri, iree

BOTH = ("local-sync", "local-task")


def launchable_on(driver: str, threads: int | None = None) -> Launchable:
    """A launchable that measured on an earlier day."""
    kernels = Kernels(SMALL)
    choices = {choice_key(kernels.kernel(TASK), threads): driver}
    return Launchable(spec_of(SMALL), kernels, threads=threads, driver_choices=choices)


def launch_is_right(launch: Launchable, seed: int = 0) -> bool:
    operands = drawn(SMALL, seed)
    return bool((launch(*operands) == expected_of(SMALL, operands)[0]).all())


# -- the driver of the CPU -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sync", "task", "expected"),
    [
        ([30e-6, 10e-6], [20e-6, 20e-6], SYNC),
        ([30e-6, 20e-6], [90e-6, 10e-6], TASK),
        ([10e-6], [10e-6], SYNC),
        # As if another process used one of two cores.
        ([600e-6], [700e-6], TASK),
    ],
)
def test_the_driver_with_the_shortest_launch_is_chosen(
    sync: list[float], task: list[float], expected: DeviceUri
):
    assert faster_driver(sync, task) == expected


@pytest.mark.parametrize("driver", BOTH)
def test_a_remembered_driver_is_used_without_measuring(driver: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("dispatch_profiler.boo.launching.loading.faster_driver", None)
    launch = launchable_on(driver)

    assert launch.driver == ""
    assert launch_is_right(launch)
    assert launch.driver == driver


@pytest.mark.parametrize("driver", BOTH)
def test_the_measured_driver_is_remembered_and_used(driver: str, monkeypatch: pytest.MonkeyPatch):
    """Whatever this machine is: the measured times are replaced."""
    monkeypatch.setattr("dispatch_profiler.boo.launching.loading.usable_threads", lambda: 2)
    monkeypatch.setattr("dispatch_profiler.boo.launching.loading._LONG", 1e9)
    measured: list[int] = []

    def decide(sync: list[float], task: list[float]) -> DeviceUri:
        measured.append(min(len(sync), len(task)))
        return DeviceUri(driver)

    monkeypatch.setattr("dispatch_profiler.boo.launching.loading.faster_driver", decide)
    choices: dict[str, str] = {}
    launch = Launchable(spec_of(SMALL), Kernels(SMALL), driver_choices=choices)

    assert launch_is_right(launch) and launch_is_right(launch, seed=1)
    assert launch.driver == driver
    assert list(choices.values()) == [driver]
    assert len(measured) == 1 and measured[0] >= 1


def test_a_long_kernel_runs_on_several_threads_only(monkeypatch: pytest.MonkeyPatch):
    """It is not run on one thread to find out."""
    monkeypatch.setattr("dispatch_profiler.boo.launching.loading.usable_threads", lambda: 2)
    monkeypatch.setattr("dispatch_profiler.boo.launching.loading._LONG", 0.0)
    monkeypatch.setattr("dispatch_profiler.boo.launching.loading.faster_driver", None)
    launch = Launchable(spec_of(SMALL), Kernels(SMALL))

    assert launch_is_right(launch)
    assert launch.driver == "local-task"


@pytest.mark.parametrize("delayed", [1, 3])
def test_a_launch_that_something_delays_does_not_make_a_kernel_long(
    delayed: int, monkeypatch: pytest.MonkeyPatch
):
    """The choice is remembered: it would be the wrong one for months."""
    monkeypatch.setattr("dispatch_profiler.boo.launching.loading.usable_threads", lambda: 2)
    monkeypatch.setattr(
        "dispatch_profiler.boo.launching.loading.faster_driver", lambda *taken: DeviceUri("local-sync")
    )
    run, launches = loading._seconds, itertools.count()
    monkeypatch.setattr(
        loading, "_seconds", lambda *given: max(run(*given), 1.0 if next(launches) < delayed else 0.0)
    )
    launch = Launchable(spec_of(SMALL), Kernels(SMALL))

    assert launch_is_right(launch)
    assert launch.driver == "local-sync"


@pytest.mark.parametrize(("threads", "usable"), [(1, 2), (None, 1)])
def test_one_thread_is_the_callers(threads: int | None, usable: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("dispatch_profiler.boo.launching.loading.usable_threads", lambda: usable)
    launch = Launchable(spec_of(SMALL), Kernels(SMALL), threads=threads)

    assert launch_is_right(launch)
    assert launch.driver == "local-sync"


def threads_of_this_process() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


def test_threads_is_the_number_of_workers(monkeypatch: pytest.MonkeyPatch):
    """The flag is one of the process: drivers that others create later have its default again."""
    flags: list[str] = []
    parse = rt.flags.parse_flags
    monkeypatch.setattr(rt.flags, "parse_flags", lambda *given: (flags.extend(given), parse(*given)))
    monkeypatch.setattr(iree, "_process", iree._HalProcess())
    counts = [threads_of_this_process()]
    few, many = (len(physical_cores()) + more for more in (1, 4))
    for threads in (few, many):
        assert launch_is_right(launchable_on("local-task", threads))
        counts.append(threads_of_this_process())

    # A device has one thread more, which waits for its work.
    assert counts[1] - counts[0] == few + 1
    assert counts[2] - counts[1] == many + 1
    assert flags == [f"--task_topology_group_count={count}" for count in (few, 0, many, 0)]


# -- several threads -------------------------------------------------------------------------------


def wrong_launches(launch: Launchable, threads: int, launches: int) -> int:
    """How many of `launches` by each of several threads, with operands of its own, give a wrong result."""
    torch: Any = pytest.importorskip("torch")
    start = threading.Barrier(threads)

    def work(seed: int) -> int:
        operands = drawn(SMALL, seed)
        expected = torch.from_numpy(expected_of(SMALL, operands)[0])
        lhs, rhs = map(torch.from_numpy, operands)
        start.wait()
        return sum(not torch.equal(launch(lhs, rhs), expected) for _ in range(launches))

    with ThreadPoolExecutor(threads) as pool:
        return sum(pool.map(work, range(threads)))


@pytest.mark.parametrize("driver", BOTH)
def test_eight_threads_get_the_results_of_their_own_operands(driver: str):
    assert wrong_launches(launchable_on(driver), threads=8, launches=100) == 0


@pytest.mark.slow
@pytest.mark.parametrize("driver", BOTH)
def test_eight_threads_launch_ten_thousand_times(driver: str):
    assert wrong_launches(launchable_on(driver), threads=8, launches=10_000) == 0


def test_first_launches_in_several_threads_load_the_kernel_once():
    kernels = Kernels(SMALL)
    launch = Launchable(spec_of(SMALL), kernels)

    assert wrong_launches(launch, threads=8, launches=3) == 0
    assert kernels.asked == [TASK]


# -- the process -----------------------------------------------------------------------------------


@pytest.mark.skipif(not hasattr(os, "sched_getscheduler"), reason="needs Linux")
@pytest.mark.parametrize("threads", [None, 2])
def test_a_launch_leaves_the_process_as_it_was(threads: int | None):
    """Scheduling, affinity, priority, signal handlers and environment are those of the host."""
    before, classes = state_of_this_process(), policies()

    launch = Launchable(spec_of(SMALL), Kernels(SMALL), threads=threads)
    assert launch_is_right(launch) and launch_is_right(launch, seed=1)

    assert state_of_this_process() == before
    assert policies() <= classes | {os.SCHED_OTHER}


def test_torch_is_not_loaded_for_numpy():
    program = """
        import sys
        import dispatch_profiler.boo
        loaded = {name.partition(".")[0] for name in sys.modules}
        assert not loaded & {"torch", "numpy", "iree"}, loaded
        from dispatch_profiler.boo import Launchable
        assert "torch" not in sys.modules
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(program)], check=True)


# -- forked processes ------------------------------------------------------------------------------


def _launched_in_child(launch: Launchable, answer: Any) -> None:
    answer.send([launch_is_right(launch, seed) for seed in range(3)])


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("driver", BOTH)
def test_a_forked_process_launches(driver: str):
    """As a worker of a DataLoader does."""
    launch = launchable_on(driver)
    assert launch_is_right(launch)
    context = multiprocessing.get_context("fork")
    receive, send = context.Pipe(duplex=False)

    child = context.Process(target=_launched_in_child, args=(launch, send))
    child.start()

    assert receive.poll(60), "the launch did not return"
    assert receive.recv() == [True] * 3
    child.join(60)
    assert child.exitcode == 0
    assert launch_is_right(launch)


FORKING = """
import os, pickle, sys
from types import SimpleNamespace
import numpy as np
from dispatch_profiler.boo import Launchable, empty_aligned
spec, kernel, keys = pickle.load(sys.stdin.buffer)
provider = SimpleNamespace(kernel=lambda device: kernel)
launches = [Launchable(spec, provider, driver_choices={key: driver}) for key, driver in keys]
arguments = [np.ones(each.shape, np.float32) for each in spec.arguments]

def are_right():
    return all((launch(*arguments) == 16).all() for launch in launches)

assert are_right()
for is_idle in (True, False):
    child = os.fork()
    if not child:
        sys.exit(0 if is_idle or are_right() else 1)
    print("child", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
assert are_right()
"""


def test_a_forked_process_ends():
    """It does not wait for its parent's threads, whether it launched or not."""
    kernel = Kernels(SMALL).kernel(TASK)
    given = (spec_of(SMALL), kernel, [(choice_key(kernel, None), driver) for driver in BOTH])

    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORKING],
        input=pickle.dumps(given),
        capture_output=True,
        timeout=120,
        check=False,
    )

    assert (done.stdout, done.stderr, done.returncode) == (b"child 0\n" * 2, b"", 0)


def test_a_forked_process_cannot_use_the_gpu_of_its_parent(monkeypatch: pytest.MonkeyPatch):
    process = iree._HalProcess()
    process.opened[iree._Key(DeviceUri("cuda", "0"), None, False)] = object()
    monkeypatch.setattr(iree, "_process", process)

    iree._after_fork()

    with pytest.raises(TargetError, match="cuda://0 was opened before this process was forked") as caught:
        iree.hal_device(DeviceUri("cuda", "0"), graphs=False)
    assert "spawn" in caught.value.hint


# -- GPUs, as far as they can be tested without one ------------------------------------------------


def test_a_launch_on_a_gpu_waits_for_torchs_stream_first():
    """Then it runs the kernel, which waits; what is not aligned takes the longer way. Here the "GPU" is the CPU."""
    torch: Any = pytest.importorskip("torch")
    from dispatch_profiler.boo.launching.arrays.torch_tensors import gpu_launch
    from dispatch_profiler.boo.launching.loading import load
    from dispatch_profiler.runtime.iree import IreeDevice

    steps: list[str] = []
    loaded = load(Kernels(SMALL).kernel(SYNC), IreeDevice(SYNC), SMALL.name, 1)

    def run(arguments: Any) -> None:
        steps.append("run")
        loaded.run(arguments)

    kernel: Any = SimpleNamespace(device=loaded.device, run=run)
    device: Any = SimpleNamespace(index=-1, type="cpu")
    operands = drawn(SMALL)
    lhs, rhs = map(torch.from_numpy, operands)
    expected = torch.from_numpy(expected_of(SMALL, operands)[0])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "dispatch_profiler.boo.launching.arrays.torch_tensors.allocation",
            lambda spec, _: partial(torch.empty, spec.shape),
        )
        launch = gpu_launch(kernel, spec_of(SMALL), device, lambda: steps.append("wait"))

    assert torch.equal(launch((lhs, rhs), None), expected)
    out = torch.empty(4, 8)
    assert launch((lhs, rhs), out) is out
    assert torch.equal(out, expected)
    assert steps == ["wait", "run"] * 2
    misaligned = torch.zeros(65)[1:].reshape(4, 16)
    for arguments, given in [
        ((misaligned, rhs), None),
        ((lhs, rhs), lhs),
        ((lhs,), None),
        ((lhs, rhs.double()), None),
    ]:
        assert launch(arguments, given) is None
    assert steps == ["wait", "run"] * 2


def test_tensors_of_a_gpu_are_launched_on_the_same_gpu(monkeypatch: pytest.MonkeyPatch):
    torch: Any = pytest.importorskip("torch")
    from dispatch_profiler.boo.launching.arrays.torch_tensors import TorchTensors

    steps: list[str] = []

    def current_stream(device: Any) -> Any:
        return SimpleNamespace(synchronize=lambda: steps.append(f"synchronize {device}"))

    monkeypatch.setattr(torch.cuda, "current_stream", current_stream)
    tensors = TorchTensors(torch.device("cuda", 1))

    assert tensors.uri == DeviceUri("cuda", "1")
    tensors.before_launch()
    assert steps == ["synchronize cuda:1"]


def test_rocm_is_rejected(monkeypatch: pytest.MonkeyPatch):
    torch: Any = pytest.importorskip("torch")
    from dispatch_profiler.boo.launching.arrays.torch_tensors import TorchTensors

    monkeypatch.setattr(torch.version, "hip", "6.4")
    with pytest.raises(UsageError, match="these are on ROCm devices"):
        TorchTensors(torch.device("cuda", 0))


def test_a_product_that_is_long_is_launched_as_any_other():
    """On whatever driver it is faster: this one takes several milliseconds on one thread."""
    operation = Matmul(256, 256, 512)
    launch = Launchable(spec_of(operation), Kernels(operation))
    operands = [aligned(np.ones(each.shape, np.float32)) for each in operation.operands]

    assert (launch(*operands) == 512.0).all()
    assert launch.driver in BOTH


@pytest.mark.parametrize("driver", BOTH)
def test_kernels_that_fill_their_results_run_on_both_drivers(driver: str):
    """A layer norm fills the sums of its rows: `local-sync` checks that a kernel may discard what was there."""
    operation = LayerNorm(3, 8)
    kernels = Kernels(operation)
    choices = {choice_key(kernels.kernel(TASK), None): driver}
    launch = Launchable(spec_of(operation), kernels, driver_choices=choices)
    operands = drawn(operation)
    torch: Any = pytest.importorskip("torch")

    for arguments in (operands, *[list(map(torch.from_numpy, operands))] * 2):
        _, mean, _ = launch(*arguments)
        np.testing.assert_allclose(np.asarray(mean), operands[0].mean(axis=1), atol=1e-5)
