"""Searches for the fastest configurations of operations, in rounds that can be interrupted at any point.

    propose -> compile everything on all cores -> verify and measure one after the other -> store -> propose -> ...

Nothing is measured while the compiler runs, so that it disturbs no measurement.
"""

from __future__ import annotations

import contextlib
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace

from dispatch_profiler import __version__
from dispatch_profiler.compiler import Cache
from dispatch_profiler.dispatches import Dispatch
from dispatch_profiler.errors import TargetError
from dispatch_profiler.files import sha256
from dispatch_profiler.operations import Operation
from dispatch_profiler.plurals import counted
from dispatch_profiler.profiler.evaluation.candidate import Candidate
from dispatch_profiler.profiler.evaluation.machine import this_machine
from dispatch_profiler.profiler.evaluation.options import EvaluatorOptions
from dispatch_profiler.profiler.records.record import Record, Verdict
from dispatch_profiler.profiler.records.record_file import stored
from dispatch_profiler.runtime import DeviceUri
from dispatch_profiler.targets import Target
from dispatch_profiler.tuner.building import Builder, BuildOptions
from dispatch_profiler.tuner.evaluations import Evaluation, kernel_identity, measured_identity
from dispatch_profiler.tuner.events import (
    Compiling,
    DeviceLost,
    Evaluated,
    Listener,
    Measuring,
    Resumed,
    ignore,
)
from dispatch_profiler.tuner.measuring import Devices
from dispatch_profiler.tuner.operation_search import OperationSearch, SearchTask, fastest
from dispatch_profiler.tuner.stopwatch import Phase, Stopwatch, Times
from dispatch_profiler.tuner.storage import SearchKey, Storage, Study


@dataclass(frozen=True)
class SearchOptions:
    """How to build and measure.

    `evaluator` names the device; verification and measurement are always on. `devices` names several instead, which
    should be alike: each measures other operations. `cache` has earlier builds.
    """

    evaluator: EvaluatorOptions
    build: BuildOptions = BuildOptions()
    cache: Cache | None = None
    devices: tuple[str, ...] = ()


@dataclass(frozen=True)
class OperationResult:
    """What the search for one operation found.

    `evaluations` are in the order of the proposals, followed by those of earlier runs that were not proposed
    again. `ended_by` is `evaluations`, `seconds` or `exhausted`.
    """

    operation: Operation
    evaluations: tuple[Evaluation, ...]
    default: Evaluation | None
    ended_by: str

    @property
    def best(self) -> Evaluation | None:
        """The fastest verified one; None if none was verified."""
        return fastest(self.evaluations)

    def finalists(self, count: int) -> tuple[Evaluation, ...]:
        """The `count` fastest verified ones with different kernels, the fastest first."""
        found = [each for each in self.evaluations if each.milliseconds and not each.same_kernel_as]
        return tuple(sorted(found, key=lambda each: each.milliseconds or 0.0)[:count])


@dataclass(frozen=True)
class SearchResult:
    """The results of all operations, and where the time of this run went."""

    operations: tuple[OperationResult, ...]
    times: Times = field(default=Times(), compare=False)


def search(
    tasks: Sequence[SearchTask],
    target: Target,
    storage: Storage,
    options: SearchOptions,
    listen: Listener = ignore,
) -> SearchResult:
    """Search for the fastest configurations of all operations in `tasks`, which must differ.

    Continues from what `storage` has. Every evaluation is stored as soon as it is known, so that an error or an
    interruption costs at most those in progress. If one of several devices fails, the others do its work.

    Raises StorageError if a storage fails or another search uses it, and TargetError if no device works.
    """
    watch = Stopwatch()
    with contextlib.ExitStack() as stack:
        builder = stack.enter_context(Builder(target, options.build, options.cache))
        checked = replace(options.evaluator, verify=True, profile=True)
        devices = stack.enter_context(Devices(checked, options.devices or (checked.device,)))
        content = _content(target, builder, options)
        studies = [stack.enter_context(storage.study(search_key(task, content))) for task in tasks]
        rounds = _Rounds(tasks, studies, builder, devices, watch, listen)
        rounds.run()
        return SearchResult(tuple(map(_result, rounds.searches)), watch.times)


def search_key(task: SearchTask, content: dict[str, str]) -> SearchKey:
    """The study of a task: its operation, space, strategy and seed, and `content`, what all tasks share."""
    space = sha256(repr(task.space.spaces).encode())[:16]
    own = {"space": space, "strategy": task.strategy, "seed": str(task.seed)}
    return SearchKey(task.operation, {**content, **own})


def _content(target: Target, builder: Builder, options: SearchOptions) -> dict[str, str]:
    """What makes evaluations of different runs interchangeable, besides the task."""
    uri = (options.devices or (options.evaluator.device,))[0]
    device = DeviceUri.parse(uri)
    return {
        "dispatch_profiler": __version__,
        "target": f"{target.name} {target.fingerprint}",
        "flags": " ".join(options.build.flags),
        "compiler": builder.revision,
        # GPUs of one kind are interchangeable; the machine names them.
        "device": str(device) if device.is_local else device.driver,
        "machine": this_machine(uri).name,
        "mode": options.evaluator.measure.mode.value,
        "inputs": str(options.evaluator.seed),
    }


def _result(search: OperationSearch) -> OperationResult:
    return OperationResult(search.operation, search.evaluations, search.default, search.ended_by)


class _Rounds:
    """Evaluates what the searches of all operations request, round after round."""

    def __init__(
        self,
        tasks: Sequence[SearchTask],
        studies: Sequence[Study],
        builder: Builder,
        devices: Devices,
        watch: Stopwatch,
        listen: Listener,
    ) -> None:
        self._studies = studies
        self._builder = builder
        self._devices = devices
        self._watch = watch
        self._listen = listen
        self._number = 0
        #: Failures of devices that were reported.
        self._lost = 0
        #: Kernels that were measured, by operation and identity.
        self._kernels: dict[tuple[Operation, Hashable], Evaluation] = {}
        self.searches = [
            OperationSearch(task, study.evaluations) for task, study in zip(tasks, studies, strict=True)
        ]

    def run(self) -> None:
        """Evaluate until every search is done."""
        for search in self.searches:
            if known := search.evaluations:
                self._devices.learn(each.full_record() for each in known)
                self._listen(Resumed(search.operation, len(known)))
            for evaluation in search.evaluations:
                self._learn_kernel(evaluation)
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
            try:
                if self._number == 0:
                    self._devices.check()
                    self._report_lost_devices()
                self._number += 1
                self._evaluate(self._compiled(dispatches))
            except TargetError as error:
                raise self._without_device(error) from error

    def _compiled(self, dispatches: dict[int, list[Dispatch]]) -> dict[int, list[_Compiled]]:
        """Compile everything at once, for all searches."""
        every = [dispatch for group in dispatches.values() for dispatch in group]
        self._listen(Compiling(self._number, len(dispatches), len(every)))
        self._watch.switch(Phase.COMPILING)
        candidates = iter(self._builder.candidates(every))
        seconds = self._watch.switch(Phase.OTHER) / len(every)
        return {at: [_Compiled(next(candidates), seconds) for _ in group] for at, group in dispatches.items()}

    def _evaluate(self, compiled: dict[int, list[_Compiled]]) -> None:
        """Measure each kernel that was not measured before, and store the outcomes of all."""
        plans = {at: self._split(group) for at, group in compiled.items()}
        own, same = (sum(len(plan[part]) for plan in plans.values()) for part in (0, 1))
        self._listen(Measuring(self._number, own, same))
        self._measure({at: group for at, (group, _) in plans.items() if group})
        for at, (_, group) in plans.items():
            for each in group:
                # Without one, the device failed, and the next round has both again.
                if found := self._kernels.get(_kernel_of(each.candidate)):
                    self._store(at, replace(found.shared_with(each.candidate), seconds=each.seconds))

    def _split(self, group: Sequence[_Compiled]) -> tuple[list[_Compiled], list[_Compiled]]:
        """(candidates to measure, candidates with the kernel of another one) of one operation."""
        own: list[_Compiled] = []
        same: list[_Compiled] = []
        kernels = set(self._kernels)
        for each in group:
            kernel = _kernel_of(each.candidate)
            (same if kernel in kernels else own).append(each)
            if each.candidate.kernel:
                kernels.add(kernel)
        return own, same

    def _measure(self, groups: dict[int, list[_Compiled]]) -> None:
        """Verify and measure candidates, and store each outcome as soon as it is known."""
        compiled = {each.candidate.dispatch: each for group in groups.values() for each in group}
        candidates = {at: [each.candidate for each in group] for at, group in groups.items()}
        self._watch.switch(Phase.MEASURING)
        with contextlib.closing(self._devices.records(candidates)) as records:
            for measured in records:
                self._watch.switch(Phase.OTHER)
                record = measured.record
                if not _is_partial(record):
                    own = compiled[record.dispatch]
                    seconds, kernel = own.seconds + measured.seconds, own.candidate.kernel
                    self._store(measured.at, Evaluation(record.dispatch, stored(record), kernel, seconds))
                self._watch.switch(Phase.MEASURING)
        self._watch.switch(Phase.OTHER)
        self._report_lost_devices()

    def _report_lost_devices(self) -> None:
        failures = list(self._devices.failures.items())
        for device, reason in failures[self._lost :]:
            self._listen(DeviceLost(device, reason))
        self._lost = len(failures)

    def _store(self, at: int, evaluation: Evaluation) -> None:
        search = self.searches[at]
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
        """`error`, with what is stored."""
        count = sum(len(search.evaluations) for search in self.searches)
        hint = f"{counted(count, 'evaluation')} are stored; start the search again when the device works"
        return TargetError(f"the device failed: {error.message}", hint=hint) if count else error


@dataclass(frozen=True)
class _Compiled:
    """A candidate, and its share of the seconds that compiling its round took."""

    candidate: Candidate
    seconds: float


def _kernel_of(candidate: Candidate) -> tuple[Operation, Hashable]:
    return candidate.dispatch.operation, kernel_identity(candidate)


def _is_partial(record: Record) -> bool:
    """Whether an interruption ended the evaluation: it has no verdict, or not all of its samples."""
    measurement = record.measurement
    has_no_verdict = record.verdict is Verdict.NOT_VERIFIED and not record.reason
    return has_no_verdict or (measurement is not None and measurement.was_interrupted)
