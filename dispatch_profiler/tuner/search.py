"""Searches for the fastest configurations of operations, in rounds that can be interrupted at any point.

    propose -> compile everything on all cores -> verify and measure one after the other -> store -> propose -> ...

On a CPU, nothing is measured while the compiler runs, so that it disturbs no measurement (`Rounds`). Beside GPUs, it
compiles for some operations while others are measured (`Pipeline`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from dispatch_profiler import __version__
from dispatch_profiler.compiler import Cache
from dispatch_profiler.files import sha256
from dispatch_profiler.operations import Operation
from dispatch_profiler.profiler.evaluation.machine import this_machine
from dispatch_profiler.profiler.evaluation.options import EvaluatorOptions
from dispatch_profiler.runtime import DeviceUri
from dispatch_profiler.targets import Target
from dispatch_profiler.tuner.building import Builder, BuildOptions
from dispatch_profiler.tuner.core_shares import compiles_beside, cores_beside
from dispatch_profiler.tuner.evaluations import Evaluation
from dispatch_profiler.tuner.events import Listener, ignore
from dispatch_profiler.tuner.measuring import Devices
from dispatch_profiler.tuner.operation_search import OperationSearch, SearchTask, fastest
from dispatch_profiler.tuner.pipeline import Pipeline
from dispatch_profiler.tuner.rounds import Means, Rounds
from dispatch_profiler.tuner.stopwatch import Stopwatch, Times
from dispatch_profiler.tuner.storage import SearchKey, Storage


@dataclass(frozen=True)
class SearchOptions:
    """How to build and measure.

    `evaluator` names the device; verification and measurement are always on. `devices` names several instead, which
    should be alike: each measures other operations. `cache` has earlier builds. `overlap` says whether some operations
    are compiled while others are measured, by default if the devices are GPUs and leave the compiler enough cores.
    """

    evaluator: EvaluatorOptions
    build: BuildOptions = BuildOptions()
    cache: Cache | None = None
    devices: tuple[str, ...] = ()
    overlap: bool | None = None


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
    named = options.devices or (options.evaluator.device,)
    overlaps = compiles_beside(named) if options.overlap is None else options.overlap
    build = replace(options.build, cores=cores_beside(named)) if overlaps else options.build
    with contextlib.ExitStack() as stack:
        builder = stack.enter_context(Builder(target, build, options.cache))
        checked = replace(options.evaluator, verify=True, profile=True)
        devices = stack.enter_context(Devices(checked, named))
        content = _content(target, builder, options)
        studies = [stack.enter_context(storage.study(search_key(task, content))) for task in tasks]
        means = Means(builder, devices, watch, listen)
        rounds = Pipeline(tasks, studies, means) if overlaps else Rounds(tasks, studies, means)
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
