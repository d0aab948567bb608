"""Devices of other machines, on which Dask workers measure candidates for a search.

    dask worker tcp://head:8786 --name node7 --resources "cuda://0=1"     ->     cuda://0@node7

A worker receives the candidates of an operation and round with their vmfbs, and returns their records.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dispatch_profiler.closing import Closing
from dispatch_profiler.compiler.workers.cluster import (
    Cluster,
    Warn,
    WorkerInfo,
    open_client,
    other_versions,
    workers_of,
)
from dispatch_profiler.errors import DispatchProfilerError, TargetError, UsageError
from dispatch_profiler.operations import Operation
from dispatch_profiler.profiler.evaluation import hosted
from dispatch_profiler.profiler.evaluation.candidate import Candidate, EvaluatorOptions
from dispatch_profiler.profiler.evaluation.evaluator import runtime_version
from dispatch_profiler.profiler.evaluation.hosted import Host
from dispatch_profiler.profiler.records.machine import Machine
from dispatch_profiler.profiler.records.record import Record
from dispatch_profiler.runtime import DeviceUri
from dispatch_profiler.version import __version__

#: Seconds between checks for workers that are gone, and to wait for a worker's answer.
_POLL_SECONDS, _ANSWER_SECONDS = 1.0, 60.0


@dataclass(frozen=True)
class HostedDevice:
    """A device in the search, such as `cuda://0@node7`, and the worker that measures on it."""

    name: str
    resource: str
    worker: str
    host: Host


class ClusterDevices(Closing):
    """A connection to a cluster, for the devices of its workers. Use as a context manager.

    Raises the errors of `open_client`.
    """

    def __init__(self, cluster: Cluster, warn: Warn = lambda message: None) -> None:
        self._open = contextlib.ExitStack()
        self._client = self._open.enter_context(open_client(cluster, warn))
        self._scheduler = cluster.scheduler
        self._warn = warn
        #: Workers and resources that are used, or were rejected.
        self._seen: set[tuple[str, str]] = set()
        #: Tells the evaluators of searches apart.
        self._search = secrets.token_hex(8)

    @property
    def compiling_threads(self) -> int:
        """How many modules the cluster's workers without a device compile at once."""
        return sum(each.threads for each in workers_of(self._client).values() if not each.devices)

    def devices(self, usual: str, wanted: Sequence[str] = ()) -> dict[str, HostedDevice]:
        """The devices `wanted`, by default all that run the code of the device URI `usual`.

        Raises UsageError for an unknown device, if devices differ, or if a worker has other versions.
        """
        offered = [self._described(*each) for each in self._offered(usual)]
        for name in wanted:
            if name not in [each.name for each in offered]:
                raise UsageError(
                    f"--devices: no worker at {self._scheduler} measures on {name}; available: "
                    + (", ".join(each.name for each in offered) or "none"),
                    hint='start one there with: dask worker ADDRESS --name NAME --resources "URI=1"',
                )
        chosen = [each for each in offered if not wanted or each.name in wanted]
        check_alike(chosen)
        self._seen |= {(each.worker, each.resource) for each in chosen}
        return {each.name: each for each in chosen}

    def new_devices(
        self, first: HostedDevice, wanted: Sequence[str], taken: Collection[str]
    ) -> list[HostedDevice]:
        """Further devices that are like `first`, by default all, with names other than `taken`; warns of others."""
        devices = []
        for each in self._offered(first.resource):
            try:
                device = self._described(*each)
                if device.name in taken:
                    continue  # its worker was started again, and the loss of the old one is not noticed yet
                if not wanted or device.name in wanted:
                    check_alike([first, device])
                    devices.append(device)
            except UsageError as error:
                self._warn(f"not used: {error.message}")
            self._seen.add((each[0], each[2]))
        return devices

    def _offered(self, usual: str) -> list[tuple[str, WorkerInfo, str]]:
        """(address, worker, resource) of each device for the code of `usual` that was not seen before."""
        family = DeviceUri.parse(usual).family
        return [
            (address, worker, resource)
            for address, worker in workers_of(self._client).items()
            for resource in worker.devices
            if DeviceUri.parse(resource).family == family and (address, resource) not in self._seen
        ]

    def _described(self, address: str, worker: WorkerInfo, resource: str) -> HostedDevice:
        host = self._host(address, worker, resource)
        # Without --name, a worker has the name of its address.
        label = host.name if worker.name == address else worker.name
        return HostedDevice(str(replace(DeviceUri.parse(resource), host=label)), resource, address, host)

    def _host(self, address: str, worker: WorkerInfo, resource: str) -> Host:
        try:
            host: Host = self._client.run(hosted.describe, resource, workers=[address])[address]
        except Exception as error:  # what the worker's Python raised
            raise UsageError(
                f"the worker {worker.name} cannot measure: {error}",
                hint="install the same dispatch_profiler there (docs/cluster.md)",
            ) from error
        theirs = (host.package, f"IREE's runtime {host.runtime}")
        ours = (__version__, f"IREE's runtime {runtime_version()}")
        if different := other_versions(f"{worker.name} on {host.name}", theirs, ours):
            raise UsageError(different, hint="install the same versions on both")
        return host

    def evaluator(self, device: HostedDevice, options: EvaluatorOptions) -> ClusterEvaluator:
        """The evaluator of `device`, for one group of candidates at a time."""
        return ClusterEvaluator(self._client, self._search, device, replace(options, device=device.name))

    def close(self) -> None:
        """Disconnect."""
        self._open.close()


class ClusterEvaluator:
    """Does what `Evaluator` does, on the device of a worker. A worker that is lost is a device that fails."""

    def __init__(self, client: Any, search: str, device: HostedDevice, options: EvaluatorOptions) -> None:
        self._client = client
        self._search = search
        self._device = device
        self._options = options
        self._known: list[Record] = []
        self._is_interrupted = False

    @property
    def machine(self) -> Machine:
        """The machine of the worker."""
        return self._device.host.machine

    def check_device(self) -> None:
        """Raise TargetError if the device does not open, or the worker is gone."""
        self._call(hosted.check, self._options)

    def prepare(self, operation: Operation) -> None:
        """Nothing: the worker prepares itself."""

    def verify(self, candidate: Candidate) -> None:
        """Nothing: the worker verifies candidates when it measures them."""

    def learn(self, records: Iterable[Record]) -> None:
        """See `Evaluator.learn`; sent with the next candidates."""
        self._known += records

    def records(self, candidates: Iterable[Candidate]) -> Iterator[Record]:
        """See `Evaluator.records`; all come when the last one is done."""
        known, self._known = self._known, []
        yield from self._call(hosted.evaluate, self._options, known, tuple(candidates))

    def kill(self) -> None:
        """See `Evaluator.kill`."""
        self._is_interrupted = True
        self._stop()

    def close(self) -> None:
        """End the processes of the worker that belong to this search."""
        self._stop()

    def _stop(self) -> None:
        # The worker or the scheduler may be gone.
        with contextlib.suppress(Exception):
            if self._is_there():
                arguments = self._search, self._options.device
                self._client.run(hosted.stop, *arguments, workers=[self._device.worker], on_error="ignore")

    def _is_there(self) -> bool:
        return self._device.worker in workers_of(self._client)

    def _call(self, function: Any, *arguments: Any) -> Any:
        """The result of `function` on the worker. Raises TargetError if the worker is gone."""
        device, done = self._device, threading.Event()
        future = self._client.submit(
            function, self._search, *arguments, pure=False, retries=0,
            workers=[device.worker], resources={device.resource: 1},
        )  # fmt: skip
        future.add_done_callback(lambda _: done.set())
        try:
            while not done.wait(_POLL_SECONDS):
                if self._is_interrupted:
                    raise KeyboardInterrupt
                if not self._is_there():
                    raise TargetError(f"the worker on {device.host.name} is gone")
            return future.result(timeout=_ANSWER_SECONDS)
        except DispatchProfilerError:
            if self._is_interrupted:
                raise KeyboardInterrupt from None
            raise
        except Exception as error:  # of Dask: the worker died, or the connection is lost
            raise TargetError(
                f"the worker on {device.host.name} failed: {type(error).__name__}: {error}"
            ) from error
        finally:
            with contextlib.suppress(Exception):
                future.cancel()


def check_alike(devices: Sequence[HostedDevice]) -> None:
    """Raise UsageError if two devices are of different kinds or the same hardware: their times are compared."""
    for each in devices[1:]:
        first = devices[0]
        kinds = [one.host.machine.gpu or one.host.machine.name for one in (first, each)]
        if kinds[0] != kinds[1]:
            raise UsageError(
                f"unlike devices: {first.name} is {kinds[0]}, {each.name} is {kinds[1]}",
                hint=f"name devices of one kind, such as --devices={first.name}",
            )
    seen: dict[str, HostedDevice] = {}
    for each in devices:
        other = seen.setdefault(each.host.hardware, each)
        if other is not each:
            raise UsageError(
                f"{other.name} and {each.name} are the same hardware, and would slow each other down",
                hint="end one of the workers",
            )
