"""Searches for the fastest configurations of operations, in rounds that can be interrupted at any point.

    propose -> compile everything on all cores -> verify and measure one after the other -> store -> propose -> ...

On a CPU, nothing is measured while the compiler runs, so that it disturbs no measurement (`Rounds`). Beside GPUs, and
beside a part of the CPU's cores, it compiles for some operations while others are measured (`Pipeline`).
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from dispatch_profiler.compiler import Cache
from dispatch_profiler.compiler.workers.cluster import Cluster, Warn
from dispatch_profiler.cores import usable_cores
from dispatch_profiler.errors import UsageError
from dispatch_profiler.files.regular import sha256
from dispatch_profiler.operations import Operation
from dispatch_profiler.profiler.evaluation.candidate import EvaluatorOptions
from dispatch_profiler.profiler.evaluation.hardware import this_machine
from dispatch_profiler.profiler.measurement.measure import MeasureOptions
from dispatch_profiler.profiler.statistics.stopping import StopRule
from dispatch_profiler.profiler.verification.verify import VerifiedHashes
from dispatch_profiler.runtime import DeviceUri
from dispatch_profiler.targets import Target
from dispatch_profiler.tuner.evaluation.building import BuildOptions, CandidateBuilder
from dispatch_profiler.tuner.evaluation.cluster_devices import ClusterDevices, ClusterEvaluator, HostedDevice
from dispatch_profiler.tuner.evaluation.devices import compiles_beside, cores_beside, working_on
from dispatch_profiler.tuner.evaluation.evaluations import Evaluation
from dispatch_profiler.tuner.evaluation.measuring import Devices
from dispatch_profiler.tuner.evaluation.stopwatch import Stopwatch, Times
from dispatch_profiler.tuner.search.events import Listener, Warned, ignore
from dispatch_profiler.tuner.search.operation_search import OperationSearch, SearchTask, fastest
from dispatch_profiler.tuner.search.rounds import Means, Pipeline, Rounds
from dispatch_profiler.tuner.storage.storage import SearchKey, Storage
from dispatch_profiler.version import __version__

#: When a search ends a measurement. The order of the fastest matters, and they are measured again: less precision is
#: enough, a candidate that is three times as slow as the best has three samples, and one that is slower at all has few. On
#: a loaded machine, a single sample may take seven times as long.
SEARCH_STOP = StopRule(width=0.02, seconds=0.5, abandon=1.05, by_decile=True)
#: How a search measures: short samples find the undisturbed moments of a loaded machine.
SEARCH_MEASURE = MeasureOptions(SEARCH_STOP, sample_seconds=1e-3, keeps_disturbed=True)


@dataclass(frozen=True)
class SearchOptions:
    """How to build and measure.

    `evaluator` names the device; verification and measurement are always on. `devices` names several instead, which
    should be alike: each measures other operations. `cache` has earlier builds. `overlap` says whether some operations
    are compiled while others are measured, by default if the devices are GPUs and leave the compiler enough cores, or if
    `spare_cores`, on which nothing is measured, are at least as many as the cores of this process (`confined`).

    With `cluster`, its workers compile, and its workers with devices measure: on the `devices` with a host,
    such as `cuda://0@node7`, or without `devices` on all that suit the target. Every `look_seconds`, a search with `overlap`
    looks for devices of workers that started since.

    After `seconds`, nothing more is proposed.

    `builder` compiles if it is like the builder that a search would open. It stays open. With `compiles_winners`, idle
    builders compile likely winners as entries of a library, for the cache: a benchmark measures them so. Verified results
    are added to `hashes`, and those that it has are not verified again.
    """

    evaluator: EvaluatorOptions
    build: BuildOptions = BuildOptions()
    cache: Cache | None = None
    devices: tuple[str, ...] = ()
    overlap: bool | None = None
    spare_cores: tuple[int, ...] = ()
    cluster: Cluster | None = None
    look_seconds: float = 30.0
    seconds: float | None = None
    builder: CandidateBuilder | None = None
    compiles_winners: bool = False
    hashes: VerifiedHashes | None = None


@dataclass(frozen=True)
class OperationResult:
    """The outcome of the search for one operation.

    `evaluations` are in the order of the proposals, followed by evaluations of earlier runs that were not
    proposed again. `ended_by` is `evaluations`, `seconds`, `gain` or `exhausted`; `time` if the time of all searches was
    over.
    """

    operation: Operation
    evaluations: tuple[Evaluation, ...]
    default: Evaluation | None
    ended_by: str

    @property
    def best(self) -> Evaluation | None:
        """The fastest verified evaluation; None if none was verified."""
        return fastest(self.evaluations)


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

    An operation that follows another comes after it.
    Continues from the evaluations in `storage`. Every evaluation is stored as soon as it is known, so that an
    error or an interruption costs at most the evaluations in progress. If one of several devices fails, the
    others do its work.  Raises StorageError if a storage fails or another search uses it, TargetError if no
    device works, UsageError or ToolError if the cluster cannot be used.
    """
    watch = Stopwatch()
    with contextlib.ExitStack() as stack:
        place = _place(options, stack, lambda message: listen(Warned(message)))
        builder = options.builder
        if builder is None or not builder.builds_for(target, place.build, options.cache):
            builder = stack.enter_context(CandidateBuilder(target, place.build, options.cache))
        checked = replace(options.evaluator, verify=True, profile=True)
        hosted = place.evaluators(place.hosted.values(), checked)
        devices = stack.enter_context(
            Devices(
                checked,
                place.devices,
                hosted,
                lambda names: place.joining(checked, names),
                hashes=options.hashes,
            )
        )
        content = _content(target, builder, options, place)
        studies = [
            stack.enter_context(storage.study(search_key(task, content), task.parameters)) for task in tasks
        ]
        ends = math.inf if options.seconds is None else time.monotonic() + options.seconds
        means = Means(builder, devices, watch, listen, options.compiles_winners, ends)
        rounds = (
            Pipeline(tasks, studies, means, options.look_seconds)
            if place.overlaps
            else Rounds(tasks, studies, means)
        )
        with (
            working_on(place.build.cores)
            if place.overlaps and options.spare_cores
            else contextlib.nullcontext()
        ):
            rounds.run()
        return SearchResult(tuple(map(_result, rounds.searches)), watch.times)


@dataclass(frozen=True)
class SearchPlace:
    """Where candidates are compiled and measured.

    `hosted` are the devices of other machines; if the user named devices, only devices in `wanted` may join later.
    """

    build: BuildOptions
    devices: tuple[str, ...]
    overlaps: bool
    hosted: Mapping[str, HostedDevice] = field(default_factory=dict)
    cluster: ClusterDevices | None = None
    wanted: tuple[str, ...] = ()

    @property
    def machine(self) -> str:
        """The GPU of the first device, or its machine if it is no NVIDIA GPU."""
        name = self.devices[0]
        machine = self.hosted[name].host.machine if name in self.hosted else this_machine(name)
        return machine.gpu or machine.name

    def evaluators(
        self, devices: Iterable[HostedDevice], options: EvaluatorOptions
    ) -> dict[str, ClusterEvaluator]:
        """The evaluators of devices of other machines."""
        if self.cluster is None:
            return {}
        return {each.name: self.cluster.evaluator(each, options) for each in devices}

    def joining(self, options: EvaluatorOptions, taken: Collection[str]) -> dict[str, ClusterEvaluator]:
        """Evaluators of devices whose workers have started since, with names other than `taken`."""
        if self.cluster is None or not self.hosted:
            return {}
        first = next(iter(self.hosted.values()))
        return self.evaluators(self.cluster.new_devices(first, self.wanted, taken), options)


def _place(options: SearchOptions, stack: contextlib.ExitStack, warn: Warn) -> SearchPlace:
    """Where a search takes place; `stack` closes the connection to the cluster. Raises UsageError, ToolError."""
    usual, named, build = options.evaluator.device, options.devices, options.build
    remote = [each for each in named if DeviceUri.parse(each).is_remote]
    cluster, hosted, threads = None, {}, 0
    if options.cluster is not None:
        cluster = stack.enter_context(ClusterDevices(options.cluster, warn))
        hosted = cluster.devices(usual, remote) if remote or not named else {}
        threads = cluster.compiling_threads
    elif remote:
        raise UsageError(f"--devices: {remote[0]} is on another machine", hint="add --cluster=ADDRESS")
    devices = named or tuple(hosted) or (usual,)
    overlaps = compiles_beside(devices) if options.overlap is None else options.overlap
    spare = options.spare_cores
    if spare and any(DeviceUri.parse(each).is_gpu for each in devices):
        raise UsageError(f"--threads is for kernels on the CPU, not on {devices[0]}", hint="leave it out")
    if spare and options.overlap is None:
        overlaps = len(spare) >= len(usable_cores())
    if threads:
        build = replace(build, cluster=options.cluster, workers=threads)
    elif spare:
        build = replace(build, cores=spare if overlaps else (*usable_cores(), *spare))
    elif overlaps:
        build = replace(build, cores=cores_beside(devices))
    return SearchPlace(build, devices, overlaps, hosted, cluster, tuple(remote))


def search_key(task: SearchTask, content: dict[str, str]) -> SearchKey:
    """The study of a task: its operation, space, strategy and seed, and `content`, which all tasks share."""
    space = sha256(repr(task.space.spaces).encode())[:16]
    own = {"space": space, "strategy": task.strategy, "seed": str(task.seed)}
    return SearchKey(task.operation, {**content, **own})


def _content(
    target: Target, builder: CandidateBuilder, options: SearchOptions, place: SearchPlace
) -> dict[str, str]:
    """The conditions that runs must share, besides the task, so that their evaluations are interchangeable."""
    device = replace(DeviceUri.parse(place.devices[0]), host="")
    return {
        "dispatch_profiler": __version__,
        "target": f"{target.name} {target.fingerprint}",
        "flags": " ".join(options.build.flags),
        "compiler": builder.revision,
        # GPUs of one kind are interchangeable, wherever they are; `machine` names them.
        "device": str(device) if device.is_local else device.driver,
        "machine": place.machine,
        "mode": options.evaluator.measure.mode.value,
        "inputs": str(options.evaluator.seed),
    }


def _result(search: OperationSearch) -> OperationResult:
    return OperationResult(search.operation, search.evaluations, search.default, search.ended_by or "time")
