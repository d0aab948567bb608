"""Sweeps: the operations that the command line's options describe."""

from __future__ import annotations

from dataclasses import dataclass

from dispatch_profiler.errors import OperationError, UsageError
from dispatch_profiler.operations import KINDS, Operation, SweepOptions, operation_kind
from dispatch_profiler.workloads.workload_file import Workload, WorkloadEntry, merged


@dataclass(frozen=True)
class Sweep:
    """What to generate: kinds of operations, and the options that they read.

    Empty `kinds` means the kinds whose shapes were given, or every kind. `given_types` names the type, layout
    and epilogue options that the user gave; a kind that lacks one of them is left out unless `kinds` has it.
    """

    kinds: tuple[str, ...] = ()
    options: SweepOptions = SweepOptions()
    given_types: tuple[str, ...] = ()


@dataclass(frozen=True)
class SweepResult:
    """The operations of a sweep, and a reason for each point that is not a valid operation."""

    workload: Workload
    left_out: tuple[str, ...] = ()


def sweep_workload(sweep: Sweep) -> SweepResult:
    """The operations of the sweep, without duplicates.

    Invalid points (a filter larger than its input, gelu on integers) are left out with a reason. Raises
    OperationError if no point is valid, UsageError if options were given that no requested kind accepts.
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
            errors[0] if errors else UsageError("the sweep is empty: it has no types, layouts or epilogues")
        )
    return SweepResult(merged(entries), tuple(str(error) for error in errors))


def _kinds(sweep: Sweep) -> list[type[Operation]]:
    """The kinds to sweep: the requested kinds, else the kinds that the given options imply, else all."""
    if sweep.kinds:
        requested = [operation_kind(name) for name in sweep.kinds]
        _check_shapes(requested, sweep.options)
        _check_types(requested, sweep.given_types)
        return requested
    implied = [kind for kind in KINDS.values() if kind.is_implied_by(sweep.options)]
    if implied:
        _check_types(implied, sweep.given_types)
    typed = [kind for kind in KINDS.values() if set(sweep.given_types) <= set(kind.type_options)]
    return implied or typed


def _check_types(requested: list[type[Operation]], given: tuple[str, ...]) -> None:
    """Raise UsageError if a type, layout or epilogue option was given that none of the requested kinds accepts."""
    for name in given:
        accepting = [kind for kind in KINDS.values() if name in kind.type_options]
        if not set(accepting) & set(requested):
            raise UsageError(
                f"{name} was given, but the requested kinds are {', '.join(kind.kind for kind in requested)}",
                hint=f"{name} applies to {', '.join(kind.kind for kind in accepting)}",
            )


def _check_shapes(requested: list[type[Operation]], options: SweepOptions) -> None:
    """Raise UsageError if a shape option was given that none of the requested kinds accepts."""
    names = ", ".join(kind.kind for kind in requested)
    for name in options.shapes:
        accepting = [kind for kind in KINDS.values() if any(each.name == name for each in kind.shape_options)]
        usable = [kind for kind in accepting if kind in requested]
        if not usable:
            owners = " or ".join(kind.kind for kind in accepting)
            raise UsageError(
                f"shapes of {owners} were given, but the requested kinds are {names}",
                hint=f"request {owners} too",
            )
        reasons = [kind.rejection_reason(options) for kind in usable]
        if all(reasons):
            others = " or ".join(kind.kind for kind in accepting if kind not in usable)
            hint = f"request {others} too" if others else ""
            raise UsageError(f"{reasons[0]}, but the requested kinds are {names}", hint=hint)
