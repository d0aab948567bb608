"""Finding the dispatches that do not compile, so that they do not affect others of their module."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from dispatch_profiler.compiler._base import BuildError, BuildOutcome, BuildRequest, Built
from dispatch_profiler.dispatches import Dispatch, State
from dispatch_profiler.errors import ToolError, WorkerTimedOut

Build = Callable[[BuildRequest], Built]


def isolate_failures(request: BuildRequest, build: Build) -> Built:
    """Build as much of `request` as compiles; every other dispatch gets a reason.

    The whole module is tried first. If the compiler names dispatches, these are tried alone, and the
    others without them. If it fails again, every dispatch is tried alone, and those that compile are
    built together. This takes at most about three times as long as a module without failures, however
    many fail. A dispatch is reported as `not compiled` only if it failed alone, because the compiler may
    name the wrong one.
    """
    failed = {name: BuildOutcome(State.NOT_COMPILED, reason) for name, reason in request.rejected}
    isolation = _Isolation(request, build, failed)
    rest = [d for d in request.dispatches if d.name not in failed]
    for _ in range(2):
        if not rest:
            return isolation.build_nothing()
        try:
            return isolation.build_together(rest)
        except ToolError as error:
            isolation.note(error)
            if len(rest) == 1:
                isolation.failed[rest[0].name] = _failure(error)
                return isolation.build_nothing()
            named = error.culprits if isinstance(error, BuildError) else ()
            guilty = [d for d in rest if d.name in named and not isolation.compiles_alone(d)]
            rest = [d for d in rest if d.name not in isolation.failed]
            if not guilty:
                break
    return isolation.build_largest([d for d in rest if isolation.compiles_alone(d)])


class _Isolation:
    """What is known so far about the dispatches of one module."""

    def __init__(self, request: BuildRequest, build: Build, failed: dict[str, BuildOutcome]) -> None:
        self._request = request
        self._build = build
        #: Every dispatch that did not compile, or was not applied, alone.
        self.failed = failed
        self._compiled: set[str] = set()
        self._messages: list[str] = []

    def note(self, error: ToolError) -> None:
        """Keep the compiler's message."""
        self._messages.append(error.diagnostics if isinstance(error, BuildError) else error.message)

    def build_nothing(self) -> Built:
        """The result if no dispatch compiles."""
        return self._with_failures(Built(b"", b"", {}))

    def build_together(self, dispatches: Sequence[Dispatch]) -> Built:
        """Build one module of `dispatches`. Raises ToolError."""
        return self._with_failures(self._build(replace(self._request, dispatches=tuple(dispatches))))

    def compiles_alone(self, dispatch: Dispatch) -> bool:
        """Whether `dispatch` compiles in its own module; it is tried once."""
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

    def build_largest(self, dispatches: Sequence[Dispatch]) -> Built:
        """Build a module of as many of `dispatches`, which all compile alone, as compile together.

        After a failure, the first half is tried, then a quarter: they include the compiler's default.
        """
        kept = sorted(dispatches, key=_has_lowering)
        while kept:
            try:
                return self.build_together(kept)
            except ToolError as error:
                self.note(error)
                left_out = kept[len(kept) // 2 :]
                kept = kept[: len(kept) // 2]
                reason = f"compiles alone, but not with the others of its module: {error.message}"
                self.failed |= {d.name: replace(_failure(error), reason=reason) for d in left_out}
        return self.build_nothing()

    def _with_failures(self, built: Built) -> Built:
        diagnostics = "\n".join(text for text in [*self._messages, built.diagnostics] if text)
        return replace(built, outcomes={**built.outcomes, **self.failed}, diagnostics=diagnostics)


def _has_lowering(dispatch: Dispatch) -> bool:
    return bool(dispatch.configuration.lowerings(dispatch.operation))


def _failure(error: ToolError) -> BuildOutcome:
    prefix = "the compiler gave " if isinstance(error, WorkerTimedOut) else ""
    return BuildOutcome(
        State.NOT_COMPILED, prefix + error.message, is_transient=not isinstance(error, BuildError)
    )
