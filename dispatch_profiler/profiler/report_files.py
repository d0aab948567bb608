"""Files that commands write at the end: Markdown and JUnit."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from dispatch_profiler.command import Parser, say, writable
from dispatch_profiler.files.destinations import write_output


def add_file_arguments(parser: Parser) -> None:
    """Add `--markdown` and `--junit`."""
    parser.add_argument("--markdown", metavar="FILE.md", help="also write Markdown tables, at the end")
    parser.add_argument(
        "--junit", metavar="FILE.xml", help="also write JUnit XML with a test case per dispatch, at the end"
    )


@dataclass(frozen=True)
class ReportFiles:
    """The files to write at the end; None for files that were not requested."""

    markdown: Path | None = None
    junit: Path | None = None

    @staticmethod
    def of(options: argparse.Namespace) -> ReportFiles:
        """The files requested in `options`. Raises UsageError if one cannot be written."""
        return ReportFiles(
            writable("--markdown", options.markdown) if options.markdown else None,
            writable("--junit", options.junit) if options.junit else None,
        )

    def write(self, markdown: Callable[[], str], junit: Callable[[], str]) -> None:
        """Write each requested file, complete or not at all."""
        for path, text in ((self.markdown, markdown), (self.junit, junit)):
            if path is not None:
                write_output(path, text())
                say(f"Writing {path}")
