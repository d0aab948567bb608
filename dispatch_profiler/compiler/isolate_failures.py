"""Finding the dispatches that do not compile, so that none of them affects another of its module."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from dispatch_profiler.compiler._base import BuildError, BuildOutcome, BuildRequest, Built
from dispatch_profiler.dispatches import Dispatch, State
from dispatch_profiler.errors import ToolError, WorkerTimedOut

Build = Callable[[BuildRequest], Built]


def isolate_failures(request: BuildRequest, build: Build) -> Built:
    """Build as much of `request` as compiles; every other dispatch gets its reason.

    The whole module is tried first. If the compiler names dispatches, these are tried alone, and
    the others without them. If it fails again, every dispatch is tried alone, and those that compile
    are built together: at most about three times the work of a module without failures, however many
    there are. No dispatch is called `not compiled` that has not failed alone: the compiler may name
    the wrong one.
    """
    failed = {name: BuildOutcome(State.NOT_COMPILED, reason) for name, reason in request.rejected}
    found = _Isolation(request, build, failed)
    rest = [d for d in request.dispatches if d.name not in failed]
    for _ in range(2):
        if not rest:
            return found.nothing()
        try:
            return found.together(rest)
        except ToolError as error:
            found.note(error)
            if len(rest) == 1:
                found.failed[rest[0].name] = _failure(error)
                return found.nothing()
            named = error.culprits if isinstance(error, BuildError) else ()
            guilty = [d for d in rest if d.name in named and not found.compiles_alone(d)]
            rest = [d for d in rest if d.name not in found.failed]
            if not guilty:
                break
    return found.largest([d for d in rest if found.compiles_alone(d)])


class _Isolation:
    """What is known so far of the dispatches of one module."""

    def __init__(self, request: BuildRequest, build: Build, failed: dict[str, BuildOutcome]) -> None:
        self._request = request
        self._build = build
        #: Every dispatch that did not compile, or was not applied, alone.
        self.failed = failed
        self._compiled: set[str] = set()
        self._said: list[str] = []

    def note(self, error: ToolError) -> None:
        """Keep what the compiler said."""
        self._said.append(error.diagnostics if isinstance(error, BuildError) else error.message)

    def nothing(self) -> Built:
        """No dispatch compiles."""
        return self._with(Built(b"", b"", {}))

    def together(self, dispatches: Sequence[Dispatch]) -> Built:
        """One module of `dispatches`. Raises ToolError."""
        return self._with(self._build(replace(self._request, dispatches=tuple(dispatches))))

    def compiles_alone(self, dispatch: Dispatch) -> bool:
        """Does `dispatch` compile in a module of its own? It is tried once."""
        if dispatch.name in self._compiled:
            return True
        try:
            built = self._build(replace(self._request, dispatches=(dispatch,)))
        except ToolError as error:
            self.note(error)
            self.failed[dispatch.name] = _failure(error)
            return False
        outcome = built.outcomes[dispatch.name]
        if outcome.state is not State.COMPILED:
            self.failed[dispatch.name] = outcome
            return False
        self._compiled.add(dispatch.name)
        return True

    def largest(self, dispatches: Sequence[Dispatch]) -> Built:
        """A module of as many of `dispatches`, which all compile alone, as compile together.

        The first half is tried, then a quarter: the compiler's default, which comes first, is among them.
        """
        kept = sorted(dispatches, key=_has_lowering)
        while kept:
            try:
                return self.together(kept)
            except ToolError as error:
                self.note(error)
                left_out = kept[len(kept) // 2 :]
                kept = kept[: len(kept) // 2]
                reason = f"compiles alone, but not with the others of its module: {error.message}"
                self.failed |= {d.name: replace(_failure(error), reason=reason) for d in left_out}
        return self.nothing()

    def _with(self, built: Built) -> Built:
        diagnostics = "\n".join(text for text in [*self._said, built.diagnostics] if text)
        return replace(built, outcomes={**built.outcomes, **self.failed}, diagnostics=diagnostics)


def _has_lowering(dispatch: Dispatch) -> bool:
    return dispatch.configuration.lowering(dispatch.operation) is not None


def _failure(error: ToolError) -> BuildOutcome:
    prefix = "the compiler gave " if isinstance(error, WorkerTimedOut) else ""
    return BuildOutcome(
        State.NOT_COMPILED, prefix + error.message, is_transient=not isinstance(error, BuildError)
    )
