"""A Dask cluster as the place where modules are compiled (`--executor=dask`).

Sources and vmfbs travel with the tasks, so its workers share no disk with us. What a lost worker had
in hand the scheduler gives to another. This speaks to Dask itself and not through joblib's backend
for it: that one never hears of a task that the scheduler has given up, and waits for it forever.
"""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from dispatch_profiler import __version__
from dispatch_profiler.compiler._base import BuildOutcome, BuildRequest, Built, Compiler
from dispatch_profiler.dispatches import State
from dispatch_profiler.errors import MissingDependency, ToolError, UsageError

_INSTALL = "pip install 'dispatch_profiler[cluster]'"
#: How long a scheduler may take to answer, in seconds.
_ANSWER_SECONDS = 10

Key = TypeVar("Key")


def cluster_results(
    scheduler: str,
    compiler: Compiler,
    requests: Mapping[Key, BuildRequest],
    task: Callable[[Key, BuildRequest], tuple[Key, Built]],
) -> Iterator[tuple[Key, Built]]:
    """Every request's result as it comes: what `task(key, request)` gives on some worker.

    A request that the scheduler gives up, because workers died of it, has that as its outcome.
    Raises what `connect` raises.
    """
    distributed = _distributed()
    left = dict(requests)
    futures: dict[Any, Key] = {}
    with connect(scheduler, compiler) as client:
        done = distributed.as_completed(loop=client.loop)

        def submit() -> None:
            # Some more than there are threads, so that none waits; the rest stays here.
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
    reason = "the workers that the cluster gave it to died, one after the other"
    outcome = BuildOutcome(State.NOT_COMPILED, reason, is_transient=True)
    return Built(b"", b"", {d.name: outcome for d in request.dispatches}, diagnostics=str(error))


@contextlib.contextmanager
def connect(scheduler: str, compiler: Compiler) -> Iterator[Any]:
    """A client of the cluster at `scheduler`, all of whose workers compile as this machine would.

    Raises MissingDependency, UsageError if no scheduler answers, ToolError if workers are missing
    or have a different compiler than this machine: the cache is keyed by this compiler's revision.
    """
    try:
        client = _distributed().Client(scheduler, timeout=_ANSWER_SECONDS, set_as_default=False)
    except (OSError, ValueError) as error:
        raise UsageError(
            f"no scheduler answers at {scheduler}: {' '.join(str(error).split())[:200]}",
            hint="start one with: dask scheduler, and give its address as --scheduler=tcp://HOST:8786",
        ) from error
    with client:
        _check_workers(client, scheduler, compiler)
        yield client


def _distributed() -> Any:
    """The package, which has no types. Raises MissingDependency."""
    try:
        import distributed
    except ImportError as error:
        raise MissingDependency(
            "--executor=dask needs the package distributed", hint=f"run: {_INSTALL}"
        ) from error
    return distributed


def _check_workers(client: Any, scheduler: str, compiler: Compiler) -> None:
    if not client.nthreads():
        raise ToolError(
            f"the scheduler at {scheduler} has no workers", hint=f"start some with: dask worker {scheduler}"
        )

    def versions(compiler: bytes) -> tuple[str, str]:
        # A function in a function travels by value: a worker may lack this package.
        import pickle

        import dispatch_profiler

        return dispatch_profiler.__version__, pickle.loads(compiler).revision

    ours = (__version__, compiler.revision)
    # Asked beforehand, once: else every task fails there, with an error that names no worker.
    for address, found in client.run(versions, pickle.dumps(compiler), on_error="return").items():
        if isinstance(found, Exception):
            raise ToolError(
                f"the worker {address} cannot compile: {found}", hint=f"run there: {_INSTALL}"
            ) from found
        if tuple(found) != ours:
            raise ToolError(
                f"the worker {address} has dispatch_profiler {found[0]} with {found[1]}, "
                f"this machine has {ours[0]} with {ours[1]}",
                hint="install the same versions on both: results are kept under the compiler's revision",
            )
