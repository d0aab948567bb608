"""With `background`, a program goes on while kernels are compiled; results are right before, during and after a switch."""

from __future__ import annotations

import gc
import logging
import os
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from compiled_models import check_alike
from torch import nn

from dispatch_profiler.boo import refreeze, wait_for_kernels
from dispatch_profiler.boo.backends import backend as backend_of
from dispatch_profiler.boo.backends import background, background_worker, graph_compiler, handed_graphs
from dispatch_profiler.boo.backends.graph_choice import used_by_parent
from dispatch_profiler.boo.rounds import Clock
from dispatch_profiler.boo.session import SESSION
from dispatch_profiler.compiler import Cache
from dispatch_profiler.errors import CompilerError, UsageError, WorkerCrashed
from dispatch_profiler.isolation import Worker

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # of inductor
BACKGROUND = {"background": True}


class Here:
    """Calls in this process what a worker would be asked for. A test may hold calls up, or let them fail."""

    def __init__(self) -> None:
        self.go_on = threading.Event()
        self.go_on.set()
        self.error: Exception | None = None
        self.called: list[str] = []

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        self.called.append(str(arguments[0]))
        assert self.go_on.wait(100)
        if self.error is not None:
            raise self.error
        return function(*arguments)

    def kill(self) -> None:
        self.go_on.set()

    def close(self) -> None:
        pass


@pytest.fixture(autouse=True)
def cache(cache_of_kernels: Path) -> Path:
    """The cache of this test alone, which knows no graphs."""
    return cache_of_kernels


@pytest.fixture(autouse=True)
def worker(monkeypatch: pytest.MonkeyPatch) -> Here:
    """The worker of all jobs of a test."""
    here = Here()
    background.warn.cache_clear()
    monkeypatch.setattr(background, "BACKGROUND", background.Background(lambda: here, idle=0.01))
    return here


def convolution() -> nn.Module:
    return nn.Sequential(nn.Conv2d(8, 8, 3), nn.ReLU()).eval()


class Sorted(nn.Module):
    """An operator that torch computes."""

    def forward(self, x: Any) -> Any:
        return x.sort(1).values


def with_torch() -> nn.Module:
    """A model of which torch computes an operator between two regions."""
    return nn.Sequential(nn.Conv2d(8, 8, 3), Sorted(), nn.Conv2d(8, 8, 1), nn.ReLU()).eval()


def deep() -> nn.Module:
    """A model of 18 regions, more than the first two steps have."""
    layers = [layer for _ in range(18) for layer in (nn.Conv2d(8, 8, 1), nn.Hardtanh(-2, 2))]
    return nn.Sequential(*layers).eval()


def images(*shape: int) -> torch.Tensor:
    return torch.randn(shape or (2, 8, 6, 6)).to(memory_format=torch.channels_last)


def compiled(model: Any, backend: Any = "iree_boo", **options: Any) -> Any:
    return torch.compile(model, backend=backend, dynamic=False, options={**BACKGROUND, **options})


MODELS = pytest.mark.parametrize(("model", "kind"), [(convolution, "runs"), (with_torch, "mixed")])


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """The log of this package, with its information."""
    caplog.set_level(logging.INFO, "dispatch_profiler.boo")
    return caplog


@MODELS
def test_results_are_right_before_and_after_the_switch(
    model: Callable[[], nn.Module],
    kind: str,
    worker: Here,
    launched: list[str],
    logged: pytest.LogCaptureFixture,
) -> None:
    module, x = model(), images()
    fast = compiled(module)
    with torch.no_grad():
        expected = module(x)
        worker.go_on.clear()
        for _ in range(3):
            check_alike(fast(x), expected)

        assert not launched
        assert not wait_for_kernels(0)

        worker.go_on.set()
        assert wait_for_kernels()
        launched.clear()
        check_alike(fast(x), expected)

        assert any("conv" in name for name in launched)
        assert f"a graph is computed by: {kind}" in logged.text


@pytest.mark.slow
@pytest.mark.parametrize(("model", "kind"), [(convolution, "runs"), (with_torch, "inductor")])
def test_inductor_computes_until_the_switch(
    model: Callable[[], nn.Module], kind: str, launched: list[str], logged: pytest.LogCaptureFixture
) -> None:
    module, x = model(), images()
    fast = compiled(module, "iree_boo_inductor")
    with torch.no_grad():
        check_alike(fast(x), module(x))
        assert wait_for_kernels()
        launched.clear()
        other = images()
        check_alike(fast(other), module(other))

    assert any("conv" in name for name in launched)
    assert f"a graph is computed by: {kind}" in logged.text


def test_a_large_graph_switches_in_steps(worker: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = []
    function_of = background.function_of

    def note(outcome: handed_graphs.GraphOutcome) -> Any:
        numbers.append(0 if outcome.compiled is None else len(outcome.compiled.regions))
        return function_of(outcome)

    monkeypatch.setattr(background, "function_of", note)
    module, x = deep(), images()
    fast = compiled(module)
    with torch.no_grad():
        check_alike(fast(x), module(x))
        assert wait_for_kernels()
        check_alike(fast(x), module(x))

    assert numbers == [8, 16, 18]
    assert worker.called == ["compile_part", "compile_part", "compile_part", "compile_graph"]


def test_parameters_may_change_before_and_after_the_switch(worker: Here) -> None:
    module, x = with_torch(), images()
    fast = compiled(module)
    with torch.no_grad():
        fast(x)
        module[0].weight.mul_(2)
        check_alike(fast(x), module(x))
        assert wait_for_kernels()
        check_alike(fast(x), module(x))
        module[0].weight.mul_(2)
        check_alike(fast(x), module(x))


def test_frozen_weights_are_snapshots_after_the_switch() -> None:
    module, x = convolution(), images()
    fast = compiled(module, freeze=True)
    with torch.no_grad():
        fast(x)
        assert wait_for_kernels()
        expected = module(x)
        module[0].weight.mul_(2)
        check_alike(fast(x), expected)
        refreeze(module)
        check_alike(fast(x), module(x))


def test_a_call_ends_with_the_function_that_it_began_with() -> None:
    inside, go_on = threading.Event(), threading.Event()

    def old(x: int) -> str:
        inside.set()
        assert go_on.wait(100)
        return f"old {x}"

    switch = background.Switch(old, lambda _: None)
    results: list[str] = []
    thread = threading.Thread(target=lambda: results.append(switch(1)))
    thread.start()
    assert inside.wait(100)
    switch.function = lambda x: f"new {x}"

    assert switch(2) == "new 2"
    go_on.set()
    thread.join()
    assert results == ["old 1"]


def test_a_switch_starts_once_after_its_first_call() -> None:
    started: list[background.Switch] = []
    switch = background.Switch(lambda: len(started), started.append)

    assert [switch(), switch(), switch()] == [0, 1, 1]
    assert started == [switch]


def test_threads_call_a_model_while_it_switches() -> None:
    module, x = with_torch(), images()
    fast = compiled(module)
    wrong: list[BaseException] = []
    with torch.no_grad():
        expected = module(x)
        fast(x)
    is_done = threading.Event()

    def call() -> None:
        try:
            with torch.no_grad():
                while not is_done.is_set():
                    check_alike(fast(x), expected)
                check_alike(fast(x), expected)
        except BaseException as error:
            wrong.append(error)

    # The worker of this test traces in this process, which other calls must not see: it answers before they begin.
    (switch,) = (each for each in gc.get_objects() if type(each) is background.Switch)
    assert wait_for_kernels()
    new, switch.function = switch.function, switch.nested
    threads = [threading.Thread(target=call) for _ in range(3)]
    for each in threads:
        each.start()
    for _ in range(200):
        switch.function = new
        switch.function = switch.nested
    switch.function = new
    is_done.set()
    for each in threads:
        each.join()
    assert not wrong


def test_a_failing_worker_leaves_torch_in_place(
    worker: Here, launched: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    worker.error = WorkerCrashed("it was killed")
    module, x = convolution(), images()
    fast = compiled(module)
    with torch.no_grad():
        fast(x)
        assert wait_for_kernels()
        check_alike(fast(x), module(x))

    assert not launched
    assert [each.message for each in caplog.records if each.levelno >= logging.WARNING] == [
        "a graph stays with the nested backend: it was killed"
    ]


def test_a_graph_after_a_failure_switches(worker: Here, launched: list[str]) -> None:
    one, other, x = convolution(), with_torch(), images()
    with torch.no_grad():
        worker.error = WorkerCrashed("it was killed")
        compiled(one)(x)
        assert wait_for_kernels()
        worker.error = None
        fast = compiled(other)
        fast(x)
        assert wait_for_kernels()
        check_alike(fast(x), other(x))

    assert launched


@MODELS
def test_a_known_graph_needs_no_worker(
    model: Callable[[], nn.Module], kind: str, worker: Here, launched: list[str]
) -> None:
    x = images()
    with torch.no_grad():
        compiled(model())(x)
        assert wait_for_kernels()
        SESSION.clear()
        torch._dynamo.reset()
        worker.called.clear()
        module = model()  # with other parameters
        fast = compiled(module)
        fast(x)
        assert wait_for_kernels()
        launched.clear()
        check_alike(fast(x), module(x))

    assert launched
    assert not worker.called


def test_a_damaged_outcome_is_made_again(
    worker: Here, launched: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = handed_graphs.GraphOutcome(
        handed_graphs.MIXED, '{"inputs": 3, "nodes": [], "outputs": [{"value": 9}]}'
    )
    monkeypatch.setattr(background, "find_outcome", lambda entry: wrong)
    module, x = convolution(), images()
    fast = compiled(module)
    with torch.no_grad():
        fast(x)
        assert wait_for_kernels()
        check_alike(fast(x), module(x))

    assert worker.called
    assert launched


def test_an_outcome_depends_on_threads_and_library(
    worker: Here, monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    keys = {handed_graphs.outcome_key("a"), handed_graphs.outcome_key("b")}
    monkeypatch.setattr(handed_graphs, "usable_threads", lambda: 77)
    keys.add(handed_graphs.outcome_key("a"))
    monkeypatch.setenv("BOO_TUNING_SPEC_PATH", "")
    keys.add(handed_graphs.outcome_key("a"))

    assert len(keys) == 4


def test_regions_that_fail_are_tried_again_by_the_next_process(
    worker: Here, launched: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from dispatch_profiler.boo.backends import graph_kernels

    unusable = graph_kernels.unusable_kernels
    with monkeypatch.context() as patch, torch.no_grad():
        patch.setattr(
            graph_kernels,
            "unusable_kernels",
            lambda regions: (
                {each.spec.operation: "out of memory" for each in regions[:1]} | unusable(regions[1:])
            ),
        )
        module, x = with_torch(), images()
        fast = compiled(module)
        fast(x)
        assert wait_for_kernels()
        check_alike(fast(x), module(x))
    worker.called.clear()
    torch._dynamo.reset()
    with torch.no_grad():
        compiled(with_torch())(x)
        assert wait_for_kernels()

    assert "compile_graph" in worker.called


def let_graphs_take(monkeypatch: pytest.MonkeyPatch, *times: list[float]) -> None:
    """Let the worker measure these times: of torch alone, then of a graph with our regions."""
    measured = iter(times)
    monkeypatch.setattr(
        background_worker,
        "backend_of",
        lambda settings: graph_compiler.Backend(
            settings.nested,
            settings.schema,
            settings.autotune,
            measure_graph=lambda functions: [next(measured) for _ in functions],
        ),
    )


def test_decisions_are_those_of_the_foreground(
    monkeypatch: pytest.MonkeyPatch, cache: Path, launched: list[str]
) -> None:
    def measured(functions: Any) -> Any:
        raise AssertionError("the decision is not in the cache")

    monkeypatch.setenv("BOO_AUTOTUNE", "")
    let_graphs_take(monkeypatch, [2.0], [1.0])
    module, x = with_torch(), images()
    with torch.no_grad():
        compiled(module)(x)
        assert wait_for_kernels()
        launched.clear()
        torch._dynamo.reset()
        foreground = graph_compiler.Backend(
            None, graph_compiler.DEFAULT_SUPPORTED_BOO_FUSIONS, measure_graph=measured
        )
        check_alike(torch.compile(module, backend=foreground, dynamic=False)(x), module(x))

    assert launched


def test_a_graph_that_torch_computes_faster_stays_with_torch(
    monkeypatch: pytest.MonkeyPatch, launched: list[str], worker: Here
) -> None:
    monkeypatch.setenv("BOO_AUTOTUNE", "")
    let_graphs_take(monkeypatch, [1.0], [2.0])
    x = images()
    with torch.no_grad():
        for _ in range(2):  # the second time, the decision is in the cache
            module = convolution()
            fast = compiled(module)
            fast(x)
            assert wait_for_kernels()
            launched.clear()
            check_alike(fast(x), module(x))
            torch._dynamo.reset()

            assert not launched

    assert worker.called.count("compile_graph") == 1


@pytest.mark.parametrize("where", ["option", "backend", "environment"])
def test_each_setting_turns_it_on(where: str, worker: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    if where == "environment":
        monkeypatch.setenv("BOO_BACKGROUND", "1")
    given = backend_of(background=True) if where == "backend" else "iree_boo"
    options = BACKGROUND if where == "option" else {}
    with torch.no_grad():
        torch.compile(convolution(), backend=given, dynamic=False, options=options)(images())
        assert wait_for_kernels()

    assert worker.called


def test_the_nearest_setting_decides(worker: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BOO_BACKGROUND", "1")
    x = images()
    with torch.no_grad():
        torch.compile(convolution(), backend=backend_of(background=False), dynamic=False)(x)
        torch._dynamo.reset()
        fast = torch.compile(
            convolution(), backend=backend_of(background=True), dynamic=False, options={"background": False}
        )
        fast(x)
        assert wait_for_kernels()

    assert not worker.called


def test_other_values_are_rejected() -> None:
    with pytest.raises(UsageError, match="background must be True or False, but got 2"):
        backend_of(background=2)  # type: ignore[arg-type]
    with pytest.raises(Exception, match="the option background must be True or False, but got 'yes'"):
        torch.compile(convolution(), backend="iree_boo", options={"background": "yes"})(images())


def test_strict_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    message = "background and strict cannot be combined"
    with pytest.raises(UsageError, match=message):
        backend_of(background=True, strict=True)
    with torch.no_grad(), pytest.raises(Exception, match=message):
        torch.compile(convolution(), backend=backend_of(strict=True), options=BACKGROUND)(images())


def dynamic(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.relu(x) + x.shape[0]


def check_foreground(reason: str, worker: Here, caplog: pytest.LogCaptureFixture) -> None:
    messages = [each.message for each in caplog.records if "in the background" in each.message]
    assert len(messages) == 1
    assert reason in messages[0]
    assert not worker.called


def test_without_a_cache_kernels_are_compiled_in_the_foreground(
    worker: Here, launched: list[str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("BOO_CACHE_ON", "0")
    module, x = convolution(), images()
    with torch.no_grad():
        check_alike(compiled(module)(x), module(x))

    assert launched
    check_foreground("the launch cache is off (BOO_CACHE_ON is 0)", worker, caplog)


def test_gradients_are_compiled_in_the_foreground(
    worker: Here, launched: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    module, x = convolution(), images()
    compiled(module)(x).sum().backward()

    assert launched
    check_foreground("may need a gradient", worker, caplog)


def test_dynamic_shapes_are_compiled_in_the_foreground(
    worker: Here, caplog: pytest.LogCaptureFixture
) -> None:
    module, x = convolution(), images()
    fast = torch.compile(module, backend="iree_boo", dynamic=True, options=BACKGROUND)
    with torch.no_grad():
        check_alike(fast(x), module(x))

    check_foreground("is not a", worker, caplog)


def test_other_compilers_are_called_in_the_foreground(worker: Here, caplog: pytest.LogCaptureFixture) -> None:
    module, x = convolution(), images()
    with torch.no_grad():
        fast = torch.compile(module, backend=backend_of("eager", background=True), dynamic=False)
        check_alike(fast(x), module(x))

    check_foreground("the nested backend is eager", worker, caplog)


def test_a_graph_that_writes_to_its_input_stays_with_torch(
    launched: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    def write(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        result = torch.conv2d(x, weight).relu()
        x.add_(1)
        return result

    fast = compiled(write)
    x, y, weight = images(), images(), images(8, 8, 3, 3)
    with torch.no_grad():
        for each in (x, y):
            before = each.clone()
            expected = torch.conv2d(before, weight).relu()
            check_alike(fast(each, weight), expected)
            check_alike(each, before + 1)
            assert wait_for_kernels()

    assert not launched
    assert "a graph stays with the nested backend: it writes to its inputs" in caplog.text


def test_a_model_that_is_gone_is_not_compiled(worker: Here) -> None:
    worker.go_on.clear()
    x = images()
    with torch.no_grad():
        first, second = compiled(convolution()), compiled(with_torch())
        first(x)
        second(x)
    gone = weakref.ref(second)
    del second
    torch._dynamo.reset()
    gc.collect()
    assert gone() is None
    worker.go_on.set()
    assert wait_for_kernels()

    assert worker.called.count("compile_graph") <= 1


def test_graphs_of_a_model_switch_one_by_one(launched: list[str], worker: Here) -> None:
    one, other = convolution(), with_torch()

    def model(x: torch.Tensor) -> torch.Tensor:
        y = one(x)
        torch._dynamo.graph_break()
        return other(y)

    fast, x = compiled(model), images()
    with torch.no_grad():
        worker.go_on.clear()  # two threads of a process cannot trace at the same time
        fast(x)
        worker.go_on.set()
        assert wait_for_kernels()
        launched.clear()
        check_alike(fast(x), model(x))

    assert worker.called.count("compile_graph") == 2
    assert sum("conv2d" in name for name in launched) == 3


def test_a_forked_process_waits_for_nothing_and_goes_on(worker: Here) -> None:
    module, x = convolution(), images()
    fast = compiled(module)
    torch.set_num_threads(1)  # libgomp's threads do not exist in a forked process
    with torch.no_grad():
        expected = module(x)
        worker.go_on.clear()
        fast(x)
        os.register_at_fork(after_in_child=background.BACKGROUND.forget)
        child = os.fork()
        if not child:
            is_right = wait_for_kernels() and torch.allclose(fast(x), expected, atol=1e-5)
            os._exit(0 if is_right else 1)
        _, status = os.waitpid(child, 0)
        worker.go_on.set()
        assert wait_for_kernels()
        check_alike(fast(x), expected)

    assert os.waitstatus_to_exitcode(status) == 0


class Busy:
    """A clock, and a process that computes until a certain time."""

    def __init__(self, until: float) -> None:
        self.time, self.until = 0.0, until
        self.clock = Clock(lambda: self.time, self.sleep)

    def sleep(self, seconds: float) -> None:
        self.time += seconds

    def used(self) -> dict[int, float]:
        return {1: min(self.time, self.until)}


@pytest.mark.parametrize(("until", "waited"), [(0.0, (0.2, 0.4)), (3.0, (3.4, 3.6)), (1e9, (20.0, 20.0))])
def test_the_worker_measures_when_the_program_pauses(until: float, waited: tuple[float, float]) -> None:
    busy = Busy(until)
    times = background_worker.Quiet(busy.clock, busy.used).before(lambda: busy.time)

    assert (times(), times()) == pytest.approx(waited, abs=0.21)


def test_the_processor_time_of_the_parent_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of this process, which has used some."""
    this = os.getpid()
    monkeypatch.setattr(os, "getppid", lambda: this)
    used = used_by_parent()

    assert set(used) == {this} and used[this] > 0


# -- processes -------------------------------------------------------------------------------------

_PROGRAM = """
import os, sys, torch
from torch import nn
from dispatch_profiler.boo import wait_for_kernels
from dispatch_profiler.boo.backends import background

torch.manual_seed(0)
model = nn.Sequential(nn.Conv2d(8, 8, 3), nn.Unfold(1), nn.Unflatten(2, (4, 4)), nn.Conv2d(8, 8, 1), nn.ReLU()).eval()
x = torch.randn(2, 8, 6, 6)
fast = torch.compile(model, backend="iree_boo", dynamic=False, options={"background": True})
opened, open_worker = [], background.BACKGROUND._open_worker
def note():
    opened.append(open_worker())
    return opened[-1]
background.BACKGROUND._open_worker = note
with torch.no_grad():
    expected = model(x)
    assert torch.allclose(fast(x), expected, atol=1e-5)
    exec(sys.argv[1])
"""
#: Waits for the kernels, and uses them.
_TO_THE_END = """
assert wait_for_kernels(300)
assert torch.allclose(fast(x), expected, atol=1e-5)
from dispatch_profiler.boo.session import SESSION
print(len(opened))
"""
#: Ends as soon as a kernel is in the cache, without any cleaning up.
_KILLED = """
import time
from pathlib import Path
from dispatch_profiler.compiler import Cache
while not any("conv2d" in each.name for each in Cache(Path(os.environ["BOO_CACHE_DIR"])).entries()):
    assert not wait_for_kernels(0)
    time.sleep(0.01)
print(opened[0]._pid, flush=True)
os.kill(os.getpid(), 9)
"""
#: Ends normally while the worker works.
_ENDED = """
import time
while not (opened and opened[0]._process is not None):
    time.sleep(0.01)
print(opened[0]._pid, flush=True)
"""


def run_program(end: str, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "BOO_CACHE_DIR": str(folder), "BOO_AUTOTUNE": "0"}
    return subprocess.run(
        [sys.executable, "-c", _PROGRAM, end], capture_output=True, text=True, env=environment
    )


def wait_for_end(process: int) -> None:
    """Wait until a process that is no child of this one has ended."""
    pause = threading.Event()
    for _ in range(10_000):
        try:
            if Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return
            os.kill(process, 0)
        except (ProcessLookupError, FileNotFoundError):
            return
        pause.wait(0.01)
    os.kill(process, signal.SIGKILL)
    pytest.fail("the worker outlives the program")


def test_another_process_compiles_and_a_second_program_needs_none(
    cache: Path, worker: Here, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = run_program(_TO_THE_END, cache)
    assert (first.returncode, first.stdout) == (0, "1\n"), first.stderr

    SESSION.clear()
    monkeypatch.setattr(sys, "argv", ["", _TO_THE_END])
    exec(_PROGRAM, {})
    assert capsys.readouterr().out == "0\n" and not worker.called


@pytest.mark.slow
def test_a_second_process_needs_none(cache: Path) -> None:
    for workers in (1, 0):
        done = run_program(_TO_THE_END, cache)
        assert (done.returncode, done.stdout) == (0, f"{workers}\n"), done.stderr


@pytest.mark.slow
def test_a_program_that_is_killed_keeps_finished_kernels_and_leaves_no_process(tmp_path: Path) -> None:
    killed = run_program(_KILLED, tmp_path / "empty")

    assert killed.returncode == -signal.SIGKILL, killed.stderr
    wait_for_end(int(killed.stdout))
    assert any("conv2d" in each.name for each in Cache(tmp_path / "empty").entries())


@pytest.mark.slow
def test_a_program_that_ends_leaves_no_process_and_says_nothing(tmp_path: Path) -> None:
    ended = run_program(_ENDED, tmp_path / "empty")

    assert (ended.returncode, ended.stderr) == (0, "")
    wait_for_end(int(ended.stdout))


def test_a_crash_of_the_worker_is_reported_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(background, "BACKGROUND", background.Background(lambda: Crashing(), idle=0.01))
    module, x = convolution(), images()
    fast = compiled(module)
    with torch.no_grad():
        fast(x)
        assert wait_for_kernels()
        check_alike(fast(x), module(x))

    assert "a graph stays with the nested backend: " in caplog.text


class Crashing(Worker):
    """A process that ends instead of answering."""

    def call(self, function: Callable[..., Any], *arguments: Any, seconds: float | None = None) -> Any:
        return super().call(os._exit, 3)


def test_errors_of_compilers_are_reported(worker: Here, caplog: pytest.LogCaptureFixture) -> None:
    worker.error = CompilerError("no compiler")
    with torch.no_grad():
        compiled(convolution())(images())
        assert wait_for_kernels()

    assert "a graph stays with the nested backend: no compiler" in caplog.text
