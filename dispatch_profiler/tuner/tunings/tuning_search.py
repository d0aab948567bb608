"""Tuning files -> searches: the problems of a target and device are searched together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from dispatch_profiler.errors import TargetError, ToolError
from dispatch_profiler.library import Library
from dispatch_profiler.targets import Target
from dispatch_profiler.tuner.evaluation.devices import SharedDevices, usual_devices
from dispatch_profiler.tuner.evaluation.stopwatch import Times
from dispatch_profiler.tuner.search.events import Listener, Sharing, ignore
from dispatch_profiler.tuner.search.operation_search import SearchTask
from dispatch_profiler.tuner.search.search import OperationResult, SearchOptions, search
from dispatch_profiler.tuner.spaces.seeds import baselines, seeds
from dispatch_profiler.tuner.storage.storage import Storage
from dispatch_profiler.tuner.tunings.tuning_file import DEFAULT_EVALUATIONS, Tuning


@dataclass(frozen=True)
class Searched:
    """The outcome of the search for one problem: a result, or the reason why it has no result."""

    tuning: Tuning
    result: OperationResult | None = None
    failure: str = ""

    @property
    def is_failure(self) -> bool:
        """Whether nothing was verified."""
        return self.result is None or self.result.best is None


@dataclass(frozen=True)
class TuningResult:
    """The outcome of each problem, in order, and where the time went."""

    problems: tuple[Searched, ...]
    times: Times


def task_of(tuning: Tuning, library: Library | None = None) -> SearchTask:
    """The search that a tuning file describes; winners of `library` are among its seeds."""
    operation, target = tuning.operation, tuning.target
    return SearchTask(
        tuning.space(),
        baselines(operation, target),
        tuple(
            each
            for each in seeds(operation, target, library, packed_weights=tuning.packed_weights)
            if not tuning.kinds or each.kind in tuning.kinds
        ),
        tuning.strategy,
        tuning.seed,
        tuning.evaluations,
        tuning.seconds,
        descend_after(tuning.evaluations),
    )


def descend_after(evaluations: int | None) -> int:
    """After how many proposals a search descends: three quarters of its budget, or of the default budget without a limit."""
    return 3 * (evaluations or DEFAULT_EVALUATIONS) // 4


def search_tunings(
    tunings: Sequence[Tuning],
    storage: Storage,
    options: SearchOptions,
    library: Library | None = None,
    listen: Listener = ignore,
) -> TuningResult:
    """Search for the fastest configuration of each problem.

    Uses `options.devices`; without them, the devices of each file (`usual_devices`). A device that fails
    affects only its own problems. Raises StorageError if the storage fails or another search uses it.
    """
    groups: dict[tuple[Target, str], list[int]] = {}
    for place, tuning in enumerate(tunings):
        device = options.devices[0] if options.devices else tuning.device
        groups.setdefault((tuning.target, device), []).append(place)
    searched: dict[int, Searched] = {}
    times = Times()
    for (target, device), places in groups.items():
        tasks = [task_of(tunings[place], library) for place in places]
        # With a cluster and without names, `search` takes the devices of its workers.
        is_given = options.devices or options.cluster is not None
        shared = SharedDevices(options.devices) if is_given else usual_devices(device)
        if len(shared.devices) > 1 or shared.left_out:
            listen(Sharing(len(tasks), shared.devices, shared.left_out))
        on_device = replace(
            options, evaluator=replace(options.evaluator, device=device), devices=shared.devices
        )
        try:
            outcome = search(tasks, target, storage, on_device, listen)
        except (TargetError, ToolError) as error:
            searched |= {place: Searched(tunings[place], failure=error.message) for place in places}
            continue
        times += outcome.times
        searched |= {
            place: Searched(tunings[place], result)
            for place, result in zip(places, outcome.operations, strict=True)
        }
    return TuningResult(tuple(searched[place] for place in range(len(tunings))), times)
