"""The events that a search reports while it runs, and the lines of a live view."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dispatch_profiler.console.plurals import counted
from dispatch_profiler.operations import Operation
from dispatch_profiler.tuner.evaluation.evaluations import Evaluation


@dataclass(frozen=True)
class Sharing:
    """`devices` share the search for `operations`; `left_out` are unlike the first of them."""

    operations: int
    devices: tuple[str, ...]
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True)
class Following:
    """`operation` differs from `leader`, which was searched, in its epilogue only: it has `candidates`."""

    operation: Operation
    leader: Operation
    candidates: int


@dataclass(frozen=True)
class Resumed:
    """A search continues: `evaluations` of its earlier runs are known."""

    operation: Operation
    evaluations: int


@dataclass(frozen=True)
class Compiling:
    """`candidates` of all operations are being compiled; nothing is measured meanwhile."""

    round: int
    operations: int
    candidates: int


@dataclass(frozen=True)
class Measuring:
    """Compiled candidates are about to be verified and measured; `shared` have the same kernel as another candidate."""

    round: int
    candidates: int
    shared: int


@dataclass(frozen=True)
class Evaluated:
    """A candidate is done and stored.

    `done` counts the evaluations of its operation, `budget` is their limit (None: a time limit). `best` and
    `default` are the fastest verified evaluation and the compiler's choice; None until they are known.
    """

    evaluation: Evaluation
    done: int
    budget: int | None
    best: Evaluation | None
    default: Evaluation | None

    @property
    def speedup(self) -> float | None:
        """The speedup of the best over the default."""
        return _ratio(_milliseconds(self.default), _milliseconds(self.best))

    @property
    def fraction_of_peak(self) -> float | None:
        """The speed of the best as a fraction of the hardware's peak; None if that is unknown."""
        limit = self.best.record.limit_ms if self.best else None
        return _ratio(limit, _milliseconds(self.best))


def _milliseconds(evaluation: Evaluation | None) -> float | None:
    return evaluation.milliseconds if evaluation else None


def _ratio(numerator: float | None, denominator: float | None) -> float | None:
    return numerator / denominator if numerator and denominator else None


@dataclass(frozen=True)
class DeviceLost:
    """One of several devices failed; its operations continue on the others."""

    device: str
    reason: str


@dataclass(frozen=True)
class DeviceJoined:
    """A device of a worker that was started during the search takes part."""

    device: str


@dataclass(frozen=True)
class Warned:
    """Something that the user should know, such as that other machines can use the cluster."""

    message: str


Event = Sharing | Following | Resumed | Compiling | Measuring | Evaluated | DeviceLost | DeviceJoined | Warned
Listener = Callable[[Event], None]


def ignore(event: Event) -> None:
    """A listener without a view."""


# -- lines -----------------------------------------------------------------------------------------

# Lines about a search while it runs: the best so far against the compiler's default and the hardware's peak.


class LiveLines:
    """Turns events into lines. Remembers the best of each operation, so that only improvements have a line."""

    def __init__(self) -> None:
        self._best: dict[str, Evaluation] = {}

    def line(self, event: Event) -> str:
        """The line of an event; empty if the event has no line."""
        if isinstance(event, Sharing):
            return _sharing(event)
        if isinstance(event, Following):
            candidates = counted(event.candidates, "candidate")
            return (
                f"[Following]: {event.operation.name}: {candidates}, from the search for {event.leader.name}"
            )
        if isinstance(event, Resumed):
            return f"[Resuming]: {event.operation.name}: {counted(event.evaluations, 'stored evaluation')}"
        if isinstance(event, Compiling):
            operations = counted(event.operations, "operation")
            return (
                f"[Compiling]: round {event.round}: {counted(event.candidates, 'candidate')} of {operations}"
            )
        if isinstance(event, Measuring):
            shared = f", {event.shared} with the kernel of another" if event.shared else ""
            return f"[Measuring]: round {event.round}: {counted(event.candidates, 'candidate')}{shared}"
        if isinstance(event, DeviceLost):
            return f"{event.device} failed ({event.reason}); its operations continue on the other devices"
        if isinstance(event, DeviceJoined):
            return f"{event.device} takes part"
        if isinstance(event, Warned):
            return event.message
        return self._evaluated(event)

    def _evaluated(self, event: Evaluated) -> str:
        name, best = event.evaluation.dispatch.operation.name, event.best
        place = f"[{event.done}{f' of {event.budget}' if event.budget else ''}]"
        failure = event.evaluation.reason
        if failure:
            return f"[Failed]: {event.evaluation.dispatch.name}: {failure}  {place}"
        if best is None or best == self._best.get(name):
            return ""
        self._best[name] = best
        return f"[Best]: {name}: {summary_of(event)}  {place}"


def _sharing(event: Sharing) -> str:
    """`[Devices]: cuda://0, cuda://1 share 12 operations; left out, because it is unlike the first: cuda://2`"""
    devices, others = ", ".join(event.devices), ", ".join(event.left_out)
    text = f"{devices} share {counted(event.operations, 'operation')}" if len(event.devices) > 1 else devices
    left_out = f"; unlike {event.devices[0]}, and therefore not used: {others} (--devices names others)"
    return f"[Devices]: {text}{left_out if others else ''}"


def summary_of(event: Evaluated) -> str:
    """`0.767 ms with tile_config_64x128_8x32x4, 1.91 times as fast as the default, 43 % of the peak`"""
    best = event.best
    if best is None or best.milliseconds is None:
        return "nothing verified yet"
    parts = [f"{best.milliseconds:.4g} ms with {best.configuration.name}"]
    if event.speedup is not None and best != event.default:
        parts.append(f"{event.speedup:.2f} times as fast as the default")
    if event.fraction_of_peak is not None:
        parts.append(f"{100.0 * event.fraction_of_peak:.0f} % of the peak")
    return ", ".join(parts)
