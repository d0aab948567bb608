"""What cannot be built costs no other, whether the dispatch, its configuration or the machine is the cause."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatch_profiler.compiler import BuildError, BuildOutcome, BuildRequest, Built, Cache, IreeCompiler
from dispatch_profiler.compiler.backends.tools import Tools
from dispatch_profiler.compiler.workers.pool import isolate_failures, with_cause
from dispatch_profiler.configurations import CpuTiles, Default
from dispatch_profiler.dispatches import Dispatch, State
from dispatch_profiler.errors import WorkerCrashed, WorkerTimedOut
from dispatch_profiler.operations import Conv2d, Matmul
from dispatch_profiler.targets import parse_target

NOT_LINKED = (
    "failed to link executable and generate target dylib (check above for more specific error messages)"
)


@pytest.mark.parametrize(
    ("message", "said", "end", "is_deterministic"),
    [
        ("no such tile", "", "no such tile", True),
        ("no such tile", "warning: slow\n", "no such tile", True),
        (NOT_LINKED, "sh: 1: Cannot fork\nLinking failed; exit code 512:\n\n", ": sh: 1: Cannot fork", False),
        (NOT_LINKED, "Linking failed; exit code 9:\n\n", "; the linker may lack memory, processes or disk space", False),
        (NOT_LINKED, "iree-lld: error: x.o: section header table goes past the end of the file\n",
         "the linker may lack memory, processes or disk space", False),
        (NOT_LINKED, "iree-lld: error: undefined symbol: __truncsfbf2\n>>> referenced by -:1\n",
         ": iree-lld: error: undefined symbol: __truncsfbf2", True),
        ("cannot read x: Too many open files", "", "Too many open files", False),
    ],
)  # fmt: skip
def test_the_linkers_words_become_the_reason(message: str, said: str, end: str, is_deterministic: bool):
    found = with_cause(BuildError(message, diagnostics="more", culprits=("f",)), said)

    assert found.message.startswith(message) and found.message.endswith(end)
    assert found.is_deterministic is is_deterministic
    assert found.culprits == ("f",) and "more" in found.diagnostics and said.strip() in found.diagnostics


@pytest.mark.parametrize(
    ("end", "message"),
    [
        ("kill -ABRT $$", "killed by SIGABRT: LLVM ERROR: no"),
        ("exit 134", "killed by SIGABRT: LLVM ERROR: no"),  # a shell's
        ("exit 250", "killed by SIGABRT: LLVM ERROR: no"),  # that of Python's wrapper
        ("kill -KILL $$", r"killed by SIGKILL \(the system may have run out of memory\): LLVM ERROR: no"),
    ],
)
def test_a_compiler_command_that_dies_is_a_crash(tmp_path: Path, end: str, message: str):
    tool = tmp_path / "iree-compile"
    tool.write_text(f"#!/bin/bash\necho 'LLVM ERROR: no' >&2\necho >&2\n{end}\n")
    tool.chmod(0o755)

    with pytest.raises(WorkerCrashed, match=f"^{message}$") as caught:
        Tools(tool).check_flags(())
    assert caught.value.is_deterministic is ("SIGKILL" not in message)


#: Launches a kernel under limits, and prints its result or the error.
LAUNCH = """
import os, resource, sys
import numpy as np
from dispatch_profiler.boo.driver.launch import get_launchable
from dispatch_profiler.boo.driver.registry import BooOpRegistry
signature = BooOpRegistry.parse_command("conv -n 1 -c 4 -H 6 -W 6 -k 4 -y 3 -x 3 -F 1")
get_launchable(signature)  # everything is imported
{limit}
try:
    result = get_launchable(signature)(np.ones((1, 4, 6, 6), np.float32), np.ones((4, 4, 3, 3), np.float32))
    print("right", float(np.asarray(result)[0, 0, 1, 1]))
except Exception as error:
    print(type(error).__name__, error)
"""
LIMITS = {
    "disk": "resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))",
    "folder for temporary files": "os.environ['TMPDIR'] = os.environ['IREE_TMP'] = '/nonexistent'",
    "memory": "from dispatch_profiler.boo.kernels import build\n"
    "build.available_memory = lambda: 2**24",
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    "lacking", [each if each == "disk" else pytest.param(each, marks=pytest.mark.slow) for each in LIMITS]
)
def test_a_launch_that_lacked_something_succeeds_once_it_is_there(
    lacking: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """In another process with the same cache: the failure was not cached."""
    monkeypatch.setenv("BOO_CACHE_DIR", str(tmp_path / "kernels"))

    def launched(limit: str) -> str:
        done = subprocess.run(
            [sys.executable, "-c", LAUNCH.format(limit=limit)], capture_output=True, text=True, check=True
        )
        return done.stdout

    assert not launched(LIMITS[lacking]).startswith("right")
    assert [entry.name for entry in Cache(tmp_path / "kernels").entries() if entry.failures] == []
    assert launched("") == "right 36.0\n"


FORTY = tuple(Dispatch(Matmul(64, 64, 64), CpuTiles((i, 16), (1, 16, 1))) for i in range(1, 41))


class FakeCompiler:
    """Fails for the dispatches in `bad`, naming the first of them or none; counts what it compiles."""

    def __init__(self, bad: set[str], error: type[Exception] = BuildError, named: bool = True) -> None:
        self.bad, self.error, self.named = bad, error, named
        self.compiled: list[int] = []

    def __call__(self, request: BuildRequest) -> Built:
        names = [d.name for d in request.dispatches]
        self.compiled.append(len(names))
        broken = [name for name in names if name in self.bad]
        if broken and self.error is BuildError:
            raise BuildError("no such tile", culprits=(broken[0],) if self.named else ())
        if broken:
            raise self.error("gone")
        return Built(" ".join(names).encode(), b"profile", {n: BuildOutcome(State.COMPILED) for n in names})


def request(dispatches: tuple[Dispatch, ...] = FORTY) -> BuildRequest:
    return BuildRequest("", dispatches, (), 1)


@pytest.mark.parametrize("error", [BuildError, WorkerCrashed, WorkerTimedOut])
@pytest.mark.parametrize("named", [True, False])
def test_ten_bad_of_forty_cost_none_of_the_other_thirty(error: type[Exception], named: bool):
    """Whether the compiler refuses, crashes or hangs, and whether it says at what or not."""
    bad = {d.name for d in FORTY[::4]}

    built = isolate_failures(request(), FakeCompiler(bad, error, named))

    good = {d.name for d in FORTY} - bad
    assert set(built.verify.decode().split()) == good
    assert {n for n, o in built.outcomes.items() if o.state is State.COMPILED} == good
    assert {n for n, o in built.outcomes.items() if o.state is State.NOT_COMPILED} == bad


def test_the_work_is_bounded_however_many_are_bad():
    """Three times the dispatches at most, plus the first try."""
    compiler = FakeCompiler({d.name for d in FORTY[::2]}, named=False)

    isolate_failures(request(), compiler)

    assert sum(compiler.compiled) <= 3 * len(FORTY)


def test_one_named_culprit_costs_one_more_try_and_itself():
    compiler = FakeCompiler({FORTY[7].name})

    isolate_failures(request(), compiler)

    assert compiler.compiled == [40, 1, 39]


@pytest.mark.parametrize("bad", [7, 39])
def test_a_dispatch_that_the_compiler_names_wrongly_compiles(bad: int):
    """Functions with the same code share an executable, whose locations are those of the first."""
    guilty = FORTY[bad].name

    def build(request: BuildRequest) -> Built:
        names = [d.name for d in request.dispatches]
        if guilty in names:
            raise BuildError("no such tile", culprits=(names[0],))
        return Built(" ".join(names).encode(), b"profile", {n: BuildOutcome(State.COMPILED) for n in names})

    built = isolate_failures(request(), build)

    assert [n for n, o in built.outcomes.items() if o.state is not State.COMPILED] == [guilty]
    assert built.outcomes[guilty].reason == "no such tile"
    assert len(built.verify.split()) == 39


@pytest.mark.parametrize("count", [1, 40])
def test_a_crash_is_the_compilers_own_if_it_is_repeated(count: int):
    """The dispatch is tried alone once more: it compiles then, or the same happens."""
    crash = WorkerCrashed("killed by SIGSEGV", is_deterministic=True)
    for times, is_compiled in ((count > 1) + 1, True), (99, False):
        left = [crash] * times

        def build(request: BuildRequest, left: list[WorkerCrashed] = left) -> Built:
            names = [d.name for d in request.dispatches]
            if left and FORTY[0].name in names:
                raise left.pop()
            return Built(b"v", b"p", {name: BuildOutcome(State.COMPILED) for name in names})

        outcome = isolate_failures(request(FORTY[:count]), build).outcomes[FORTY[0].name]
        assert (outcome.state is State.COMPILED) is is_compiled
        assert outcome.is_deterministic


def test_what_was_ended_from_outside_is_not_tried_again_at_once():
    """It may take the memory of all others a second time."""
    compiler = FakeCompiler({FORTY[0].name}, WorkerCrashed)

    built = isolate_failures(request(FORTY[:1]), compiler)

    assert compiler.compiled == [1]
    outcome = built.outcomes[FORTY[0].name]
    assert (outcome.is_transient, outcome.is_deterministic) == (True, False)


def test_a_module_without_faults_is_built_once():
    compiler = FakeCompiler(set())

    isolate_failures(request(), compiler)

    assert compiler.compiled == [40]


def test_all_bad_gives_reasons_and_no_vmfb():
    built = isolate_failures(request(), FakeCompiler({d.name for d in FORTY}, named=False))

    assert built.verify == built.profile == b""
    assert {o.reason for o in built.outcomes.values()} == {"no such tile"}


def test_a_time_limit_says_so():
    built = isolate_failures(request(FORTY[:1]), FakeCompiler({FORTY[0].name}, WorkerTimedOut))

    assert built.outcomes[FORTY[0].name].reason == "the compiler gave gone"


@pytest.mark.parametrize(("most", "kept"), [(1, 1), (3, 2), (7, 5), (39, 20)])
def test_what_does_not_compile_together_is_told_and_the_default_is_kept(most: int, kept: int):
    """Half of them are tried, then a quarter: the default is among them, wherever it stands."""
    default = Dispatch(Matmul(64, 64, 64), Default())

    def build(request: BuildRequest) -> Built:
        if len(request.dispatches) > most:
            raise BuildError("too many")
        return Built(b"v", b"p", {d.name: BuildOutcome(State.COMPILED) for d in request.dispatches})

    built = isolate_failures(request((*FORTY[:39], default)), build)

    states = {n: o.state for n, o in built.outcomes.items()}
    assert len(states) == 40
    assert list(states.values()).count(State.COMPILED) == kept
    assert states[default.name] is State.COMPILED
    assert {o.reason for o in built.outcomes.values() if o.state is State.NOT_COMPILED} == {
        "compiles alone, but not with the others of its module: too many"
    }


def test_nothing_asked_nothing_built():
    assert isolate_failures(request(()), FakeCompiler(set())) == Built(b"", b"", {})


@given(st.sets(st.integers(0, 11)), st.booleans())
def test_every_dispatch_gets_exactly_its_own_outcome(bad: set[int], named: bool):
    twelve = FORTY[:12]
    names = {twelve[i].name for i in bad}

    built = isolate_failures(request(twelve), FakeCompiler(names, named=named))

    assert {n for n, o in built.outcomes.items() if o.state is not State.COMPILED} == names
    assert set(built.verify.decode().split()) == {d.name for d in twelve} - names


#: IREE folds the unit dimension away, and with it the attribute that tells functions apart.
ONE_IMAGE = Conv2d(1, 56, 56, 64, 64, 3, 3, padding=(1, 1))
#: Too wide for the compiler.
TOO_WIDE = CpuTiles((1, 14, 14, 64), (1, 1, 14, 64, 1, 1, 16))
COMPILES = CpuTiles((1, 14, 14, 64), (1, 1, 14, 16, 1, 1, 1))


def test_the_compiler_names_the_tile_that_fails_and_not_the_default(make_request):
    """They share an executable until each is given its own, with its own source locations."""
    with pytest.raises(BuildError) as caught:
        IreeCompiler().build(make_request(ONE_IMAGE, [Default(), COMPILES, TOO_WIDE]))

    assert caught.value.culprits == (Dispatch(ONE_IMAGE, TOO_WIDE).name,)


@pytest.mark.slow
def test_a_tile_that_fails_costs_neither_the_default_nor_another_tile(make_request):
    request = make_request(ONE_IMAGE, [Default(), TOO_WIDE, COMPILES])

    built = isolate_failures(request, IreeCompiler().build)

    states = [built.outcomes[d.name].state for d in request.dispatches]
    assert states == [State.COMPILED, State.NOT_COMPILED, State.COMPILED]
    assert "large vector sizes" in built.outcomes[request.dispatches[1].name].reason
    for dispatch, state in zip(request.dispatches, states, strict=True):
        assert (dispatch.name.encode() in built.verify) == (state is State.COMPILED)


UNIT_DIMENSIONS = (
    ONE_IMAGE,
    Conv2d(1, 28, 28, 128, 128, 3, 3, padding=(1, 1)),
    Conv2d(1, 14, 14, 256, 256, 3, 3, stride=(2, 2), padding=(1, 1)),
    Conv2d(1, 56, 56, 64, 256, 1, 1),
    Conv2d(8, 28, 28, 64, 128, 1, 1),
    Conv2d(1, 30, 1, 32, 64, 3, 1),
    Conv2d(1, 1, 30, 32, 64, 1, 3),
    Conv2d(1, 30, 30, 1, 64, 3, 3),
    Conv2d(1, 30, 30, 32, 1, 3, 3),
    Conv2d(1, 1, 1, 256, 128, 1, 1),
)


def divisors(extent: int, most: int) -> list[int]:
    return [tile for tile in range(1, most + 1) if extent % tile == 0]


def random_tiles(operation: Conv2d, count: int) -> list[CpuTiles]:
    """`count` tiles that nothing but the compiler rejects, the same in every run."""
    limits = parse_target("llvm-cpu").limits
    draw = random.Random(operation.name)
    extents = {loop.name: loop.extent for loop in operation.loops}
    axes = (*operation.parallel_axes, *operation.reduction_axes)
    found: dict[CpuTiles, None] = {}
    while len(found) < count:
        # Wide tiles fail, and take long to compile: some of them will do.
        most = draw.choice([8, 8, 8, 8, 64])
        vector = tuple(draw.choice(divisors(extents.get(a, 1), most)) for a in axes)
        distribution = tuple(tile * draw.choice([1, 2, 4]) for tile in vector[: len(operation.parallel_axes)])
        tiles = CpuTiles(distribution, vector)
        if tiles.invalid_reason(operation, limits) is None:
            found[tiles] = None
    return list(found)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("operation", UNIT_DIMENSIONS, ids=lambda o: o.name.split("_f32")[0])
def test_of_a_hundred_random_tiles_each_fails_for_itself(operation: Conv2d, make_request):
    """What is not compiled fails alone, too, in a source that has nothing else; all the others are there."""
    request = make_request(operation, [Default(), *random_tiles(operation, 100)], repeat=1)

    built = isolate_failures(request, IreeCompiler().build)

    assert set(built.outcomes) == {d.name for d in request.dispatches}
    assert built.outcomes[request.dispatches[0].name].state is State.COMPILED
    for dispatch in request.dispatches:
        outcome = built.outcomes[dispatch.name]
        assert (dispatch.name.encode() + b"\0" in built.verify) == (outcome.state is State.COMPILED)
        if outcome.state is State.NOT_COMPILED:
            with pytest.raises(BuildError):
                IreeCompiler().build(make_request(operation, [dispatch.configuration]))
