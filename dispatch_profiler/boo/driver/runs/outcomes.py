"""The backends that the driver times, and the outcome of a command: text in the format of the BOO documents, and CSV."""

from __future__ import annotations

import csv
import io
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from importlib import import_module
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dispatch_profiler.boo.driver.registry import Timing
from dispatch_profiler.boo.driver.torch_functions import CPU, load_torch, torch_errors, torch_function, uri_of
from dispatch_profiler.console.plurals import counted
from dispatch_profiler.errors import UsageError, did_you_mean
from dispatch_profiler.files.destinations import destination, open_stream
from dispatch_profiler.files.regular import write_atomic
from dispatch_profiler.profiler.measurement.measure import Measurement, MeasureOptions, Timer
from dispatch_profiler.profiler.measurement.run_delay import run_delay
from dispatch_profiler.profiler.measurement.sample_batches import SampleBatch, ended, joined, next_batch, take
from dispatch_profiler.profiler.statistics.stopping import StopRule
from dispatch_profiler.runtime._base import raw_clock, seconds_of
from dispatch_profiler.runtime.device_uri import DeviceUri

if TYPE_CHECKING:
    from dispatch_profiler.boo.launching import Launchable
    from dispatch_profiler.boo.op_exports._base import OpSignature


# -- timing ----------------------------------------------------------------------------------------

# Times launches with the profiler's sampling and stop rule.


#: Prefix of the names of IREE's worker threads.
_WORKERS = "iree-worker"


@dataclass(frozen=True)
class Work:
    """Work to time: `launch()`, then `wait()` until the device has finished, if `waits`; else `launch` itself waits."""

    launch: Callable[[], Any]
    wait: Callable[[], object] = lambda: None
    waits: bool = False

    def time(self, calls: int) -> float:
        """Seconds that `calls` launches take, each started after the previous one has finished."""
        launch, wait = self.launch, self.wait

        def launch_and_wait() -> None:
            launch()
            wait()

        wait()
        return seconds_of(launch_and_wait if self.waits else launch, repeat((), calls))


@dataclass(frozen=True)
class TimedSide:
    """One side of a comparison whose sides are timed alternately: `time(launches) -> seconds`.

    After each sample batch, `settle` waits for what would disturb the next side, such as threads that still spin.
    """

    time: Callable[[int], float]
    settle: Callable[[], object] = lambda: None


@dataclass(frozen=True)
class LaunchTimes:
    """Statistics of the microseconds per launch, over samples.

    A sample is the mean of `launches / samples` launches; with --iter, a single launch.
    """

    min: float
    max: float
    mean: float
    stddev: float
    median: float
    p20: float
    p80: float
    samples: int
    launches: int
    warnings: tuple[str, ...] = ()

    @staticmethod
    def of(measurement: Measurement) -> LaunchTimes:
        """The statistics of a measurement."""
        samples = [1e3 * each for each in measurement.samples_ms]
        return LaunchTimes(
            min=min(samples),
            max=max(samples),
            mean=statistics.fmean(samples),
            stddev=statistics.stdev(samples) if len(samples) > 1 else 0.0,
            median=1e3 * measurement.median_ms,
            p20=1e3 * measurement.p20_ms,
            p80=1e3 * measurement.p80_ms,
            samples=len(samples),
            launches=len(samples) * measurement.executions,
            warnings=measurement.warnings,
        )


def measure_options(timing: Timing) -> MeasureOptions:
    """`timing.launches` samples of one launch each, or without a number, samples until the median is known to 1 %."""
    if timing.launches is None:
        return MeasureOptions()
    return MeasureOptions(StopRule(count=timing.launches), batch=1)


def measure_in_turn(sides: Sequence[TimedSide], options: MeasureOptions) -> list[LaunchTimes]:
    """Times of each of `sides`, in alternating sample batches, so that lasting noise affects all of them alike."""
    # Reading the run delay takes longer than a short launch, and would leave a pause before each.
    delay = run_delay(_WORKERS) if options.batch is None else None
    timers = [Timer(each.time, 1, raw_clock, delay) for each in sides]
    batches: list[list[SampleBatch]] = [[] for _ in sides]
    pending = list(range(len(sides)))
    while pending:
        for at in list(pending):
            batches[at].append(take(timers[at], next_batch(options, batches[at], None)))
            sides[at].settle()
            if ended(options, batches[at], None) is not None:
                pending.remove(at)
    return [LaunchTimes.of(joined(options, each, ended(options, each, None))) for each in batches]


# -- backends --------------------------------------------------------------------------------------

# Our kernel, and torch in several ways.


class DriverBackend(str, Enum):
    """A way to compute a signature, by its name in the documents of BOO."""

    #: The launchable of `get_launchable`.
    BOO = "iree_boo"
    #: Eager PyTorch.
    TORCH = "torch"
    #: `torch.compile` with its default backend.
    INDUCTOR = "inductor"
    #: `torch.compile` with the backend of this package: our kernels where they apply, inductor for the rest.
    BOO_INDUCTOR = "iree_boo_inductor"
    #: The same as `iree_boo`; kept for BOO's command lines.
    LEGACY = "iree_boo_legacy"

    @property
    def is_torch(self) -> bool:
        """Whether torch computes, with threads that keep spinning for a while afterwards."""
        return self in (DriverBackend.TORCH, DriverBackend.INDUCTOR, DriverBackend.BOO_INDUCTOR)


#: Values of --reference-backend.
REFERENCES = tuple(backend for backend in DriverBackend if backend is not DriverBackend.BOO)


def parse_references(texts: Sequence[str]) -> tuple[DriverBackend, ...]:
    """The backends in values of --reference-backend, which may be lists separated by commas. Raises UsageError."""
    names = [name.strip() for text in texts for name in text.split(",")]
    known = [backend.value for backend in REFERENCES]
    for name in names:
        if name not in known:
            raise UsageError(
                f"--reference-backend: unknown backend {name[:40]!r}", hint=did_you_mean(name, known)
            )
    return tuple(dict.fromkeys(map(DriverBackend, names)))


@dataclass(frozen=True)
class SignatureLaunch:
    """A signature with its launchable and arguments on `device`, `cpu` or `cuda:N`."""

    signature: OpSignature
    launchable: Launchable
    arguments: tuple[Any, ...]
    device: str

    @property
    def kernel_device(self) -> DeviceUri:
        """The device of the kernel: on a CPU, of the driver that was faster during the first launch."""
        return DeviceUri(self.launchable.driver) if self.device == CPU else uri_of(self.device)

    def work(self, backend: DriverBackend) -> Work:
        """The work to time for `backend`. Raises MissingDependency, NotSupported, and ToolError if torch fails."""
        if backend in (DriverBackend.BOO, DriverBackend.LEGACY):
            launchable, arguments = self.launchable, self.arguments
            return self._waiting(lambda: launchable(*arguments))
        with torch_errors():
            return self._torch_work(backend)

    def _torch_work(self, backend: DriverBackend) -> Work:
        torch = load_torch()
        device = torch.device(self.device)
        own = torch_function(self.signature.operation, device)
        operands = [
            each if isinstance(each, torch.Tensor) else torch.from_numpy(each) for each in self._operands()
        ]
        handles = own.enter([each.to(device) for each in operands])
        function = own.function if backend is DriverBackend.TORCH else _compiled(torch, own.function, backend)
        function(*handles)
        return self._waiting(lambda: function(*handles))

    def _waiting(self, launch: Callable[[], Any]) -> Work:
        """`launch`, with a wait for the device on a GPU."""
        if self.device == CPU:
            return Work(launch)
        torch = load_torch()
        device = torch.device(self.device)
        return Work(launch, lambda: torch.cuda.synchronize(device), waits=True)

    def _operands(self) -> list[Any]:
        """The arguments in the order and shapes of the operation's operands."""
        specs = self.signature.launch.arguments
        paired = sorted(zip(specs, self.arguments, strict=True), key=lambda pair: pair[0].position)
        return [argument.reshape(spec.kernel_shape) for spec, argument in paired]


def _compiled(torch: Any, function: Any, backend: DriverBackend) -> Any:
    if backend is DriverBackend.INDUCTOR:
        return torch.compile(function, dynamic=False)
    # Passed as a function: iree-turbine may have registered the name. Imported here: `boo.backends` is a higher layer.
    backends = import_module("dispatch_profiler.boo.backends")
    return torch.compile(function, dynamic=False, backend=backends.iree_boo_inductor)


# -- outcomes --------------------------------------------------------------------------------------

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

    @property
    def absences(self) -> list[str]:
        """Why reference backends have no times: `torch: REASON`."""
        reasons = (*self.failures.items(), *self.unsupported.items())
        return [f"{backend.value}: {reason}" for backend, reason in reasons]


def described(result: Any) -> str:
    """`tensor([...], device='cpu', size=(2, 16), dtype=torch.float32)`; likewise for an array."""
    size = tuple(map(int, result.shape))
    if isinstance(result, np.ndarray):
        return f"array([...], size={size}, dtype={result.dtype})"
    return f"tensor([...], device='{result.device}', size={size}, dtype={result.dtype})"


def time_lines(label: str, times: LaunchTimes) -> list[str]:
    """Two lines: the statistics of BOO's documents, then median and percentiles. Our own launch has no `label`."""
    start = f"{label}: " if label else ""
    count = counted(times.launches, "launch")
    if times.launches != times.samples:
        count += f" in {counted(times.samples, 'sample')}"
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
        cells += [_cell(times, name) if times else absent for name in _STATISTICS]
    kernel = outcome.kernel
    cells += [_cell(kernel, name) if kernel else absent for name in _KERNEL]
    reasons = filter(None, [outcome.error, *outcome.absences])
    return [*cells, *([outcome.numerics] if has_numerics else []), "; ".join(reasons)]


def _cell(times: LaunchTimes, name: str) -> str:
    return str(times.launches) if name == "num_dispatches" else f"{getattr(times, name):.3f}"


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
