"""A thread for each device, so that several measure at the same time."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from dispatch_profiler.profiler.evaluation.candidate import Candidate
from dispatch_profiler.profiler.records.record import Record


@dataclass(frozen=True)
class Measured:
    """A record of the operation with index `at`, and the seconds since the previous one of its device."""

    at: int
    record: Record
    seconds: float


@dataclass(frozen=True)
class GroupDone:
    """All candidates of the operation with index `at` have their records."""

    at: int


@dataclass(frozen=True)
class DeviceEnded:
    """The thread of a device has ended, with an error or without."""

    device: str
    error: BaseException | None


Message = Measured | GroupDone | DeviceEnded


class DeviceThreads:
    """Starts a thread for each of `devices`, which measures groups of candidates in the order of `begin`.

    `measure(device, at, candidates)` yields the records. `put` receives the messages, in the order of each
    device, in its thread. The last message of a device is `DeviceEnded`; after an error it measures nothing more.
    """

    def __init__(
        self,
        devices: Iterable[str],
        measure: Callable[[str, int, Sequence[Candidate]], Iterator[Measured]],
        put: Callable[[Message], None],
    ) -> None:
        self._measure = measure
        self._put = put
        self._given: dict[str, queue.SimpleQueue[Callable[[], None] | None]] = {}
        self._threads: list[threading.Thread] = []
        for device in devices:
            self.add(device)

    def add(self, device: str) -> None:
        """Start the thread of another device, or restart a thread that has ended."""
        self._given[device] = queue.SimpleQueue()
        thread = threading.Thread(target=self._run, args=(device,), name=device, daemon=True)
        self._threads.append(thread)
        thread.start()

    def begin(self, device: str, at: int, candidates: Sequence[Candidate]) -> None:
        """Measure candidates of the operation with index `at` after the groups that the device has been given."""

        def measure() -> None:
            for measured in self._measure(device, at, candidates):
                self._put(measured)
            self._put(GroupDone(at))

        self._given[device].put(measure)

    def call(self, device: str, function: Callable[[], None]) -> None:
        """Call `function` in the thread of a device, after all earlier functions."""
        self._given[device].put(function)

    def finish(self) -> None:
        """End each thread after the functions that it was given."""
        for given in self._given.values():
            given.put(None)

    def join(self) -> None:
        """Wait until all threads have ended."""
        for thread in self._threads:
            thread.join()

    def _run(self, device: str) -> None:
        error, given = None, self._given[device]
        try:
            while (step := given.get()) is not None:
                step()
        except BaseException as raised:
            error = raised  # re-raised where the messages are read
        self._put(DeviceEnded(device, error))
