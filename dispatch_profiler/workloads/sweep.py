"""Sweeps: the operations that the command line's options describe."""

from __future__ import annotations

from dataclasses import dataclass

from dispatch_profiler.errors import OperationError, UsageError
from dispatch_profiler.operations import KINDS, Operation, SweepOptions, operation_kind
from dispatch_profiler.workloads._base import Workload, WorkloadEntry, merged


@dataclass(frozen=True)
class Sweep:
    """What to generate: kinds of operations, and the options that each of them reads.

    `kinds` empty means those whose shapes were given, or every kind. `given_types` are the names of the
    options of types, layouts and epilogues that the user gave: a kind without them is left out unless it
    is named.
    """

    kinds: tuple[str, ...] = ()
    options: SweepOptions = SweepOptions()
    given_types: tuple[str, ...] = ()


@dataclass(frozen=True)
class SweepResult:
    """The operations of a sweep, and why some of its points are not operations (one reason per point)."""

    workload: Workload
    left_out: tuple[str, ...] = ()


def sweep_workload(sweep: Sweep) -> SweepResult:
    """Every operation of the sweep, equal ones once.

    A point that is no operation (a filter larger than its input, gelu on integers) is left out with
    its reason. Raises OperationError if no point is one, UsageError if shapes were given for kinds
    that are not asked for.
    """
    entries: list[WorkloadEntry] = []
    errors: list[OperationError] = []
    for kind in _kinds(sweep):
        for make in kind.sweep(sweep.options):
            try:
                entries.append(WorkloadEntry(make(), origin="sweep"))
            except OperationError as error:
                errors.append(error)
    if not entries:
        raise (
            errors[0]
            if errors
            else UsageError("the sweep has no point: types, layouts or epilogues are empty")
        )
    return SweepResult(merged(entries), tuple(str(error) for error in errors))


def _kinds(sweep: Sweep) -> list[type[Operation]]:
    """The kinds to sweep: those asked for, else those that the given options imply, else all."""
    if sweep.kinds:
        asked = [operation_kind(name) for name in sweep.kinds]  # rejects what is none
        _check_shapes(asked, sweep.options)
        return asked
    implied = [kind for kind in KINDS.values() if kind.is_implied_by(sweep.options)]
    typed = [kind for kind in KINDS.values() if set(sweep.given_types) <= set(kind.type_options)]
    return implied or typed


def _check_shapes(asked: list[type[Operation]], options: SweepOptions) -> None:
    """UsageError if a shape option was given that none of the kinds asked for takes."""
    names = ", ".join(kind.kind for kind in asked)
    for name in options.shapes:
        takers = [kind for kind in KINDS.values() if any(each.name == name for each in kind.shape_options)]
        asked_takers = [kind for kind in takers if kind in asked]
        if not asked_takers:
            whose = " or ".join(kind.kind for kind in takers)
            raise UsageError(
                f"shapes of {whose} were given, but the kinds asked for are {names}",
                hint=f"ask for {whose} too",
            )
        reasons = [kind.rejection_reason(options) for kind in asked_takers]
        if all(reasons):
            others = " or ".join(kind.kind for kind in takers if kind not in asked_takers)
            hint = f"ask for {others} too" if others else ""
            raise UsageError(f"{reasons[0]}, but the kinds asked for are {names}", hint=hint)
