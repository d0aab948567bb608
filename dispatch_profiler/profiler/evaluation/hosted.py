"""Evaluators in the Dask workers of machines with devices, for searches on other machines.

A worker needs neither the compiler nor a generated tree: candidates come with their vmfbs, as in a bundle, and the
worker draws inputs from the seed and computes references itself.
"""

from __future__ import annotations

import contextlib
import platform
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from dispatch_profiler.command import user_cache
from dispatch_profiler.errors import ToolError
from dispatch_profiler.profiler.evaluation.candidate import Candidate, EvaluatorOptions
from dispatch_profiler.profiler.evaluation.devices import hardware_of
from dispatch_profiler.profiler.evaluation.evaluator import Evaluator, runtime_version
from dispatch_profiler.profiler.evaluation.hardware import this_machine
from dispatch_profiler.profiler.records.machine import Machine
from dispatch_profiler.profiler.records.record import Record
from dispatch_profiler.runtime import DeviceUri
from dispatch_profiler.version import __version__


@dataclass(frozen=True)
class Host:
    """A worker and one of its devices, as the worker describes them.

    `package` and `runtime` are versions of this package and of IREE's runtime; equal `hardware` is the same device.
    """

    name: str
    package: str
    runtime: str
    machine: Machine
    hardware: str


def describe(device: str) -> Host:
    """This process's machine, with the device of the URI `device`."""
    host = platform.node()
    return Host(host, __version__, runtime_version(), this_machine(device), f"{host} {hardware_of(device)}")


class Hosted:
    """The evaluators of a process: for each device, the evaluator of the search that used the device last.

    An evaluator that is idle for `idle_seconds` is closed: its search may have been killed, and it holds the device.
    Compiling a round takes minutes at most.
    """

    def __init__(self, idle_seconds: float = 900.0) -> None:
        self._idle_seconds = idle_seconds
        self._evaluators: dict[str, tuple[str, Evaluator]] = {}
        self._timers: dict[str, threading.Timer] = {}
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def use(self, search: str, options: EvaluatorOptions) -> Iterator[Evaluator]:
        """The evaluator of a search, made when it is first used; closes the evaluator of another search."""
        device = options.device
        with self._lock:
            if device in self._timers:
                self._timers.pop(device).cancel()
            evaluator = self._of(search, options)
        try:
            yield evaluator
        finally:
            timer = threading.Timer(self._idle_seconds, self.stop, (search, device))
            timer.daemon = True
            with self._lock:
                self._timers[device] = timer
            timer.start()

    def _of(self, search: str, options: EvaluatorOptions) -> Evaluator:
        owner, evaluator = self._evaluators.get(options.device, ("", None))
        if evaluator is None or owner != search:
            if evaluator is not None:
                evaluator.close()
            uri = DeviceUri.parse(options.device)
            peaks = user_cache() / "machines" if options.peaks else None
            local = replace(options, device=str(replace(uri, host="")), peaks=peaks, references=None)
            evaluator = Evaluator(local)
            self._evaluators[options.device] = search, evaluator
        return evaluator

    def stop(self, search: str, device: str) -> None:
        """End the processes of a search, also while they measure."""
        with self._lock:
            owner, evaluator = self._evaluators.get(device, ("", None))
            if evaluator is None or owner != search:
                return
            del self._evaluators[device]
        evaluator.kill()


_HOSTED = Hosted()


def check(search: str, options: EvaluatorOptions) -> None:
    """Raise TargetError if the device does not open."""
    with _HOSTED.use(search, options) as evaluator:
        evaluator.check_device()


def evaluate(
    search: str, options: EvaluatorOptions, known: Sequence[Record], candidates: Sequence[Candidate]
) -> list[Record]:
    """The record of each candidate, which also learns from the `known` ones. Raises ToolError after `stop`.

    `options.device` is the name of the device in the search, such as `cuda://0@node7`, and in the records.
    """
    with _HOSTED.use(search, options) as evaluator:
        evaluator.learn(known)
        try:
            found = list(evaluator.records(candidates))
        except KeyboardInterrupt:
            # It would end the Dask worker.
            raise ToolError("interrupted") from None
    return [replace(each, provenance=replace(each.provenance, device=options.device)) for each in found]


def stop(search: str, device: str) -> None:
    """End the processes of a search, also while they measure."""
    _HOSTED.stop(search, device)
