"""One run of the profiler: dispatch after dispatch, verified and measured, each costing no other."""

from __future__ import annotations

import contextlib
import itertools
import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from importlib import metadata
from pathlib import Path

import numpy as np

from dispatch_profiler.configurations import Default, Limits
from dispatch_profiler.dispatches import DispatchEntry, OperationEntry, State, Tree
from dispatch_profiler.errors import DispatchProfilerError, ToolError, WorkerTimedOut
from dispatch_profiler.isolation import WorkerLimits
from dispatch_profiler.operations import Operation
from dispatch_profiler.profiler.evaluation import device_worker
from dispatch_profiler.profiler.evaluation.driver_cache import compiles_when_loaded, load_side_by_side
from dispatch_profiler.profiler.evaluation.hardware import peaks_file
from dispatch_profiler.profiler.evaluation.machine import this_machine
from dispatch_profiler.profiler.evaluation.reproduce import command_line
from dispatch_profiler.profiler.evaluation.vmfbs import DamagedVmfb, Vmfbs
from dispatch_profiler.profiler.evaluation.workers import Runners, memory_limit
from dispatch_profiler.profiler.measurement.measure import MeasureOptions, Mode
from dispatch_profiler.profiler.measurement.sample_batches import SampleBatch, ended, joined, next_batch
from dispatch_profiler.profiler.providers.libraries import NotSupported
from dispatch_profiler.profiler.providers.library_calls import LibraryCall
from dispatch_profiler.profiler.records.record import PROVIDER, Provenance, Record, Verdict
from dispatch_profiler.profiler.verification.inputs import DEFAULT_SEED, Distribution
from dispatch_profiler.profiler.verification.verified_hashes import Expected, Result, VerifiedHashes
from dispatch_profiler.profiler.verification.verify import ShapeMismatch

#: How often a measurement that was disturbed is made again.
_AGAIN = 2
#: So many dispatches of an operation are visited in turns, or as many as are begun in so many seconds.
_AT_ONCE = 32
_APART_SECONDS = 30.0
_STATES = {State.NOT_COMPILED: Verdict.NOT_COMPILED, State.NOT_APPLIED: Verdict.NOT_APPLIED}


Pair = tuple[OperationEntry, DispatchEntry]


@dataclass(frozen=True)
class ProfileOptions:
    """What to do with each dispatch. `seconds` is the time limit of one step of one dispatch.

    `peaks` is the folder that keeps what this machine can do at best; None: nothing is too fast.
    """

    device: str
    verify: bool = True
    profile: bool = True
    measure: MeasureOptions = MeasureOptions()
    seed: int = DEFAULT_SEED
    seconds: float = 120.0
    memory_bytes: int | None = None
    build_dir: Path | None = None
    peaks: Path | None = None


@dataclass(frozen=True)
class _Work:
    """A record that is not done yet, and what it takes to go on with it."""

    record: Record
    modules: device_worker.Modules = device_worker.Modules(device_worker.LIBRARY, device_worker.LIBRARY)
    #: What one execution takes, roughly.
    single_seconds: float = 0.0
    batches: tuple[SampleBatch, ...] = ()
    is_done: bool = False

    def failed(self, verdict: Verdict, reason: str) -> _Work:
        """Nothing more is to be done."""
        return replace(self, record=self.record.failed(verdict, reason), is_done=True)


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
        memory = options.memory_bytes if options.memory_bytes is not None else memory_limit(options.device)
        self._limits = WorkerLimits(options.seconds, memory)
        self._runners = Runners(
            self._limits, options.device, options.build_dir, tree.references, options.seed
        )
        self._best: dict[Operation, float] = {}
        self._verified_hashes = VerifiedHashes()
        self._is_interrupted = False
        self._peaks = peaks_file(options.peaks, options.device) if options.peaks else None

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
        self._runners.check_device()

    def check_libraries(self, names: Iterable[str]) -> None:
        """Raise UsageError if a library does not run on the device, MissingDependency if it is not there."""
        self._runners.check_libraries(names)

    def measure_limits(self) -> None:
        """Measure what this machine can do at best now, unless that is known, and not beside a dispatch."""
        if self._peaks is not None:
            self._peaks.get()

    def load_ahead(self, pairs: Iterable[Pair], say: Callable[[str], None]) -> None:
        """Load what belongs to `pairs` on all cores, if the driver compiles it then: see `driver_cache`."""
        if compiles_when_loaded(self._options.device):
            modules = dict.fromkeys(self._compiled(pairs))
            load_side_by_side(list(modules), self._limits, self._options.device, say)

    def _compiled(self, pairs: Iterable[Pair]) -> Iterator[device_worker.Module]:
        """The verify vmfbs: the others hold the same kernels."""
        for entry, dispatch in pairs:
            module = entry.module_of(dispatch.dispatch)
            if dispatch.state is State.COMPILED and module is not None:
                with contextlib.suppress(DamagedVmfb):
                    yield self._vmfbs.module(entry, module, "verify")

    def records(self, pairs: Iterable[Pair]) -> Iterator[Record]:
        """A record for each dispatch, in their order: of some of an operation, then of some more.

        They are visited in turns. Interrupted, those that have been visited come before
        KeyboardInterrupt goes on.
        """
        for _, group in itertools.groupby(pairs, lambda pair: pair[0].operation):
            begun: deque[_Work] = deque()
            try:
                for some in self._in_batches(group, begun):
                    yield from some
            except KeyboardInterrupt:
                yield from (work.record for work in begun)
                raise

    def _in_batches(self, pairs: Iterable[Pair], begun: deque[_Work]) -> Iterator[Iterator[Record]]:
        """First visits, kept in `begun`, then the others of these, and so on."""
        end = time.monotonic() + _APART_SECONDS
        for entry, dispatch in pairs:
            begun.append(self._begun(entry, dispatch))
            if len(begun) >= _AT_ONCE or time.monotonic() >= end:
                yield self._rest(begun)
                end = time.monotonic() + _APART_SECONDS
        yield self._rest(begun)

    def _rest(self, begun: deque[_Work]) -> Iterator[Record]:
        """SampleBatch all again until enough is known of each."""
        while not all(work.is_done for work in begun):
            for at, work in enumerate(begun):
                if not work.is_done:
                    begun[at] = self._guarded(work, self._with_next_batch)
        while begun:
            yield begun.popleft().record

    def record(self, entry: OperationEntry, dispatch: DispatchEntry) -> Record:
        """Verify and measure one dispatch, as far as it goes."""
        (record,) = self._rest(deque([self._begun(entry, dispatch)]))
        return record

    def _begun(self, entry: OperationEntry, dispatch: DispatchEntry) -> _Work:
        """Verify one dispatch, and visit it for the first time."""
        module = entry.module_of(dispatch.dispatch)
        provenance = self.provenance(entry, dispatch)
        reproduce = command_line(self._tree, dispatch.dispatch.name, self._options)
        record = Record(dispatch.dispatch, provenance, Verdict.NOT_VERIFIED, reproduce=reproduce)
        if isinstance(dispatch.dispatch.configuration, LibraryCall):
            return self._library_work(record, entry, dispatch.dispatch.configuration)
        if dispatch.state is not State.COMPILED or module is None:
            verdict = _STATES.get(dispatch.state, Verdict.NOT_COMPILED)
            return _Work(record).failed(verdict, dispatch.reason or "it was only generated: run compile.py")
        try:
            verify = self._vmfbs.module(entry, module, "verify")
            profile = self._vmfbs.module(entry, module, "profile")
        except DamagedVmfb as error:
            return _Work(record).failed(Verdict.NOT_COMPILED, error.message)
        return self._guarded(_Work(record, device_worker.Modules(verify, profile)), self._first_batch)

    def _first_batch(self, work: _Work) -> _Work:
        """Verify it, take the first samples, and verify what was timed."""
        options, record = self._options, work.record
        if options.verify:
            record = self._verified(record, work.modules.verify)
        if not options.profile or record.verdict.is_failure:
            return replace(work, record=record, is_done=True)
        operation, name = record.dispatch.operation, record.dispatch.name
        worker = self._runners.of(_library(record)).worker
        single = worker.call(device_worker.estimate, work.modules.verify, name, operation, options.seed)
        work = replace(work, record=record, single_seconds=single)
        if record.verdict is Verdict.SUCCESS:
            timed = work.modules, name, operation, options.seed, self.mode, single
            record = self._checked(record, Distribution.REALS, device_worker.result_of_timed, *timed)
            if record.is_failure:
                where = "when it was timed" if _library(record) else "in the profile vmfb"
                return work.failed(record.verdict, f"{where} {record.reason}")
        return self._with_next_batch(work)

    def provenance(self, entry: OperationEntry, dispatch: DispatchEntry) -> Provenance:
        """Where and with what a record of this dispatch is made now."""
        configuration, module = dispatch.dispatch.configuration, entry.module_of(dispatch.dispatch)
        revision = module.compiler if module else "not compiled"
        library = ""
        if isinstance(configuration, LibraryCall):
            library = self._runners.library_version(configuration.library)
        return Provenance(
            device=self._options.device,
            target=entry.target_of(dispatch.dispatch),
            iree="" if library else f"compiler {revision}, {self._runtime}",
            seed=self._options.seed,
            when=datetime.now().astimezone().isoformat(timespec="seconds"),
            machine=this_machine(self._options.device),
            library=library,
            module_key="" if library or module is None else module.key,
            flags=() if library or module is None else module.flags,
        )

    # -- libraries ----------------------------------------------------------------------------

    def _library_work(self, record: Record, entry: OperationEntry, call: LibraryCall) -> _Work:
        """What a library makes of an operation, by the same steps as a dispatch."""
        any_of_it = entry.dispatches[0].dispatch.name
        reproduce = command_line(self._tree, any_of_it, self._options, call.library)
        record = replace(record, provider=call.library, reproduce=reproduce)
        unable = call.invalid_reason(entry.operation, Limits())
        if unable:
            return _Work(record).failed(Verdict.NOT_SUPPORTED, unable)
        return self._guarded(_Work(record), self._first_batch)

    def _guarded(self, work: _Work, step: Callable[[_Work], _Work]) -> _Work:
        """What `step` makes of it; whatever breaks is a verdict on this dispatch alone."""
        if self._is_interrupted:
            raise KeyboardInterrupt
        try:
            return step(work)
        except WorkerTimedOut as error:
            return work.failed(Verdict.TIMED_OUT, f"{error.message}; --timeout sets the limit")
        except NotSupported as error:
            return work.failed(Verdict.NOT_SUPPORTED, error.message)
        except DispatchProfilerError as error:
            if self._is_interrupted:
                raise KeyboardInterrupt from error
            return work.failed(Verdict.CRASHED, error.message)
        finally:
            self._runners.put_to_sleep(_library(work.record))

    def _verified(self, record: Record, module: device_worker.Module) -> Record:
        """The record with its verdict: on integers first, then on reals."""
        operation, name, seed = record.dispatch.effective_operation, record.dispatch.name, self._options.seed
        for distribution in Distribution:
            once = module, name, operation, distribution, seed
            record = self._checked(record, distribution, device_worker.run_once, *once)
            if record.is_failure:
                return record
        return replace(record, verdict=Verdict.SUCCESS)

    def _checked(
        self,
        record: Record,
        distribution: Distribution,
        step: Callable[..., np.ndarray],
        *arguments: object,
    ) -> Record:
        """The record, failed if what `step` computes is not what the reference says."""
        # A library may round between the steps of an epilogue, which a dispatch fuses.
        expected = Expected(
            record.dispatch.effective_operation, distribution, stepwise=bool(_library(record))
        )
        worker = self._runners.of(_library(record)).worker
        result: Result = worker.call(
            device_worker.unless_known, self._verified_hashes.of(expected), step, *arguments
        )
        if result.array is None:
            return record
        try:
            comparison = self._runners.check(expected, result.array)
        except ShapeMismatch as error:
            return record.failed(Verdict.FAILED, error.message)
        except ToolError as error:
            reason = f"the reference could not be computed: {error.message}"
            return record.failed(Verdict.NOT_VERIFIED, reason)
        if comparison.passed:
            self._verified_hashes.add(expected, result.digest)
            return record
        where = f"({distribution.value}, seed {self._options.seed})"
        return record.failed(Verdict.FAILED, f"{comparison.message} {where}")

    def _with_next_batch(self, work: _Work) -> _Work:
        """With the samples of one more visit, and what all visits together say."""
        record, best = work.record, self._best_of_others(work)
        batches = (*work.batches, self._undisturbed_batch(work, best))
        end = ended(self._options.measure, batches, best)
        measurement = joined(self._options.measure, batches, end)
        if end is not None:
            record = self._bounded(replace(record, measurement=measurement))
        else:
            record = replace(record, measurement=measurement)
        if record.provider == PROVIDER and not record.is_failure:
            # A fast library is no reason to give up what IREE can do.
            operation, surely = record.dispatch.operation, measurement.interval_ms[1]
            self._best[operation] = min(surely, self._best.get(operation, math.inf))
        return replace(work, record=record, batches=batches, is_done=end is not None)

    def _undisturbed_batch(self, work: _Work, best: float | None) -> SampleBatch:
        """A visit, made again if the sentinel says that the machine is not as it was."""
        runner = self._runners.of(_library(work.record))
        for _ in range(1 + _AGAIN):
            found = self._take_batch(work, best)
            disturbed = runner.disturbance()
            if not disturbed:
                return found
        runner.watch.reset()  # no passing cloud: so the machine is now
        return replace(found, disturbed=disturbed)

    def _best_of_others(self, work: _Work) -> float | None:
        """What the best dispatch of the operation surely reaches, in ms; None if that is of no concern."""
        # Others are compared with the default and with libraries: these are measured in full.
        if isinstance(work.record.dispatch.configuration, (Default, LibraryCall)):
            return None
        return self._best.get(work.record.dispatch.operation)

    def _bounded(self, record: Record) -> Record:
        """The record with the time that the hardware allows; failed if its figure is below it."""
        if self._peaks is None or record.measurement is None:
            return record
        milliseconds = record.measurement.median_ms
        operation, mode, peaks = record.dispatch.operation, self.mode, self._peaks.get()
        if milliseconds < peaks.limit_ms(operation, mode):
            peaks = self._peaks.again()  # something may have disturbed it the first time
        limit = peaks.limit_ms(operation, mode)
        if peaks.is_plausible(operation, milliseconds, mode):
            return replace(record, limit_ms=limit, peaks=peaks)
        reason = f"{milliseconds:.4g} ms were read, but this machine needs {limit:.4g} ms at least"
        return replace(record.failed(Verdict.IMPLAUSIBLE, reason), limit_ms=limit, peaks=peaks)

    def _take_batch(self, work: _Work, best: float | None) -> SampleBatch:
        record, single, options = work.record, work.single_seconds, self._options
        plan, stop = next_batch(options.measure, work.batches, best), options.measure.stop
        # The limit is for a step that hangs, not for samples of a kernel that is only slow.
        expected = stop.seconds + single * work.modules.profile.repeat * ((stop.count or 3) + 5)
        found: SampleBatch = self._runners.of(_library(record)).worker.call(
            device_worker.take_batch, work.modules, record.dispatch.name, record.dispatch.operation, options.seed, plan,
            single, seconds=options.seconds + 3.0 * expected,
        )  # fmt: skip
        return found

    def kill(self) -> None:
        """Interrupt, from another thread, the one that takes `records`, as Ctrl-C would."""
        self._is_interrupted = True
        self._runners.kill()

    def close(self) -> None:
        """End the worker processes."""
        self._runners.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _library(record: Record) -> str:
    """The library that computes it; empty for a dispatch, whoever wrote its kernel."""
    configuration = record.dispatch.configuration
    return configuration.library if isinstance(configuration, LibraryCall) else ""


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "of unknown version"
