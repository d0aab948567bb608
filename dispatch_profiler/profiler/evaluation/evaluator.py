"""Candidates in, records out: each verified and measured, and none able to affect another."""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from importlib import metadata

from dispatch_profiler.configurations import Default, Limits
from dispatch_profiler.dispatches import State
from dispatch_profiler.errors import DispatchProfilerError, WorkerTimedOut
from dispatch_profiler.isolation import WorkerLimits
from dispatch_profiler.operations import Operation
from dispatch_profiler.profiler.evaluation import device_worker
from dispatch_profiler.profiler.evaluation.best import BestSoFar
from dispatch_profiler.profiler.evaluation.candidate import Candidate, DamagedVmfb
from dispatch_profiler.profiler.evaluation.checking import Verifier
from dispatch_profiler.profiler.evaluation.driver_cache import compiles_when_loaded, load_side_by_side
from dispatch_profiler.profiler.evaluation.hardware import peaks_file
from dispatch_profiler.profiler.evaluation.machine import this_machine
from dispatch_profiler.profiler.evaluation.options import EvaluatorOptions
from dispatch_profiler.profiler.evaluation.reproduce import command_line
from dispatch_profiler.profiler.evaluation.workers import Runners, memory_limit, refs_of
from dispatch_profiler.profiler.measurement.measure import Mode
from dispatch_profiler.profiler.measurement.sample_batches import (
    BATCH_PART,
    SampleBatch,
    ended,
    joined,
    next_batch,
)
from dispatch_profiler.profiler.providers._base import NotSupported
from dispatch_profiler.profiler.providers.library_calls import LibraryCall
from dispatch_profiler.profiler.records.record import Provenance, Record, Verdict

#: How often a sample batch that was disturbed is taken again.
_AGAIN = 2
#: So many candidates of an operation are sampled in turns, or as many as are begun in so many seconds.
_AT_ONCE = 32
_APART_SECONDS = 30.0
_STATES = {
    State.GENERATED: Verdict.NOT_COMPILED,
    State.NOT_COMPILED: Verdict.NOT_COMPILED,
    State.NOT_APPLIED: Verdict.NOT_APPLIED,
}


@dataclass(frozen=True)
class _Work:
    """A candidate whose record is not done yet, and what it takes to go on with it."""

    candidate: Candidate
    record: Record
    #: What one execution takes, roughly.
    single_seconds: float = 0.0
    batches: tuple[SampleBatch, ...] = ()
    is_done: bool = False

    def failed(self, verdict: Verdict, reason: str) -> _Work:
        """Nothing more is to be done."""
        return replace(self, record=self.record.failed(verdict, reason), is_done=True)


class Evaluator:
    """Turns candidates into records on one device. Use as a context manager.

    Kernels run in a worker process that owns the device, those of each library in a process of its own;
    another one compares results. All of them, and the best result of each operation, persist from one call
    of `records` to the next. `clock` measures the budget, in seconds. Not for use by several threads at once, apart from `kill`.
    """

    def __init__(self, options: EvaluatorOptions, clock: Callable[[], float] = time.monotonic) -> None:
        self._options = options
        self._runtime = f"runtime {_version('iree-base-runtime')}"
        memory = options.memory_bytes if options.memory_bytes is not None else memory_limit(options.device)
        self._limits = WorkerLimits(options.seconds, memory)
        self._runners = Runners(
            self._limits, options.device, options.build_dir, options.references, options.seed
        )
        self._verifier = Verifier(self._runners, options.seed)
        self._best = BestSoFar()
        self._is_interrupted = False
        self._clock = clock
        self._peaks = peaks_file(options.peaks, options.device) if options.peaks else None

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

    def load_ahead(self, candidates: Iterable[Candidate], say: Callable[[str], None]) -> None:
        """Load the code of all of them on all cores, if the driver compiles it then: see `driver_cache`."""
        if compiles_when_loaded(self._options.device):
            # The profile vmfbs hold the same kernels.
            vmfbs = dict.fromkeys(each.verify for each in candidates if each.verify)
            load_side_by_side(list(vmfbs), self._limits, self._options.device, say)

    def best(self, operation: Operation) -> Record | None:
        """The fastest correct record of an operation so far, over all calls of `records`; None if none is.

        Without verification (`EvaluatorOptions.verify`) the fastest of those that ran.
        """
        return self._best.record(operation)

    def records(self, candidates: Iterable[Candidate]) -> Iterator[Record]:
        """A record for each candidate, in their order: of some of an operation, then of some more.

        They are sampled in turns. Interrupted, those that have samples come before KeyboardInterrupt goes
        on; their measurements are marked `interrupted` (`Measurement.ended_by`).
        """
        for _, group in itertools.groupby(candidates, lambda each: each.dispatch.operation):
            begun: deque[_Work] = deque()
            try:
                for some in self._in_turns(group, begun):
                    yield from some
            except KeyboardInterrupt:
                yield from (work.record for work in begun)
                raise

    def provenance(self, candidate: Candidate) -> Provenance:
        """Where and with what a record of this candidate is made now."""
        library = candidate.library and self._runners.library_version(candidate.library)
        revision = candidate.compiler or "not compiled"
        return Provenance(
            device=self._options.device,
            target=candidate.target,
            iree="" if library else f"compiler {revision}, {self._runtime}",
            seed=self._options.seed,
            when=datetime.now().astimezone().isoformat(timespec="seconds"),
            machine=this_machine(self._options.device),
            library=library,
            module_key=candidate.module_key,
            flags=candidate.flags,
        )

    def kill(self) -> None:
        """Interrupt, from another thread, the one that takes `records`, as Ctrl-C would."""
        self._is_interrupted = True
        self._runners.kill()

    def close(self) -> None:
        """End the worker processes."""
        self._runners.close()

    def __enter__(self) -> Evaluator:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    # -- turns --------------------------------------------------------------------------------

    def _in_turns(self, candidates: Iterable[Candidate], begun: deque[_Work]) -> Iterator[Iterator[Record]]:
        """First sample batches, kept in `begun`, then the others of these, and so on."""
        end = time.monotonic() + _APART_SECONDS
        for candidate in candidates:
            begun.append(self._begun(candidate))
            if len(begun) >= _AT_ONCE or time.monotonic() >= end:
                yield self._rest(begun)
                end = time.monotonic() + _APART_SECONDS
        yield self._rest(begun)

    def _rest(self, begun: deque[_Work]) -> Iterator[Record]:
        """One sample batch of each after another until enough is known of all."""
        while not all(work.is_done for work in begun):
            for at, work in enumerate(begun):
                if not work.is_done:
                    begun[at] = self._guarded(work, self._with_next_batch)
        while begun:
            yield begun.popleft().record

    def _begun(self, candidate: Candidate) -> _Work:
        """Verify one candidate, and take its first sample batch."""
        options, configuration = self._options, candidate.dispatch.configuration
        reproduce = command_line(candidate.command, options, candidate.library)
        record = Record(
            candidate.dispatch,
            self.provenance(candidate),
            Verdict.NOT_VERIFIED,
            provider=candidate.library,
            reproduce=reproduce,
        )
        work = _Work(candidate, record)
        if isinstance(configuration, LibraryCall):
            unable = configuration.invalid_reason(candidate.dispatch.operation, Limits())
            if unable:
                return work.failed(Verdict.NOT_SUPPORTED, unable)
        elif candidate.state is not State.COMPILED:
            return work.failed(_STATES[candidate.state], candidate.reason)
        return self._guarded(work, self._first_batch)

    def _guarded(self, work: _Work, step: Callable[[_Work], _Work]) -> _Work:
        """What `step` makes of it; whatever breaks is a verdict on this candidate alone."""
        if self._is_interrupted:
            raise KeyboardInterrupt
        try:
            work = step(work)
        except WorkerTimedOut as error:
            work = work.failed(Verdict.TIMED_OUT, f"{error.message}; --timeout sets the limit")
        except NotSupported as error:
            work = work.failed(Verdict.NOT_SUPPORTED, error.message)
        except DamagedVmfb as error:
            work = work.failed(Verdict.NOT_COMPILED, error.message)
        except DispatchProfilerError as error:
            if self._is_interrupted:
                raise KeyboardInterrupt from error
            work = work.failed(Verdict.CRASHED, error.message)
        finally:
            self._runners.put_to_sleep(work.candidate.library)
        self._best.learn(work.record, is_done=work.is_done)
        return work

    # -- steps --------------------------------------------------------------------------------

    def _first_batch(self, work: _Work) -> _Work:
        """Verify it, take the first samples, and verify what was timed."""
        options, candidate, record = self._options, work.candidate, work.record
        if options.verify:
            record = self._verifier.verified(record, candidate)
        if not options.profile or record.verdict.is_failure:
            return replace(work, record=record, is_done=True)
        operation, name = record.dispatch.operation, record.dispatch.name
        single = self._runners.call(
            candidate, device_worker.estimate, refs_of(candidate).verify, name, operation, options.seed
        )
        if record.verdict is Verdict.SUCCESS:
            record = self._verifier.verified_as_timed(record, candidate, self.mode, single)
            if record.is_failure:
                return replace(work, record=record, is_done=True)
        return self._with_next_batch(replace(work, record=record, single_seconds=single))

    def _with_next_batch(self, work: _Work) -> _Work:
        """With the samples of one more batch, and what all batches together say."""
        record, best = work.record, self._best_of_others(work)
        batches = (*work.batches, self._undisturbed_batch(work, best))
        end = ended(self._options.measure, batches, best)
        measurement = joined(self._options.measure, batches, end)
        record = replace(record, measurement=measurement)
        if end is not None:
            record = self._bounded(record)
        return replace(work, record=record, batches=batches, is_done=end is not None)

    def _undisturbed_batch(self, work: _Work, best: float | None) -> SampleBatch:
        """A sample batch, taken again if the sentinel says that the machine is not as it was."""
        runner, stop, began = (
            self._runners.of(work.candidate.library),
            self._options.measure.stop,
            self._clock(),
        )
        spent = sum(batch.seconds for batch in work.batches)
        for _ in range(1 + _AGAIN):
            found = self._take_batch(work, best)
            disturbed = runner.disturbance(BATCH_PART * stop.seconds)
            # What was taken in vain is part of the budget, too.
            found = replace(found, disturbed=disturbed, seconds=self._clock() - began)
            if not disturbed or (stop.count is None and spent + found.seconds >= stop.seconds):
                return found
        runner.watch.reset()  # no passing cloud: so the machine is now
        return found

    def _take_batch(self, work: _Work, best: float | None) -> SampleBatch:
        candidate, single, options = work.candidate, work.single_seconds, self._options
        plan, stop = next_batch(options.measure, work.batches, best), options.measure.stop
        # The limit is for a step that hangs, not for samples of a kernel that is only slow.
        expected = stop.seconds + single * candidate.repeat * ((stop.count or 3) + 5)
        dispatch = candidate.dispatch
        found: SampleBatch = self._runners.call(
            candidate, device_worker.take_batch, refs_of(candidate), dispatch.name, dispatch.operation,
            options.seed, plan, single, seconds=options.seconds + 3.0 * expected,
        )  # fmt: skip
        return found

    def _best_of_others(self, work: _Work) -> float | None:
        """What the best dispatch of the operation reaches, in ms; None if that is of no concern."""
        # Others are compared with the default and with libraries: these are measured in full.
        if isinstance(work.candidate.dispatch.configuration, (Default, LibraryCall)):
            return None
        return self._best.bound_ms(work.candidate.dispatch.operation)

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


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "of unknown version"
