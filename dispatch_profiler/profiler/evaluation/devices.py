"""A run on one or several devices: work goes to the next free device.

Each device has its own evaluator, and so its own default, sentinel, limits and peaks, and measures one
dispatch at a time; devices of the same hardware take turns. A device that works on an operation measures
the baselines, the default and the libraries, itself. The others take over the work of a device that fails.
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial

from dispatch_profiler.closing import Closing
from dispatch_profiler.configurations import Default
from dispatch_profiler.errors import TargetError, UsageError
from dispatch_profiler.operations import Operation
from dispatch_profiler.profiler.evaluation.candidate import Candidate, EvaluatorOptions
from dispatch_profiler.profiler.evaluation.device_threads import results_in_threads
from dispatch_profiler.profiler.evaluation.evaluator import Evaluator
from dispatch_profiler.profiler.evaluation.hardware import this_machine
from dispatch_profiler.profiler.providers.library_calls import LibraryCall
from dispatch_profiler.profiler.records.record import Provenance, Record, Verdict
from dispatch_profiler.runtime import DeviceUri, device_uri
from dispatch_profiler.runtime.cuda_driver import find_gpu

#: Candidates of an operation that a device takes at once and samples in turn. A single evaluator takes
#: more, but then no candidate of an operation's thirty would be left for other devices.
_SHARE_SIZE = 16


@dataclass(frozen=True)
class DeviceShare:
    """Some candidates of an operation, and the baselines that they are compared with."""

    operation: Operation
    baselines: tuple[Candidate, ...]
    others: tuple[Candidate, ...]


def shares(candidates: Iterable[Candidate]) -> Iterator[DeviceShare]:
    """All work, in order; every share of an operation includes its baselines."""
    for operation, group in itertools.groupby(candidates, lambda each: each.dispatch.operation):
        found = list(group)
        baselines = tuple(each for each in found if _is_baseline(each))
        others = [each for each in found if not _is_baseline(each)]
        for begin in range(0, max(1, len(others)), _SHARE_SIZE):
            yield DeviceShare(operation, baselines, tuple(others[begin : begin + _SHARE_SIZE]))


def _is_baseline(candidate: Candidate) -> bool:
    return isinstance(candidate.dispatch.configuration, (Default, LibraryCall))


def parse_devices(text: str, usual: str, option: str = "--devices") -> tuple[str, ...]:
    """`cuda://0,cuda://1` -> both; a number is a device of the driver of `usual`. `option` is the option with `text`.

    Raises UsageError for an empty URI, for a device that cannot run code for `usual`, and for hardware
    that is named twice.
    """
    devices = tuple(device_uri(part, usual) for part in text.split(","))
    if not all(devices):
        raise UsageError(f"{option}: expected device URIs between commas, but got {text!r}")
    for device in devices:
        if DeviceUri.parse(device).family != DeviceUri.parse(usual).family:
            raise UsageError(
                f"{option}: code for {usual} does not run on {device}",
                hint="a device of another kind needs a target of its own",
            )
    identities = [_identity(device) for device in devices]
    for device, identity in zip(devices, identities, strict=True):
        if identities.count(identity) > 1:
            raise UsageError(f"{option}: {device} is named twice", hint="name each device once")
    return devices


def _identity(device: str) -> str:
    gpu = find_gpu(device)
    return gpu.uuid if gpu else device


def hardware_of(device: str) -> str:
    """The hardware of a device URI: devices that share it would slow each other down."""
    uri = DeviceUri.parse(device)
    return "CPU" if uri.is_local and not uri.is_remote else _identity(device)


def unlike(devices: Sequence[str]) -> str:
    """A warning if these devices of this machine are not alike; else empty."""
    own = [device for device in devices if not DeviceUri.parse(device).is_remote]
    kinds = {device: this_machine(device).gpu or device for device in own}
    if len(set(kinds.values())) < 2:
        return ""
    names = ", ".join(device if kind == device else f"{device} ({kind})" for device, kind in kinds.items())
    return f"unlike devices: {names}; speeds are compared only with results of the same device"


class Evaluators(Closing):
    """An `Evaluator` for each of `devices`, with the same methods. Use as a context manager."""

    def __init__(self, options: EvaluatorOptions, devices: Sequence[str]) -> None:
        self._open = ExitStack()
        self._evaluators = {
            device: self._open.enter_context(Evaluator(replace(options, device=device))) for device in devices
        }
        #: Device -> why it failed, in the order of failures.
        self.failures: dict[str, str] = {}

    def check_device(self) -> None:
        """Open all devices. Devices that fail are added to `failures`, and the others do the work.

        Raises TargetError if none opens.
        """
        errors = {}
        for device, evaluator in self._evaluators.items():
            try:
                evaluator.check_device()
            except TargetError as error:
                errors[device] = error
        if len(errors) == len(self._evaluators):
            raise next(iter(errors.values()))
        for device, failure in errors.items():
            self._evaluators.pop(device).close()
            self.failures[device] = failure.message

    def check_libraries(self, names: Sequence[str]) -> None:
        """See `Evaluator.check_libraries`."""
        for evaluator in self._evaluators.values():
            evaluator.check_libraries(names)

    def provenances(self, candidate: Candidate) -> Iterator[Provenance]:
        """On each device, the provenance of a record of this candidate made now."""
        return (evaluator.provenance(candidate) for evaluator in self._evaluators.values())

    def load_ahead(self, candidates: Iterable[Candidate], say: Callable[[str], None]) -> None:
        """See `Evaluator.load_ahead`; devices share their driver's cache."""
        next(iter(self._evaluators.values())).load_ahead(candidates, say)

    def records(self, candidates: Iterable[Candidate]) -> Iterator[Record]:
        """Records as they are done; the records of each device are in the order of `candidates`.

        On one device, the same records as `Evaluator.records`. On several, the baselines of an operation come
        once for each device that worked on it. A device that no longer opens is added to `failures`; other
        devices evaluate the rest of its work.
        """
        if len(self._evaluators) == 1:
            (evaluator,) = self._evaluators.values()
            yield from evaluator.records(candidates)
            return
        yield from DeviceCrew(self._evaluators, shares(candidates), self.failures).records()

    def close(self) -> None:
        """End the worker processes."""
        self._open.close()


class _WorkQueue:
    """The remaining shares. A thread that finds no share waits while other threads may still put shares back."""

    def __init__(self, shares: Iterable[DeviceShare], devices: int) -> None:
        self._left = deque(shares)
        self._active = 0
        self._devices = devices
        self._changed = threading.Condition()
        self._is_stopped = False

    def take(self) -> DeviceShare | None:
        """The next share; None if no share is left."""
        with self._changed:
            while not self._left and self._active and not self._is_stopped:
                self._changed.wait()
            if self._is_stopped or not self._left:
                return None
            self._active += 1
            return self._left.popleft()

    def done(self) -> None:
        """Note that a share is done or was given up."""
        with self._changed:
            self._active -= 1
            self._changed.notify_all()

    def put_back(self, rest: DeviceShare) -> bool:
        """Put back the candidates that a failed device did not evaluate; False if no other device is left."""
        with self._changed:
            if self._devices == 1:
                return False
            self._devices -= 1
            self._left.appendleft(rest)
            return True

    def stop(self) -> None:
        """Hand out no more shares."""
        with self._changed:
            self._is_stopped = True
            self._changed.notify_all()


class DeviceCrew:
    """A thread for each piece of hardware, all taking from the same queue."""

    def __init__(
        self, evaluators: Mapping[str, Evaluator], work: Iterable[DeviceShare], failures: dict[str, str]
    ) -> None:
        self._evaluators = dict(evaluators)
        self._work = _WorkQueue(work, len(evaluators))
        self._failures = failures

    def records(self) -> Iterator[Record]:
        """All records. Raises an error of a thread once the others are done.

        On KeyboardInterrupt, yields the records that have samples, and re-raises it.
        """
        hardware: dict[str, list[str]] = {}
        for device in self._evaluators:
            hardware.setdefault(hardware_of(device), []).append(device)
        work = [(name, partial(self._run, devices)) for name, devices in hardware.items()]
        ended = yield from results_in_threads(work, self._kill)
        for each in ended:
            if each.error is not None:
                raise each.error

    def _kill(self) -> None:
        """Hand out no more work, and interrupt work in progress."""
        self._work.stop()
        for evaluator in self._evaluators.values():
            evaluator.kill()

    def _run(self, devices: list[str]) -> Iterator[Record]:
        """Records of devices of the same hardware, which take turns."""
        turns = deque(devices)
        measured: dict[str, set[Operation]] = {device: set() for device in devices}
        while turns and (share := self._work.take()) is not None:
            device = turns.popleft()
            try:
                is_working = yield from self._evaluate(device, share, measured[device])
            finally:
                self._work.done()
            if is_working:
                turns.append(device)

    def _evaluate(
        self, device: str, share: DeviceShare, measured: set[Operation]
    ) -> Generator[Record, None, bool]:
        """Evaluate a share on a device; returns False if the device failed and left the rest to others."""
        baselines = () if share.operation in measured else share.baselines
        measured.add(share.operation)
        left = deque([*baselines, *share.others])
        for record in self._evaluators[device].records(tuple(left)):
            failure = self._failure(device) if record.verdict is Verdict.CRASHED else ""
            if not failure or record.reason != failure:
                # The candidate that broke the device is not tried on another one.
                left.popleft()
                yield record
            if failure:
                rest = tuple(each for each in left if not _is_baseline(each))
                if self._work.put_back(DeviceShare(share.operation, share.baselines, rest)):
                    self._failures[device] = failure
                    return False
                if record.reason == failure:
                    left.popleft()
                    yield record
        return True

    def _failure(self, device: str) -> str:
        """Why a device no longer opens; empty if it does."""
        try:
            self._evaluators[device].check_device()
        except TargetError as error:
            return error.message
        return ""
