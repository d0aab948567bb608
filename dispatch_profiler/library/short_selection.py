"""Patterns of operations that `tune` and `explain` print under short names -> patterns over full names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from dispatch_profiler.dispatches import Selection
from dispatch_profiler.errors import UsageError, nearest
from dispatch_profiler.operations import Operation
from dispatch_profiler.operations.short_names import short_name, without_modules

#: Full names that a message about an ambiguous name lists.
_LISTED = 5


def with_full_names(
    selection: Selection, operations: Iterable[Operation], *, needs_one: bool = False
) -> Selection:
    """`selection` with short names replaced by the full names of `operations` that have them.

    A short name may be followed by modules in parentheses, as `tune` prints it, and may be a pattern. Raises UsageError for
    text with blanks, which no full name has, that matches no short name; with `needs_one`, also for a short name of several
    operations.
    """
    if not selection.patterns:
        return selection
    called: dict[str, list[str]] = {}
    for each in dict.fromkeys(operations):
        called.setdefault(short_name(each), []).append(each.name)
    patterns: list[str] = []
    for pattern in selection.patterns:
        full = _full_names(pattern, called, needs_one=needs_one)
        patterns += [re.escape(each) for each in full] if full else [pattern]
    return replace(selection, patterns=tuple(patterns))


def _full_names(pattern: str, called: dict[str, list[str]], *, needs_one: bool) -> Sequence[str]:
    """The full names of operations whose short name is, or matches, `pattern`; none for a pattern of full names."""
    exact = called.get(without_modules(pattern), [])
    if len(exact) > 1 and needs_one:
        more = f" and {len(exact) - _LISTED} more" if len(exact) > _LISTED else ""
        raise UsageError(
            f"{len(exact)} operations are called {without_modules(pattern)!r}",
            hint=f"write the full name: {', '.join(exact[:_LISTED])}{more}",
        )
    if exact or " " not in pattern.strip():
        return exact
    form = Selection((pattern,))
    found = [name for short, names in called.items() if form.matches("", short) for name in names]
    if not found:
        near = nearest(without_modules(pattern), called, cutoff=0.0)
        raise UsageError(
            f"no entry is of an operation that is called {without_modules(pattern)!r}",
            hint=f"did you mean {near!r}?" if near else "",
        )
    return found
