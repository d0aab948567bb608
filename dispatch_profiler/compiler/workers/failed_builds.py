"""Reasons of failed builds that IREE only prints to standard error: messages of its linker and of the system."""

from __future__ import annotations

from dispatch_profiler.compiler._base import BuildError
from dispatch_profiler.outside_causes import MAY_LACK, outside_cause, telling_line

#: How IREE reports that its linker failed, whatever the reason.
_NOT_LINKED = "failed to link executable"
#: The linker's only message about the code: of a truncated file it says instead that it is no object file.
_UNDEFINED = "undefined symbol"


def with_cause(error: BuildError, said: str) -> BuildError:
    """`error` of a build during which its process wrote `said` to standard error: with the cause, and whether the cause is the code.

    `failed to link executable ...` -> `failed to link executable ...: sh: 1: Cannot fork`
    """
    cause = outside_cause(f"{error.message}\n{said}")
    is_not_linked = _NOT_LINKED in error.message
    line = _line_with(said, cause) if cause else telling_line(said) if is_not_linked else ""
    message = f"{error.message}: {line}" if line and line not in error.message else error.message
    is_deterministic = not cause and (not is_not_linked or _UNDEFINED in said)
    if not is_deterministic and not cause:
        message += f"; the linker {MAY_LACK}"
    found = BuildError(
        message, diagnostics="\n".join(filter(None, [said, error.diagnostics])), culprits=error.culprits
    )
    found.is_deterministic = is_deterministic
    return found


def _line_with(text: str, part: str) -> str:
    return next((line.strip() for line in text.splitlines() if part in line), "")
