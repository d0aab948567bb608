"""A run on one device or on several: work goes to the device that is free.

Each device has a session of its own, so its own default, sentinel, limits and ceilings, and measures one
dispatch at a time; devices of the same hardware take turns. A device that works on an operation
measures what the others of it are compared with, the default and the libraries, itself.
"""

from __future__ import annotations

import itertools
import queue
import re
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from dispatch_profiler.configurations import Default
from dispatch_profiler.dispatches import DispatchEntry, OperationEntry, Tree
from dispatch_profiler.errors import UsageError
from dispatch_profiler.operations import Operation
from dispatch_profiler.profiler.evaluation.machine import this_machine
from dispatch_profiler.profiler.evaluation.session import Pair, ProfileOptions, Session
from dispatch_profiler.profiler.measurement.measure import Mode
from dispatch_profiler.profiler.providers.library_calls import LibraryCall
from dispatch_profiler.profiler.records.record import Provenance, Record
from dispatch_profiler.runtime.cuda_driver import find_gpu

#: Dispatches of an operation that a device takes at once. They are visited in turns; a session alone takes
#: more, but then other devices would have none of an operation's thirty.
_AT_ONCE = 16


@dataclass(frozen=True)
class Share:
    """Some dispatches of an operation, and what they are compared with."""

    operation: Operation
    baselines: tuple[Pair, ...]
    others: tuple[Pair, ...]


def shares(pairs: Iterable[Pair]) -> Iterator[Share]:
    """All work, in its order; what others of an operation are compared with comes in each of its shares."""
    for operation, group in itertools.groupby(pairs, lambda pair: pair[0].operation):
        found = list(group)
        baselines = tuple(pair for pair in found if _is_baseline(pair))
        others = [pair for pair in found if not _is_baseline(pair)]
        for begin in range(0, max(1, len(others)), _AT_ONCE):
            yield Share(operation, baselines, tuple(others[begin : begin + _AT_ONCE]))


def _is_baseline(pair: Pair) -> bool:
    return isinstance(pair[1].dispatch.configuration, (Default, LibraryCall))


def parse_devices(text: str, usual: str) -> tuple[str, ...]:
    """`cuda://0,cuda://1` -> both.

    Raises UsageError for one that is empty, one whose driver cannot run what is for the device `usual`,
    and hardware that is named twice.
    """
    devices = tuple(part.strip() for part in text.split(","))
    if not all(devices):
        raise UsageError(f"--devices: expected device URIs between commas, but got {text!r}")
    for device in devices:
        if _driver(device) != _driver(usual):
            raise UsageError(
                f"--devices: the tree is compiled for devices like {usual}, but got {device}",
                hint="a device of another kind needs a tree of its own: compare both runs with `compare`",
            )
    identities = [_identity(device) for device in devices]
    for device, identity in zip(devices, identities, strict=True):
        if identities.count(identity) > 1:
            raise UsageError(f"--devices: {device} is named twice", hint="name each device once")
    return devices


def _driver(device: str) -> str:
    """`local` of `local-task`, `cuda` of `cuda://1`."""
    return re.split(r"[-:]", device)[0]


def _identity(device: str) -> str:
    gpu = find_gpu(device)
    return gpu.uuid if gpu else device


def _hardware(device: str) -> str:
    """What devices of the same name here share: measured at once, they would slow each other down."""
    return "CPU" if device.startswith("local-") else _identity(device)


def unlike(devices: Sequence[str]) -> str:
    """One sentence if these devices are not alike; else empty."""
    kinds = {device: this_machine(device).gpu or device for device in devices}
    if len(set(kinds.values())) < 2:
        return ""
    told = ", ".join(device if kind == device else f"{device} ({kind})" for device, kind in kinds.items())
    return f"unlike devices: {told}; speeds are compared with what the same device reached"


class Sessions:
    """See `Session`, of which each of `devices` has one. Use as a context manager."""

    def __init__(self, tree: Tree, options: ProfileOptions, devices: Sequence[str]) -> None:
        self._open = ExitStack()
        self._sessions = {
            device: self._open.enter_context(Session(tree, replace(options, device=device)))
            for device in devices
        }
        self._mode = options.measure.mode

    @property
    def damaged(self) -> list[Path]:
        """See `Session.damaged`."""
        return list(dict.fromkeys(path for each in self._sessions.values() for path in each.damaged))

    @property
    def mode(self) -> Mode:
        """See `Session.mode`."""
        return self._mode

    def check_device(self) -> None:
        """Raise TargetError if one of them does not open."""
        for session in self._sessions.values():
            session.check_device()

    def check_libraries(self, names: Sequence[str]) -> None:
        """See `Session.check_libraries`."""
        for session in self._sessions.values():
            session.check_libraries(names)

    def provenances(self, entry: OperationEntry, dispatch: DispatchEntry) -> Iterator[Provenance]:
        """Where and with what a record of this dispatch may be made now."""
        return (session.provenance(entry, dispatch) for session in self._sessions.values())

    def load_ahead(self, pairs: Iterable[Pair], say: Callable[[str], None]) -> None:
        """See `Session.load_ahead`; devices share what their driver keeps."""
        next(iter(self._sessions.values())).load_ahead(pairs, say)

    def records(self, pairs: Iterable[Pair]) -> Iterator[Record]:
        """Records as they are done, those of a device in the order of `pairs`.

        On one device they are those of `Session.records`. On several the baselines of an operation come
        once for each device that worked on it.
        """
        if len(self._sessions) == 1:
            (session,) = self._sessions.values()
            yield from session.records(pairs)
            return
        crew = _Crew(self._sessions, shares(pairs))
        try:
            yield from crew.records()
        finally:
            crew.stop()

    def close(self) -> None:
        """End the worker processes."""
        self._open.close()

    def __enter__(self) -> Sessions:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class _Crew:
    """A thread for each piece of hardware, all taking from the same work."""

    def __init__(self, sessions: Mapping[str, Session], work: Iterable[Share]) -> None:
        self._sessions = list(sessions.values())
        self._work = deque(work)
        self._done: queue.SimpleQueue[Record | BaseException | None] = queue.SimpleQueue()
        self._stopped = threading.Event()
        hardware: dict[str, list[Session]] = {}
        for device, session in sessions.items():
            hardware.setdefault(_hardware(device), []).append(session)
        self._threads = [
            threading.Thread(target=self._run, args=(of_it,), name=name, daemon=True)
            for name, of_it in hardware.items()
        ]
        self._working = len(self._threads)

    def records(self) -> Iterator[Record]:
        """All of them. Raises what broke in a thread.

        Interrupted, those that have been visited come before KeyboardInterrupt goes on.
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
        while self._working:
            found = self._done.get()
            if isinstance(found, Record):
                yield found
                continue
            self._working -= 1
            if found is not None and not self._stopped.is_set():
                raise found

    def stop(self) -> None:
        """Let no thread take more work, and break off what they are doing."""
        self._stopped.set()
        if any(thread.is_alive() for thread in self._threads):
            for session in self._sessions:
                session.kill()
        for thread in self._threads:
            thread.join()

    def _run(self, sessions: Sequence[Session]) -> None:
        """Devices of the same hardware take turns."""
        measured: dict[Session, set[Operation]] = {session: set() for session in sessions}
        ended: BaseException | None = None
        try:
            for session in itertools.cycle(sessions):
                if self._stopped.is_set() or not self._take(session, measured[session]):
                    break
        except BaseException as error:
            ended = error  # for whoever reads the records
        self._done.put(ended)

    def _take(self, session: Session, measured: set[Operation]) -> bool:
        """Do the next share; False if none is left."""
        try:
            share = self._work.popleft()
        except IndexError:
            return False
        baselines = () if share.operation in measured else share.baselines
        measured.add(share.operation)
        for record in session.records([*baselines, *share.others]):
            self._done.put(record)
        return True
