"""One run of the profiler: dispatch after dispatch, verified and measured, each costing no other."""

from __future__ import annotations

import itertools
import math
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from functools import reduce
from importlib import metadata
from pathlib import Path

import numpy as np

from dispatch_profiler.configurations import Default, Limits
from dispatch_profiler.errors import DispatchProfilerError, ToolError, WorkerTimedOut
from dispatch_profiler.generator import DispatchEntry, OperationEntry, State, Tree
from dispatch_profiler.isolation import Worker, WorkerLimits, available_memory
from dispatch_profiler.operations import Operation
from dispatch_profiler.profiler import job
from dispatch_profiler.profiler.ceilings import (
    CeilingFile,
    Ceilings,
    environments,
    measure_ceilings,
)
from dispatch_profiler.profiler.inputs import DEFAULT_SEED, Distribution
from dispatch_profiler.profiler.machine import this_machine
from dispatch_profiler.profiler.measure import Measurement, MeasureOptions, Mode
from dispatch_profiler.profiler.passes import agree, confirmed, first_pass, joined, later_pass
from dispatch_profiler.profiler.providers import LibraryCall
from dispatch_profiler.profiler.records import PROVIDER, Provenance, Record, Verdict
from dispatch_profiler.profiler.reproduce import command_line
from dispatch_profiler.profiler.stopping import SentinelWatch
from dispatch_profiler.profiler.verify import ShapeMismatch
from dispatch_profiler.profiler.vmfbs import DamagedVmfb, Vmfbs
from dispatch_profiler.runtime import NotSupported, libraries

#: How often a measurement that was disturbed is made again.
_AGAIN = 2
#: Of so many dispatches of an operation, or of so many seconds, the second passes come after the first.
_AT_ONCE = 16
_APART_SECONDS = 10.0
_STATES = {State.NOT_COMPILED: Verdict.NOT_COMPILED, State.NOT_APPLIED: Verdict.NOT_APPLIED}


Pair = tuple[OperationEntry, DispatchEntry]


@dataclass(frozen=True)
class ProfileOptions:
    """What to do with each dispatch. `seconds` is the time limit of one step of one dispatch.

    `ceilings` is the folder that keeps what this machine can do at best; None: nothing is too fast.
    """

    device: str
    verify: bool = True
    profile: bool = True
    measure: MeasureOptions = MeasureOptions()
    seed: int = DEFAULT_SEED
    seconds: float = 120.0
    memory_bytes: int | None = None
    build_dir: Path | None = None
    ceilings: Path | None = None


@dataclass(frozen=True)
class _Runner:
    """A process that runs kernels of one provider, and whether its machine is as it was."""

    worker: Worker
    watch: SentinelWatch


@dataclass(frozen=True)
class _Work:
    """A record that is not done yet, and what it takes to go on with it."""

    record: Record
    modules: job.Modules = job.Modules(job.LIBRARY, job.LIBRARY)
    #: What one execution takes, roughly.
    single_seconds: float = 0.0


class Session:
    """Makes records.

    Kernels run in a worker process that owns the device, those of each library in one of its own;
    another checks results.
    """

    def __init__(self, tree: Tree, options: ProfileOptions) -> None:
        self._tree = tree
        self._options = options
        self._vmfbs = Vmfbs(tree)
        self._runtime = f"runtime {_version('iree-base-runtime')}"
        memory = options.memory_bytes if options.memory_bytes is not None else available_memory()
        self._limits = WorkerLimits(options.seconds, memory)
        self._worker = Worker(
            self._limits,
            job.start,
            (options.device, str(options.build_dir) if options.build_dir else ""),
        )
        self._runners = {PROVIDER: _Runner(self._worker, SentinelWatch())}
        self._versions: dict[str, str] = {}
        self._checker = Worker(
            self._limits,
            job.start_checker,
            (str(tree.references), options.seed),
            job.CHECKER_ENVIRONMENT,
        )
        self._best: dict[Operation, float] = {}
        # Of the machine that we run on: of a GPU it says nothing.
        self._ceilings: CeilingFile | None = None
        if options.ceilings is not None and options.device.startswith("local-"):
            self._ceilings = CeilingFile(options.ceilings, self._measured_ceilings)

    @property
    def damaged(self) -> list[Path]:
        """The vmfbs that are not what was compiled, of those that were asked for."""
        return self._vmfbs.damaged

    @property
    def mode(self) -> Mode:
        """What the caches hold when an execution starts."""
        return self._options.measure.mode

    def check_device(self) -> None:
        """Raise TargetError if the device does not open."""
        self._worker.call(job.ready)

    def check_libraries(self, names: Iterable[str]) -> None:
        """Raise UsageError if a library does not run on the device, MissingDependency if it is not there."""
        for name in names:
            self._library_version(name)

    def records(self, pairs: Iterable[Pair]) -> Iterator[Record]:
        """A record for each dispatch, in their order: of some of an operation, then of some more.

        They are measured in two passes, the others in between. Interrupted, those that have had their
        first pass come before KeyboardInterrupt goes on.
        """
        for _, group in itertools.groupby(pairs, lambda pair: pair[0].operation):
            begun: deque[_Work] = deque()
            try:
                for some in self._passes(group, begun):
                    yield from some
            except KeyboardInterrupt:
                yield from (work.record for work in begun)
                raise

    def _passes(self, pairs: Iterable[Pair], begun: deque[_Work]) -> Iterator[Iterator[Record]]:
        """First passes, kept in `begun`, then the second ones of these, and so on."""
        end = time.monotonic() + _APART_SECONDS
        for entry, dispatch in pairs:
            begun.append(self._begun(entry, dispatch))
            if len(begun) >= _AT_ONCE or time.monotonic() >= end:
                yield self._second_passes(begun)
                end = time.monotonic() + _APART_SECONDS
        yield self._second_passes(begun)

    def _second_passes(self, begun: deque[_Work]) -> Iterator[Record]:
        while begun:
            record = self._ended(begun[0])
            begun.popleft()
            yield record

    def record(self, entry: OperationEntry, dispatch: DispatchEntry) -> Record:
        """Verify and measure one dispatch, as far as it goes."""
        return self._ended(self._begun(entry, dispatch))

    def _begun(self, entry: OperationEntry, dispatch: DispatchEntry) -> _Work:
        """Verify one dispatch, and measure it for the first time."""
        module = entry.module_of(dispatch.dispatch)
        provenance = self.provenance(entry, dispatch)
        reproduce = command_line(self._tree, dispatch.dispatch.name, self._options)
        record = Record(dispatch.dispatch, provenance, Verdict.NOT_VERIFIED, reproduce=reproduce)
        if isinstance(dispatch.dispatch.configuration, LibraryCall):
            return self._library_work(record, entry, dispatch.dispatch.configuration)
        if dispatch.state is not State.COMPILED or module is None:
            verdict = _STATES.get(dispatch.state, Verdict.NOT_COMPILED)
            return _Work(record.failed(verdict, dispatch.reason or "it was only generated: run compile.py"))
        try:
            verify = self._vmfbs.module(entry, module, "verify")
            profile = self._vmfbs.module(entry, module, "profile")
        except DamagedVmfb as error:
            return _Work(record.failed(Verdict.NOT_COMPILED, error.message))
        return self._first_pass(_Work(record, job.Modules(verify, profile)))

    def _first_pass(self, work: _Work) -> _Work:
        """Verify, and take half of the samples."""

        def step() -> _Work:
            record = self._verified(work.record, work.modules.verify) if self._options.verify else work.record
            if not self._options.profile or record.verdict.is_failure:
                return replace(work, record=record)
            return self._measured(replace(work, record=record))

        return self._guarded(work, step)

    def _ended(self, work: _Work) -> Record:
        """The record with what a second pass says, or a third if the two do not agree."""
        first = work.record.measurement
        options = None if first is None else later_pass(self._options.measure, first)
        if first is None or options is None:
            return work.record

        def step() -> _Work:
            second, _ = self._samples(work, options)
            if agree(first, second):
                found = joined((first, second))
            else:
                third, _ = self._samples(work, options)
                found = confirmed(first, second, third)
            return replace(work, record=self._bounded(replace(work.record, measurement=found)))

        return self._guarded(work, step).record

    def provenance(self, entry: OperationEntry, dispatch: DispatchEntry) -> Provenance:
        """Where and with what a record of this dispatch is made now."""
        configuration, module = dispatch.dispatch.configuration, entry.module_of(dispatch.dispatch)
        revision = module.compiler if module else "not compiled"
        library = ""
        if isinstance(configuration, LibraryCall):
            library = self._library_version(configuration.library)
        return Provenance(
            device=self._options.device,
            target=entry.target,
            iree="" if library else f"compiler {revision}, {self._runtime}",
            seed=self._options.seed,
            when=datetime.now().astimezone().isoformat(timespec="seconds"),
            machine=this_machine(),
            library=library,
        )

    # -- libraries ----------------------------------------------------------------------------

    def _runner(self, provider: str) -> _Runner:
        """The process for what `provider` computes; that of a library is started when it is needed."""
        if provider not in self._runners:
            device = self._options.device
            threads = libraries.iree_threads(device)
            worker = Worker(
                self._limits,
                job.start_library,
                (provider, device, threads),
                libraries.environment(threads),
            )
            self._runners[provider] = _Runner(worker, SentinelWatch())
        return self._runners[provider]

    def _library_version(self, name: str) -> str:
        if name not in self._versions:
            self._versions[name] = self._runner(name).worker.call(job.library_version)
        return self._versions[name]

    def _library_work(self, record: Record, entry: OperationEntry, call: LibraryCall) -> _Work:
        """What a library makes of an operation, by the same steps as a dispatch."""
        any_of_it = entry.dispatches[0].dispatch.name
        reproduce = command_line(self._tree, any_of_it, self._options, call.library)
        record = replace(record, provider=call.library, reproduce=reproduce)
        unable = call.invalid_reason(entry.operation, Limits())
        if unable:
            return _Work(record.failed(Verdict.NOT_SUPPORTED, unable))
        return self._first_pass(_Work(record, job.Modules(job.LIBRARY, job.LIBRARY)))

    def _put_to_sleep(self, provider: str) -> None:
        """What comes next is measured beside a library: its threads must sleep."""
        worker = self._runners[provider].worker
        try:
            asleep = worker.call(libraries.wait_until_asleep)
        except DispatchProfilerError:
            asleep = False
        if not asleep:
            worker.close()

    def _guarded(self, work: _Work, step: Callable[[], _Work]) -> _Work:
        """What `step` makes of it; whatever breaks is a verdict on this dispatch alone."""

        def failed(verdict: Verdict, reason: str) -> _Work:
            return replace(work, record=work.record.failed(verdict, reason))

        try:
            return step()
        except WorkerTimedOut as error:
            return failed(Verdict.TIMED_OUT, f"{error.message}; --timeout sets the limit")
        except NotSupported as error:
            return failed(Verdict.NOT_SUPPORTED, error.message)
        except DispatchProfilerError as error:
            return failed(Verdict.CRASHED, error.message)
        finally:
            if work.record.provider != PROVIDER:
                self._put_to_sleep(work.record.provider)

    def _verified(self, record: Record, module: job.Module) -> Record:
        """The record with its verdict: on integers first, then on reals."""
        operation, name, seed = record.dispatch.computed, record.dispatch.name, self._options.seed
        worker = self._runner(record.provider).worker
        for distribution in Distribution:
            actual = worker.call(job.run_once, module, name, operation, distribution, seed)
            record = self._checked_result(record, distribution, actual)
            if record.is_failure:
                return record
        return replace(record, verdict=Verdict.SUCCESS)

    def _checked_result(self, record: Record, distribution: Distribution, actual: np.ndarray) -> Record:
        """The record, failed if `actual` is not what the reference says."""
        try:
            # A library may round between the steps of an epilogue, which a dispatch fuses.
            stepwise = record.provider != PROVIDER
            comparison = self._checker.call(
                job.check, record.dispatch.computed, distribution, actual, stepwise
            )
        except ShapeMismatch as error:
            return record.failed(Verdict.FAILED, error.message)
        except ToolError as error:
            reason = f"the reference could not be computed: {error.message}"
            return record.failed(Verdict.NOT_VERIFIED, reason)
        if comparison.passed:
            return record
        where = f"({distribution.value}, seed {self._options.seed})"
        return record.failed(Verdict.FAILED, f"{comparison.message} {where}")

    def _measured(self, work: _Work) -> _Work:
        """With the measurement of a first pass; what was measured is verified once more."""
        record, modules = work.record, work.modules
        operation, name, options = record.dispatch.operation, record.dispatch.name, self._options
        runner = self._runner(record.provider)
        single = runner.worker.call(job.estimate, modules.verify, name, operation, options.seed)
        work, half = replace(work, single_seconds=single), first_pass(options.measure)
        measurement, result = self._samples(work, half)
        disturbed = self._disturbance(runner)
        for _ in range(_AGAIN if disturbed else 0):
            measurement, result = self._samples(work, half)
            disturbed = self._disturbance(runner)
            if not disturbed:
                break
        if disturbed:
            measurement = replace(measurement, warnings=(*measurement.warnings, disturbed))
            runner.watch.reset()  # no passing cloud: so the machine is now
        if record.verdict is Verdict.SUCCESS:
            record = self._checked_result(record, Distribution.REALS, result)
            if record.is_failure:
                where = "in the profile vmfb" if record.provider == PROVIDER else "when it was timed"
                return replace(work, record=replace(record, reason=f"{where} {record.reason}"))
        record = self._bounded(replace(record, measurement=measurement))
        if record.provider == PROVIDER and not record.is_failure:
            # A fast library is no reason to give up what IREE can do.
            surely = measurement.interval_ms[1]
            self._best[operation] = min(surely, self._best.get(operation, math.inf))
        return replace(work, record=record)

    def _bounded(self, record: Record) -> Record:
        """The record with the time that the hardware allows; failed if its figure is below it."""
        if self._ceilings is None or record.measurement is None:
            return record
        milliseconds = record.measurement.median_ms
        operation, mode, ceilings = record.dispatch.operation, self.mode, self._ceilings.get()
        if milliseconds < ceilings.limit_ms(operation, mode):
            ceilings = self._ceilings.again()  # something may have disturbed it the first time
        limit = ceilings.limit_ms(operation, mode)
        if ceilings.is_plausible(operation, milliseconds, mode):
            return replace(record, limit_ms=limit, ceilings=ceilings)
        reason = f"{milliseconds:.4g} ms were read, but this machine needs {limit:.4g} ms at least"
        return replace(record.failed(Verdict.IMPLAUSIBLE, reason), limit_ms=limit, ceilings=ceilings)

    def _measured_ceilings(self) -> Ceilings:
        found = []
        for environment in environments():
            with Worker(start=job.ready, environment=environment) as worker:
                found.append(worker.call(measure_ceilings))
        return reduce(Ceilings.best_of, found)

    def _samples(self, work: _Work, measure: MeasureOptions) -> tuple[Measurement, np.ndarray]:
        record, modules, single = work.record, work.modules, work.single_seconds
        operation, name, options = record.dispatch.operation, record.dispatch.name, self._options
        # Others are compared with the default and with libraries: these are measured in full.
        is_baseline = isinstance(record.dispatch.configuration, (Default, LibraryCall))
        best = None if is_baseline else self._best.get(operation)
        stop = measure.stop
        # The limit is for a step that hangs, not for samples of a kernel that is only slow.
        expected = stop.seconds + single * modules.profile.repeat * ((stop.count or 3) + 5)
        taken: tuple[Measurement, np.ndarray] = self._runner(record.provider).worker.call(
            job.take_samples, modules, name, operation, options.seed, measure, single, best,
            seconds=options.seconds + 3.0 * expected,
        )  # fmt: skip
        return taken

    def _disturbance(self, runner: _Runner) -> str:
        """A sentence if the sentinel says that the machine is not as it was; else empty."""
        samples = runner.worker.call(job.sentinel_samples)
        usual = runner.watch.usual
        if not samples or not runner.watch.is_disturbed(samples) or usual is None:
            return ""
        ratio = statistics.median(samples) / usual
        return f"measured while the machine was disturbed: the sentinel took {ratio:.2f} of its usual time"

    def close(self) -> None:
        """End the worker processes."""
        for runner in self._runners.values():
            runner.worker.close()
        self._checker.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "of unknown version"
