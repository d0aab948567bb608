"""One run of the profiler: dispatch after dispatch, verified and measured, each costing no other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path

import numpy as np

from dispatch_profiler.compiler import artifact_of
from dispatch_profiler.errors import DispatchProfilerError, ToolError, WorkerTimedOut
from dispatch_profiler.generator import DispatchEntry, ModuleEntry, OperationEntry, State, Tree
from dispatch_profiler.generator.tree import Purpose
from dispatch_profiler.isolation import Worker, WorkerLimits, available_memory
from dispatch_profiler.profiler import job
from dispatch_profiler.profiler.inputs import DEFAULT_SEED, Distribution
from dispatch_profiler.profiler.measure import MeasureOptions, prefers_single
from dispatch_profiler.profiler.records import Provenance, Record, Verdict
from dispatch_profiler.profiler.verify import ShapeMismatch

_STATES = {State.NOT_COMPILED: Verdict.NOT_COMPILED, State.NOT_APPLIED: Verdict.NOT_APPLIED}


@dataclass(frozen=True)
class ProfileOptions:
    """What to do with each dispatch. `seconds` is the time limit of one step of one dispatch."""

    device: str
    verify: bool = True
    profile: bool = True
    measure: MeasureOptions = MeasureOptions()
    seed: int = DEFAULT_SEED
    seconds: float = 120.0
    memory_bytes: int | None = None
    build_dir: Path | None = None


class Session:
    """Makes records. Kernels run in a worker process that owns the device; another checks results.

    `damaged` collects the vmfbs that are not what was compiled.
    """

    def __init__(self, tree: Tree, options: ProfileOptions) -> None:
        self._tree = tree
        self._options = options
        self._checked: dict[Path, bool] = {}
        self._runtime = f"runtime {_version('iree-base-runtime')}"
        memory = options.memory_bytes if options.memory_bytes is not None else available_memory()
        self._worker = Worker(
            WorkerLimits(options.seconds, memory),
            job.start,
            (options.device, str(options.build_dir) if options.build_dir else ""),
        )
        self._checker = Worker(
            WorkerLimits(options.seconds, memory),
            job.start_checker,
            (str(tree.references), options.seed),
            job.CHECKER_ENVIRONMENT,
        )
        self.damaged: list[Path] = []

    def check_device(self) -> None:
        """Raise TargetError if the device does not open."""
        self._worker.call(_nothing)

    def records(self, pairs: Iterable[tuple[OperationEntry, DispatchEntry]]) -> Iterator[Record]:
        """A record for each dispatch, as it is done."""
        for entry, dispatch in pairs:
            yield self.record(entry, dispatch)

    def record(self, entry: OperationEntry, dispatch: DispatchEntry) -> Record:
        """Verify and measure one dispatch, as far as it goes."""
        module = entry.module_of(dispatch.dispatch)
        revision = module.compiler if module else "not compiled"
        provenance = Provenance(
            self._options.device, entry.target, f"compiler {revision}, {self._runtime}", self._options.seed
        )
        record = Record(dispatch.dispatch, provenance, Verdict.NOT_VERIFIED)
        if dispatch.state is not State.COMPILED or module is None:
            verdict = _STATES.get(dispatch.state, Verdict.NOT_COMPILED)
            return record.failed(verdict, dispatch.reason or "it was only generated: run compile.py")
        try:
            verify = self._module(entry, module, "verify")
            profile = self._module(entry, module, "profile")
        except _Damaged as error:
            return record.failed(Verdict.NOT_COMPILED, str(error))
        return self._guarded(record, verify, profile)

    def _guarded(self, record: Record, verify: job.Module, profile: job.Module) -> Record:
        try:
            if self._options.verify:
                record = self._verified(record, verify)
            if self._options.profile and not record.verdict.is_failure:
                record = self._measured(record, verify, profile)
            return record
        except WorkerTimedOut as error:
            return record.failed(Verdict.TIMED_OUT, f"{error.message}; --timeout sets the limit")
        except DispatchProfilerError as error:
            return record.failed(Verdict.CRASHED, error.message)

    def _verified(self, record: Record, module: job.Module) -> Record:
        """The record with its verdict: on integers first, then on reals."""
        operation, name, seed = record.dispatch.operation, record.dispatch.name, self._options.seed
        for distribution in Distribution:
            actual = self._worker.call(job.run_once, module, name, operation, distribution, seed)
            record = self._checked_result(record, distribution, actual)
            if record.is_failure:
                return record
        return replace(record, verdict=Verdict.SUCCESS)

    def _checked_result(self, record: Record, distribution: Distribution, actual: np.ndarray) -> Record:
        """The record, failed if `actual` is not what the reference says."""
        try:
            comparison = self._checker.call(job.check, record.dispatch.operation, distribution, actual)
        except ShapeMismatch as error:
            return record.failed(Verdict.FAILED, error.message)
        except ToolError as error:
            reason = f"the reference could not be computed: {error.message}"
            return record.failed(Verdict.NOT_VERIFIED, reason)
        if comparison.passed:
            return record
        where = f"({distribution.value}, seed {self._options.seed})"
        return record.failed(Verdict.FAILED, f"{comparison.message} {where}")

    def _measured(self, record: Record, verify: job.Module, profile: job.Module) -> Record:
        """The record with its measurement; what was measured is verified once more."""
        operation, name, options = record.dispatch.operation, record.dispatch.name, self._options
        single = self._worker.call(job.estimate, verify, name, operation, options.seed)
        module = verify if prefers_single(single, profile.repeat) else profile
        # The limit is for a step that hangs, not for samples of a kernel that is only slow.
        expected = single * module.repeat * (options.measure.repetitions + 3)
        measurement, result = self._worker.call(
            job.take_samples, module, name, operation, options.seed, options.measure,
            seconds=options.seconds + 3.0 * expected,
        )  # fmt: skip
        if record.verdict is Verdict.SUCCESS:
            record = self._checked_result(record, Distribution.REALS, result)
            if record.is_failure:
                return replace(record, reason=f"in the profile vmfb {record.reason}")
        return replace(record, measurement=measurement)

    def _module(self, entry: OperationEntry, module: ModuleEntry, purpose: Purpose) -> job.Module:
        path = self._tree.vmfb(entry.operation, module.name, purpose)
        wanted = module.verify if purpose == "verify" else module.profile
        if path not in self._checked:
            self._checked[path] = wanted is not None and artifact_of(path) == wanted
            if not self._checked[path]:
                self.damaged.append(path)
        if not self._checked[path] or wanted is None:
            raise _Damaged(f"{path.name} is damaged or missing: run compile.py again")
        return job.Module(str(path), wanted.sha256, module.repeat if purpose == "profile" else 1)

    def close(self) -> None:
        """End the worker processes."""
        self._worker.close()
        self._checker.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class _Damaged(Exception):
    """A vmfb is not what was compiled."""


def _nothing() -> None:
    """A call that only starts the worker."""


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "of unknown version"
