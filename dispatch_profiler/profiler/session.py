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
from dispatch_profiler.errors import DispatchProfilerError, ToolError, WorkerTimedOut
from dispatch_profiler.generator import DispatchEntry, OperationEntry, State, Tree
from dispatch_profiler.isolation import WorkerLimits
from dispatch_profiler.operations import Operation
from dispatch_profiler.profiler import job
from dispatch_profiler.profiler.driver_cache import compiles_when_loaded, load_side_by_side
from dispatch_profiler.profiler.hardware import ceiling_file
from dispatch_profiler.profiler.inputs import DEFAULT_SEED, Distribution
from dispatch_profiler.profiler.machine import this_machine
from dispatch_profiler.profiler.measure import MeasureOptions, Mode
from dispatch_profiler.profiler.providers import LibraryCall
from dispatch_profiler.profiler.records import PROVIDER, Provenance, Record, Verdict
from dispatch_profiler.profiler.reproduce import command_line
from dispatch_profiler.profiler.right_results import Expected, Result, RightResults
from dispatch_profiler.profiler.runners import Runners, memory_limit
from dispatch_profiler.profiler.verify import ShapeMismatch
from dispatch_profiler.profiler.visits import Visit, ended, joined, next_visit
from dispatch_profiler.profiler.vmfbs import DamagedVmfb, Vmfbs
from dispatch_profiler.runtime import NotSupported

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
class _Work:
    """A record that is not done yet, and what it takes to go on with it."""

    record: Record
    modules: job.Modules = job.Modules(job.LIBRARY, job.LIBRARY)
    #: What one execution takes, roughly.
    single_seconds: float = 0.0
    visits: tuple[Visit, ...] = ()
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
        self._right = RightResults()
        self._is_interrupted = False
        self._ceilings = ceiling_file(options.ceilings, options.device) if options.ceilings else None

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
        if self._ceilings is not None:
            self._ceilings.get()

    def load_ahead(self, pairs: Iterable[Pair], say: Callable[[str], None]) -> None:
        """Load what belongs to `pairs` on all cores, if the driver compiles it then: see `driver_cache`."""
        if compiles_when_loaded(self._options.device):
            modules = dict.fromkeys(self._compiled(pairs))
            load_side_by_side(list(modules), self._limits, self._options.device, say)

    def _compiled(self, pairs: Iterable[Pair]) -> Iterator[job.Module]:
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
                for some in self._in_turns(group, begun):
                    yield from some
            except KeyboardInterrupt:
                yield from (work.record for work in begun)
                raise

    def _in_turns(self, pairs: Iterable[Pair], begun: deque[_Work]) -> Iterator[Iterator[Record]]:
        """First visits, kept in `begun`, then the others of these, and so on."""
        end = time.monotonic() + _APART_SECONDS
        for entry, dispatch in pairs:
            begun.append(self._begun(entry, dispatch))
            if len(begun) >= _AT_ONCE or time.monotonic() >= end:
                yield self._rest(begun)
                end = time.monotonic() + _APART_SECONDS
        yield self._rest(begun)

    def _rest(self, begun: deque[_Work]) -> Iterator[Record]:
        """Visit all again until enough is known of each."""
        while not all(work.is_done for work in begun):
            for at, work in enumerate(begun):
                if not work.is_done:
                    begun[at] = self._guarded(work, self._visited)
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
        return self._guarded(_Work(record, job.Modules(verify, profile)), self._first_visit)

    def _first_visit(self, work: _Work) -> _Work:
        """Verify it, take the first samples, and verify what was timed."""
        options, record = self._options, work.record
        if options.verify:
            record = self._verified(record, work.modules.verify)
        if not options.profile or record.verdict.is_failure:
            return replace(work, record=record, is_done=True)
        operation, name = record.dispatch.operation, record.dispatch.name
        worker = self._runners.of(_library(record)).worker
        single = worker.call(job.estimate, work.modules.verify, name, operation, options.seed)
        work = replace(work, record=record, single_seconds=single)
        if record.verdict is Verdict.SUCCESS:
            timed = work.modules, name, operation, options.seed, self.mode, single
            record = self._checked(record, Distribution.REALS, job.result_of_timed, *timed)
            if record.is_failure:
                where = "when it was timed" if _library(record) else "in the profile vmfb"
                return work.failed(record.verdict, f"{where} {record.reason}")
        return self._visited(work)

    def provenance(self, entry: OperationEntry, dispatch: DispatchEntry) -> Provenance:
        """Where and with what a record of this dispatch is made now."""
        configuration, module = dispatch.dispatch.configuration, entry.module_of(dispatch.dispatch)
        revision = module.compiler if module else "not compiled"
        library = ""
        if isinstance(configuration, LibraryCall):
            library = self._runners.library_version(configuration.library)
        return Provenance(
            device=self._options.device,
            target=entry.target,
            iree="" if library else f"compiler {revision}, {self._runtime}",
            seed=self._options.seed,
            when=datetime.now().astimezone().isoformat(timespec="seconds"),
            machine=this_machine(self._options.device),
            library=library,
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
        return self._guarded(_Work(record), self._first_visit)

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

    def _verified(self, record: Record, module: job.Module) -> Record:
        """The record with its verdict: on integers first, then on reals."""
        operation, name, seed = record.dispatch.computed, record.dispatch.name, self._options.seed
        for distribution in Distribution:
            once = module, name, operation, distribution, seed
            record = self._checked(record, distribution, job.run_once, *once)
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
        expected = Expected(record.dispatch.computed, distribution, stepwise=bool(_library(record)))
        worker = self._runners.of(_library(record)).worker
        result: Result = worker.call(job.unless_known, self._right.of(expected), step, *arguments)
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
            self._right.add(expected, result.digest)
            return record
        where = f"({distribution.value}, seed {self._options.seed})"
        return record.failed(Verdict.FAILED, f"{comparison.message} {where}")

    def _visited(self, work: _Work) -> _Work:
        """With the samples of one more visit, and what all visits together say."""
        record, best = work.record, self._best_of_others(work)
        visits = (*work.visits, self._undisturbed_visit(work, best))
        end = ended(self._options.measure, visits, best)
        measurement = joined(self._options.measure, visits, end)
        if end is not None:
            record = self._bounded(replace(record, measurement=measurement))
        else:
            record = replace(record, measurement=measurement)
        if record.provider == PROVIDER and not record.is_failure:
            # A fast library is no reason to give up what IREE can do.
            operation, surely = record.dispatch.operation, measurement.interval_ms[1]
            self._best[operation] = min(surely, self._best.get(operation, math.inf))
        return replace(work, record=record, visits=visits, is_done=end is not None)

    def _undisturbed_visit(self, work: _Work, best: float | None) -> Visit:
        """A visit, made again if the sentinel says that the machine is not as it was."""
        runner = self._runners.of(_library(work.record))
        for _ in range(1 + _AGAIN):
            found = self._visit(work, best)
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

    def _visit(self, work: _Work, best: float | None) -> Visit:
        record, single, options = work.record, work.single_seconds, self._options
        plan, stop = next_visit(options.measure, work.visits, best), options.measure.stop
        # The limit is for a step that hangs, not for samples of a kernel that is only slow.
        expected = stop.seconds + single * work.modules.profile.repeat * ((stop.count or 3) + 5)
        found: Visit = self._runners.of(_library(record)).worker.call(
            job.visit, work.modules, record.dispatch.name, record.dispatch.operation, options.seed, plan,
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
