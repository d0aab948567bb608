"""Finding the dispatches that do not compile, so that they do not affect others of their module."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from dispatch_profiler.compiler._base import BuildError, BuildOutcome, BuildRequest, Built
from dispatch_profiler.dispatches import Dispatch, State
from dispatch_profiler.errors import ToolError, WorkerCrashed, WorkerTimedOut

Build = Callable[[BuildRequest], Built]


def isolate_failures(request: BuildRequest, build: Build) -> Built:
    """Build as much of `request` as compiles; every other dispatch gets a reason.

    The whole module is tried first. If the compiler names dispatches, these are tried alone, and the others
    without them. If it fails again, every dispatch is tried alone, and all dispatches that compile are built
    together. This takes at most about three times as long as a module without failures, however many fail. A
    dispatch is reported as `not compiled` only if it failed alone, because the compiler may name the wrong
    one. If it crashed the compiler, it is tried once more: a crash may have another cause.
    """
    failed = {name: BuildOutcome(State.NOT_COMPILED, reason) for name, reason in request.rejected}
    isolation = _Isolation(request, build, failed)
    rest = [d for d in request.dispatches if d.name not in failed]
    for _ in range(2):
        if len(rest) <= 1:
            return isolation.build_one(rest)
        try:
            return isolation.build_together(rest)
        except ToolError as error:
            isolation.note(error)
            named = error.culprits if isinstance(error, BuildError) else ()
            guilty = [d for d in rest if d.name in named and not isolation.compiles_alone(d)]
            rest = [d for d in rest if d.name not in isolation.failed]
            if not guilty:
                break
    return isolation.build_largest([d for d in rest if isolation.compiles_alone(d)])


class _Isolation:
    """The outcomes so far of the dispatches of one module."""

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

    def build_one(self, dispatches: Sequence[Dispatch]) -> Built:
        """The result if at most one dispatch is left."""
        for dispatch in dispatches:
            try:
                return self._with_failures(self._build_alone(dispatch))
            except ToolError as error:
                self.note(error)
                self.failed[dispatch.name] = _failure(error)
        return self.build_nothing()

    def _build_alone(self, dispatch: Dispatch) -> Built:
        """Build a module of one dispatch; after a crash, once more. Raises ToolError."""
        request = replace(self._request, dispatches=(dispatch,))
        try:
            return self._build(request)
        except WorkerCrashed as error:
            if not error.is_deterministic:
                raise
            self.note(error)
            return self._build(request)

    def build_together(self, dispatches: Sequence[Dispatch]) -> Built:
        """Build one module of `dispatches`. Raises ToolError."""
        return self._with_failures(self._build(replace(self._request, dispatches=tuple(dispatches))))

    def compiles_alone(self, dispatch: Dispatch) -> bool:
        """Whether `dispatch` compiles in its own module; it is tried once."""
        if dispatch.name in self._compiled:
            return True
        try:
            built = self._build_alone(dispatch)
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
    limit = error.seconds if isinstance(error, WorkerTimedOut) else None
    return BuildOutcome(
        State.NOT_COMPILED,
        error.message if limit is None else f"the compiler gave {error.message}",
        is_transient=not (isinstance(error, BuildError) and error.is_deterministic),
        is_deterministic=error.is_deterministic,
        seconds=limit or 0.0,
    )
