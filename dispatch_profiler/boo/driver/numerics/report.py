"""Verdicts of numerics as console text, CSV and JSON."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dispatch_profiler.boo.driver.numerics.check import NumericsVerdict
from dispatch_profiler.boo.driver.numerics.error_spread import ComparedKernel, ErrorSpread, ResultVerdict

#: Statistics of each side in the files.
_STATISTICS = ("mean", "stddev", "inward_mean", "worst", "worst_part", "beyond", "not_finite")
_VERDICT = ("arguments", "result", "deviates", "reason", "elements", "scale")
COLUMNS = (*_VERDICT, *(f"{side.value} {name}" for side in ComparedKernel for name in _STATISTICS), "notes")


@dataclass(frozen=True)
class Checked:
    """A command and its verdict, or the `error` that kept it from being checked."""

    arguments: str
    verdict: NumericsVerdict | None = None
    error: str = ""

    @property
    def has_failed(self) -> bool:
        """Whether the exit status of the run is 1."""
        return self.verdict is None or self.verdict.has_failed


def console_lines(verdict: NumericsVerdict) -> list[str]:
    """The verdict of each result, and the spread of each side's errors."""
    lines = []
    for result in verdict.results:
        if len(verdict.results) > 1:
            lines.append(f"{result.name}:")
        for side, spread in result.spreads.items():
            lines.append(_spread_line(side, spread))
    return [*lines, str(verdict).removeprefix("numerics: ")]


def _spread_line(side: ComparedKernel, spread: ErrorSpread) -> str:
    bound = (
        f"{spread.worst_part:.3g} of its bound" if math.isfinite(spread.worst_part) else "no error is allowed"
    )
    return (
        f"{side.value + ':':<6} errors mean={spread.mean:.3g} stddev={spread.stddev:.3g} max={spread.worst:.3g} "
        f"({bound}) in {spread.elements} elements of size {spread.scale:.3g}"
    )


def as_csv(every_checked: Sequence[Checked]) -> str:
    """A row for each result of each command."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n", restval="")
    writer.writeheader()
    writer.writerows(row for each in every_checked for row in _rows(each))
    return text.getvalue()


def as_json(every_checked: Sequence[Checked]) -> str:
    """A list with an object for each result of each command; numbers that are not finite are null."""
    rows = [
        {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in row.items()
        }
        for each in every_checked
        for row in _rows(each)
    ]
    return json.dumps(rows, indent=1, allow_nan=False) + "\n"


def _rows(checked: Checked) -> list[dict[str, Any]]:
    if checked.verdict is None:
        return [{"arguments": checked.arguments, "deviates": "", "reason": checked.error}]
    return [_row(checked.arguments, checked.verdict, result) for result in checked.verdict.results]


def _row(arguments: str, verdict: NumericsVerdict, result: ResultVerdict) -> dict[str, Any]:
    first = next(iter(result.spreads.values()))
    reasons = (f"{side.value}: {reason}" for side, reason in result.reasons.items() if reason)
    return {
        "arguments": arguments,
        "result": result.name,
        "deviates": result.deviates.value,
        "reason": "; ".join(reasons),
        "elements": first.elements,
        "scale": first.scale,
        **{
            f"{side.value} {name}": getattr(spread, name)
            for side, spread in result.spreads.items()
            for name in _STATISTICS
        },
        "notes": verdict.notes,
    }
