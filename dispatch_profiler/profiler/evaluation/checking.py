"""Verification of candidates: another process compares their results with a reference."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from dispatch_profiler.dispatches import Dispatch
from dispatch_profiler.errors import ToolError
from dispatch_profiler.operations import Distribution, ErrorBound, Operation
from dispatch_profiler.profiler.evaluation import device_worker
from dispatch_profiler.profiler.evaluation.candidate import Candidate
from dispatch_profiler.profiler.evaluation.workers import Runners, refs_of
from dispatch_profiler.profiler.measurement.measure import MeasureOptions
from dispatch_profiler.profiler.records.record import Record, Verdict
from dispatch_profiler.profiler.verification.verified_hashes import Expected, Result, VerifiedHashes
from dispatch_profiler.profiler.verification.verify import ShapeMismatch
from dispatch_profiler.targets import parse_target


class Verifier:
    """Gives records their verdicts. Results that equal a verified one bit for bit are not compared again."""

    def __init__(self, runners: Runners, seed: int) -> None:
        self._runners = runners
        self._seed = seed
        self._verified_hashes = VerifiedHashes()

    def prepare(self, operation: Operation) -> None:
        """Compute the references of an operation, and keep them."""
        for distribution in operation.distributions:
            self._runners.prepare(Expected(operation, distribution))

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
        )
        known = self._verified_hashes.of(expected)
        result: Result = self._runners.call(candidate, device_worker.unless_known, known, step, *arguments)
        if result.arrays is None:
            return record
        try:
            comparison = self._runners.check(expected, result.arrays)
        except ShapeMismatch as error:
            return record.failed(Verdict.FAILED, error.message)
        except ToolError as error:
            reason = f"the reference could not be computed: {error.message}"
            return record.failed(Verdict.NOT_VERIFIED, reason)
        if comparison.passed:
            self._verified_hashes.add(expected, result.digest)
            return record
        where = f"({distribution.value}, seed {self._seed})"
        return record.failed(Verdict.FAILED, f"{comparison.message} {where}")


def _error_bound(dispatch: Dispatch, candidate: Candidate) -> ErrorBound | None:
    """How the candidate adds, if not as the operation says."""
    return None if candidate.library else dispatch.error_bound_on(parse_target(candidate.target))
