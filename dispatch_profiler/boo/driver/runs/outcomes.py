"""The outcome of a command, as text in the format of the BOO documents, and as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from dispatch_profiler.boo.driver.runs.backends import DriverBackend
from dispatch_profiler.boo.driver.runs.timing import LaunchTimes
from dispatch_profiler.console.plurals import counted
from dispatch_profiler.files.destinations import destination, open_stream
from dispatch_profiler.files.regular import write_atomic

_STATISTICS = ("min", "max", "mean", "stddev", "num_dispatches", "median", "p20", "p80")
_KERNEL = ("min", "mean", "median")
#: A cell without a value: timing was not requested, or failed.
_UNTIMED = "untimed"
_MISSING = "N.A."


@dataclass(frozen=True)
class SignatureOutcome:
    """The outcome of one signature: times of each backend and of the kernel alone, and the verdict of the numerics.

    `error` says why the signature failed, `failures` why reference backends did. `unsupported` says which reference
    backends do not compute the operation, and why. Fields that were not requested are empty.
    """

    arguments: str
    times: Mapping[DriverBackend, LaunchTimes] = field(default_factory=dict)
    kernel: LaunchTimes | None = None
    numerics: str = ""
    error: str = ""
    failures: Mapping[DriverBackend, str] = field(default_factory=dict)
    unsupported: Mapping[DriverBackend, str] = field(default_factory=dict)
    is_timed: bool = False

    @property
    def has_failed(self) -> bool:
        """Whether the exit status of the run is 1."""
        return bool(self.error or self.failures)


def described(result: Any) -> str:
    """`tensor([...], device='cpu', size=(2, 16), dtype=torch.float32)`; likewise for an array."""
    size = tuple(map(int, result.shape))
    if isinstance(result, np.ndarray):
        return f"array([...], size={size}, dtype={result.dtype})"
    return f"tensor([...], device='{result.device}', size={size}, dtype={result.dtype})"


def time_lines(label: str, times: LaunchTimes) -> list[str]:
    """Two lines: the statistics of BOO's documents, then median and percentiles. Our own launch has no `label`."""
    start = f"{label}: " if label else ""
    is_single = times.launches == times.samples
    count = counted(times.launches, "launch") + (
        "" if is_single else f" in {counted(times.samples, 'sample')}"
    )
    return [
        f"{start}min={times.min:.2f}us max={times.max:.2f}us mean={times.mean:.2f}us stddev={times.stddev:.2f}us",
        f"{start}median={times.median:.2f}us p20={times.p20:.2f}us p80={times.p80:.2f}us ({count})",
    ]


def columns(backends: Sequence[DriverBackend], *, has_numerics: bool) -> list[str]:
    """The header of the CSV file. Times are in microseconds."""
    statistics = [f"{backend.value} {name}" for backend in backends for name in _STATISTICS]
    kernel = [f"{DriverBackend.BOO.value} kernel {name}" for name in _KERNEL]
    return [
        "arguments", "min_time (us)", *statistics, *kernel, *(["numerics"] if has_numerics else []), "error",
    ]  # fmt: skip


def row(outcome: SignatureOutcome, backends: Sequence[DriverBackend], *, has_numerics: bool) -> list[str]:
    """The cells of an outcome, in the order of `columns`."""
    ours = outcome.times.get(DriverBackend.BOO)
    absent = _UNTIMED if not outcome.is_timed and not outcome.error else _MISSING
    cells = [outcome.arguments, f"{ours.min:.3f}" if ours else absent]
    for backend in backends:
        times = outcome.times.get(backend)
        cells += _cells(times) if times else [absent] * len(_STATISTICS)
    kernel = outcome.kernel
    cells += [f"{getattr(kernel, name):.3f}" if kernel else absent for name in _KERNEL]
    absences = (*outcome.failures.items(), *outcome.unsupported.items())
    reasons = [outcome.error, *(f"{backend.value}: {why}" for backend, why in absences)]
    return [*cells, *([outcome.numerics] if has_numerics else []), "; ".join(filter(None, reasons))]


def _cells(times: LaunchTimes) -> list[str]:
    values = {"num_dispatches": str(times.launches)}
    return [values.get(name) or f"{getattr(times, name):.3f}" for name in _STATISTICS]


class CsvFile:
    """The CSV file of a run, valid after each row. Use as a context manager.

    Rows are written to a device or a pipe as soon as they are known.
    """

    def __init__(self, path: Path, backends: Sequence[DriverBackend], *, has_numerics: bool) -> None:
        self._place = destination(path)
        self._stream = open_stream(path) if self._place is None else None
        self._backends = backends
        self._has_numerics = has_numerics
        self._text = ""
        self._add(columns(backends, has_numerics=has_numerics))

    def add(self, outcome: SignatureOutcome) -> None:
        """Write another row."""
        self._add(row(outcome, self._backends, has_numerics=self._has_numerics))

    def _add(self, cells: Sequence[str]) -> None:
        line = io.StringIO()
        csv.writer(line, lineterminator="\n").writerow(cells)
        self._text += line.getvalue()
        if self._place is not None:
            write_atomic(self._place, self._text)
        elif self._stream is not None:
            self._stream.write(line.getvalue().encode("utf-8", "backslashreplace"))
            self._stream.flush()

    def __enter__(self) -> CsvFile:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._stream is not None:
            self._stream.close()
