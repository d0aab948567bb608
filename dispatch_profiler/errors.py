"""All errors that this package raises deliberately.

    DispatchProfilerError
      UsageError              the request is invalid                         exit status 2
        RangeError              a malformed numeric range
        OperationError          an operation that is not defined mathematically
        ConfigurationError      a malformed configuration
        TargetError             an unknown target, or a target that does not fit
        TreeError               a missing, foreign or damaged tree
        SelectionError          a pattern or kind that selects nothing
        StorageError            a locked, damaged or foreign storage of a search
        WorkloadError           a damaged workload, or a damaged line of a workload
          UnsupportedFeature      a valid line that no operation can express
      ToolError               an external program failed                     exit status 1
        CompilerError             the compiler rejected a module; has its diagnostics
        WorkerCrashed             a worker process died
        WorkerTimedOut            a worker process did not answer in time
        WorkerOutOfMemory         a worker process reached its memory limit
      MissingDependency       a required optional package is missing         exit status 2

Wrong results, slow kernels and configurations that do not compile are not errors. They are records
with a verdict and a reason (see `dispatch_profiler.profiler.records.record_file`).
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class DispatchProfilerError(Exception):
    """Base class of all errors. `hint` is the next step for the user, or empty."""

    exit_status = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __reduce__(self) -> tuple[object, ...]:
        # Errors are sent between processes; the default reduction would drop keyword arguments.
        return (_rebuild, (type(self), self.__dict__))

    def __str__(self) -> str:
        return self.message


def _rebuild(kind: type[DispatchProfilerError], state: dict[str, object]) -> DispatchProfilerError:
    error = kind.__new__(kind)
    Exception.__init__(error, state.get("message", ""))
    error.__dict__.update(state)
    return error


class UsageError(DispatchProfilerError):
    """The request is invalid."""

    exit_status = 2


class RangeError(UsageError):
    """A numeric argument is not `v`, `start:end`, `start:end:step` or a comma list of these."""


class OperationError(UsageError):
    """The operation is not defined, for example because groups do not divide channels."""


class ConfigurationError(UsageError):
    """A configuration, or a configuration file, is malformed."""


class TargetError(UsageError):
    """The target is unknown, or does not match what was generated."""


class TreeError(UsageError):
    """The generated tree is missing, was not written by this package, or is damaged."""


class SelectionError(UsageError):
    """A pattern or a kind selects nothing."""


class StorageError(UsageError):
    """The storage of a search is locked, damaged, in use, or was not written by this package."""


class WorkloadError(UsageError):
    """A workload, or a line of a workload, is damaged."""


class UnsupportedFeature(WorkloadError):
    """A line of a workload is valid, but no operation can express it."""


class ToolError(DispatchProfilerError):
    """An external program failed.

    `is_deterministic` says whether the program is expected to fail again in the same way. It is False after a
    lack of memory, processes or disk space, and after a signal from another process.
    """

    is_deterministic = False


class CompilerError(ToolError):
    """The compiler rejected a module.

    `diagnostics` is the compiler's whole output; the message is its first error line.
    """

    is_deterministic = True

    def __init__(self, message: str, *, diagnostics: str = "", hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.diagnostics = diagnostics


class WorkerCrashed(ToolError):
    """A worker process died during a call."""

    def __init__(self, message: str, *, hint: str = "", is_deterministic: bool = False) -> None:
        super().__init__(message, hint=hint)
        self.is_deterministic = is_deterministic


class WorkerTimedOut(ToolError):
    """A worker process did not answer within `seconds` and was killed."""

    def __init__(
        self, message: str, *, hint: str = "", seconds: float = 0.0, is_deterministic: bool = False
    ) -> None:
        super().__init__(message, hint=hint)
        self.seconds = seconds
        self.is_deterministic = is_deterministic


class WorkerOutOfMemory(ToolError):
    """A worker process reached its memory limit."""


class MissingDependency(DispatchProfilerError):
    """An optional package is missing; the message names it and its purpose, the hint how to install it."""

    exit_status = 2


def reason_of(error: Exception) -> str:
    """The message of an error on one line; for an OSError, without the number and the path.

    `[Errno 2] No such file or directory: 'x'` -> `No such file or directory`
    """
    strerror = error.strerror if isinstance(error, OSError) else None
    return " ".join((strerror or str(error)).split())


def described(error: BaseException) -> str:
    """The type and the message of another package's error, on one line: `ValueError: no weights here`."""
    if isinstance(error, SystemExit):
        return f"it calls sys.exit({'' if error.code is None else repr(error.code)})"
    return (
        f"{type(error).__name__}: {reason_of(error)}"
        if isinstance(error, Exception)
        else type(error).__name__
    )


def raise_interrupt(error: BaseException) -> None:
    """Raise the KeyboardInterrupt that caused `error`, if any.

    Until Python 3.12, a KeyboardInterrupt that arrives while a class is created, for example during an
    import, becomes a RuntimeError.
    """
    cause = error.__cause__
    while cause is not None:
        if isinstance(cause, KeyboardInterrupt):
            raise cause
        cause = cause.__cause__


def short_repr(value: object) -> str:
    """`repr(value)` for a message, truncated to 100 characters."""
    text = repr(value)
    return text if len(text) <= 100 else text[:97] + "..."


def nearest(got: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """The name in `known` that is most similar to `got`, ignoring case; empty if none is similar."""
    by_folded = {name.casefold(): name for name in reversed(list(known))}
    # Very long names are not typing errors, and are slow to compare.
    near = difflib.get_close_matches(got.casefold()[:200], by_folded, n=1, cutoff=cutoff)
    return by_folded[near[0]] if near else ""


def did_you_mean(got: str, known: Iterable[str]) -> str:
    """A hint that lists `known` and suggests the most similar name, ignoring case.

    `did_you_mean("Matmull", ["matmul", "conv2d"])` -> "did you mean 'matmul'? Available: matmul, conv2d"
    """
    names = list(known)
    near, listed = nearest(got, names), ", ".join(names) or "none"
    return f"did you mean {near!r}? Available: {listed}" if near else f"available: {listed}"
