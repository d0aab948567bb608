"""Files that commands write when everything is known: Markdown and JUnit."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from dispatch_profiler.command import Parser, say, writable
from dispatch_profiler.files import write_atomic


def add_file_arguments(parser: Parser) -> None:
    """`--markdown` and `--junit`, which all commands take that report."""
    parser.add_argument("--markdown", metavar="FILE.md", help="also write Markdown tables, in the end")
    parser.add_argument(
        "--junit", metavar="FILE.xml", help="also write JUnit, a test case for each dispatch, in the end"
    )


@dataclass(frozen=True)
class ReportFiles:
    """What is written when everything is known; None: not at all."""

    markdown: Path | None = None
    junit: Path | None = None

    @staticmethod
    def of(options: argparse.Namespace) -> ReportFiles:
        """Those that `add_file_arguments` took. Raises UsageError if one cannot be written."""
        return ReportFiles(
            writable("--markdown", options.markdown) if options.markdown else None,
            writable("--junit", options.junit) if options.junit else None,
        )

    def write(self, markdown: Callable[[], str], junit: Callable[[], str]) -> None:
        """Write each that was asked for, whole or not at all."""
        for path, text in ((self.markdown, markdown), (self.junit, junit)):
            if path is not None:
                write_atomic(path, text())
                say(f"Writing {path}")
