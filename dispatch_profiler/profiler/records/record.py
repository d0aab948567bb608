"""A record: the outcome of one dispatch, with its provenance."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum

from dispatch_profiler.configurations import Configuration
from dispatch_profiler.dispatches import Dispatch
from dispatch_profiler.profiler.measurement.measure import Measurement
from dispatch_profiler.profiler.measurement.peaks import Peaks
from dispatch_profiler.profiler.records.machine import Machine

#: Default provider: the compiler's own kernels.
PROVIDER = Configuration.provider


class Verdict(str, Enum):
    """The outcome of verification, or what kept it from happening."""

    SUCCESS = "SUCCESS"
    FAILED = "FAILED"
    NOT_VERIFIED = "Not verified"
    NOT_APPLIED = "Not applied"
    NOT_COMPILED = "Not compiled"
    #: A library has nothing that computes the operation as it is defined.
    NOT_SUPPORTED = "Not supported"
    IMPLAUSIBLE = "Implausible"
    CRASHED = "Crashed"
    TIMED_OUT = "Timed out"

    @property
    def is_failure(self) -> bool:
        """Is the dispatch wrong, or kept from running?"""
        return self not in (Verdict.SUCCESS, Verdict.NOT_VERIFIED, Verdict.NOT_SUPPORTED)


def is_failure(verdict: Verdict, reason: str) -> bool:
    """Did a record go wrong? Also if it was to be verified and could not be."""
    return verdict.is_failure or (verdict is Verdict.NOT_VERIFIED and bool(reason))


def kernel_name(configuration: str, provider: str) -> str:
    """The configuration, and whose kernel it is where that is not IREE's and the name does not say."""
    told = provider == PROVIDER or configuration.startswith(f"{provider.lower()}_")
    return configuration if told else f"{configuration} ({provider})"


def arguments_text(arguments: Mapping[str, object]) -> str:
    """`{"m": 256, "n": 64}` -> `--m=256 --n=64`"""
    return " ".join(f"--{name}={value}" for name, value in arguments.items())


@dataclass(frozen=True)
class Provenance:
    """Where and with what a record was made."""

    device: str
    target: str
    #: Revisions of compiler and runtime; empty if IREE had no part in it.
    iree: str
    seed: int
    #: When it was made, as ISO 8601 with the offset from UTC.
    when: str = ""
    machine: Machine = Machine()
    #: The library that computed it, with its version and its own; empty for IREE.
    library: str = ""
    #: Content hash of all that went into the dispatch's vmfbs, compiler and flags included (`ModuleEntry.key`).
    #: Empty for a library, for what was never compiled, and in records of version 1.
    module_key: str = ""
    #: The compiler flags of the module.
    flags: tuple[str, ...] = ()

    @property
    def origin(self) -> tuple[str, str, str, int, str, str]:
        """All but the time: records of one origin say the same of a dispatch."""
        return self.device, self.target, self.software, self.seed, self.machine.name, self.module_key

    @property
    def software(self) -> str:
        """What made the kernel, with its version: IREE, or a library."""
        return self.library or self.iree


@dataclass(frozen=True)
class Confirmation:
    """A dispatch against the compiler's default by paired sampling, after its run.

    `outcome` is that of `compare`: faster, slower, same, unclear, failed or not measured. `speed` is
    relative to the default, 2 is twice as fast, from `low` to `high`; None where it is not known.
    """

    outcome: str
    reason: str
    speed: float | None = None
    low: float | None = None
    high: float | None = None

    @property
    def text(self) -> str:
        """`confirmed by paired sampling: 1.45x (1.42-1.48)`"""
        if self.speed is None:
            return f"not confirmed by paired sampling: {self.outcome} ({self.reason})"
        ends = f" ({self.low:.2f}-{self.high:.2f})" if self.low and self.high else ""
        verdict = "confirmed" if self.outcome == "faster" else "not confirmed"
        rest = "" if self.outcome == "faster" else f", {self.outcome}"
        return f"{verdict} by paired sampling: {self.speed:.2f}x{ends}{rest}"


@dataclass(frozen=True)
class Record:
    """One dispatch's outcome: a verdict with its reason, and a measurement or none.

    `reason` is empty for SUCCESS, and for Not verified if verification was not requested.
    `provider` is whose kernel it is, the configuration's if nothing else is said. `limit_ms` is the time that the hardware allows at best, 0 if
    that is not known; `peaks` are what it follows from. `reproduce` is the command line that makes
    this record again.
    """

    dispatch: Dispatch
    provenance: Provenance
    verdict: Verdict
    reason: str = ""
    measurement: Measurement | None = None
    provider: str = ""
    limit_ms: float = 0.0
    reproduce: str = ""
    peaks: Peaks | None = None

    def __post_init__(self) -> None:
        if not self.provider:
            object.__setattr__(self, "provider", self.dispatch.configuration.provider)

    def failed(self, verdict: Verdict, reason: str) -> Record:
        """The same dispatch with a failure, and no measurement: a wrong kernel has no speed."""
        return replace(self, verdict=verdict, reason=reason, measurement=None)

    @property
    def is_failure(self) -> bool:
        """Does it make the exit status 1?"""
        return is_failure(self.verdict, self.reason)

    @property
    def op_kind(self) -> str:
        return self.dispatch.operation.label

    def arguments_text(self) -> str:
        """`--batch_count=1 --m=256 ...`, as in the console block of the IREE dispatch profiler."""
        return arguments_text(self.dispatch.arguments())
