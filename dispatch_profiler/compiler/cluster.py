"""Compiling modules on a Dask cluster (`--executor=dask`).

Tasks contain the sources and return the vmfbs, so workers need no shared disk. The scheduler assigns
the tasks of a lost worker to another. This module uses Dask directly, not joblib's backend for it,
which waits forever for a task that the scheduler has given up.

A scheduler and its workers execute whatever a client sends them, and a client unpickles their
answers. They should therefore listen on the loopback interface only, or use TLS with certificates.
"""

from __future__ import annotations

import contextlib
import ipaddress
import pickle
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from dispatch_profiler import __version__
from dispatch_profiler.compiler._base import BuildOutcome, BuildRequest, Built, Compiler
from dispatch_profiler.dispatches import State
from dispatch_profiler.errors import MissingDependency, ToolError, UsageError

_INSTALL = "python -m pip install 'distributed>=2024.8'"
#: Time limit in seconds for a scheduler to answer.
_ANSWER_SECONDS = 10
#: Maximum addresses in a warning.
_MAX_ADDRESSES = 3

Key = TypeVar("Key")
#: Called with a warning for the user, such as that other machines can use the cluster.
Warn = Callable[[str], None]


@dataclass(frozen=True)
class TlsFiles:
    """Files in PEM format: the authority that the cluster trusts, our certificate and its key."""

    authority: Path
    certificate: Path
    key: Path


@dataclass(frozen=True)
class Cluster:
    """A scheduler at `tcp://HOST:PORT`, or at `tls://HOST:PORT` with `tls`."""

    scheduler: str
    tls: TlsFiles | None = None


def cluster_results(
    cluster: Cluster,
    compiler: Compiler,
    requests: Mapping[Key, BuildRequest],
    task: Callable[[Key, BuildRequest], tuple[Key, Built]],
    warn: Warn,
) -> Iterator[tuple[Key, Built]]:
    """Yield the result of `task(key, request)` for every request as it completes on some worker.

    If the scheduler gives up a request because its workers died, that is its outcome. Raises the errors
    of `connect`.
    """
    distributed = _distributed()
    left = dict(requests)
    futures: dict[Any, Key] = {}
    with connect(cluster, compiler, warn) as client:
        done = distributed.as_completed(loop=client.loop)

        def submit() -> None:
            # Twice as many as threads, so that none is idle; the rest is not submitted yet.
            for key in list(left)[: max(0, 2 * sum(client.nthreads().values()) - len(futures))]:
                future = client.submit(task, key, left.pop(key), pure=False)
                futures[future] = key
                done.add(future)

        submit()
        for future in done:
            key = futures.pop(future)
            try:
                yield future.result()
            except distributed.KilledWorker as error:
                yield key, _lost(requests[key], error)
            submit()


def _lost(request: BuildRequest, error: Exception) -> Built:
    reason = "the cluster's workers died on it repeatedly"
    outcome = BuildOutcome(State.NOT_COMPILED, reason, is_transient=True)
    return Built(b"", b"", {d.name: outcome for d in request.dispatches}, diagnostics=str(error))


@contextlib.contextmanager
def connect(cluster: Cluster, compiler: Compiler, warn: Warn) -> Iterator[Any]:
    """A client of `cluster`, whose workers all have the compiler of this machine.

    Warns if other machines can reach it without TLS. Raises MissingDependency, UsageError if no scheduler
    answers, ToolError if it has no workers or they have another compiler: results are cached under the
    compiler's revision.
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
        listening = _check_workers(client, cluster.scheduler, compiler)
        exposed = [address for address in listening if is_exposed(address)]
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


def _check_workers(client: Any, scheduler: str, compiler: Compiler) -> list[str]:
    """Addresses on which the scheduler and its workers listen. Raises ToolError as `connect` does."""
    if not client.nthreads():
        raise ToolError(
            f"the scheduler at {scheduler} has no workers", hint=f"start some with: dask worker {scheduler}"
        )

    # Nested functions are pickled by value: a worker may lack this package.
    def of_scheduler(dask_scheduler: Any) -> list[str]:
        return [listener.listen_address for listener in dask_scheduler.listeners]

    def of_worker(compiler: bytes, dask_worker: Any) -> tuple[str, str, list[str]]:
        import pickle

        import dispatch_profiler

        addresses = [listener.listen_address for listener in dask_worker.listeners]
        # From our own client, which may run any program here anyway: see the top of this file.
        return dispatch_profiler.__version__, pickle.loads(compiler).revision, addresses

    listening = dict.fromkeys(client.run_on_scheduler(of_scheduler))
    # Check once in advance: otherwise every task fails there, with an error that names no worker.
    for address, found in client.run(of_worker, pickle.dumps(compiler), on_error="return").items():
        if isinstance(found, Exception):
            raise ToolError(
                f"the worker {address} cannot compile: {found}",
                hint="install the same dispatch_profiler there (docs/cluster.md)",
            ) from found
        _check_versions(address, found[:2], compiler)
        listening |= dict.fromkeys(found[2])
    return list(listening)


def _check_versions(address: str, found: tuple[str, str], compiler: Compiler) -> None:
    ours = (__version__, compiler.revision)
    if tuple(found) != ours:
        raise ToolError(
            f"the worker {address} has dispatch_profiler {found[0]} with {found[1]}, "
            f"this machine has {ours[0]} with {ours[1]}",
            hint="install the same versions on both: results are cached under the compiler's revision",
        )
