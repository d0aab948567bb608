"""The events that a search reports while it runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

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
    """`operation` differs from `leader` in its epilogue only: it has at most `candidates`, the fastest ones there."""

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
class SearchEnded:
    """The search for an operation is done."""

    operation: Operation


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


Event = (
    Sharing
    | Following
    | Resumed
    | Compiling
    | Measuring
    | Evaluated
    | SearchEnded
    | DeviceLost
    | DeviceJoined
    | Warned
)
Listener = Callable[[Event], None]


def ignore(event: Event) -> None:
    """A listener without a view."""
