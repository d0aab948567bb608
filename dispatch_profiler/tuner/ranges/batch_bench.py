"""Builds, verifies and times kernels for any number of rows or images, at one number after another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from dispatch_profiler.closing import Closing
from dispatch_profiler.compiler import (
    BuildRequest,
    Built,
    Cache,
    Compiler,
    launch_flags,
    launch_key,
    launch_request,
    origin_of,
)
from dispatch_profiler.compiler.workers.pool import BuildPool, Executor
from dispatch_profiler.configurations import packed_by
from dispatch_profiler.dispatches import Dispatch, State
from dispatch_profiler.errors import DispatchProfilerError
from dispatch_profiler.isolation import Worker, WorkerLimits
from dispatch_profiler.operations import Distribution, Operation
from dispatch_profiler.profiler.evaluation import device_worker
from dispatch_profiler.profiler.evaluation.evaluator import runtime_version
from dispatch_profiler.profiler.evaluation.hardware import this_machine
from dispatch_profiler.profiler.records.record import Provenance
from dispatch_profiler.profiler.verification.verify import Comparison, Expected
from dispatch_profiler.targets import Target
from dispatch_profiler.tuner.evaluation.building import BuildOptions
from dispatch_profiler.tuner.ranges import batch_worker
from dispatch_profiler.tuner.ranges.batch_worker import BatchKernel

#: Seconds for which a kernel is called in a round.
_SECONDS = 5e-3
#: Calls in a round at most.
_MOST_CALLS = 1000


@dataclass(frozen=True)
class RangeKernel:
    """A compiled kernel. Its dispatch is of the largest size."""

    dispatch: Dispatch
    batch: BatchKernel
    module_key: str
    flags: tuple[str, ...]

    @property
    def name(self) -> str:
        return self.dispatch.name

    @property
    def layout(self) -> str:
        """Kernels with equal layouts share a packed weight."""
        return self.batch.layout


@dataclass(frozen=True)
class BenchOptions:
    """What the bench works for and with. `references` is a folder for expected results, `seconds` the limit of a kernel."""

    target: Target
    compiler: Compiler
    build: BuildOptions
    cache: Cache | None
    references: Path
    seed: int
    seconds: float


class BatchBench(Closing):
    """Use as a context manager. `failures` has the reason of each dispatch that was rejected, by its name."""

    def __init__(self, options: BenchOptions) -> None:
        self._options = options
        limits = WorkerLimits(options.seconds)
        device = options.target.device_uri
        self._device = Worker(limits, batch_worker.start, (device,))
        self._checker = Worker(
            limits,
            device_worker.start_checker,
            (str(options.references), options.seed),
            environment=device_worker.CHECKER_ENVIRONMENT,
        )
        self.failures: dict[str, str] = {}
        self._vmfbs: dict[str, tuple[RangeKernel, bytes]] = {}
        #: What the process that runs kernels has loaded, and the operation whose operands it holds.
        self._loaded: set[str] = set()
        self._begun: Operation | None = None
        #: Kernels that were right, with the size.
        self._verified: set[tuple[str, Operation]] = set()

    def build(self, dispatches: Sequence[Dispatch]) -> list[RangeKernel]:
        """The kernels of those dispatches that compile, in order."""
        missing = {
            each.name: each
            for each in dispatches
            if each.name not in self._vmfbs and each.name not in self.failures
        }
        keys = {self._key(each): each for each in missing.values()}
        requests: dict[str, BuildRequest] = {}
        for key, dispatch in keys.items():
            built = (
                None if self._options.cache is None else self._options.cache.get(key, self._options.seconds)
            )
            if built is None:
                requests[key] = launch_request(dispatch, self._options.target)
            else:
                self._take(key, dispatch, built)
        if requests:
            origin = origin_of(self._options.target, self._options.compiler)
            with self._pool(len(requests)) as pool:
                for key, built in pool.results(requests):
                    if self._options.cache is not None:
                        self._options.cache.put(key, built, keys[key].operation.name, origin)
                    self._take(key, keys[key], built)
        return [self._vmfbs[each.name][0] for each in dispatches if each.name in self._vmfbs]

    def _key(self, dispatch: Dispatch) -> str:
        return launch_key(dispatch, self._options.target, self._options.compiler, ())

    def _pool(self, requests: int) -> BuildPool[str]:
        build = self._options.build
        workers = min(build.concurrency, requests)
        return BuildPool(self._options.compiler, Executor(workers=workers, cores=build.cores), build.limits)

    def _take(self, key: str, dispatch: Dispatch, built: Built) -> None:
        outcome = built.outcomes[dispatch.name]
        if outcome.state is not State.COMPILED:
            self.failures[dispatch.name] = f"{outcome.state.value}: {outcome.reason}"
            return
        steps = dispatch.configuration.packing(dispatch.operation)
        kernel = BatchKernel(dispatch.name, dispatch.packing_function, packed_by(steps), layout=repr(steps))
        flags = launch_flags(dispatch, self._options.target)
        self._vmfbs[dispatch.name] = RangeKernel(dispatch, kernel, key, flags), built.verify

    # -- running ------------------------------------------------------------------------------

    def seconds_at(
        self, operation: Operation, kernels: Sequence[RangeKernel], rounds: int
    ) -> dict[str, list[float]]:
        """Seconds of a call of each kernel in each round at the size of `operation`, by name, without those that fail.

        Kernels are verified at each size that they are first timed at. In a round, each is called for some milliseconds,
        in the order of the others or backwards, so that a drift of the machine affects all of them alike.
        """
        right = [each.name for each in kernels if self._is_right(operation, each)]
        if not right:
            return {}
        try:
            self._times(operation, dict.fromkeys(right, 1))
            once = self._times(operation, dict.fromkeys(right, 1))
            counts = {
                name: max(1, min(_MOST_CALLS, round(_SECONDS / max(each, 1e-9))))
                for name, each in once.items()
            }
            found: dict[str, list[float]] = {name: [] for name in right}
            for at in range(rounds):
                order = right if at % 2 else right[::-1]
                for name, each in self._times(operation, {name: counts[name] for name in order}).items():
                    found[name].append(each)
        except DispatchProfilerError as error:
            self._forget_device()
            self.failures |= dict.fromkeys(right, f"{operation.name}: {error.message}")
            return {}
        return found

    def _times(self, operation: Operation, calls: dict[str, int]) -> dict[str, float]:
        self._prepare(operation, list(calls))
        limit = self._options.seconds * len(calls)
        found: dict[str, float] = self._device.call(batch_worker.times, calls, seconds=limit)
        return found

    def _is_right(self, operation: Operation, kernel: RangeKernel) -> bool:
        """Whether a kernel computes what it should at the size of `operation`; if not, why is in `failures`."""
        if kernel.name in self.failures:
            return False
        if (kernel.name, operation) in self._verified:
            return True
        try:
            self._prepare(operation, [kernel.name])
            result = self._device.call(batch_worker.run_once, kernel.name)
            bound = kernel.dispatch.configuration.error_bound(operation)
            expected = Expected(operation, Distribution.REALS, error_bound=bound)
            comparison: Comparison = self._checker.call(device_worker.check, expected, result)
            reason = comparison.message
        except DispatchProfilerError as error:
            self._forget_device()
            reason = error.message
        if reason:
            self.failures[kernel.name] = f"{operation.name}: {reason}"
            return False
        self._verified.add((kernel.name, operation))
        return True

    def _prepare(self, operation: Operation, names: Sequence[str]) -> None:
        """Let the process hold kernels and operands. Raises DispatchProfilerError."""
        for name in names:
            if name not in self._loaded:
                kernel, vmfb = self._vmfbs[name]
                self._device.call(batch_worker.load, kernel.batch, vmfb)
                self._loaded.add(name)
        if self._begun != operation:
            self._device.call(batch_worker.begin, operation, self._options.seed)
            self._begun = operation

    def _forget_device(self) -> None:
        """After an error, a new process may be needed."""
        self._device.close()
        self._loaded.clear()
        self._begun = None

    def provenance(self, kernel: RangeKernel) -> Provenance:
        """Where and how a kernel was measured, now."""
        target = self._options.target
        return Provenance(
            device=target.device_uri,
            target=target.name,
            iree=f"compiler {self._options.compiler.revision}, runtime {runtime_version()}",
            seed=self._options.seed,
            when=datetime.now().astimezone().isoformat(timespec="seconds"),
            machine=this_machine(target.device_uri),
            module_key=kernel.module_key,
            flags=kernel.flags,
        )

    def close(self) -> None:
        """End the processes."""
        self._device.close()
        self._checker.close()
