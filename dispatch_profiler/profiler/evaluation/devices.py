"""A run on one device or on several: work goes to the device that is free.

Each device has an evaluator of its own, so its own default, sentinel, limits and peaks, and measures one
dispatch at a time; devices of the same hardware take turns. A device that works on an operation
measures what the others of it are compared with, the default and the libraries, itself. A device that
fails leaves its work to the others.
"""

from __future__ import annotations

import itertools
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

from dispatch_profiler.configurations import Default
from dispatch_profiler.errors import TargetError, UsageError
from dispatch_profiler.operations import Operation
from dispatch_profiler.profiler.evaluation.candidate import Candidate
from dispatch_profiler.profiler.evaluation.evaluator import Evaluator
from dispatch_profiler.profiler.evaluation.machine import this_machine
from dispatch_profiler.profiler.evaluation.options import EvaluatorOptions
from dispatch_profiler.profiler.measurement.measure import Mode
from dispatch_profiler.profiler.providers.library_calls import LibraryCall
from dispatch_profiler.profiler.records.record import Provenance, Record, Verdict
from dispatch_profiler.runtime import DeviceUri
from dispatch_profiler.runtime.cuda_driver import find_gpu

#: Candidates of an operation that a device takes at once. They are sampled in turns; an evaluator alone takes
#: more, but then other devices would have none of an operation's thirty.
_AT_ONCE = 16


@dataclass(frozen=True)
class Share:
    """Some candidates of an operation, and what they are compared with."""

    operation: Operation
    baselines: tuple[Candidate, ...]
    others: tuple[Candidate, ...]


def shares(candidates: Iterable[Candidate]) -> Iterator[Share]:
    """All work, in its order; what others of an operation are compared with comes in each of its shares."""
    for operation, group in itertools.groupby(candidates, lambda each: each.dispatch.operation):
        found = list(group)
        baselines = tuple(each for each in found if _is_baseline(each))
        others = [each for each in found if not _is_baseline(each)]
        for begin in range(0, max(1, len(others)), _AT_ONCE):
            yield Share(operation, baselines, tuple(others[begin : begin + _AT_ONCE]))


def _is_baseline(candidate: Candidate) -> bool:
    return isinstance(candidate.dispatch.configuration, (Default, LibraryCall))


def parse_devices(text: str, usual: str) -> tuple[str, ...]:
    """`cuda://0,cuda://1` -> both.

    Raises UsageError for one that is empty, one whose driver cannot run what is for the device `usual`,
    and hardware that is named twice.
    """
    devices = tuple(part.strip() for part in text.split(","))
    if not all(devices):
        raise UsageError(f"--devices: expected device URIs between commas, but got {text!r}")
    for device in devices:
        if DeviceUri.parse(device).family != DeviceUri.parse(usual).family:
            raise UsageError(
                f"--devices: the tree is compiled for devices like {usual}, but got {device}",
                hint="a device of another kind needs a tree of its own: compare both runs with `compare`",
            )
    identities = [_identity(device) for device in devices]
    for device, identity in zip(devices, identities, strict=True):
        if identities.count(identity) > 1:
            raise UsageError(f"--devices: {device} is named twice", hint="name each device once")
    return devices


def _identity(device: str) -> str:
    gpu = find_gpu(device)
    return gpu.uuid if gpu else device


def _hardware(device: str) -> str:
    """What devices of the same name here share: measured at once, they would slow each other down."""
    return "CPU" if DeviceUri.parse(device).is_local else _identity(device)


def unlike(devices: Sequence[str]) -> str:
    """One sentence if these devices are not alike; else empty."""
    kinds = {device: this_machine(device).gpu or device for device in devices}
    if len(set(kinds.values())) < 2:
        return ""
    told = ", ".join(device if kind == device else f"{device} ({kind})" for device, kind in kinds.items())
    return f"unlike devices: {told}; speeds are compared with what the same device reached"


class Evaluators:
    """See `Evaluator`, of which each of `devices` has one. Use as a context manager."""

    def __init__(self, options: EvaluatorOptions, devices: Sequence[str]) -> None:
        self._open = ExitStack()
        self._evaluators = {
            device: self._open.enter_context(Evaluator(replace(options, device=device))) for device in devices
        }
        self._mode = options.measure.mode
        #: Device -> why it was given up, in the order of their failures.
        self.failures: dict[str, str] = {}

    @property
    def mode(self) -> Mode:
        """See `Evaluator.mode`."""
        return self._mode

    def check_device(self) -> None:
        """Open all devices. Those that do not open are in `failures`, and the others do the work.

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
        """Where and with what a record of this candidate may be made now."""
        return (evaluator.provenance(candidate) for evaluator in self._evaluators.values())

    def load_ahead(self, candidates: Iterable[Candidate], say: Callable[[str], None]) -> None:
        """See `Evaluator.load_ahead`; devices share what their driver keeps."""
        next(iter(self._evaluators.values())).load_ahead(candidates, say)

    def records(self, candidates: Iterable[Candidate]) -> Iterator[Record]:
        """Records as they are done, those of a device in the order of `candidates`.

        On one device they are those of `Evaluator.records`. On several the baselines of an operation come
        once for each device that worked on it. A device that no longer opens is in `failures`; other
        devices evaluate what it left.
        """
        if len(self._evaluators) == 1:
            (evaluator,) = self._evaluators.values()
            yield from evaluator.records(candidates)
            return
        crew = _Crew(self._evaluators, shares(candidates), self.failures)
        try:
            yield from crew.records()
        finally:
            crew.stop()

    def close(self) -> None:
        """End the worker processes."""
        self._open.close()

    def __enter__(self) -> Evaluators:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class _WorkQueue:
    """Shares that are left. A thread that finds none waits while other threads may still return theirs."""

    def __init__(self, shares: Iterable[Share], devices: int) -> None:
        self._left = deque(shares)
        self._active = 0
        self._devices = devices
        self._changed = threading.Condition()
        self._is_stopped = False

    def take(self) -> Share | None:
        """The next one; None if there will be none."""
        with self._changed:
            while not self._left and self._active and not self._is_stopped:
                self._changed.wait()
            if self._is_stopped or not self._left:
                return None
            self._active += 1
            return self._left.popleft()

    def done(self) -> None:
        """A share that was taken is done, or given up."""
        with self._changed:
            self._active -= 1
            self._changed.notify_all()

    def leave(self, rest: Share) -> bool:
        """Give back what a failed device did not do, for another; False if no other is there."""
        with self._changed:
            if self._devices == 1:
                return False
            self._devices -= 1
            self._left.appendleft(rest)
            return True

    def stop(self) -> None:
        """Give out nothing more."""
        with self._changed:
            self._is_stopped = True
            self._changed.notify_all()


class _Crew:
    """A thread for each piece of hardware, all taking from the same work."""

    def __init__(
        self, evaluators: Mapping[str, Evaluator], work: Iterable[Share], failures: dict[str, str]
    ) -> None:
        self._evaluators = dict(evaluators)
        self._work = _WorkQueue(work, len(evaluators))
        self._failures = failures
        self._done: queue.SimpleQueue[Record | BaseException | None] = queue.SimpleQueue()
        self._stopped = threading.Event()
        hardware: dict[str, list[str]] = {}
        for device in evaluators:
            hardware.setdefault(_hardware(device), []).append(device)
        self._threads = [
            threading.Thread(target=self._run, args=(of_it,), name=name, daemon=True)
            for name, of_it in hardware.items()
        ]
        self._working = len(self._threads)

    def records(self) -> Iterator[Record]:
        """All of them. Raises what broke in a thread, when the others are done.

        Interrupted, those that have samples come before KeyboardInterrupt goes on.
        """
        for thread in self._threads:
            thread.start()
        try:
            yield from self._those_done()
        except KeyboardInterrupt:
            self.stop()
            yield from self._those_done()
            raise

    def _those_done(self) -> Iterator[Record]:
        broken: BaseException | None = None
        while self._working:
            found = self._done.get()
            if isinstance(found, Record):
                yield found
                continue
            self._working -= 1
            broken = broken or found
        if broken is not None and not self._stopped.is_set():
            raise broken

    def stop(self) -> None:
        """Let no thread take more work, and break off what they are doing."""
        self._stopped.set()
        self._work.stop()
        if any(thread.is_alive() for thread in self._threads):
            for evaluator in self._evaluators.values():
                evaluator.kill()
        for thread in self._threads:
            thread.join()

    def _run(self, devices: list[str]) -> None:
        """Devices of the same hardware take turns."""
        turns = deque(devices)
        measured: dict[str, set[Operation]] = {device: set() for device in devices}
        ended: BaseException | None = None
        try:
            while turns and (share := self._work.take()) is not None:
                device = turns.popleft()
                try:
                    is_well = self._evaluate(device, share, measured[device])
                finally:
                    self._work.done()
                if is_well:
                    turns.append(device)
        except BaseException as error:
            ended = error  # raised to the reader of the records
        self._done.put(ended)

    def _evaluate(self, device: str, share: Share, measured: set[Operation]) -> bool:
        """Evaluate a share on a device; False if the device failed and left the rest of it to others."""
        baselines = () if share.operation in measured else share.baselines
        measured.add(share.operation)
        left = deque([*baselines, *share.others])
        for record in self._evaluators[device].records(tuple(left)):
            failure = self._failure(device) if record.verdict is Verdict.CRASHED else ""
            if not failure or record.reason != failure:
                # Whatever broke the device is not tried on another one.
                left.popleft()
                self._done.put(record)
            if failure:
                rest = tuple(each for each in left if not _is_baseline(each))
                if self._work.leave(Share(share.operation, share.baselines, rest)):
                    self._failures[device] = failure
                    return False
                if record.reason == failure:
                    left.popleft()
                    self._done.put(record)
        return True

    def _failure(self, device: str) -> str:
        """Why a device does not open any more; empty if it does."""
        try:
            self._evaluators[device].check_device()
        except TargetError as error:
            return error.message
        return ""
