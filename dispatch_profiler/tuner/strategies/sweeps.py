"""Recorded sweeps: the times of every configuration of a reduced space, for replays and for a prior.

A file has JSON lines, compressed if its name ends in `.gz`. The first line describes the operation:

    {"operation": {...}, "name": "matmul_...", "target": "llvm-cpu", "cores": 16,
     "spaces": [{"of": "cpu_tiles", "axes": {"distribution_m": [32, 64], ...}}, ...]}

Each further line is the outcome of one configuration, with `ms` null if it failed:

    {"configuration": {...}, "verdict": "Passed", "ms": 0.41, "interval": [0.40, 0.42], "reason": ""}

The evaluations of a search can be recorded too, without `spaces`: such a file trains a prior, but cannot be replayed.
`scripts/record_sweep.py` records sweeps.
"""

from __future__ import annotations

import gzip
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from dispatch_profiler.configurations import Configuration, Space, configuration_from_dict, spaces
from dispatch_profiler.errors import UsageError
from dispatch_profiler.files.json_fields import FieldError, mapping, parse_json, rows, text, whole
from dispatch_profiler.operations import Operation, operation_from_dict
from dispatch_profiler.targets import Target, parse_target
from dispatch_profiler.tuner.spaces.space import SearchSpace


@dataclass(frozen=True)
class RecordedSweep:
    """Times in milliseconds of configurations of `operation`, in the order of the file; None if one failed."""

    operation: Operation
    target: Target
    cores: int
    #: The reduced spaces that were swept.
    spaces: tuple[Space[Configuration], ...]
    times: Mapping[Configuration, float | None]

    @cached_property
    def best(self) -> float:
        """The shortest time."""
        return min(time for time in self.times.values() if time is not None)

    def search_space(self) -> SearchSpace:
        """The space in which only recorded configurations are valid."""
        return SearchSpace(self.operation, self.target.limits, self.spaces, self.times, self.cores)


def read_sweep(path: Path) -> RecordedSweep:
    """Read one file. Raises UsageError, which names the file and the line."""
    opened = gzip.open if path.suffix == ".gz" else open
    number = 0
    try:
        with opened(path, "rt", encoding="utf-8") as file:
            lines = file.read().splitlines()
        head, *outcomes = (mapping(parse_json(line)) for line in lines)
        operation = operation_from_dict(mapping(head.get("operation"), "operation"))
        target = parse_target(text(head, "target"))
        times = {}
        for number, outcome in enumerate(outcomes, 2):  # noqa: B007 - for the message
            configuration = configuration_from_dict(mapping(outcome.get("configuration"), "configuration"))
            times[configuration] = _milliseconds(outcome.get("ms"))
        if not any(times.values()):
            raise FieldError("no configuration has a time")
        reduced = _reduced(spaces(operation, target.limits), rows(head, "spaces"))
        return RecordedSweep(operation, target, whole(head, "cores", least=1), reduced, times)
    except (OSError, EOFError, ValueError, KeyError, TypeError, UsageError) as error:
        raise UsageError(f"{path}, line {number or 1}: {error}", hint="record the sweep again") from error


def _milliseconds(value: object) -> float | None:
    if value is None:
        return None
    if isinstance(value, (int, float)) and 0 < value < float("inf"):
        return float(value)
    raise FieldError(f"ms: expected a positive number or null, but got {value!r}")


def _reduced(
    among: Sequence[Space[Configuration]], recorded: Sequence[Mapping[str, Any]]
) -> tuple[Space[Configuration], ...]:
    """The spaces of `among` that were swept, with the choices of the recorded axes."""
    reduced = []
    left = list(among)
    for each in recorded:
        axes = mapping(each.get("axes"), "axes")
        space = next(
            (s for s in left if space_label(s) == each.get("of") and {a.name for a in s.axes} == set(axes)),
            None,
        )
        if space is None:
            continue  # A form or a kind that no longer exists.
        left.remove(space)
        for name, choices in axes.items():
            space = space.with_choices(name, *choices)
        reduced.append(space)
    return tuple(reduced)


def space_label(space: Space[Configuration]) -> str:
    """The form of a space's configurations, or else their kind."""
    configuration = space.to_configuration(tuple(axis.choices[0] for axis in space.axes))
    return str(getattr(configuration, "form", configuration.kind))
