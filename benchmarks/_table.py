"""Shared by all benchmarks: rows with a goal, printed as a table and written as JSON."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NoReturn

#: The exit status after Ctrl-C, as shells report it.
INTERRUPTED = 130
#: The first argument of a benchmark that measures for another process of the same benchmark.
CHILD = "--child"


@dataclass(frozen=True)
class Row:
    """One measured claim. `must` is the goal, `holds` whether it was reached."""

    name: str
    value: float
    unit: str
    must: str
    holds: bool


def at_least(name: str, value: float, unit: str, goal: float) -> Row:
    """A row that holds from `goal` upwards."""
    return Row(name, value, unit, f">= {goal:g}", value >= goal)


def below(name: str, value: float, unit: str, goal: float) -> Row:
    """A row that holds below `goal`."""
    return Row(name, value, unit, f"< {goal:g}", value < goal)


def at_most(name: str, value: float, unit: str, goal: float) -> Row:
    """A row that holds up to `goal`."""
    return Row(name, value, unit, f"<= {goal:g}", value <= goal)


def make_parser(description: str) -> argparse.ArgumentParser:
    """`--quick` and `--json PATH`, for benchmarks that add options of their own."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="under five minutes")
    parser.add_argument("--json", type=Path, metavar="PATH", help="also write the rows as JSON")
    return parser


def positive(text: str) -> int:
    """A number from 1 upwards, for options."""
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"expected a number from 1 upwards, but got {text!r}")
    return int(text)


def arguments(description: str) -> argparse.Namespace:
    """`--quick` and `--json PATH`."""
    return make_parser(description).parse_args()


def report(rows: list[Row], path: Path | None) -> int:
    """Print the table and write the JSON; returns the exit status, 1 if a goal was missed."""
    for row in rows:
        verdict = "holds" if row.holds else "MISSED"
        print(f"{row.name:<72} {row.value:>10.2f} {row.unit:<22} {row.must:>8}  {verdict}")
    if path is not None:
        write_rows(rows, path)
    return 0 if all(row.holds for row in rows) else 1


def write_rows(rows: list[Row], path: Path) -> None:
    """Write the rows as JSON."""
    path.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")


def exit_with(main: Callable[[], int]) -> NoReturn:
    """End this program with the exit status of `main`; after Ctrl-C with one sentence, which a child leaves to its parent."""
    try:
        status = main()
    except KeyboardInterrupt:
        if CHILD not in sys.argv:
            print(f"\n{Path(sys.argv[0]).name}: interrupted before the table was complete", file=sys.stderr)
        status = INTERRUPTED
    sys.exit(status)
