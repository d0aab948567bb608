"""Measures the candidates of several operations, on one device or on several at once.

Each operation has a device of its own, so that its candidates are compared with each other on the same hardware.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Protocol

from dispatch_profiler.closing import Closing
from dispatch_profiler.errors import TargetError, UsageError
from dispatch_profiler.operations import Operation
from dispatch_profiler.profiler.evaluation.candidate import Candidate, EvaluatorOptions
from dispatch_profiler.profiler.evaluation.device_threads import (
    DeviceEnded,
    DeviceThreads,
    results_in_threads,
)
from dispatch_profiler.profiler.evaluation.devices import hardware_of
from dispatch_profiler.profiler.evaluation.evaluator import Evaluator
from dispatch_profiler.profiler.records.record import Record, Verdict
from dispatch_profiler.profiler.verification.verify import VerifiedHashes

#: Candidates by the index of their operation.
Groups = Mapping[int, Sequence[Candidate]]


@dataclass(frozen=True)
class Measured:
    """A record of the operation with index `at`, and the seconds since the previous one of its device."""

    at: int
    record: Record
    seconds: float


class DeviceEvaluator(Protocol):
    """Measures on a device: an `Evaluator`, or a worker of a cluster."""

    def check_device(self) -> None: ...
    def prepare(self, operation: Operation) -> None: ...
    def verify(self, candidate: Candidate) -> None: ...
    def learn(self, records: Iterable[Record]) -> None: ...
    def records(self, candidates: Iterable[Candidate]) -> Iterator[Record]: ...
    def kill(self) -> None: ...
    def close(self) -> None: ...


class Devices(Closing):
    """Evaluators of one or several devices. Use as a context manager.

    Evaluators of devices of other machines are `hosted`; `discover(names)` returns further ones, with names
    other than `names`, which are in use. Raises UsageError if two of `devices` are the same hardware. `clock`
    returns seconds. Results in `hashes` are not verified again on this machine.
    """

    def __init__(
        self,
        options: EvaluatorOptions,
        devices: Sequence[str],
        hosted: Mapping[str, DeviceEvaluator] = MappingProxyType({}),
        discover: Callable[[Collection[str]], Mapping[str, DeviceEvaluator]] = lambda names: {},
        clock: Callable[[], float] = time.monotonic,
        hashes: VerifiedHashes | None = None,
    ) -> None:
        _check_distinct(devices)
        self._open = ExitStack()
        self._clock = clock
        self._discover = discover
        hashes = hashes or VerifiedHashes()
        self._evaluators: dict[str, DeviceEvaluator] = {
            device: hosted.get(device) or Evaluator(replace(options, device=device), hashes=hashes)
            for device in devices
        }
        for evaluator in self._evaluators.values():
            self._open.callback(evaluator.close)
        #: Index of an operation -> its device.
        self._homes: dict[int, str] = {}
        #: Device -> why it failed.
        self.failures: dict[str, str] = {}

    @property
    def count(self) -> int:
        """Devices that are left."""
        return len(self._evaluators)

    def learn(self, records: Iterable[Record]) -> None:
        """See `Evaluator.learn`."""
        known = list(records)
        for evaluator in self._evaluators.values():
            evaluator.learn(known)

    def check(self) -> None:
        """Open all devices at once. Devices that fail are left out. Raises TargetError if none opens."""
        with ThreadPoolExecutor(len(self._evaluators)) as pool:
            failures = list(pool.map(_failure, self._evaluators.values()))
        for device, error in zip(list(self._evaluators), failures, strict=True):
            if error is not None:
                self.leave_out(device, error)

    def join(self) -> list[str]:
        """Use devices that have joined since the last call, if they open. Returns their names."""
        joined = []
        for device, evaluator in self._discover(tuple(self._evaluators)).items():
            error = _failure(evaluator)
            if error is not None:
                self.failures[device] = error.message
                continue
            self._open.callback(evaluator.close)
            self._evaluators[device] = evaluator
            self.failures.pop(device, None)
            joined.append(device)
        return joined

    def prepare(self, device: str, operation: Operation) -> None:
        """Prepare a device for an operation, which takes time, before its first candidate is evaluated."""
        self._evaluators[device].prepare(operation)

    def verify(self, device: str, candidate: Candidate) -> None:
        """Give a candidate its verdict ahead of `records`."""
        self._evaluators[device].verify(candidate)

    def records(self, groups: Groups) -> Generator[Measured, None, None]:
        """The record of every candidate as it is known, in order for each device.

        If a device fails, its other candidates have no record, and their operations move to another device.
        Raises TargetError if no device is left. On KeyboardInterrupt, yields the records that have samples,
        like `Evaluator.records`, and re-raises it.
        """
        by_device: dict[str, dict[int, Sequence[Candidate]]] = {}
        for at, group in groups.items():
            by_device.setdefault(self.home_of(at), {})[at] = group
        if len(by_device) > 1:
            yield from self._in_threads(by_device)
            return
        for device, own in by_device.items():
            try:
                for at, group in own.items():
                    yield from self.on_device(device, at, group)
            except TargetError as error:
                self.leave_out(device, error)

    def threads(self, put: Callable[[DeviceEnded], None]) -> DeviceThreads:
        """A thread for each device that is left, for candidates that come while others are measured.

        If one ends with a TargetError, call `leave_out`.
        """
        return DeviceThreads(self._evaluators, put)

    def kill(self) -> None:
        """Interrupt the threads of all devices, as Ctrl-C would."""
        for evaluator in self._evaluators.values():
            evaluator.kill()

    def close(self) -> None:
        """End the worker processes."""
        self._open.close()

    # -- devices ------------------------------------------------------------------------------

    def home_of(self, at: int) -> str:
        """The device that measures an operation: at first the one with the fewest operations."""
        if self._homes.get(at) not in self._evaluators:
            homes = [device for other, device in self._homes.items() if other != at]
            self._homes[at] = min(self._evaluators, key=homes.count)
        return self._homes[at]

    def leave(self, at: int) -> None:
        """Note that an operation is done: its device measures one operation fewer."""
        self._homes.pop(at, None)

    def leave_out(self, device: str, error: TargetError) -> None:
        """Use the other devices from now on. Raises `error` if no device is left."""
        self.failures[device] = error.message
        self._evaluators.pop(device).close()
        if not self._evaluators:
            raise error

    def on_device(self, device: str, at: int, group: Sequence[Candidate]) -> Iterator[Measured]:
        """Records of one device, for an operation with index `at`. Raises TargetError if the device fails."""
        since = self._clock()
        for record in self._evaluators[device].records(iter(group)):
            self._check_after(device, record)
            yield Measured(at, record, self._clock() - since)
            since = self._clock()

    def _check_after(self, device: str, record: Record) -> None:
        """Raise TargetError if `record` failed because the device is gone, and not because of its kernel."""
        if record.verdict is not Verdict.CRASHED:
            return
        try:
            self._evaluators[device].check_device()
        except TargetError as error:
            # A kernel that broke the device has a reason of its own; the next one fails because of the device.
            if record.reason == error.message:
                raise

    # -- several devices ----------------------------------------------------------------------

    def _in_threads(self, by_device: Mapping[str, Groups]) -> Iterator[Measured]:
        work = (
            (device, partial(self.on_device, device, at, group))
            for device, groups in by_device.items()
            for at, group in groups.items()
        )
        ended = yield from results_in_threads(work, self.kill)
        for end in ended:
            if end.error is not None and not isinstance(end.error, TargetError):
                raise end.error
        for end in ended:
            if isinstance(end.error, TargetError):
                self.leave_out(end.device, end.error)


def _failure(evaluator: DeviceEvaluator) -> TargetError | None:
    try:
        evaluator.check_device()
    except TargetError as error:
        return error
    return None


def _check_distinct(devices: Sequence[str]) -> None:
    seen: dict[str, str] = {}
    for device in devices:
        other = seen.setdefault(hardware_of(device), device)
        if other != device or devices.count(device) > 1:
            raise UsageError(
                f"{other} and {device} are the same hardware, and would slow each other down",
                hint="name one of them",
            )
