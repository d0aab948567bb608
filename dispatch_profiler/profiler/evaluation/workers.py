"""The worker processes of a run: one for IREE's device, one for each library, one that checks results."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from dispatch_profiler.dispatches import Dispatch
from dispatch_profiler.errors import DispatchProfilerError, ToolError
from dispatch_profiler.isolation import Worker, WorkerLimits, available_memory
from dispatch_profiler.operations import Distribution, ErrorBound, Operation
from dispatch_profiler.profiler.evaluation import device_worker
from dispatch_profiler.profiler.evaluation.candidate import LIBRARY, Candidate, Vmfb, VmfbRef, VmfbRefs
from dispatch_profiler.profiler.evaluation.device_worker import BatchRequest, TakenBatch
from dispatch_profiler.profiler.measurement.measure import MeasureOptions
from dispatch_profiler.profiler.providers import threads as library_threads
from dispatch_profiler.profiler.records.record import Record, Verdict
from dispatch_profiler.profiler.statistics.stopping import SentinelWatch
from dispatch_profiler.profiler.verification.verify import (
    Comparison,
    Expected,
    Result,
    ShapeMismatch,
    VerifiedHashes,
)
from dispatch_profiler.runtime import DeviceUri
from dispatch_profiler.targets import parse_target

#: Stands for no library: the process that runs vmfbs.
_DISPATCHES = ""
#: Samples of the sentinel: one, and more if it differs.
_FEW, _MANY = 1, 7


def ref_of(vmfb: Vmfb | None, repeat: int) -> VmfbRef:
    """How a process refers to a vmfb."""
    return LIBRARY if vmfb is None else VmfbRef(vmfb.sha256, repeat)


def refs_of(candidate: Candidate) -> VmfbRefs:
    """How a process refers to the vmfbs of a candidate, or to the repeated kernel of a library."""
    if candidate.library:
        return VmfbRefs(LIBRARY, VmfbRef("", candidate.repeat))
    return VmfbRefs(
        ref_of(candidate.verify, 1),
        ref_of(candidate.profile, candidate.repeat),
        candidate.dispatch.configuration.packs_weight,
    )


def provide(worker: Worker, vmfbs: Iterable[Vmfb]) -> None:
    """Send a process the vmfbs that it does not hold. Raises DamagedVmfb."""
    known = {vmfb.sha256: vmfb for vmfb in vmfbs}
    if not known:
        return
    for digest in worker.call(device_worker.missing_vmfbs, tuple(known)):
        worker.call(device_worker.receive, digest, known[digest].load())


@dataclass(frozen=True)
class Runner:
    """A process that runs dispatches or the kernels of one library, and the watch of its sentinel."""

    worker: Worker
    watch: SentinelWatch

    def disturbance(self, seconds: float) -> str:
        """A warning if the sentinel shows that the machine is disturbed; else empty.

        Takes little longer than `seconds`.
        """
        if self.watch.is_as_usual(self.worker.call(device_worker.sentinel_samples, _FEW, seconds)):
            return ""
        samples = self.worker.call(device_worker.sentinel_samples, _MANY, seconds)
        usual = self.watch.usual
        if not samples or not self.watch.is_disturbed(samples) or usual is None:
            return ""
        ratio = statistics.median(samples) / usual
        return f"measured while the machine was disturbed: the sentinel took {ratio:.2f} times its usual time"


def memory_limit(device: str) -> int | None:
    """Default limit of the address space that a process may map beyond its start, in bytes; None: no limit.

    A GPU's driver maps all of the GPU's memory, so there is no limit for GPUs.
    """
    return None if DeviceUri.parse(device).is_gpu else available_memory()


class Runners:
    """Starts each process on first use; `close` ends them."""

    def __init__(
        self, limits: WorkerLimits, device: str, build_dir: Path | None, references: Path | None, seed: int
    ) -> None:
        self._limits = limits
        self._device = device
        build = str(build_dir) if build_dir else ""
        self._runners = {
            _DISPATCHES: Runner(Worker(limits, device_worker.start, (device, build)), SentinelWatch())
        }
        self._versions: dict[str, str] = {}
        #: The process that computes references and compares results with them.
        self.checker = Worker(
            limits, device_worker.start_checker, (str(references or ""), seed, device), device_worker.CHECKER_ENVIRONMENT
        )  # fmt: skip

    def check_device(self) -> None:
        """Raise TargetError if the device does not open."""
        self.of(_DISPATCHES).worker.call(device_worker.ready)

    def check_libraries(self, names: Iterable[str]) -> None:
        """Raise UsageError if a library does not run on the device, MissingDependency if not installed."""
        for name in names:
            self.library_version(name)

    def of(self, library: str) -> Runner:
        """The process that runs the kernels of `library`; "" stands for dispatches."""
        if library not in self._runners:
            threads = library_threads.iree_threads(self._device)
            worker = Worker(
                self._limits,
                device_worker.start_library,
                (library, self._device, threads),
                library_threads.environment(threads),
            )
            self._runners[library] = Runner(worker, SentinelWatch())
        return self._runners[library]

    def call(
        self,
        candidate: Candidate,
        function: Callable[..., Any],
        *arguments: object,
        seconds: float | None = None,
    ) -> Any:
        """Send `candidate`'s vmfbs to its process, and call `function(*arguments)` there.

        Raises the errors of `Worker.call`, and DamagedVmfb.
        """
        worker = self.of(candidate.library).worker
        provide(worker, candidate.vmfbs)
        return worker.call(function, *arguments, seconds=seconds)

    def taken_batches(
        self, vmfbs: Iterable[Vmfb], requests: Sequence[BatchRequest], seconds: float
    ) -> list[TakenBatch | DispatchProfilerError]:
        """A sample batch, or an error, of each of several dispatches. Raises the errors of `call`."""
        worker = self.of(_DISPATCHES).worker
        provide(worker, vmfbs)
        found: list[TakenBatch | DispatchProfilerError] = worker.call(
            device_worker.take_batches, requests, seconds=seconds
        )
        return found

    def library_version(self, name: str) -> str:
        """See `device_worker.library_version`."""
        if name not in self._versions:
            self._versions[name] = self.of(name).worker.call(device_worker.library_version)
        return self._versions[name]

    def put_to_sleep(self, library: str) -> None:
        """Wait until the threads of a library sleep, or end it: they would disturb the next measurement."""
        if library == _DISPATCHES:
            return
        worker = self._runners[library].worker
        try:
            asleep = worker.call(library_threads.wait_until_asleep)
        except DispatchProfilerError:
            asleep = False
        if not asleep:
            worker.close()

    def kill(self) -> None:
        """End the processes from another thread; a call that waits for one raises WorkerCrashed."""
        for worker in (*(runner.worker for runner in self._runners.values()), self.checker):
            worker.kill()

    def close(self) -> None:
        """End the processes."""
        for runner in self._runners.values():
            runner.worker.close()
        self.checker.close()


# -- checking --------------------------------------------------------------------------------------

# Verification of candidates: another process compares their results with a reference.


class Verifier:
    """Gives records their verdicts. Results that equal a verified one bit for bit are not compared again."""

    def __init__(self, runners: Runners, seed: int, hashes: VerifiedHashes) -> None:
        self._runners = runners
        self._seed = seed
        self._hashes = hashes

    def prepare(self, operation: Operation) -> None:
        """Compute the references of an operation, and keep them, unless a result is known: others are likely to equal it."""
        for distribution in operation.distributions:
            expected = Expected(operation, distribution, seed=self._seed)
            if not self._hashes.of(expected):
                self._runners.checker.call(device_worker.prepare, expected)

    def verified(self, record: Record, candidate: Candidate) -> Record:
        """The record with its verdict on the verify vmfb: on integers first, then on reals."""
        operation, name = record.dispatch.effective_operation, record.dispatch.name
        verify = refs_of(candidate).verify
        for distribution in operation.distributions:
            once = verify, name, operation, distribution, self._seed
            record = self._checked(record, candidate, distribution, device_worker.run_once, *once)
            if record.is_failure:
                return record
        return replace(record, verdict=Verdict.SUCCESS)

    def verified_as_timed(
        self, record: Record, candidate: Candidate, options: MeasureOptions, single_seconds: float
    ) -> Record:
        """The record, failed if the timed code computes something else."""
        name, operation = record.dispatch.name, record.dispatch.operation
        timed = refs_of(candidate), name, operation, self._seed, options, single_seconds
        record = self._checked(record, candidate, Distribution.REALS, device_worker.result_of_timed, *timed)
        if not record.is_failure:
            return record
        where = "when it was timed" if candidate.library else "in the profile vmfb"
        return record.failed(record.verdict, f"{where} {record.reason}")

    def _checked(
        self,
        record: Record,
        candidate: Candidate,
        distribution: Distribution,
        step: Callable[..., tuple[np.ndarray, ...]],
        *arguments: object,
    ) -> Record:
        """The record, failed if the result of `step` differs from the reference."""
        # A library may round between the steps of an epilogue, which a dispatch fuses.
        expected = Expected(
            record.dispatch.effective_operation,
            distribution,
            stepwise=bool(candidate.library),
            error_bound=_error_bound(record.dispatch, candidate),
            seed=self._seed,
        )
        known = self._hashes.of(expected)
        result: Result = self._runners.call(candidate, device_worker.unless_known, known, step, *arguments)
        if result.arrays is None:
            return record
        try:
            comparison: Comparison = self._runners.checker.call(device_worker.check, expected, result.arrays)
        except ShapeMismatch as error:
            return record.failed(Verdict.FAILED, error.message)
        except ToolError as error:
            reason = f"the reference could not be computed: {error.message}"
            return record.failed(Verdict.NOT_VERIFIED, reason)
        if comparison.passed:
            self._hashes.add(expected, result.digest)
            return record
        where = f"({distribution.value}, seed {self._seed})"
        return record.failed(Verdict.FAILED, f"{comparison.message} {where}")


def _error_bound(dispatch: Dispatch, candidate: Candidate) -> ErrorBound | None:
    """How the candidate adds, if not as the operation says."""
    return None if candidate.library else dispatch.error_bound_on(parse_target(candidate.target))
