"""Compiling modules on a Dask cluster (`--executor=dask`).

Tasks contain the sources and return the vmfbs, so workers need no shared disk. The scheduler assigns
the tasks of a lost worker to another. This module uses Dask directly, not joblib's backend for it,
which waits forever for a task that the scheduler has given up.

A scheduler and its workers execute whatever a client sends them, and a client unpickles their
answers. They should therefore listen on the loopback interface only, or use TLS with certificates.
"""

from __future__ import annotations

import argparse
import contextlib
import ipaddress
import itertools
import pickle
import queue
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from dispatch_profiler.command import Parser, folder
from dispatch_profiler.compiler._base import BuildOutcome, BuildRequest, Built, Compiler
from dispatch_profiler.dispatches import State
from dispatch_profiler.errors import MissingDependency, ToolError, UsageError
from dispatch_profiler.version import __version__

_INSTALL = "python -m pip install 'distributed>=2024.8'"
#: Time limit in seconds for a scheduler to answer.
_ANSWER_SECONDS = 10
#: Maximum addresses in a warning.
_MAX_ADDRESSES = 3
#: Seconds between checks for workers that are gone.
_POLL_SECONDS = 1.0
#: Drivers of devices.
_DRIVERS = ("cuda", "hip", "vulkan", "metal", "local-task", "local-sync", "null")

Key = TypeVar("Key")
#: Called with a warning for the user, such as that other machines can use the cluster.
Warn = Callable[[str], None]


@dataclass(frozen=True)
class TlsFiles:
    """Files in PEM format: the authority that the cluster trusts, the client's certificate and its key."""

    authority: Path
    certificate: Path
    key: Path


@dataclass(frozen=True)
class Cluster:
    """A scheduler at `tcp://HOST:PORT`, or at `tls://HOST:PORT` with `tls`."""

    scheduler: str
    tls: TlsFiles | None = None


def is_device(resource: str) -> bool:
    """Whether a resource of a worker is a device that it measures on, such as `cuda://0`; it compiles nothing."""
    return resource.partition("://")[0] in _DRIVERS


@dataclass(frozen=True)
class WorkerInfo:
    """A worker: its name, its threads and its resources."""

    name: str
    threads: int
    resources: tuple[str, ...]

    @property
    def devices(self) -> tuple[str, ...]:
        """URIs of the devices that it measures on."""
        return tuple(each for each in self.resources if is_device(each))


def workers_of(client: Any) -> dict[str, WorkerInfo]:
    """The workers of a cluster by address."""

    # Nested functions are pickled by value: a scheduler may lack this package.
    def of_scheduler(dask_scheduler: Any) -> dict[str, tuple[str, int, tuple[str, ...]]]:
        return {
            address: (str(worker.name), worker.nthreads, tuple(worker.resources))
            for address, worker in dask_scheduler.workers.items()
        }

    return {address: WorkerInfo(*row) for address, row in client.run_on_scheduler(of_scheduler).items()}


def compiling_workers(client: Any) -> dict[str, WorkerInfo]:
    """The workers without a device, by address."""
    return {address: worker for address, worker in workers_of(client).items() if not worker.devices}


def cluster_results(
    client: Any,
    requests: Mapping[Key, BuildRequest],
    task: Callable[[Key, BuildRequest], tuple[Key, Built]],
) -> Iterator[tuple[Key, Built]]:
    """Yield the result of `task(key, request)` for every request as it completes on some worker of `client`.

    If the scheduler gives up a request because its workers died, that is its outcome. Raises ToolError if
    `client` is closed, and the task's errors.
    """
    tasks = _Tasks(client, dict(requests), task)
    try:
        tasks.submit()
        while tasks.running:
            future = tasks.next_done()
            if future is None:
                tasks.move_from_lost_workers()
                continue
            key, _ = tasks.running.pop(future)
            try:
                yield future.result()
            except _distributed().KilledWorker as error:
                yield key, _lost(requests[key], error)
            tasks.submit()
    finally:
        with contextlib.suppress(Exception):  # closed by another thread
            client.cancel(list(tasks.running))


class _Tasks(Generic[Key]):
    """Submitted requests, and requests that are left."""

    def __init__(
        self,
        client: Any,
        left: dict[Key, BuildRequest],
        task: Callable[[Key, BuildRequest], tuple[Key, Built]],
    ) -> None:
        self._client = client
        self._left = left
        self._requests = dict(left)
        self._task = task
        self._done: queue.SimpleQueue[Any] = queue.SimpleQueue()
        #: Future -> its key, and the workers that it may run on.
        self.running: dict[Any, tuple[Key, frozenset[str]]] = {}

    def submit(self) -> None:
        """Submit twice as many as there are threads, so that none is idle."""
        workers = compiling_workers(self._client)
        threads = sum(worker.threads for worker in workers.values())
        # Without workers, the tasks wait for a new worker.
        room = max(2 * threads, 1) - len(self.running)
        for key in list(self._left)[: max(0, room)]:
            future = self._client.submit(
                self._task, key, self._left.pop(key), pure=False, workers=list(workers) or None
            )
            self.running[future] = key, frozenset(workers)
            future.add_done_callback(self._done.put)

    def next_done(self) -> Any:
        """A future that is done; None if no future finishes for a while. Raises ToolError if the client is closed."""
        with contextlib.suppress(queue.Empty):
            found = self._done.get(timeout=_POLL_SECONDS)
            return found if found in self.running else None
        if self._client.status != "running":
            raise ToolError("interrupted")
        return None

    def move_from_lost_workers(self) -> None:
        """Resubmit requests whose workers are all gone, if other workers exist."""
        alive = compiling_workers(self._client).keys()
        for future, (key, workers) in list(self.running.items()):
            if alive and workers.isdisjoint(alive):
                del self.running[future]
                future.cancel()
                self._left[key] = self._requests[key]
        self.submit()


def _lost(request: BuildRequest, error: Exception) -> Built:
    reason = "the cluster's workers died on it repeatedly"
    outcome = BuildOutcome(State.NOT_COMPILED, reason, is_transient=True, is_deterministic=False)
    return Built(b"", b"", {d.name: outcome for d in request.dispatches}, diagnostics=str(error))


@contextlib.contextmanager
def connect(cluster: Cluster, compiler: Compiler, warn: Warn) -> Iterator[Any]:
    """A client of `cluster`, whose workers without a device all have the compiler of this machine.

    Raises the errors of `open_client`, and ToolError if no worker compiles or one has another compiler: results are
    cached under the compiler's revision.
    """
    with open_client(cluster, warn) as client:
        workers = compiling_workers(client)
        if not workers:
            raise ToolError(
                f"the scheduler at {cluster.scheduler} has no workers",
                hint=f"start some with: dask worker {cluster.scheduler}",
            )
        _check_compilers(client, workers, compiler)
        yield client


@contextlib.contextmanager
def open_client(cluster: Cluster, warn: Warn) -> Iterator[Any]:
    """A client of `cluster`. Warns if other machines can reach it without TLS.

    Raises MissingDependency, and UsageError if no scheduler answers.
    """
    try:
        client = _distributed().Client(
            cluster.scheduler, security=_security(cluster.tls), timeout=_ANSWER_SECONDS, set_as_default=False
        )
    except (OSError, ValueError) as error:
        trust = " with a certificate signed by --tls-ca-file" if cluster.tls else ""
        raise UsageError(
            f"no scheduler answers at {cluster.scheduler}{trust}: {' '.join(str(error).split())[:200]}",
            hint="start one with: dask scheduler --host 127.0.0.1 --port 8786 (docs/cluster.md)",
        ) from error
    with client:
        exposed = [address for address in _listening(client) if is_exposed(address)]
        if exposed:
            warn(
                f"warning: any process that reaches {', '.join(exposed[:_MAX_ADDRESSES])} can run programs in this "
                "cluster and on this machine; start it with --host 127.0.0.1, or with TLS (docs/cluster.md)"
            )
        yield client


def is_exposed(address: str) -> bool:
    """Whether other machines can reach `address`, such as `tcp://0.0.0.0:8786`, without TLS."""
    protocol, _, place = address.partition("://")
    host = place.rpartition(":")[0].strip("[]")
    if protocol in ("tls", "inproc") or host == "localhost":
        return False
    try:
        return not ipaddress.ip_address(host).is_loopback
    except ValueError:
        return True


def _security(tls: TlsFiles | None) -> Any:
    if tls is None:
        return None
    return _distributed().Security(
        tls_ca_file=str(tls.authority),
        tls_client_cert=str(tls.certificate),
        tls_client_key=str(tls.key),
        require_encryption=True,
    )


def _distributed() -> Any:
    """The `distributed` package, which has no types. Raises MissingDependency."""
    try:
        import distributed
    except ImportError as error:
        raise MissingDependency(
            "--executor=dask needs the package distributed", hint=f"run: {_INSTALL}"
        ) from error
    return distributed


def _listening(client: Any) -> list[str]:
    """Addresses on which the scheduler and its workers listen."""

    # Nested functions are pickled by value: a worker may lack this package.
    def of_scheduler(dask_scheduler: Any) -> list[str]:
        return [listener.listen_address for listener in dask_scheduler.listeners]

    def of_worker(dask_worker: Any) -> list[str]:
        return [listener.listen_address for listener in dask_worker.listeners]

    of_workers = client.run(of_worker).values()
    return list(dict.fromkeys([*client.run_on_scheduler(of_scheduler), *itertools.chain(*of_workers)]))


def _check_compilers(client: Any, workers: Collection[str], compiler: Compiler) -> None:
    """Raise ToolError if a worker has no compiler or another one."""

    def of_worker(compiler: bytes) -> tuple[str, str]:
        import pickle

        from dispatch_profiler.version import __version__ as version_here

        # From this user's client, which may run any program here anyway: see the top of this file.
        return version_here, pickle.loads(compiler).revision

    # Check once in advance: otherwise every task fails there, with an error that names no worker.
    answers = client.run(of_worker, pickle.dumps(compiler), workers=list(workers), on_error="return")
    for address, found in answers.items():
        if isinstance(found, Exception):
            raise ToolError(
                f"the worker {address} cannot compile: {found}",
                hint="install the same dispatch_profiler there (docs/cluster.md)",
            ) from found
        _check_versions(address, found, compiler)


def _check_versions(address: str, found: tuple[str, str], compiler: Compiler) -> None:
    if different := other_versions(address, found, (__version__, compiler.revision)):
        raise ToolError(
            different,
            hint="install the same versions on both: results are cached under the compiler's revision",
        )


def other_versions(worker: str, theirs: tuple[str, str], ours: tuple[str, str]) -> str:
    """How `worker`'s versions of this package and of IREE differ from the client's; empty if they are equal."""
    if tuple(theirs) == ours:
        return ""
    return (
        f"the worker {worker} has dispatch_profiler {theirs[0]} with {theirs[1]}, "
        f"this machine has {ours[0]} with {ours[1]}"
    )


# -- cluster options -------------------------------------------------------------------------------

# The options that name a cluster, which several commands share.


def add_tls_arguments(parser: Parser) -> None:
    """Add the files of `tls://` addresses, which `tls_files` reads."""
    parser.add_argument(
        "--tls-ca-file", type=folder, metavar="FILE", help="certificate of the authority, with tls://"
    )
    parser.add_argument(
        "--tls-cert", type=folder, metavar="FILE", help="certificate of this machine, with tls://"
    )
    parser.add_argument("--tls-key", type=folder, metavar="FILE", help="key of that certificate")


def tls_files(options: argparse.Namespace) -> TlsFiles | None:
    """The files that the options name; None without these options. Raises UsageError if a file is missing."""
    given = {
        "--tls-ca-file": options.tls_ca_file,
        "--tls-cert": options.tls_cert,
        "--tls-key": options.tls_key,
    }
    if not any(given.values()):
        return None
    for name, path in given.items():
        if path is None or not path.is_file():
            problem = "is required too" if path is None else f"is not a file: {path}"
            raise UsageError(f"{name} {problem}", hint="docs/cluster.md shows how to create the files")
    return TlsFiles(*given.values())


def cluster_at(option: str, address: str, tls: TlsFiles | None) -> Cluster:
    """The cluster with the scheduler at `address`, the value of `option`. Raises UsageError."""
    if not re.fullmatch(r"(tcp|tls)://\S+:\d+", address):
        raise UsageError(
            f"malformed scheduler address {address!r}",
            hint="write tcp://HOST:PORT or tls://HOST:PORT",
        )
    if address.startswith("tls://") != (tls is not None):
        raise UsageError(
            "tls:// addresses and --tls options go together",
            hint=f"give {option}=tls://HOST:PORT and all three files (docs/cluster.md)",
        )
    return Cluster(address, tls)
