"""An entry of a library: the configuration to use for an operation, its speed, and its provenance."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from dispatch_profiler.dispatches import Dispatch
from dispatch_profiler.operations import Operation
from dispatch_profiler.profiler.measurement.measure import Measurement
from dispatch_profiler.profiler.records.record import Confirmation, Provenance
from dispatch_profiler.targets import parse_target


@dataclass(frozen=True)
class Estimate:
    """A value with its 95 % interval; an end that the samples do not determine is 0 or infinite."""

    value: float
    low: float
    high: float

    def __post_init__(self) -> None:
        if not 0.0 <= self.low <= self.value <= self.high:
            raise ValueError(f"expected 0 <= low <= value <= high, but got {self}")


def confirmed_speedup(confirmation: Confirmation) -> Estimate | None:
    """The speedup over the default by paired sampling; None if it is unknown."""
    value = confirmation.speed
    if value is None or value <= 0.0:
        return None
    return Estimate(
        value, max(0.0, min(confirmation.low or 0.0, value)), max(confirmation.high or math.inf, value)
    )


def measured_gflops(measurement: Measurement, flops: int) -> Estimate:
    """The speed in GFLOP/s of a `measurement` of `flops` operations."""
    low_ms, high_ms = measurement.interval_ms
    return Estimate(
        measurement.gflops(flops), flops / high_ms / 1e6, flops / low_ms / 1e6 if low_ms else math.inf
    )


#: The speed of an entry that any other entry replaces (`merge --no_eff`).
NO_SPEED = Estimate(0.0, 0.0, 0.0)


#: An operation, and whether its weight may be packed at load time.
Purpose = tuple[Operation, bool]
#: A target and an IREE version.
Software = tuple[str, str]


@dataclass(frozen=True)
class Entry:
    """A tuned dispatch.

    `gflops` is its speed in GFLOP/s, `speedup` its speedup over the compiler's default (2 is twice as fast).
    `provenance` has the machine, the target, the IREE version, all compiler flags and the content key of the
    module that was measured.
    """

    dispatch: Dispatch
    gflops: Estimate
    speedup: Estimate
    provenance: Provenance

    @property
    def operation(self) -> Operation:
        return self.dispatch.operation

    @property
    def packs_weight(self) -> bool:
        """Whether its weight is packed at load time, so that it must be constant."""
        return self.dispatch.configuration.packs_weight

    @property
    def purpose(self) -> Purpose:
        """The key of the entry: a library has at most one entry for each purpose."""
        return self.operation, self.packs_weight

    @property
    def software(self) -> Software:
        """The target and the IREE version that the entry is for."""
        return self.provenance.target, self.provenance.iree

    @property
    def family(self) -> str:
        """The family of its target: `cuda` of `cuda:sm_90`."""
        return self.provenance.target.partition(":")[0]

    @property
    def extra_flags(self) -> tuple[str, ...]:
        """Flags that it was compiled with, besides the flags of its target and of its configuration.

        Raises TargetError if the target is unknown.
        """
        own = (*parse_target(self.provenance.target).compile_flags, *self.dispatch.configuration.flags)
        names = {flag.partition("=")[0] for flag in own}
        return tuple(flag for flag in self.provenance.flags if flag.partition("=")[0] not in names)

    def is_of_compiler(self, revision: str) -> bool:
        """Whether it was measured with the compiler of this revision."""
        return f"{self.provenance.iree},".startswith(f"compiler {revision},")

    def without_speed(self) -> Entry:
        """A copy that every other entry replaces when libraries are merged."""
        return replace(self, gflops=NO_SPEED)


def software_text(software: Iterable[Software]) -> str:
    """`llvm-cpu with compiler 3.13.0; cuda:sm_90 with compiler 3.13.0`"""
    return "; ".join(f"{target} with {iree}" for target, iree in software)
