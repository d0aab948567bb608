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
#: Values, each with its position in a row.
Group = tuple[tuple[int, Hashable], ...]


def groups_of(row: Row, size: int) -> set[Group]:
    """Every `size` values of `row`."""
    return set(itertools.combinations(enumerate(row), size))


def pairwise(rows: Sequence[Row]) -> list[Row]:
    """Rows out of `rows` that hold every pair of values that any of `rows` holds, in their order."""
    return covering(rows, 2)


def covering(rows: Sequence[Row], size: int) -> list[Row]:
    """Rows out of `rows` that hold every group of `size` values that any of `rows` holds, in their order.

    Greedy: the row with the most groups that are still missing, the first of several. The same rows
    give the same choice.
    """
    missing = set().union(*(groups_of(row, size) for row in rows))
    # What a row adds never grows, so that an old count is an upper bound.
    bounds = {row: len(missing) for row in rows}
    chosen = set()
    while missing:
        best, most = rows[0], 0
        for row, bound in bounds.items():
            if bound > most:
                bounds[row] = len(groups_of(row, size) & missing)
                if bounds[row] > most:
                    best, most = row, bounds[row]
        chosen.add(best)
        missing -= groups_of(best, size)
    return [row for row in dict.fromkeys(rows) if row in chosen]


def parametrize_pairwise(names: Sequence[str], rows: Sequence[Row], **options: Any) -> pytest.MarkDecorator:
    """As `pytest.mark.parametrize`; rows that `pairwise` leaves out are marked `slow`."""
    chosen = set(pairwise(rows))
    marked = [pytest.param(*row, marks=() if row in chosen else pytest.mark.slow) for row in rows]
    return pytest.mark.parametrize(names, marked, **options)
