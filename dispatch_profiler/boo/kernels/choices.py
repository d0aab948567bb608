"""Which kernel of an operation is the fastest on this machine, as notes beside kernels in the cache.

The note is beside the kernel of the operation's first variant, whose key covers the operation, the library's entry, the
rules that choose configurations, the target and the compiler. Its name has everything else that the choice depends on.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dispatch_profiler.configurations import Configuration, configuration_from_dict, rejection_reason
from dispatch_profiler.cores import usable_threads
from dispatch_profiler.errors import DispatchProfilerError
from dispatch_profiler.operations import Operation
from dispatch_profiler.targets import Target


def choice_name(*, packs_weight: bool) -> str:
    """The name of the note with the choice for the threads at hand."""
    return f"kernel-{usable_threads()}t{'-packed' if packs_weight else ''}"


@dataclass(frozen=True)
class KernelChoice:
    """The configuration of the fastest kernel, and the seconds per call of all that were measured, by their labels."""

    configuration: Configuration
    measured: tuple[tuple[str, float], ...]

    @property
    def note(self) -> str:
        """The text for a cache."""
        microseconds = {label: round(seconds * 1e6, 2) for label, seconds in self.measured}
        return json.dumps({"configuration": self.configuration.to_dict(), "microseconds": microseconds})

    @classmethod
    def of(
        cls, note: str | None, operation: Operation, target: Target, *, packs_weight: bool
    ) -> KernelChoice | None:
        """The choice in `note`; None if the note is missing or damaged, or if its configuration cannot be used."""
        try:
            data = _checked(json.loads(note or ""), dict)
            configuration = configuration_from_dict(_checked(data["configuration"], dict))
            if configuration.names_code or (configuration.packs_weight and not packs_weight):
                return None
            if rejection_reason(configuration, operation, target.limits):
                return None
            return cls(configuration, tuple(_seconds(_checked(data["microseconds"], dict))))
        except (ValueError, TypeError, KeyError, RecursionError, AttributeError, DispatchProfilerError):
            return None


def _checked(value: Any, type_: type) -> Any:
    if not isinstance(value, type_):
        raise ValueError(f"expected {type_.__name__}, but got {value!r}")
    return value


def _seconds(microseconds: Mapping[str, Any]) -> list[tuple[str, float]]:
    found = [(label, float(each) / 1e6) for label, each in microseconds.items()]
    if not all(0 <= seconds < math.inf for _, seconds in found):
        raise ValueError("times must be finite and not negative")
    return found
