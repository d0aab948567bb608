"""An evaluation: the outcome of one configuration, as a search stores it and passes it to its strategy."""

from __future__ import annotations

import json
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace

from dispatch_profiler.configurations import Configuration, configuration_from_dict
from dispatch_profiler.dispatches import Dispatch
from dispatch_profiler.errors import DispatchProfilerError
from dispatch_profiler.files.json_fields import FieldError, mapping, number, parse_json, text, whole
from dispatch_profiler.operations import Operation
from dispatch_profiler.profiler.evaluation.candidate import Candidate
from dispatch_profiler.profiler.records.record import Record, StoredRecord, Verdict
from dispatch_profiler.profiler.records.record_file import from_line, to_line
from dispatch_profiler.profiler.statistics.stopping import Ended

#: The tag of a record that was taken over from a dispatch with the same kernel.
SAME_KERNEL_AS = "same_kernel_as"


@dataclass(frozen=True)
class Evaluation:
    """The outcome of one dispatch in a search.

    `kernel` is the hash of its code (`Candidate.kernel`), empty if it has none. `seconds` is its share of the
    time that its round took to compile and to measure. `repeat` counts the executions in a call of its module; 0 if unknown.
    """

    dispatch: Dispatch
    record: StoredRecord
    kernel: str = ""
    seconds: float = 0.0
    repeat: int = 0

    @property
    def configuration(self) -> Configuration:
        return self.dispatch.configuration

    @property
    def milliseconds(self) -> float | None:
        """The time in quiet moments, the lowest decile of the samples; None unless verified and measured.

        On a loaded machine, it is known far better than the median (`benchmarks/paired.py`). An
        abandoned dispatch has a time of few samples: it is slower than the best.
        """
        record = self.record
        if record.verdict is not Verdict.SUCCESS or record.measurement is None or record.was_interrupted:
            return None
        milliseconds = record.measurement.p10_ms
        return milliseconds if milliseconds > 0.0 else None

    @property
    def was_abandoned(self) -> bool:
        """Whether its measurement ended early because it was clearly slower than the best."""
        measurement = self.record.measurement
        return measurement is not None and measurement.ended_by == Ended.ABANDONED.value

    @property
    def reason(self) -> str:
        """Why it has no time: the verdict, and what is known about it; empty with a time."""
        if self.milliseconds is not None:
            return ""
        known = self.record.reason or ("interrupted" if self.record.was_interrupted else "")
        return f"{self.record.verdict.value}: {known}" if known else self.record.verdict.value

    @property
    def same_kernel_as(self) -> str:
        """The dispatch whose record it shares because their code is the same; empty if it was measured itself."""
        return self.record.tags.get(SAME_KERNEL_AS, "")

    def full_record(self) -> Record:
        """The record with its dispatch."""
        stored = self.record
        return Record(
            self.dispatch,
            stored.provenance,
            stored.verdict,
            stored.reason,
            stored.measurement,
            stored.provider,
            stored.limit_ms,
            stored.reproduce,
            stored.peaks,
        )

    def shared_with(self, candidate: Candidate) -> Evaluation:
        """The evaluation of `candidate`, which has the same kernel."""
        dispatch, stored = candidate.dispatch, self.record
        provenance = replace(stored.provenance, module_key=candidate.module_key, flags=candidate.flags)
        tags = {**stored.tags, SAME_KERNEL_AS: self.same_kernel_as or self.dispatch.name}
        record = replace(
            stored,
            dispatch=dispatch.name,
            configuration=dispatch.configuration.name,
            arguments=dict(dispatch.arguments()),
            configuration_fields=dict(dispatch.configuration.fields()),
            provenance=provenance,
            tags=tags,
        )
        return Evaluation(dispatch, record, candidate.kernel, repeat=candidate.repeat)


def kernel_identity(candidate: Candidate) -> Hashable:
    """The identity of a kernel: of candidates that share it, only one is measured; None if unknown.

    It consists of code and flags, and of the reference that verifies its results.
    """
    if not candidate.kernel:
        return None
    return _identity(candidate.dispatch, candidate.kernel, candidate.flags)


def measured_identity(evaluation: Evaluation) -> Hashable:
    """`kernel_identity` of the candidate that was evaluated."""
    if not evaluation.kernel:
        return None
    return _identity(evaluation.dispatch, evaluation.kernel, evaluation.record.provenance.flags)


def _identity(dispatch: Dispatch, kernel: str, flags: tuple[str, ...]) -> Hashable:
    return kernel, flags, dispatch.effective_operation, dispatch.error_bound


def to_attributes(evaluation: Evaluation) -> dict[str, str]:
    """An evaluation as texts by name, for a storage, where each costs time: the record, and everything else."""
    other = {
        "configuration": evaluation.configuration.to_dict(),
        "kernel": evaluation.kernel,
        "seconds": evaluation.seconds,
        "repeat": evaluation.repeat,
    }
    return {"record": to_line(evaluation.record), "evaluation": json.dumps(other)}


def from_attributes(operation: Operation, attributes: Mapping[str, object]) -> Evaluation:
    """Inverse of `to_attributes`, for an evaluation of `operation`. Raises FieldError."""
    other = mapping(parse_json(text(attributes, "evaluation")), "evaluation")
    try:
        configuration = configuration_from_dict(mapping(other.get("configuration"), "configuration"))
    except (DispatchProfilerError, KeyError, TypeError, ValueError) as error:
        raise FieldError(f"configuration: {error}") from error
    dispatch, record = Dispatch(operation, configuration), from_line(text(attributes, "record"))
    if record.dispatch != dispatch.name:
        raise FieldError(f"the record is of {record.dispatch}, but the configuration of {dispatch.name}")
    seconds = number(other, "seconds", least=0.0)
    # Earlier versions did not keep it.
    repeat = whole(other, "repeat", least=0, default=0)
    return Evaluation(dispatch, record, text(other, "kernel"), seconds, repeat)
