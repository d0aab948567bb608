"""Finding the dispatches that do not compile, so that they cost no other of their module."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from dispatch_profiler.compiler._base import BuildError, Built, ModuleJob, Outcome
from dispatch_profiler.dispatches import State
from dispatch_profiler.errors import ToolError, WorkerTimedOut

Build = Callable[[ModuleJob], Built]


def settle(job: ModuleJob, build: Build) -> Built:
    """Build as much of `job` as compiles; every other dispatch gets its reason.

    The whole module is tried first. If the compiler names culprits, it is tried once without them.
    After that every dispatch is tried alone, and those that compile are built together: at most
    about three times the work of a module without faults, however many faults there are.
    """
    if not job.dispatches:
        return Built(b"", b"", {})
    failed = {name: Outcome(State.NOT_COMPILED, reason) for name, reason in job.refused}
    said: list[str] = []
    rest = tuple(d for d in job.dispatches if d.name not in failed)
    if not rest:
        return _with(Built(b"", b"", {}), failed, said)
    for _ in range(2):
        try:
            return _with(build(replace(job, dispatches=rest)), failed, said)
        except ToolError as error:
            said.append(_diagnostics(error))
            named = error.culprits if isinstance(error, BuildError) else ()
            culprits = rest if len(rest) == 1 else tuple(d for d in rest if d.name in named)
            failed |= {d.name: _failure(error) for d in culprits}
            rest = tuple(d for d in rest if d.name not in failed)
            if not culprits or not rest:
                break
    good = []
    for dispatch in rest:
        outcome = _alone(replace(job, dispatches=(dispatch,)), build, said)
        if outcome is None:
            good.append(dispatch)
        else:
            failed[dispatch.name] = outcome
    return _together(replace(job, dispatches=tuple(good)), build, failed, said)


def _alone(job: ModuleJob, build: Build, said: list[str]) -> Outcome | None:
    """None if the one dispatch of `job` compiles."""
    try:
        built = build(job)
    except ToolError as error:
        said.append(_diagnostics(error))
        return _failure(error)
    outcome = built.outcomes[job.dispatches[0].name]
    return None if outcome.state is State.COMPILED else outcome


def _together(job: ModuleJob, build: Build, failed: dict[str, Outcome], said: list[str]) -> Built:
    if not job.dispatches:
        return _with(Built(b"", b"", {}), failed, said)
    try:
        return _with(build(job), failed, said)
    except ToolError as error:
        # Each compiled alone, all together did not: say so for each rather than drop them silently.
        said.append(_diagnostics(error))
        reason = replace(
            _failure(error), reason=f"compiles alone, but not with its neighbours: {error.message}"
        )
        return _with(Built(b"", b"", {d.name: reason for d in job.dispatches}), failed, said)


def _with(built: Built, failed: dict[str, Outcome], said: list[str]) -> Built:
    diagnostics = "\n".join(text for text in [*said, built.diagnostics] if text)
    return replace(built, outcomes={**built.outcomes, **failed}, diagnostics=diagnostics)


def _failure(error: ToolError) -> Outcome:
    prefix = "the compiler gave " if isinstance(error, WorkerTimedOut) else ""
    return Outcome(State.NOT_COMPILED, prefix + error.message, is_transient=not isinstance(error, BuildError))


def _diagnostics(error: ToolError) -> str:
    return error.diagnostics if isinstance(error, BuildError) else error.message
