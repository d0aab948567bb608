"""A Dask cluster as the place where modules are compiled (`--executor=dask`)."""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Iterator
from typing import Any

from dispatch_profiler import __version__
from dispatch_profiler.compiler._base import Compiler
from dispatch_profiler.errors import MissingDependency, ToolError, UsageError

_INSTALL = "pip install 'dispatch_profiler[cluster]'"
#: How long a scheduler may take to answer, in seconds.
_ANSWER_SECONDS = 10


@contextlib.contextmanager
def connect(scheduler: str, compiler: Compiler) -> Iterator[Any]:
    """A client of the cluster at `scheduler`, all of whose workers compile as this machine would.

    Raises MissingDependency, UsageError if nobody answers there, ToolError if workers are missing
    or have another compiler than ours, under whose revision results are kept.
    """
    try:
        import distributed
    except ImportError as error:
        raise MissingDependency(
            "--executor=dask needs the package distributed", hint=f"run: {_INSTALL}"
        ) from error
    start: Any = distributed.Client  # it has no types
    try:
        client = start(scheduler, timeout=_ANSWER_SECONDS, set_as_default=False)
    except (OSError, ValueError) as error:
        raise UsageError(
            f"no scheduler answers at {scheduler}: {' '.join(str(error).split())[:200]}",
            hint="start one with: dask scheduler, and give its address as --scheduler=tcp://HOST:8786",
        ) from error
    with client:
        _check_workers(client, scheduler, compiler)
        yield client


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
    # Asked beforehand: of a task that cannot be unpickled joblib learns nothing.
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
