"""Every error that this package raises on purpose.

    DispatchProfilerError
      UsageError              the request cannot be met as it stands         exit status 2
        RangeError              a numeric argument that is no range
        OperationError          a problem that does not exist mathematically
        ConfigurationError      a configuration that is malformed
        TargetError             a target that is unknown or does not fit
        TreeError               a generated tree that is missing, foreign or damaged
        SelectionError          a pattern or kind that selects nothing
      ToolError               an external program failed                     exit status 1
        CompilerError             the compiler rejected a module; carries its diagnostics
        WorkerCrashed             a worker process died
        WorkerTimedOut            a worker process did not answer in time
        WorkerOutOfMemory         a worker process reached its memory limit
      MissingDependency       an optional package is needed                  exit status 2

A wrong result, a slow kernel or a configuration that does not compile is not an error: it is a record
with a verdict and a reason (see `dispatch_profiler.profiler.records.record`).
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class DispatchProfilerError(Exception):
    """Root of the tree. `hint` is the next step for the user, or empty."""

    exit_status = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __reduce__(self) -> tuple[object, ...]:
        # Errors cross process borders; the default reduction would drop keyword arguments.
        return (_rebuild, (type(self), self.__dict__))

    def __str__(self) -> str:
        return self.message


def _rebuild(kind: type[DispatchProfilerError], state: dict[str, object]) -> DispatchProfilerError:
    error = kind.__new__(kind)
    Exception.__init__(error, state.get("message", ""))
    error.__dict__.update(state)
    return error


class UsageError(DispatchProfilerError):
    """The request cannot be met as it stands."""

    exit_status = 2


class RangeError(UsageError):
    """A numeric argument is not `v`, `start:end`, `start:end:step` or a comma list of these."""


class OperationError(UsageError):
    """An operation that does not exist mathematically, such as groups that do not divide channels."""


class ConfigurationError(UsageError):
    """A configuration, or a file of them, is malformed."""


class TargetError(UsageError):
    """A target is unknown, or does not fit what was generated."""


class TreeError(UsageError):
    """A generated tree is missing, is not ours, or is damaged."""


class SelectionError(UsageError):
    """A pattern or a kind selects nothing."""


class ToolError(DispatchProfilerError):
    """An external program failed."""


class CompilerError(ToolError):
    """The compiler rejected a module.

    `diagnostics` is its whole output; the message is its first error line.
    """

    def __init__(self, message: str, *, diagnostics: str = "", hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.diagnostics = diagnostics


class WorkerCrashed(ToolError):
    """A worker process died while it served a call."""


class WorkerTimedOut(ToolError):
    """A worker process did not answer in time and was ended."""


class WorkerOutOfMemory(ToolError):
    """A worker process reached its memory limit."""


class MissingDependency(DispatchProfilerError):
    """An optional package is needed; the message names it, what for, and the pip line."""

    exit_status = 2


def reason_of(error: Exception) -> str:
    """The message of an error on one line; for an OSError, without its number and path.

    `[Errno 2] No such file or directory: 'x'` -> `No such file or directory`
    """
    strerror = error.strerror if isinstance(error, OSError) else None
    return " ".join((strerror or str(error)).split())


def short_repr(value: object) -> str:
    """`repr(value)` for a message, cut after 100 characters."""
    text = repr(value)
    return text if len(text) <= 100 else text[:97] + "..."


def nearest(got: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """The most similar one of `known`, ignoring case; empty if none is similar."""
    by_folded = {name.casefold(): name for name in reversed(list(known))}
    # A long name is not a typing error, and is slow to compare.
    near = difflib.get_close_matches(got.casefold()[:200], by_folded, n=1, cutoff=cutoff)
    return by_folded[near[0]] if near else ""


def did_you_mean(got: str, known: Iterable[str]) -> str:
    """A hint that suggests the most similar one of `known`, ignoring case, and lists them all.

    `did_you_mean("Matmull", ["matmul", "conv2d"])` -> "did you mean 'matmul'? Available: matmul, conv2d"
    """
    names = list(known)
    near, listed = nearest(got, names), ", ".join(names)
    return f"did you mean {near!r}? Available: {listed}" if near else f"available: {listed}"
