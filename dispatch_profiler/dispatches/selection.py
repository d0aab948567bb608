"""Selects dispatches by patterns and operation kinds."""

from __future__ import annotations

import fnmatch
import re
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

from dispatch_profiler.errors import SelectionError, nearest
from dispatch_profiler.operations import operation_kind

T = TypeVar("T")


@dataclass(frozen=True)
class Selection:
    """Patterns over whole dispatch names, each a glob or a regular expression, and operation kinds.

    Without patterns every name matches, without kinds every kind; a dispatch must match both.
    """

    patterns: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()

    @staticmethod
    def parse(patterns: str, kinds: str) -> Selection:
        """Parse two comma-separated lists. Commas within (), [] and {} belong to a regular expression.

        Raises SelectionError for an empty pattern, OperationError for an unknown kind. The kind
        `all` stands for every kind.
        """
        names = [kind.strip() for kind in kinds.split(",")] if kinds else []
        known = tuple(operation_kind(name).kind for name in names if name != "all")
        return Selection(_split(patterns), () if "all" in names else known)

    @cached_property
    def _matchers(self) -> tuple[tuple[str, tuple[re.Pattern[str], ...]], ...]:
        return tuple((pattern, _compile(pattern)) for pattern in self.patterns)

    def matches(self, kind: str, name: str) -> bool:
        """Whether the dispatch `name`, of an operation of `kind`, is selected."""
        if self.kinds and kind not in self.kinds:
            return False
        return not self.patterns or any(_matches(forms, name) for _, forms in self._matchers)

    def choose(
        self, items: Iterable[T], kind: Callable[[T], str], name: Callable[[T], str], noun: str = "dispatch"
    ) -> list[T]:
        """The selected items, in order. `noun` is what errors call an item.

        Raises SelectionError if a pattern matches no item, or if no item is left.
        """
        of_kind = [item for item in items if not self.kinds or kind(item) in self.kinds]
        if not of_kind:
            raise SelectionError(f"no {noun} of {', '.join(self.kinds) or 'any kind'}")
        names = [name(item) for item in of_kind]
        for pattern, forms in self._matchers:
            if not any(_matches(forms, each) for each in names):
                raise SelectionError(f"no {noun} matches {pattern!r}", hint=_nearest(pattern, names))
        return [
            item
            for item, each in zip(of_kind, names, strict=True)
            if not self.patterns or any(_matches(forms, each) for _, forms in self._matchers)
        ]


def _split(patterns: str) -> tuple[str, ...]:
    if not patterns:
        return ()
    parts, depth, part = [], 0, ""
    for character in patterns:
        depth += (character in "([{") - (character in ")]}")
        if character == "," and depth <= 0:
            parts.append(part)
            part = ""
        else:
            part += character
    parts = [each.strip() for each in [*parts, part]]
    if not all(parts):
        raise SelectionError(f"empty pattern in {patterns!r}", hint="separate patterns with one comma")
    return tuple(parts)


def _compile(pattern: str) -> tuple[re.Pattern[str], ...]:
    forms = [re.compile(fnmatch.translate(pattern))]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # "possible nested set": it is a glob
            forms.append(re.compile(pattern))
    except (re.error, OverflowError) as error:
        if not re.search(r"[*?\[]", pattern):
            raise SelectionError(
                f"the pattern {pattern!r} is neither a glob nor a regular expression: {error}",
                hint="write matmul_256*_default or matmul_256.*_default",
            ) from error
    return tuple(forms)


def _matches(forms: tuple[re.Pattern[str], ...], name: str) -> bool:
    return any(form.fullmatch(name) for form in forms)


def _nearest(pattern: str, names: Sequence[str]) -> str:
    plain = re.sub(r"\.\*|[*?\\^$()]", "", pattern)
    near = nearest(plain, names, cutoff=0.0)
    return f"did you mean {near!r}? A pattern must match the whole name" if near else ""
