"""`--workload`: files -> the operations to generate, with a report of the skipped lines."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from dispatch_profiler.command import folder, say, warn
from dispatch_profiler.console.plurals import counted
from dispatch_profiler.errors import UsageError
from dispatch_profiler.workloads import SkippedLine, WorkloadReading, read_workload

#: Lines that are listed without --verbose.
_MOST_LINES = 20


def read_files(options: argparse.Namespace, sweep_options: Iterable[str]) -> WorkloadReading:
    """Read the files of --workload and print a summary.

    `sweep_options` are the options of a sweep that were given. Raises UsageError if any was given.
    """
    if given := ", ".join(sweep_options):
        raise UsageError(
            f"--workload gives the operations, but {given} was given too",
            hint="generate the sweep in a second run: it keeps the operations of the first",
        )
    return read_reported([folder(each) for each in options.workload], lists_all=options.verbose)


def read_reported(paths: Sequence[Path], *, lists_all: bool = False) -> WorkloadReading:
    """Read the files and print a summary: counts, skipped lines with their reasons, and remarks.

    Unless `lists_all`, many skipped lines are summarized. Raises UsageError, see `read_workload`.
    """
    reading = read_workload(*paths)
    say(
        f"Read {counted(reading.calls, 'line')} with {counted(len(reading.workload.entries), 'operation')}; "
        f"skipped {len(reading.damaged)} damaged and {len(reading.unsupported)} unsupported"
    )
    shown = reading.skipped if lists_all else reading.skipped[:_MOST_LINES]
    for line in shown:
        warn(f"    {line}")
    if rest := reading.skipped[len(shown) :]:
        warn(f"    {counted(len(rest), 'more line')} skipped; --verbose lists them all:")
        for reason, count in Counter(map(_reason, rest)).most_common(5):
            warn(f"        {count} x {reason}")
    for note in reading.notes:
        warn(note)
    return reading


def _reason(line: SkippedLine) -> str:
    return line.reason
