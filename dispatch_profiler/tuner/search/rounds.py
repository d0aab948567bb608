"""Evaluates the requests of searches, in rounds.

In `Rounds`, nothing is measured while something is compiled. A `Pipeline` compiles the next round of some operations
while candidates of others are measured.
"""

from __future__ import annotations

import contextlib
import math
import queue
import time
from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial

from dispatch_profiler.configurations import Configuration
from dispatch_profiler.console.plurals import counted
from dispatch_profiler.dispatches import Dispatch
from dispatch_profiler.errors import TargetError
from dispatch_profiler.operations import Operation
from dispatch_profiler.outside_causes import outside_cause
from dispatch_profiler.profiler.evaluation.candidate import Candidate
from dispatch_profiler.profiler.evaluation.device_threads import DeviceEnded, DeviceThreads
from dispatch_profiler.profiler.records.record import Record, Verdict, stored
from dispatch_profiler.tuner.evaluation.building import CandidateBuilder
from dispatch_profiler.tuner.evaluation.evaluations import Evaluation, kernel_identity, measured_identity
from dispatch_profiler.tuner.evaluation.measuring import Devices, Measured
from dispatch_profiler.tuner.evaluation.stopwatch import SearchPhase, Stopwatch
from dispatch_profiler.tuner.search.events import (
    Compiling,
    DeviceJoined,
    DeviceLost,
    Evaluated,
    Following,
    Listener,
    Measuring,
    Resumed,
    SearchEnded,
)
from dispatch_profiler.tuner.search.likely_winners import likely_entries
from dispatch_profiler.tuner.search.operation_search import (
    FOLLOWED,
    OperationSearch,
    SearchTask,
    beside_leader,
    following,
)
from dispatch_profiler.tuner.storage.storage import Study


@dataclass(frozen=True)
class Means:
    """The compiler, devices and listeners that a search works with, and whether idle builders compile likely winners.

    When `time.monotonic()` is past `ends`, nothing more is proposed.
    """

    builder: CandidateBuilder
    devices: Devices
    watch: Stopwatch
    listen: Listener
    compiles_winners: bool = False
    ends: float = math.inf


@dataclass(frozen=True)
class Compiled:
    """A candidate, and its share of the seconds that building its round took."""

    candidate: Candidate
    seconds: float


class Rounds:
    """Evaluates the requests of the searches of all operations, round after round."""

    def __init__(
        self,
        tasks: Sequence[SearchTask],
        studies: Sequence[Study],
        means: Means,
    ) -> None:
        self._studies = studies
        self._builder = means.builder
        self._devices = means.devices
        self._watch = means.watch
        self._listen = means.listen
        self._ends = means.ends
        self._number = 0
        #: Candidates of this run whose outcomes are known.
        self._evaluated = 0
        #: Operations whose references were computed, by their index.
        self._referenced: set[int] = set()
        #: Failures of devices that were reported.
        self._lost: dict[str, str] = {}
        #: Kernels that were measured, by operation and identity.
        self._kernels: dict[tuple[Operation, Hashable], Evaluation] = {}
        places = {task.operation: at for at, task in enumerate(tasks)}
        #: Tasks that follow, by the index of their operation, with the index of the operation that they wait for.
        self._followers = {at: (task, places[task.follows]) for at, task in enumerate(tasks) if task.follows}
        #: Operations whose searches are done, by their index.
        self._done: set[int] = set()
        #: Likely winners that idle builders compiled as entries of a library; None if they compile none.
        self._entries: set[Dispatch] | None = set() if means.compiles_winners else None
        self.searches = [
            OperationSearch(beside_leader(task), study.evaluations)
            for task, study in zip(tasks, studies, strict=True)
        ]

    def run(self) -> None:
        """Evaluate until every search is done."""
        self._resume()
        try:
            self._run()
        except TargetError as error:
            raise self._without_device(error) from error

    def _resume(self) -> None:
        """Begin with the evaluations of earlier runs, and with how many candidates operations that follow have at most."""
        for at, (task, leader) in self._followers.items():
            count = len(self.searches[at].task.baselines) + FOLLOWED
            self._listen(Following(task.operation, self.searches[leader].operation, count))
        for search in self.searches:
            if known := search.evaluations:
                self._devices.learn(each.full_record() for each in known)
                self._listen(Resumed(search.operation, len(known)))
            for evaluation in search.evaluations:
                self._learn_kernel(evaluation)

    def _run(self) -> None:
        while requested := self._within_time(
            {
                at: configurations
                for at in range(len(self.searches))
                if (configurations := self._requested(at))
            }
        ):
            dispatches = {
                at: [Dispatch(self.searches[at].operation, each) for each in configurations]
                for at, configurations in requested.items()
            }
            for at in requested:
                self._studies[at].keep_alive()
            if self._number == 0:
                self._check_devices()
            else:
                self._join_devices()
            self._number += 1
            self._evaluate(self._compiled(dispatches))

    def _within_time(self, requested: dict[int, list[Configuration]]) -> dict[int, list[Configuration]]:
        """The part of `requested` that is likely to be evaluated in time: the first ones of each operation."""
        if math.isinf(self._ends) or not self._evaluated:
            return requested
        count = sum(map(len, requested.values()))
        left = (self._ends - time.monotonic()) * self._evaluated / self._watch.times.total
        part = min(1.0, max(0.0, left) / max(1, count))
        fitting = {at: several[: round(part * len(several))] for at, several in requested.items()}
        return {at: several for at, several in fitting.items() if several}

    def _requested(self, at: int) -> list[Configuration]:
        """The configurations to evaluate now of an operation.

        Empty if its search is done, waits for one that it follows, or the time is over.
        """
        if time.monotonic() >= self._ends:
            return []
        if requested := self.searches[at].next_configurations():
            return requested
        if at not in self._followers:
            if at not in self._done:
                self._done.add(at)
                self._listen(SearchEnded(self.searches[at].operation))
        elif self._followers[at][1] in self._done:
            self._follow(at)
            return self._requested(at)
        return []

    def _follow(self, at: int) -> None:
        """Continue the search for an operation with the fastest configurations of the operation that it follows."""
        task, place = self._followers.pop(at)
        leader = self.searches[place]
        task = following(task, leader.evaluations)
        self.searches[at] = OperationSearch(task, self.searches[at].evaluations)
        self._listen(Following(task.operation, leader.operation, len(task.baselines)))

    def _check_devices(self) -> None:
        self._devices.check()
        self._report_lost_devices()

    def _join_devices(self) -> list[str]:
        """Use devices that have joined since the last check."""
        joined = self._devices.join()
        self._report_lost_devices()
        for device in joined:
            self._listen(DeviceJoined(device))
        return joined

    def _compiled(self, dispatches: dict[int, list[Dispatch]]) -> dict[int, list[Compiled]]:
        """Compile everything at once, for all searches."""
        every = [dispatch for group in dispatches.values() for dispatch in group]
        self._listen(Compiling(self._number, len(dispatches), len(every)))
        self._watch.switch(SearchPhase.COMPILING)
        entries = self._likely_entries(dispatches)
        with self._verifying(dispatches) as verify:
            candidates = iter(self._builder.candidates(every, verify, further=entries))
        seconds = self._watch.switch(SearchPhase.OTHER) / len(every)
        return {at: [Compiled(next(candidates), seconds) for _ in group] for at, group in dispatches.items()}

    def _likely_entries(self, dispatches: dict[int, list[Dispatch]]) -> list[Dispatch]:
        """Likely winners as entries of a library, as far as builders are idle while `dispatches` are compiled."""
        if self._entries is None:
            return []
        idle = self._builder.concurrency - sum(map(len, dispatches.values()))
        done = [self.searches[at] for at in sorted(self._done)]
        ending = [self.searches[at] for at in dispatches if self.searches[at].is_last_round]
        likely = likely_entries(done, ending, idle)
        new = [each for each in likely if each not in self._entries]
        self._entries.update(new)
        return new

    @contextlib.contextmanager
    def _verifying(self, operations: Collection[int]) -> Iterator[Callable[[Candidate], None]]:
        """Verify candidates while the last ones are compiled, in a thread: call what this yields with each.

        The references of these operations come first, if they were not computed before. Beside all builds, verification
        would delay these by more than it takes afterwards.
        """
        known = set(self._kernels)
        pool = ThreadPoolExecutor(1, thread_name_prefix="verification")
        devices = {self.searches[at].operation: self._devices.home_of(at) for at in operations}

        def verify(candidate: Candidate) -> None:
            if (kernel := _kernel_of(candidate)) not in known:
                known.update([kernel] if candidate.kernel else [])
                pool.submit(self._devices.verify, devices[candidate.dispatch.operation], candidate)

        try:
            for at in operations:
                if at not in self._referenced:
                    operation = self.searches[at].operation
                    pool.submit(self._devices.prepare, devices[operation], operation)
            self._referenced.update(operations)
            yield verify
        except BaseException:
            self._devices.kill()
            raise
        finally:
            # Everything that was not begun is done when its candidate is measured.
            pool.shutdown(cancel_futures=True)

    def _evaluate(self, compiled: dict[int, list[Compiled]]) -> None:
        """Measure each kernel that was not measured before, and store the outcomes of all."""
        plans = {at: self._split(group) for at, group in compiled.items()}
        own, same = (sum(len(plan[part]) for plan in plans.values()) for part in (0, 1))
        self._listen(Measuring(self._number, own, same))
        self._measure({at: group for at, (group, _) in plans.items() if group})
        for at, (_, group) in plans.items():
            self._store_shared(at, group)

    def _store_shared(self, at: int, group: Sequence[Compiled]) -> None:
        """Store candidates that share the kernel of another candidate."""
        for each in group:
            # Without a measured kernel, the device failed, and the next round has both candidates again.
            if known := self._kernels.get(_kernel_of(each.candidate)):
                self._store(at, replace(known.shared_with(each.candidate), seconds=each.seconds))

    def _split(self, group: Sequence[Compiled]) -> tuple[list[Compiled], list[Compiled]]:
        """(candidates to measure, candidates that share the kernel of another) of one operation."""
        own: list[Compiled] = []
        same: list[Compiled] = []
        kernels = set(self._kernels)
        for each in group:
            kernel = _kernel_of(each.candidate)
            (same if kernel in kernels else own).append(each)
            if each.candidate.kernel:
                kernels.add(kernel)
        return own, same

    def _measure(self, groups: dict[int, list[Compiled]]) -> None:
        """Verify and measure candidates, and store each outcome as soon as it is known."""
        compiled = {each.candidate.dispatch: each for group in groups.values() for each in group}
        candidates = {at: [each.candidate for each in group] for at, group in groups.items()}
        self._watch.switch(SearchPhase.MEASURING)
        with contextlib.closing(self._devices.records(candidates)) as records:
            for measured in records:
                self._watch.switch(SearchPhase.OTHER)
                self._store_measured(measured, compiled[measured.record.dispatch])
                self._watch.switch(SearchPhase.MEASURING)
        self._watch.switch(SearchPhase.OTHER)
        self._report_lost_devices()

    def _store_measured(self, measured: Measured, own: Compiled) -> None:
        """Store a record, unless an interruption ended its evaluation."""
        record = measured.record
        if not _is_partial(record):
            seconds, candidate = own.seconds + measured.seconds, own.candidate
            evaluation = Evaluation(
                record.dispatch, stored(record), candidate.kernel, seconds, candidate.repeat
            )
            self._store(measured.at, evaluation)

    def _report_lost_devices(self) -> None:
        failures = dict(self._devices.failures)
        for device, reason in failures.items():
            if device not in self._lost:
                self._listen(DeviceLost(device, reason))
        self._lost = failures

    def _store(self, at: int, evaluation: Evaluation) -> None:
        search = self.searches[at]
        self._evaluated += 1
        # A candidate that ran out of memory, for example, is evaluated again when the search is restarted.
        if not (evaluation.record.verdict.is_failure and outside_cause(evaluation.record.reason)):
            self._studies[at].add(evaluation)
        search.add(evaluation)
        self._learn_kernel(evaluation)
        done, budget = len(search.evaluations), search.task.evaluations
        self._listen(Evaluated(evaluation, done, budget, search.best, search.default))

    def _learn_kernel(self, evaluation: Evaluation) -> None:
        if evaluation.kernel and not evaluation.same_kernel_as:
            identity = measured_identity(evaluation)
            self._kernels.setdefault((evaluation.dispatch.operation, identity), evaluation)

    def _without_device(self, error: TargetError) -> TargetError:
        """`error`, with a note about the evaluations that are stored."""
        count = sum(len(search.evaluations) for search in self.searches)
        hint = f"{counted(count, 'evaluation')} are stored; start the search again when the device works"
        return TargetError(f"the device failed: {error.message}", hint=hint) if count else error


def _kernel_of(candidate: Candidate) -> tuple[Operation, Hashable]:
    return candidate.dispatch.operation, kernel_identity(candidate)


def _is_partial(record: Record) -> bool:
    """Whether an interruption ended the evaluation: it has no verdict, or not all of its samples."""
    measurement = record.measurement
    has_no_verdict = record.verdict is Verdict.NOT_VERIFIED and not record.reason
    return has_no_verdict or (measurement is not None and measurement.was_interrupted)


# -- pipeline --------------------------------------------------------------------------------------

#     operation 0:  compile | measure on GPU 0 | propose, compile | measure on GPU 0 ...
#     operation 1:  compile | measure on GPU 1 | propose, compile | measure on GPU 1 ...
#     operation 2:  compile |      (waits)     | measure on GPU 0 | propose, compile ...
#
# Each operation alone proceeds as in `Rounds`: its next round is proposed when its last is stored, so its proposals do
# not depend on the other operations.


#: Operations in progress for each device: one is measured, the others are compiled or wait. The rest begins as these
#: end, on the device that is free, so that all devices end at about the same time.
_OPERATIONS = 3
#: Seconds between signs of life while nothing happens.
_ALIVE_SECONDS = 30.0


@dataclass(frozen=True)
class _Proposed:
    """`count` candidates of the operation with index `at` are being compiled; 0: its search is done."""

    at: int
    count: int


@dataclass(frozen=True)
class _Ready:
    """The compiled candidates of the operation with index `at`."""

    at: int
    group: tuple[Compiled, ...]


@dataclass(frozen=True)
class _GroupDone:
    """All candidates of the operation with index `at` have their records."""

    at: int


@dataclass(frozen=True)
class _Failed:
    """Proposing or compiling raised an error."""

    error: BaseException


_Message = Measured | DeviceEnded | _Proposed | _Ready | _GroupDone | _Failed


@dataclass(frozen=True)
class _Group:
    """Candidates that a device measures, by their dispatches, and candidates that share the kernel of another."""

    device: str
    own: dict[Dispatch, Compiled]
    same: list[Compiled]


class Pipeline(Rounds):
    """Evaluates what the searches of all operations request, each at its own pace.

    Looks for new devices every `look_seconds`.
    """

    def __init__(
        self, tasks: Sequence[SearchTask], studies: Sequence[Study], means: Means, look_seconds: float
    ) -> None:
        super().__init__(tasks, studies, means)
        self._look_seconds = look_seconds
        self._messages: queue.SimpleQueue[_Message] = queue.SimpleQueue()
        #: Operations by the stage of their search; each is in one of these until its search is done.
        self._waiting: deque[int] = deque()
        self._proposing: set[int] = set()
        self._compiling: dict[int, int] = {}  # with the number of the round
        self._measuring: dict[int, _Group] = {}
        #: Devices that were given candidates.
        self._prepared: set[str] = set()

    def _run(self) -> None:
        # A search that is done needs no device.
        self._waiting.extend(at for at in range(len(self.searches)) if self._requested(at))
        if not self._waiting:
            return
        with ThreadPoolExecutor(len(self.searches), thread_name_prefix="round") as builds:
            try:
                self._begin(builds)
                # The compiler works while devices open.
                self._watch.switch(SearchPhase.COMPILING)
                self._check_devices()
                self._measure_in_threads(builds)
            except BaseException:
                builds.shutdown(wait=False, cancel_futures=True)
                self._builder.close()
                raise

    def _measure_in_threads(self, builds: ThreadPoolExecutor) -> None:
        threads = self._devices.threads(self._messages.put)
        try:
            self._proceed(threads, builds)
        except BaseException as error:
            self._devices.kill()
            _end(threads)
            if isinstance(error, KeyboardInterrupt):
                self._store_finished()
            raise
        _end(threads)

    def _begin(self, builds: ThreadPoolExecutor) -> None:
        """Begin the searches of further operations if there is room."""
        while self._waiting and self._active < _OPERATIONS * self._devices.count:
            self._next_round(self._waiting.popleft(), builds)

    def _proceed(self, threads: DeviceThreads, builds: ThreadPoolExecutor) -> None:
        """Continue searches until all are done."""
        look = time.monotonic() + self._look_seconds
        while self._active or self._waiting:
            if time.monotonic() >= look:
                for device in self._join_devices():
                    threads.add(device)
                look = time.monotonic() + self._look_seconds
            self._begin(builds)
            self._switch()
            self._handle(self._next_message(), threads, builds)

    @property
    def _active(self) -> int:
        return len(self._proposing) + len(self._compiling) + len(self._measuring)

    def _switch(self) -> None:
        """Attribute the time from now on to the phase of the search."""
        busy = SearchPhase.COMPILING if self._compiling else SearchPhase.OTHER
        self._watch.switch(SearchPhase.MEASURING if self._measuring else busy)

    def _next_message(self) -> _Message:
        """Wait for a message. Meanwhile, other machines learn that the searches are alive."""
        while True:
            for study in self._studies:
                study.keep_alive()
            try:
                return self._messages.get(timeout=_ALIVE_SECONDS)
            except queue.Empty:
                continue

    def _handle(
        self,
        message: _Message,
        threads: DeviceThreads,
        builds: ThreadPoolExecutor,
    ) -> None:
        if isinstance(message, Measured):
            self._store_of_group(message)
        elif isinstance(message, _Proposed):
            self._announce(message, threads)
        elif isinstance(message, _Ready):
            self._measure_group(message, threads, builds)
        elif isinstance(message, _GroupDone):
            group = self._measuring.pop(message.at)
            self._store_shared(message.at, group.same)
            self._next_round(message.at, builds)
        elif isinstance(message, _Failed):
            raise message.error
        else:
            self._leave_out(message, builds)

    # -- proposing and compiling ----------------------------------------------------------------

    def _next_round(self, at: int, builds: ThreadPoolExecutor) -> None:
        self._proposing.add(at)
        builds.submit(self._build, at)

    def _build(self, at: int) -> None:
        """Propose and compile a round of one operation, in a thread of its own."""
        try:
            operation = self.searches[at].operation
            dispatches = [Dispatch(operation, each) for each in self._requested(at)]
            self._messages.put(_Proposed(at, len(dispatches)))
            if dispatches:
                since = time.monotonic()
                candidates = self._builder.candidates(dispatches)
                seconds = (time.monotonic() - since) / len(candidates)
                self._messages.put(_Ready(at, tuple(Compiled(each, seconds) for each in candidates)))
        except BaseException as error:
            self._messages.put(_Failed(error))

    def _announce(self, proposed: _Proposed, threads: DeviceThreads) -> None:
        self._proposing.remove(proposed.at)
        if not proposed.count:
            if proposed.at not in self._followers:
                self._devices.leave(proposed.at)
            self._waiting.extend(self._awakened())
            return
        self._number += 1
        self._compiling[proposed.at] = self._number
        self._listen(Compiling(self._number, 1, proposed.count))
        device = self._devices.home_of(proposed.at)
        if device not in self._prepared:
            # The device has nothing else to do while its first candidates are compiled.
            self._prepared.add(device)
            operation = self.searches[proposed.at].operation
            threads.call(device, lambda: self._devices.prepare(device, operation))

    def _awakened(self) -> list[int]:
        """Operations that waited for the search for another, which is done."""
        busy = {*self._waiting, *self._proposing, *self._compiling, *self._measuring}
        return [at for at, (_, leader) in self._followers.items() if leader in self._done and at not in busy]

    # -- measuring ------------------------------------------------------------------------------

    def _measure_group(self, ready: _Ready, threads: DeviceThreads, builds: ThreadPoolExecutor) -> None:
        at, number = ready.at, self._compiling.pop(ready.at)
        own, same = self._split(ready.group)
        self._listen(Measuring(number, len(own), len(same)))
        if own:
            device = self._devices.home_of(at)
            self._measuring[at] = _Group(device, {each.candidate.dispatch: each for each in own}, same)
            threads.call(device, partial(self._measure_on, device, at, [each.candidate for each in own]))
        else:
            self._store_shared(at, same)
            self._next_round(at, builds)

    def _measure_on(self, device: str, at: int, candidates: Sequence[Candidate]) -> None:
        """Measure candidates of an operation, in the thread of a device."""
        for measured in self._devices.on_device(device, at, candidates):
            self._messages.put(measured)
        self._messages.put(_GroupDone(at))

    def _store_of_group(self, measured: Measured) -> None:
        self._store_measured(measured, self._measuring[measured.at].own[measured.record.dispatch])

    def _leave_out(self, ended: DeviceEnded, builds: ThreadPoolExecutor) -> None:
        """Continue without a device: its operations request the candidates again that it did not measure."""
        if not isinstance(ended.error, TargetError):
            assert ended.error is not None  # threads end at the end
            raise ended.error
        self._devices.leave_out(ended.device, ended.error)
        self._report_lost_devices()
        for at in [at for at, group in self._measuring.items() if group.device == ended.device]:
            del self._measuring[at]
            self._next_round(at, builds)

    def _store_finished(self) -> None:
        """Store the records that were measured before an interruption."""
        while not self._messages.empty():
            message = self._messages.get()
            if isinstance(message, Measured) and message.at in self._measuring:
                self._store_of_group(message)


def _end(threads: DeviceThreads) -> None:
    threads.finish()
    threads.join()
