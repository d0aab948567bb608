"""Counts in messages: `1 dispatch`, `2 dispatches`."""

from __future__ import annotations

#: Endings after which the plural ends in -es.
_SIBILANTS = ("s", "x", "z", "ch", "sh")


def plural(count: int, noun: str) -> str:
    """`noun`, which is singular, as its count requires: `dispatch` or `dispatches`, `entry`, `axis`, ..."""
    if count == 1:
        return noun
    if noun.endswith("is"):
        return f"{noun.removesuffix('is')}es"
    if noun.endswith("y") and noun[-2] not in "aeiou":
        return f"{noun.removesuffix('y')}ies"
    return noun + ("es" if noun.endswith(_SIBILANTS) else "s")


def counted(count: int, noun: str) -> str:
    """A count with its noun: `0 dispatches`, `1 dispatch`, `2 dispatches`."""
    return f"{count} {plural(count, noun)}"
