"""Fewer combinations of parameters: every pair of values that occur together, rather than every combination.

Most faults need one value or two of them together (Kuhn, Wallace and Gallo, "Software Fault
Interactions and Implications for Software Testing", IEEE TSE 30(6), 2004).
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Sequence
from typing import Any

import pytest

Row = tuple[Hashable, ...]
Pair = tuple[tuple[int, Hashable], tuple[int, Hashable]]


def pairs_of(row: Row) -> set[Pair]:
    """Every two values of `row`, each with its position."""
    return set(itertools.combinations(enumerate(row), 2))  # type: ignore[arg-type]


def pairwise(rows: Sequence[Row]) -> list[Row]:
    """Rows out of `rows` that hold every pair of values that any of `rows` holds, in their order.

    Greedy: the row with the most pairs that are still missing, the first of several. The same rows
    give the same choice.
    """
    missing = set().union(*map(pairs_of, rows))
    # What a row adds never grows, so that an old count is an upper bound.
    bounds = {row: len(missing) for row in rows}
    chosen = set()
    while missing:
        best, most = rows[0], 0
        for row, bound in bounds.items():
            if bound > most:
                bounds[row] = len(pairs_of(row) & missing)
                if bounds[row] > most:
                    best, most = row, bounds[row]
        chosen.add(best)
        missing -= pairs_of(best)
    return [row for row in dict.fromkeys(rows) if row in chosen]


def parametrize_pairwise(names: Sequence[str], rows: Sequence[Row], **options: Any) -> pytest.MarkDecorator:
    """As `pytest.mark.parametrize`; rows that `pairwise` leaves out are marked `slow`."""
    chosen = set(pairwise(rows))
    marked = [pytest.param(*row, marks=() if row in chosen else pytest.mark.slow) for row in rows]
    return pytest.mark.parametrize(names, marked, **options)
