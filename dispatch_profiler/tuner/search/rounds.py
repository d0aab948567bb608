"""Evaluates the requests of searches, round after round: nothing is measured while something is compiled."""

from __future__ import annotations

import contextlib
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

from dispatch_profiler.console.plurals import counted
from dispatch_profiler.dispatches import Dispatch
from dispatch_profiler.errors import TargetError
from dispatch_profiler.operations import Operation
from dispatch_profiler.outside_causes import outside_cause
from dispatch_profiler.profiler.evaluation.candidate import Candidate
from dispatch_profiler.profiler.records.record import Record, Verdict
from dispatch_profiler.profiler.records.record_file import stored
from dispatch_profiler.tuner.evaluation.building import CandidateBuilder
from dispatch_profiler.tuner.evaluation.evaluations import Evaluation, kernel_identity, measured_identity
from dispatch_profiler.tuner.evaluation.measuring import Devices, Measured
from dispatch_profiler.tuner.evaluation.stopwatch import SearchPhase, Stopwatch
from dispatch_profiler.tuner.search.events import (
    Compiling,
    DeviceJoined,
    DeviceLost,
    Evaluated,
    Listener,
    Measuring,
    Resumed,
)
from dispatch_profiler.tuner.search.operation_search import OperationSearch, SearchTask
from dispatch_profiler.tuner.storage.storage import Study


@dataclass(frozen=True)
class Means:
    """The compiler, devices and listeners that a search works with."""

    builder: CandidateBuilder
    devices: Devices
    watch: Stopwatch
    listen: Listener


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
        self._number = 0
        #: Failures of devices that were reported.
        self._lost: dict[str, str] = {}
        #: Kernels that were measured, by operation and identity.
        self._kernels: dict[tuple[Operation, Hashable], Evaluation] = {}
        self.searches = [
            OperationSearch(task, study.evaluations) for task, study in zip(tasks, studies, strict=True)
        ]

    def run(self) -> None:
        """Evaluate until every search is done."""
        self._resume()
        try:
            self._run()
        except TargetError as error:
            raise self._without_device(error) from error

    def _resume(self) -> None:
        """Begin with the evaluations of earlier runs."""
        for search in self.searches:
            if known := search.evaluations:
                self._devices.learn(each.full_record() for each in known)
                self._listen(Resumed(search.operation, len(known)))
            for evaluation in search.evaluations:
                self._learn_kernel(evaluation)

    def _run(self) -> None:
        while requested := {
            at: configurations
            for at, search in enumerate(self.searches)
            if (configurations := search.next_configurations())
        }:
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
        candidates = iter(self._builder.candidates(every))
        seconds = self._watch.switch(SearchPhase.OTHER) / len(every)
        return {at: [Compiled(next(candidates), seconds) for _ in group] for at, group in dispatches.items()}

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
            seconds, kernel = own.seconds + measured.seconds, own.candidate.kernel
            self._store(measured.at, Evaluation(record.dispatch, stored(record), kernel, seconds))

    def _report_lost_devices(self) -> None:
        failures = dict(self._devices.failures)
        for device, reason in failures.items():
            if device not in self._lost:
                self._listen(DeviceLost(device, reason))
        self._lost = failures

    def _store(self, at: int, evaluation: Evaluation) -> None:
        search = self.searches[at]
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
