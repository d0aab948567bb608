"""Searches for the fastest configurations of operations, in rounds that can be interrupted at any point.

    propose -> compile everything on all cores -> verify and measure one after the other -> store -> propose -> ...

Nothing is measured while the compiler runs, so that it disturbs no measurement.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace

from dispatch_profiler import __version__
from dispatch_profiler.compiler import Cache
from dispatch_profiler.dispatches import Dispatch
from dispatch_profiler.errors import TargetError
from dispatch_profiler.files import sha256
from dispatch_profiler.operations import Operation
from dispatch_profiler.plurals import counted
from dispatch_profiler.profiler.evaluation.candidate import Candidate
from dispatch_profiler.profiler.evaluation.evaluator import Evaluator
from dispatch_profiler.profiler.evaluation.machine import this_machine
from dispatch_profiler.profiler.evaluation.options import EvaluatorOptions
from dispatch_profiler.profiler.records.record import Record, Verdict
from dispatch_profiler.profiler.records.record_file import stored
from dispatch_profiler.profiler.records.resume import Wanted
from dispatch_profiler.runtime import DeviceUri
from dispatch_profiler.targets import Target
from dispatch_profiler.tuner.building import Builder, BuildOptions
from dispatch_profiler.tuner.evaluations import Evaluation, kernel_identity, measured_identity
from dispatch_profiler.tuner.events import Compiling, Evaluated, Listener, Measuring, Resumed, ignore
from dispatch_profiler.tuner.operation_search import OperationSearch, SearchTask, fastest
from dispatch_profiler.tuner.stopwatch import Phase, Stopwatch, Times
from dispatch_profiler.tuner.storage import SearchKey, Storage, Study


@dataclass(frozen=True)
class SearchOptions:
    """How to build and measure.

    `evaluator` names the device; verification and measurement are always on. `cache` has earlier builds.
    """

    evaluator: EvaluatorOptions
    build: BuildOptions = BuildOptions()
    cache: Cache | None = None


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
    interruption costs at most those in progress.

    Raises StorageError if a storage fails or another search uses it, and TargetError if the device does not open.
    """
    watch = Stopwatch()
    with ExitStack() as stack:
        builder = stack.enter_context(Builder(target, options.build, options.cache))
        checked = replace(options.evaluator, verify=True, profile=True)
        evaluator = stack.enter_context(Evaluator(checked))
        content = _content(target, builder, options)
        studies = [stack.enter_context(storage.study(search_key(task, content))) for task in tasks]
        rounds = _Rounds(tasks, studies, builder, evaluator, watch, listen)
        rounds.run()
        return SearchResult(tuple(map(_result, rounds.searches)), watch.times)


def search_key(task: SearchTask, content: dict[str, str]) -> SearchKey:
    """The study of a task: its operation, space, strategy and seed, and `content`, what all tasks share."""
    space = sha256(repr(task.space.spaces).encode())[:16]
    own = {"space": space, "strategy": task.strategy, "seed": str(task.seed)}
    return SearchKey(task.operation, {**content, **own})


def _content(target: Target, builder: Builder, options: SearchOptions) -> dict[str, str]:
    """What makes evaluations of different runs interchangeable, besides the task."""
    device = DeviceUri.parse(options.evaluator.device)
    return {
        "dispatch_profiler": __version__,
        "target": f"{target.name} {target.fingerprint}",
        "flags": " ".join(options.build.flags),
        "compiler": builder.revision,
        # GPUs of one kind are interchangeable; the machine names them.
        "device": device.driver if device.is_gpu else str(device),
        "machine": this_machine(options.evaluator.device).name,
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
        evaluator: Evaluator,
        watch: Stopwatch,
        listen: Listener,
    ) -> None:
        self._studies = studies
        self._builder = builder
        self._evaluator = evaluator
        self._watch = watch
        self._listen = listen
        self._wanted = Wanted(verify=True, profile=True, mode=evaluator.mode.value)
        self._number = 0
        #: Kernels that were measured, by operation and identity.
        self._kernels: dict[tuple[Operation, Hashable], Evaluation] = {}
        self.searches = [
            OperationSearch(task, study.evaluations) for task, study in zip(tasks, studies, strict=True)
        ]

    def run(self) -> None:
        """Evaluate until every search is done."""
        for search in self.searches:
            if known := search.evaluations:
                self._evaluator.learn(each.full_record() for each in known)
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
            if self._number == 0:
                self._evaluator.check_device()
            self._number += 1
            self._evaluate(self._compiled(dispatches))

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
        for at, (own_kernels, same_kernels) in plans.items():
            self._measure(at, own_kernels)
            for each in same_kernels:
                shared = self._kernels[_kernel_of(each.candidate)].shared_with(each.candidate)
                self._store(at, replace(shared, seconds=each.seconds))

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

    def _measure(self, at: int, group: Sequence[_Compiled]) -> None:
        """Verify and measure the candidates of one operation, and store each outcome as soon as it is known."""
        self._watch.switch(Phase.MEASURING)
        compiling = {each.candidate.dispatch: each for each in group}
        for record in self._evaluator.records(each.candidate for each in group):
            seconds = self._watch.switch(Phase.OTHER)
            compiled = compiling[record.dispatch]
            outcome = stored(record)
            if self._wanted.is_in(outcome):
                self._check_device(record)
                kernel = compiled.candidate.kernel
                self._store(at, Evaluation(record.dispatch, outcome, kernel, compiled.seconds + seconds))
            self._watch.switch(Phase.MEASURING)
        self._watch.switch(Phase.OTHER)

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

    def _check_device(self, record: Record) -> None:
        """Raise TargetError if `record` failed because the device is gone, and not because of its kernel."""
        if record.verdict is not Verdict.CRASHED:
            return
        try:
            self._evaluator.check_device()
        except TargetError as error:
            if record.reason != error.message:
                return  # this kernel broke the device; the next one will fail because of the device
            count = sum(len(search.evaluations) for search in self.searches)
            raise TargetError(
                f"the device failed: {error.message}",
                hint=f"{counted(count, 'evaluation')} are stored; start the search again when the device works",
            ) from error


@dataclass(frozen=True)
class _Compiled:
    """A candidate, and its share of the seconds that compiling its round took."""

    candidate: Candidate
    seconds: float


def _kernel_of(candidate: Candidate) -> tuple[Operation, Hashable]:
    return candidate.dispatch.operation, kernel_identity(candidate)
