"""The dialect `torch` of IREE's importer -> linalg on tensors, in a worker: passes may abort, as the compiler may."""

from __future__ import annotations

import atexit
import os
import threading

from dispatch_profiler.isolation import Worker, WorkerLimits

_PASSES = (
    "builtin.module(func.func(torch-decompose-complex-ops,canonicalize),"
    "torch-backend-to-linalg-on-tensors-backend-pipeline,canonicalize)"
)
#: Time limit in seconds for one module.
_SECONDS = 120.0
#: Modules per process: each leaves some memory behind.
_MODULES = 500


class _Lowering:
    """A worker that serves the threads of this process one after the other; it starts when it is needed."""

    def __init__(self) -> None:
        self._worker = Worker(WorkerLimits(_SECONDS), max_calls=_MODULES)
        self._turn = threading.Lock()

    def __call__(self, text: str) -> str:
        with self._turn:
            return str(self._worker.call(lower, text))

    def renew_lock(self) -> None:
        """Replace the lock after a fork: no thread of this process holds it."""
        self._turn = threading.Lock()

    def close(self) -> None:
        """End the process."""
        self._worker.close()


_lowering = _Lowering()
atexit.register(_lowering.close)
# The lock may be held by a thread that does not exist in a forked process.
os.register_at_fork(after_in_child=_lowering.renew_lock)


def lowered(text: str) -> str:
    """MLIR text in the dialect `torch` -> linalg on tensors.

    Raises ToolError if a pass fails, and the errors of a worker that a pass ended.
    """
    return _lowering(text)


# -- in the worker process -------------------------------------------------------------------------


def lower(text: str) -> str:
    """See `lowered`."""
    from iree.compiler import ir
    from iree.compiler.api import Session
    from iree.compiler.passmanager import PassManager

    session = Session()
    session.context.enable_multithreading(False)
    with session.context:
        module = ir.Module.parse(text)
        PassManager.parse(_PASSES).run(module.operation)
        return str(module)
