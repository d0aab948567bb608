"""Turns candidates into records: verifies and measures each without affecting the others."""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from importlib import metadata

from dispatch_profiler.closing import Closing
from dispatch_profiler.configurations import Default, Limits
from dispatch_profiler.console.plurals import counted
from dispatch_profiler.cores import usable_processes
from dispatch_profiler.dispatches import Dispatch, State
from dispatch_profiler.errors import DispatchProfilerError, WorkerTimedOut
from dispatch_profiler.isolation import Worker, WorkerLimits
from dispatch_profiler.operations import Operation
from dispatch_profiler.profiler.evaluation import device_worker
from dispatch_profiler.profiler.evaluation.best_so_far import BestSoFar
from dispatch_profiler.profiler.evaluation.candidate import (
    Candidate,
    DamagedVmfb,
    EvaluatorOptions,
    Vmfb,
    command_line,
)
from dispatch_profiler.profiler.evaluation.device_worker import BatchRequest, TakenBatch
from dispatch_profiler.profiler.evaluation.hardware import peaks_file, this_machine
from dispatch_profiler.profiler.evaluation.sentinels import Sentinel, Sentinels
from dispatch_profiler.profiler.evaluation.workers import Runners, Verifier, memory_limit, refs_of
from dispatch_profiler.profiler.measurement.kernels import NotSupported
from dispatch_profiler.profiler.measurement.measure import Mode
from dispatch_profiler.profiler.measurement.sample_batches import (
    BATCH_PART,
    SampleBatch,
    next_batch,
    progress,
)
from dispatch_profiler.profiler.providers.library_calls import LibraryCall
from dispatch_profiler.profiler.records.record import Provenance, Record, Verdict
from dispatch_profiler.profiler.statistics.stopping import Ended
from dispatch_profiler.profiler.verification.verify import VerifiedHashes
from dispatch_profiler.runtime import DeviceUri

#: How often a disturbed sample batch is repeated.
_RETRIES = 2
#: Candidates of an operation sampled in turn: at most this many, or those begun within this time.
_GROUP_SIZE = 32
_GROUP_SECONDS = 30.0
#: Candidates of the next operation join a group that has fewer candidates than this. The records of a group
#: come when all of it is done, so a larger number delays the first records.
_SMALL_GROUP = 16
_STATES = {
    State.GENERATED: Verdict.NOT_COMPILED,
    State.NOT_COMPILED: Verdict.NOT_COMPILED,
    State.NOT_APPLIED: Verdict.NOT_APPLIED,
}


@dataclass(frozen=True)
class _Work:
    """A candidate whose record is not done yet, with its progress."""

    candidate: Candidate
    record: Record
    #: Approximate seconds of one execution; None if unknown.
    single_seconds: float | None = None
    batches: tuple[SampleBatch, ...] = ()
    is_done: bool = False

    def failed(self, verdict: Verdict, reason: str) -> _Work:
        """Finish with a failure."""
        return replace(self, record=self.record.failed(verdict, reason), is_done=True)


#: A candidate by its dispatch and the content of its vmfbs.
_Key = tuple[Dispatch, tuple[str, ...]]


def _key_of(candidate: Candidate) -> _Key:
    return candidate.dispatch, tuple(vmfb.sha256 for vmfb in candidate.vmfbs)


class Evaluator(Closing):
    """Turns candidates into records on one device. Use as a context manager.

    Dispatches run in a worker process that owns the device, and each library in a process of its own; another
    process compares results. The processes and the best result of each operation persist between calls of
    `records`. `clock` measures the budget, in seconds. Evaluators that share `hashes` compare no result that another has
    verified. Only `kill` may be called from other threads.
    """

    def __init__(
        self,
        options: EvaluatorOptions,
        clock: Callable[[], float] = time.monotonic,
        hashes: VerifiedHashes | None = None,
    ) -> None:
        self._options = options
        self._runtime = f"runtime {runtime_version()}"
        memory = options.memory_bytes if options.memory_bytes is not None else memory_limit(options.device)
        self._limits = WorkerLimits(options.seconds, memory)
        self._runners = Runners(
            self._limits, options.device, options.build_dir, options.references, options.seed
        )
        self._verifier = Verifier(self._runners, options.seed, hashes or VerifiedHashes())
        self._best = BestSoFar(options.measure.stop.by_decile)
        self._sentinels = Sentinels()
        self._is_interrupted = False
        self._clock = clock
        self._peaks = peaks_file(options.peaks, options.device) if options.peaks else None
        #: Records with the verdicts of candidates that `verify` was called with.
        self._verdicts: dict[_Key, Record] = {}
        #: Whether the peaks were measured again.
        self._has_new_peaks = False

    @property
    def mode(self) -> Mode:
        """The state of the caches when an execution starts."""
        return self._options.measure.mode

    def check_device(self) -> None:
        """Raise TargetError if the device does not open."""
        self._runners.check_device()

    def start(self) -> None:
        """Start all processes ahead. Raises TargetError if the device does not open; other errors come when they matter."""
        self.check_device()
        with contextlib.suppress(DispatchProfilerError):
            self._runners.checker.call(device_worker.ready)

    def prepare(self, operation: Operation) -> None:
        """Compute the references of an operation ahead. An error is reported when they are needed."""
        with contextlib.suppress(DispatchProfilerError):
            self._verifier.prepare(operation)

    def verify(self, candidate: Candidate) -> None:
        """Give a candidate its verdict ahead of `records`, such as while others are compiled: nothing is timed.

        Does nothing where verification depends on times.
        """
        work = self._new(candidate)
        if not work.is_done and self._samples_together(work):
            self._verdicts[_key_of(candidate)] = self._guarded(work, self._verified).record

    def check_libraries(self, names: Iterable[str]) -> None:
        """Raise UsageError if a library does not run on the device, MissingDependency if not installed."""
        self._runners.check_libraries(names)

    def measure_limits(self) -> None:
        """Measure the hardware peaks now unless they are cached, so that measuring them disturbs no dispatch."""
        if self._peaks is not None:
            self._peaks.get()

    def load_ahead(self, candidates: Iterable[Candidate], say: Callable[[str], None]) -> None:
        """Load the code of all candidates on all cores if the driver compiles it (see `load_in_parallel`)."""
        if compiles_when_loaded(self._options.device):
            # The profile vmfbs hold the same kernels.
            vmfbs = dict.fromkeys(each.verify for each in candidates if each.verify)
            load_in_parallel(list(vmfbs), self._limits, self._options.device, say)

    def best(self, operation: Operation) -> Record | None:
        """The fastest correct record of an operation over all calls of `records`; None without correct records.

        Without verification (`EvaluatorOptions.verify`), the fastest that ran.
        """
        return self._best.record(operation)

    def records(self, candidates: Iterable[Candidate]) -> Iterator[Record]:
        """A record for each candidate, in order.

        Groups of candidates are sampled in turn: the candidates of one operation, or of several operations
        with few candidates. On KeyboardInterrupt, yields the records that have samples, marked `interrupted`
        (`Measurement.ended_by`), and re-raises it.
        """
        begun: deque[_Work] = deque()
        try:
            for group_records in self._in_turns(candidates, begun):
                yield from group_records
        except KeyboardInterrupt:
            yield from (work.record for work in begun if work.is_done or work.batches)
            raise

    def learn(self, records: Iterable[Record]) -> None:
        """Compare candidates with earlier `records` of this device too, as if it had just made them."""
        for record in records:
            self._best.learn(record, is_done=True)

    def provenance(self, candidate: Candidate) -> Provenance:
        """Device, software and settings of a record of this candidate made now."""
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
        """Interrupt, from another thread, the thread that reads `records`, as Ctrl-C would."""
        self._is_interrupted = True
        self._runners.kill()

    def close(self) -> None:
        """End the worker processes."""
        self._runners.close()

    # -- turns --------------------------------------------------------------------------------

    def _in_turns(self, candidates: Iterable[Candidate], begun: deque[_Work]) -> Iterator[Iterator[Record]]:
        """Begin a group of candidates, held in `begun`; yield its records; continue with the next group."""
        end = time.monotonic() + _GROUP_SECONDS
        for operation, group in itertools.groupby(candidates, lambda each: each.dispatch.operation):
            if begun and not self._may_join(begun, operation):
                yield self._rest(begun)
                end = time.monotonic() + _GROUP_SECONDS
            for number, candidate in enumerate(group, 1):
                begun.append(self._begin(candidate))
                if number % _GROUP_SIZE == 0 or time.monotonic() >= end:
                    yield self._rest(begun)
                    end = time.monotonic() + _GROUP_SECONDS
        yield self._rest(begun)

    def _may_join(self, begun: Iterable[_Work], operation: Operation) -> bool:
        """Whether candidates of `operation` may be sampled in turn with the candidates in `begun`.

        Noise lasts for seconds. The more operations share a group, the further apart the sample batches of
        each are, and the better its interval covers what another run would measure.
        """
        works = list(begun)
        operations = {operation, *(work.candidate.dispatch.operation for work in works)}
        is_small = len(works) < _SMALL_GROUP and self.mode is Mode.WARM
        return is_small and sum(map(device_worker.bytes_held, operations)) <= device_worker.HELD_BYTES

    def _rest(self, begun: deque[_Work]) -> Iterator[Record]:
        """Take sample batches of each candidate in turn until all are done."""
        while left := {at: work for at, work in enumerate(begun) if not work.is_done}:
            taken = self._taken_together(left)
            for at, work in left.items():
                found = taken.get(at)
                step = self._with_own_batch if found is None else partial(self._with_taken, found)
                begun[at] = self._guarded(work, step)
        self._sentinels.settle()
        while begun:
            yield begun.popleft().record

    def _begin(self, candidate: Candidate) -> _Work:
        """Verify one candidate, and take its first sample batch unless several candidates are sampled together."""
        if (known := self._verdicts.pop(_key_of(candidate), None)) is not None:
            return _Work(candidate, known, is_done=self._ends_after(known))
        work = self._new(candidate)
        if work.is_done:
            return work
        return self._guarded(work, self._verified if self._samples_together(work) else self._first_batch)

    def _new(self, candidate: Candidate) -> _Work:
        """A candidate without a verdict, except where it cannot run."""
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
        return work

    def _guarded(self, work: _Work, step: Callable[[_Work], _Work]) -> _Work:
        """Apply `step`; an error becomes a verdict on this candidate alone."""
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
        """Verify the candidate, also as it is timed, and take its first sample batch."""
        options, candidate, record = self._options, work.candidate, work.record
        if options.verify:
            record = self._verifier.verified(record, candidate)
        if not options.profile or record.verdict.is_failure:
            return replace(work, record=record, is_done=True)
        single = self._estimated(candidate)
        if record.verdict is Verdict.SUCCESS:
            record = self._verifier.verified_as_timed(record, candidate, options.measure, single)
            if record.is_failure:
                return replace(work, record=record, is_done=True)
        return self._with_own_batch(replace(work, record=record, single_seconds=single))

    def _verified(self, work: _Work) -> _Work:
        """Verify both vmfbs of the candidate."""
        options, candidate, record = self._options, work.candidate, work.record
        if options.verify:
            record = self._verifier.verified(record, candidate)
        if options.profile and record.verdict is Verdict.SUCCESS:
            record = self._verifier.verified_as_timed(record, candidate, options.measure, 0.0)
        return replace(work, record=record, is_done=self._ends_after(record))

    def _ends_after(self, verified: Record) -> bool:
        """Whether a record that was verified is done."""
        return verified.is_failure or not self._options.profile

    def _estimated(self, candidate: Candidate) -> float:
        """Approximate seconds of one execution."""
        dispatch, verify = candidate.dispatch, refs_of(candidate).verify
        found: float = self._runners.call(
            candidate, device_worker.estimate, verify, dispatch.name, dispatch.operation, self._options.seed
        )
        return found

    def _with_own_batch(self, work: _Work) -> _Work:
        """Add one more sample batch, taken with a request of its own."""
        if work.single_seconds is None:
            work = replace(work, single_seconds=self._estimated(work.candidate))
        return self._with_batch(work, self._undisturbed_batch(work))

    def _with_taken(self, taken: TakenBatch | DispatchProfilerError, work: _Work) -> _Work:
        """Add a sample batch that was taken together with others. Raises its error."""
        if isinstance(taken, DispatchProfilerError):
            raise taken
        return self._with_batch(replace(work, single_seconds=taken.single_seconds), taken.batch)

    def _with_batch(self, work: _Work, batch: SampleBatch) -> _Work:
        """Add a sample batch and update the measurement."""
        record, batches = work.record, (*work.batches, batch)
        is_slow = self._sentinels.is_slow(record.dispatch.operation)
        measurement, end = progress(self._options.measure, batches, self._best_of_others(work), is_slow)
        record = replace(record, measurement=measurement)
        if end is not None:
            record = self._bounded(record)
        work = replace(work, record=record, batches=batches, is_done=end is not None)
        if self._samples_together(work) and end not in (None, Ended.ABANDONED) and not record.is_failure:
            self._sentinels.learn(
                Sentinel(work.candidate, batches, work.single_seconds or 0.0, measurement.p10_ms)
            )
        return work

    def _samples_together(self, work: _Work) -> bool:
        """Whether sample batches of several candidates may come from one request: nothing between them depends on them."""
        return self._options.measure.keeps_disturbed and not work.candidate.library

    def _taken_together(self, works: Mapping[int, _Work]) -> dict[int, TakenBatch | DispatchProfilerError]:
        """A sample batch, or an error, of the works that are sampled together.

        None if the process fails: then each candidate has a request of its own, and only one of them fails again.
        """
        ours = {at: work for at, work in works.items() if self._samples_together(work)}
        sentinels = self._sentinels.beside([work.candidate for work in ours.values()])
        every = [*ours.values(), *map(self._as_work, sentinels)]
        vmfbs = {vmfb for work in every for vmfb in work.candidate.vmfbs}
        if not ours or sum(vmfb.size for vmfb in vmfbs) > device_worker.VMFB_BYTES // 2:
            return {}
        requests = list(map(self._batch_request, every))
        limit = self._options.seconds + 3.0 * sum(map(self._expected_seconds, every))
        with contextlib.suppress(DispatchProfilerError):
            taken = self._runners.taken_batches(vmfbs, requests, limit)
            self._take_sentinels(sentinels, taken[len(ours) :])
            return dict(zip(ours, taken, strict=False))
        return {}

    def _as_work(self, sentinel: Sentinel) -> _Work:
        """What samples a sentinel again."""
        return replace(
            self._new(sentinel.candidate),
            single_seconds=sentinel.single_seconds,
            batches=sentinel.batches_before,
        )

    def _take_sentinels(
        self, sentinels: Sequence[Sentinel], taken: Sequence[TakenBatch | DispatchProfilerError]
    ) -> None:
        for sentinel, found in zip(sentinels, taken, strict=True):
            if isinstance(found, DispatchProfilerError):
                self._sentinels.drop(sentinel)
            else:
                sentinel.add(found.batch)

    def _batch_request(self, work: _Work) -> BatchRequest:
        """The next sample batch of a work."""
        candidate, dispatch = work.candidate, work.candidate.dispatch
        plan = next_batch(self._options.measure, work.batches, self._best_of_others(work))
        return BatchRequest(
            refs_of(candidate),
            dispatch.name,
            dispatch.operation,
            self._options.seed,
            plan,
            work.single_seconds,
        )

    def _expected_seconds(self, work: _Work) -> float:
        """How long sampling a candidate may take: the limit is for a step that hangs, not for a slow kernel."""
        stop, single = self._options.measure.stop, work.single_seconds or 0.0
        return stop.seconds + single * work.candidate.repeat * ((stop.count or 3) + 5)

    def _undisturbed_batch(self, work: _Work) -> SampleBatch:
        """A sample batch, repeated if the sentinel shows that the machine is disturbed."""
        runner, stop, began = (
            self._runners.of(work.candidate.library),
            self._options.measure.stop,
            self._clock(),
        )
        spent = sum(batch.seconds for batch in work.batches)
        for _ in range(1 + _RETRIES):
            found = self._take_batch(work)
            is_over = stop.count is None and spent + self._clock() - began >= stop.seconds
            if is_over or self._options.measure.keeps_disturbed:
                return replace(found, seconds=self._clock() - began)
            disturbed = runner.disturbance(BATCH_PART * stop.seconds)
            # Discarded batches count towards the budget.
            found = replace(found, disturbed=disturbed, seconds=self._clock() - began)
            if not disturbed or (stop.count is None and spent + found.seconds >= stop.seconds):
                return found
        runner.watch.reset()  # the change is permanent
        return found

    def _take_batch(self, work: _Work) -> SampleBatch:
        request = self._batch_request(work)
        found: SampleBatch = self._runners.call(
            work.candidate, device_worker.take_batch, request.refs, request.function, request.operation,
            request.seed, request.plan, request.single_seconds,
            seconds=self._options.seconds + 3.0 * self._expected_seconds(work),
        )  # fmt: skip
        return found

    def _best_of_others(self, work: _Work) -> float | None:
        """The time of the operation's best dispatch, in ms; None for a baseline."""
        # Others are compared with baselines, so these are measured in full.
        dispatch = work.candidate.dispatch
        if isinstance(dispatch.configuration, (Default, LibraryCall)):
            return None
        return self._best.bound_ms(dispatch.operation, packs_weight=dispatch.configuration.packs_weight)

    def _bounded(self, record: Record) -> Record:
        """The record with the least time that the hardware allows; failed if its own time is far below."""
        if self._peaks is None or record.measurement is None:
            return record
        measurement = record.measurement
        # The subtracted overhead may be too high.
        milliseconds = measurement.median_ms + measurement.overhead_error_ms
        operation, mode, peaks = record.dispatch.operation, self.mode, self._peaks.get()
        work = record.dispatch.flops, record.dispatch.multiplied
        if not self._has_new_peaks and not peaks.is_plausible(operation, milliseconds, mode, *work):
            # The measurement of the peaks may have been disturbed. It takes seconds: one more is enough.
            self._has_new_peaks = True
            peaks = self._peaks.again()
        limit = peaks.limit_ms(operation, mode, *work)
        if peaks.is_plausible(operation, milliseconds, mode, *work):
            return replace(record, limit_ms=limit, peaks=peaks)
        reason = f"measured {measurement.median_ms:.4g} ms, but this machine needs at least {limit:.4g} ms"
        return replace(record.failed(Verdict.IMPLAUSIBLE, reason), limit_ms=limit, peaks=peaks)


def runtime_version() -> str:
    """The version of IREE's runtime."""
    try:
        return metadata.version("iree-base-runtime")
    except metadata.PackageNotFoundError:
        return "of unknown version"


# -- driver cache ----------------------------------------------------------------------------------

# Fills the cache of a driver that compiles: all cores load vmfbs in parallel before measuring starts.
#
# A CUDA vmfb holds PTX. When loading it, the driver compiles it to machine code, in 70 to 115 ms per kernel
# on one core (seen on an H200), and caches that in `~/.nv/ComputeCache`. Loading one after another in the
# measuring process took a large part of a run.


def compiles_when_loaded(device: str) -> bool:
    """Whether the driver of this device URI compiles code when loading it, and caches the result."""
    return DeviceUri.parse(device).is_cuda and os.environ.get("CUDA_CACHE_DISABLE") != "1"


def load_in_parallel(
    vmfbs: Sequence[Vmfb],
    limits: WorkerLimits,
    device: str,
    say: Callable[[str], None] = lambda _: None,
) -> None:
    """Load all vmfbs, each in one of as many processes as there are cores.

    `say` receives a sentence first. Vmfbs that fail to load are skipped: running them reports the error.
    An exception in between ends the processes and is re-raised.
    """
    # The largest first, because it takes the longest.
    left = deque(sorted(vmfbs, key=lambda vmfb: -vmfb.size))
    count = min(len(left), usable_processes())
    if count < 2:
        return
    say(f"loading {counted(len(left), 'vmfb')} first, {count} at a time: the driver compiles their code")
    workers = [Worker(limits, device_worker.start_loading, (device,)) for _ in range(count)]

    def work(worker: Worker) -> None:
        while left:
            with contextlib.suppress(DispatchProfilerError, IndexError):
                worker.call(device_worker.load, left.popleft().load())

    with contextlib.ExitStack() as open_workers, ThreadPoolExecutor(count) as pool:
        for worker in workers:
            open_workers.callback(worker.close)
        try:
            list(pool.map(work, workers))
        except BaseException:
            left.clear()
            for worker in workers:
                worker.kill()
            raise
