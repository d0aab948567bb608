"""Workload x configurations -> the dispatches to generate, and the dispatches left out, with reasons."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from dispatch_profiler.configurations import Configuration, Default, ListedConfiguration
from dispatch_profiler.dispatches.dispatch import Dispatch
from dispatch_profiler.dispatches.selection import Selection
from dispatch_profiler.errors import SelectionError
from dispatch_profiler.operations import Operation
from dispatch_profiler.targets import Target, fastest_form
from dispatch_profiler.workloads import Workload


@dataclass(frozen=True)
class LeftOut:
    """A dispatch, or an invalid point of the sweep, and why it was left out."""

    name: str
    reason: str


@dataclass(frozen=True)
class Plan:
    """The dispatches to generate for each operation, and the left-out dispatches.

    `unused` has the entries of a configuration file that fit none of their operations.
    `workload` has the count and the origin of each operation.
    """

    target: Target
    groups: tuple[tuple[Operation, tuple[Dispatch, ...]], ...]
    left_out: tuple[LeftOut, ...] = ()
    unused: tuple[LeftOut, ...] = ()
    workload: Workload = Workload(())

    @property
    def dispatch_count(self) -> int:
        return sum(len(dispatches) for _, dispatches in self.groups)


@dataclass(frozen=True)
class Choices:
    """Which configurations to cross with the operations.

    If `split_k` is None, the predefined split-k problems use their predefined slice counts. `adds_fastest` adds
    the fastest known form of each operation that has one.
    """

    entries: Sequence[ListedConfiguration]
    selection: Selection = field(default_factory=Selection)
    split_k: tuple[int, ...] | None = None
    default_only: bool = False
    adds_fastest: bool = False


def plan_generation(workload: Workload, target: Target, choices: Choices) -> Plan:
    """Cross `workload` with the configurations of `choices`; the compiler's default is always among them.

    Raises SelectionError if a pattern matches nothing that could be generated.
    """
    valid: list[Dispatch] = []
    left_out: list[LeftOut] = []
    reasons: dict[Configuration, Counter[str]] = {}
    for operation in workload.operations:
        for configuration in _configurations(operation, target, choices):
            dispatch = Dispatch(operation, configuration)
            reason = configuration.invalid_reason(operation, target.limits)
            if reason is None:
                valid.append(dispatch)
            elif choices.selection.matches(operation.kind, dispatch.name):
                left_out.append(LeftOut(dispatch.name, reason))
                reasons.setdefault(configuration, Counter())[reason] += 1
    unused = _unused(choices.entries, {dispatch.configuration for dispatch in valid}, reasons)
    chosen = _choose(valid, left_out, choices.selection)
    groups: dict[Operation, list[Dispatch]] = {}
    for dispatch in chosen:
        groups.setdefault(dispatch.operation, []).append(dispatch)
    planned = tuple((operation, tuple(group)) for operation, group in groups.items())
    return Plan(target, planned, tuple(left_out), unused, workload)


def _unused(
    entries: Sequence[ListedConfiguration],
    used: set[Configuration],
    reasons: Mapping[Configuration, Counter[str]],
) -> tuple[LeftOut, ...]:
    """Entries of a user's file that were left out for every operation, with the most frequent reason."""
    return tuple(
        LeftOut(
            f"{entry.origin} ({entry.configuration.name})", reasons[entry.configuration].most_common(1)[0][0]
        )
        for entry in entries
        if entry.origin and entry.configuration in reasons and entry.configuration not in used
    )


def _choose(valid: list[Dispatch], left_out: list[LeftOut], selection: Selection) -> list[Dispatch]:
    """The selected dispatches. If a pattern matches only left-out dispatches, the error gives the reason."""
    for pattern in selection.patterns:
        alone = Selection((pattern,))
        hit = next((each for each in left_out if alone.matches("", each.name)), None)
        if hit and not any(alone.matches("", dispatch.name) for dispatch in valid):
            raise SelectionError(
                f"no dispatch matches {pattern!r}; {hit.name} was left out: {hit.reason}",
                hint="--verbose without --dispatches lists everything that was left out",
            )
    return selection.choose(valid, lambda d: d.operation.kind, lambda d: d.name)


def _configurations(operation: Operation, target: Target, choices: Choices) -> list[Configuration]:
    fitting = (
        [] if choices.default_only else [e.configuration for e in choices.entries if e.is_for(operation)]
    )
    fastest = fastest_form(operation, target) if choices.adds_fastest else None
    plain = dict.fromkeys([Default(), *([fastest] if fastest else []), *fitting])
    # Splits are variants of the configurations that are not split already.
    split = (each.split(slices) for slices in _slices(operation, choices) for each in plain)
    return list(dict.fromkeys([*plain, *filter(None, split)]))


def _slices(operation: Operation, choices: Choices) -> tuple[int, ...]:
    if choices.split_k is not None:
        return tuple(dict.fromkeys(slices for slices in choices.split_k if slices > 1))
    return () if choices.default_only else operation.predefined_splits
