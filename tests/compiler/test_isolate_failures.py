"""Bad dispatches cost no other of their module."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatch_profiler.compiler import BuildError, BuildOutcome, BuildRequest, Built
from dispatch_profiler.compiler.workers.isolate_failures import isolate_failures
from dispatch_profiler.configurations import CpuTiles, Default
from dispatch_profiler.dispatches import Dispatch, State
from dispatch_profiler.errors import WorkerCrashed, WorkerTimedOut
from dispatch_profiler.operations import Matmul

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
