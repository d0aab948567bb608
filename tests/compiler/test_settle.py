"""Bad dispatches cost no other of their module."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatch_profiler.compiler import BuildError, Built, ModuleJob, Outcome
from dispatch_profiler.compiler.settle import settle
from dispatch_profiler.configurations import CpuTiles
from dispatch_profiler.dispatches import Dispatch, State
from dispatch_profiler.errors import WorkerCrashed, WorkerTimedOut
from dispatch_profiler.operations import Matmul

FORTY = tuple(Dispatch(Matmul(64, 64, 64), CpuTiles((i, 16), (1, 16, 1))) for i in range(1, 41))


class FakeCompiler:
    """Fails for the dispatches in `bad`, naming the first of them or none; counts what it compiles."""

    def __init__(self, bad: set[str], error: type[Exception] = BuildError, named: bool = True) -> None:
        self.bad, self.error, self.named = bad, error, named
        self.compiled: list[int] = []

    def __call__(self, job: ModuleJob) -> Built:
        names = [d.name for d in job.dispatches]
        self.compiled.append(len(names))
        broken = [name for name in names if name in self.bad]
        if broken and self.error is BuildError:
            raise BuildError("no such tile", culprits=(broken[0],) if self.named else ())
        if broken:
            raise self.error("gone")
        return Built(" ".join(names).encode(), b"profile", {n: Outcome(State.COMPILED) for n in names})


def job(dispatches: tuple[Dispatch, ...] = FORTY) -> ModuleJob:
    return ModuleJob("", dispatches, (), 1)


@pytest.mark.parametrize("error", [BuildError, WorkerCrashed, WorkerTimedOut])
@pytest.mark.parametrize("named", [True, False])
def test_ten_bad_of_forty_cost_none_of_the_other_thirty(error: type[Exception], named: bool):
    """Whether the compiler refuses, crashes or hangs, and whether it says at what or not."""
    bad = {d.name for d in FORTY[::4]}

    built = settle(job(), FakeCompiler(bad, error, named))

    good = {d.name for d in FORTY} - bad
    assert set(built.verify.decode().split()) == good
    assert {n for n, o in built.outcomes.items() if o.state is State.COMPILED} == good
    assert {n for n, o in built.outcomes.items() if o.state is State.NOT_COMPILED} == bad


def test_the_work_is_bounded_however_many_are_bad():
    """Three times the dispatches at most, plus the first try."""
    compiler = FakeCompiler({d.name for d in FORTY[::2]}, named=False)

    settle(job(), compiler)

    assert sum(compiler.compiled) <= 3 * len(FORTY)


def test_one_named_culprit_costs_one_more_try():
    compiler = FakeCompiler({FORTY[7].name})

    settle(job(), compiler)

    assert compiler.compiled == [40, 39]


def test_a_module_without_faults_is_built_once():
    compiler = FakeCompiler(set())

    settle(job(), compiler)

    assert compiler.compiled == [40]


def test_all_bad_gives_reasons_and_no_vmfb():
    built = settle(job(), FakeCompiler({d.name for d in FORTY}, named=False))

    assert built.verify == built.profile == b""
    assert {o.reason for o in built.outcomes.values()} == {"no such tile"}


def test_a_time_limit_says_so():
    built = settle(job(FORTY[:1]), FakeCompiler({FORTY[0].name}, WorkerTimedOut))

    assert built.outcomes[FORTY[0].name].reason == "the compiler gave gone"


def test_what_compiles_only_alone_is_told():
    """Nothing is dropped silently when good dispatches do not compile together."""

    def alone_only(job: ModuleJob) -> Built:
        if len(job.dispatches) > 1:
            raise BuildError("too many")
        return Built(b"v", b"p", {job.dispatches[0].name: Outcome(State.COMPILED)})

    built = settle(job(FORTY[:3]), alone_only)

    assert {o.reason for o in built.outcomes.values()} == {
        "compiles alone, but not with its neighbours: too many"
    }


def test_nothing_asked_nothing_built():
    assert settle(job(()), FakeCompiler(set())) == Built(b"", b"", {})


@given(st.sets(st.integers(0, 11)), st.booleans())
def test_every_dispatch_gets_exactly_its_own_outcome(bad: set[int], named: bool):
    twelve = FORTY[:12]
    names = {twelve[i].name for i in bad}

    built = settle(job(twelve), FakeCompiler(names, named=named))

    assert {n for n, o in built.outcomes.items() if o.state is not State.COMPILED} == names
    assert set(built.verify.decode().split()) == {d.name for d in twelve} - names
