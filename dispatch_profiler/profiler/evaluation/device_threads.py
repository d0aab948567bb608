"""A thread for each device, so that several measure at the same time: for runs and for searches."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

Result = TypeVar("Result")


@dataclass(frozen=True)
class DeviceEnded:
    """The thread of a device has ended, with an error or without."""

    device: str
    error: BaseException | None


class DeviceThreads:
    """Starts a thread for each of `devices`, which calls the device's functions in order.

    A thread that ends passes `DeviceEnded` to `put`. After an error, it calls no further functions.
    """

    def __init__(self, devices: Iterable[str], put: Callable[[DeviceEnded], None]) -> None:
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


def results_in_threads(
    work: Iterable[tuple[str, Callable[[], Iterable[Result]]]], kill: Callable[[], None]
) -> Generator[Result, None, list[DeviceEnded]]:
    """The results of `work`, functions by device, as they come; returns how each device's thread ended.

    If the reader stops, `kill` interrupts the functions in progress. On KeyboardInterrupt, yields the results
    that the threads still have, and re-raises it.
    """
    messages: queue.SimpleQueue[tuple[Result] | DeviceEnded] = queue.SimpleQueue()

    def put_results(function: Callable[[], Iterable[Result]]) -> None:
        for result in function():
            messages.put((result,))

    by_device: dict[str, list[Callable[[], Iterable[Result]]]] = {}
    for device, function in work:
        by_device.setdefault(device, []).append(function)
    threads = DeviceThreads(by_device, messages.put)
    for device, functions in by_device.items():
        for function in functions:
            threads.call(device, partial(put_results, function))
    threads.finish()
    ended: list[DeviceEnded] = []

    def results() -> Iterator[Result]:
        while len(ended) < len(by_device):
            message = messages.get()
            if isinstance(message, DeviceEnded):
                ended.append(message)
            else:
                yield message[0]

    try:
        yield from results()
    except BaseException as error:
        kill()
        threads.join()
        if isinstance(error, KeyboardInterrupt):
            yield from results()
        raise
    return ended
