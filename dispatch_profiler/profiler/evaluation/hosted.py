"""Evaluators in the Dask workers of machines with devices, for searches on other machines.

A worker needs neither the compiler nor a generated tree: candidates come with their vmfbs, as in a bundle, and the
worker draws inputs from the seed and computes references itself.
"""

from __future__ import annotations

import platform
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace

from dispatch_profiler import __version__
from dispatch_profiler.command import user_cache
from dispatch_profiler.errors import ToolError
from dispatch_profiler.profiler.evaluation.candidate import Candidate
from dispatch_profiler.profiler.evaluation.devices import hardware_of
from dispatch_profiler.profiler.evaluation.evaluator import Evaluator, runtime_version
from dispatch_profiler.profiler.evaluation.machine import this_machine
from dispatch_profiler.profiler.evaluation.options import EvaluatorOptions
from dispatch_profiler.profiler.records.machine import Machine
from dispatch_profiler.profiler.records.record import Record
from dispatch_profiler.runtime import DeviceUri


@dataclass(frozen=True)
class Host:
    """What a worker says about itself and one of its devices.

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
    """The evaluators of a process: one for each device, that of the search which used it last."""

    def __init__(self) -> None:
        self._evaluators: dict[str, tuple[str, Evaluator]] = {}
        self._lock = threading.Lock()

    def of(self, search: str, options: EvaluatorOptions) -> Evaluator:
        """The evaluator of a search, made on its first call; that of another search is closed."""
        with self._lock:
            owner, evaluator = self._evaluators.get(options.device, ("", None))
            if evaluator is None or owner != search:
                if evaluator is not None:
                    evaluator.close()
                uri = DeviceUri.parse(options.device)
                peaks = user_cache() / "machines" if options.peaks else None
                evaluator = Evaluator(replace(options, device=str(replace(uri, host="")), peaks=peaks))
                self._evaluators[options.device] = search, evaluator
            return evaluator

    def take(self, search: str, device: str) -> Evaluator | None:
        """The evaluator of a search, which is no longer kept; None if there is none."""
        with self._lock:
            owner, evaluator = self._evaluators.get(device, ("", None))
            if owner != search:
                return None
            del self._evaluators[device]
            return evaluator


_HOSTED = Hosted()


def check(search: str, options: EvaluatorOptions) -> None:
    """Raise TargetError if the device does not open."""
    _HOSTED.of(search, options).check_device()


def evaluate(
    search: str, options: EvaluatorOptions, known: Sequence[Record], candidates: Sequence[Candidate]
) -> list[Record]:
    """The record of each candidate, which also learns from the `known` ones. Raises ToolError after `stop`.

    `options.device` is the name of the device in the search, such as `cuda://0@node7`, and that in the records.
    """
    evaluator = _HOSTED.of(search, options)
    evaluator.learn(known)
    try:
        found = list(evaluator.records(candidates))
    except KeyboardInterrupt:
        # It would end the Dask worker.
        raise ToolError("interrupted") from None
    return [replace(each, provenance=replace(each.provenance, device=options.device)) for each in found]


def stop(search: str, device: str) -> None:
    """End the processes of a search, also while they measure."""
    evaluator = _HOSTED.take(search, device)
    if evaluator is not None:
        evaluator.kill()
