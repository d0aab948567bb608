"""A kernel that is loaded on a device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import iree.runtime as rt

from dispatch_profiler.boo.interface import LaunchKernel
from dispatch_profiler.boo.launching.waiting import without_displacing
from dispatch_profiler.runtime.iree import IreeDevice
from dispatch_profiler.runtime.iree_buffers import IREE_ERRORS, run_error
from dispatch_profiler.runtime.iree_commands import Appending


@dataclass(frozen=True, eq=False)
class LoadedKernel:
    """A kernel on a device; `invoke(entry, arguments, returned)` runs it.

    `name` is the operation's name, for messages. `appending` adds calls to a command buffer; None if the kernel has no
    entry points for that.
    """

    name: str
    device: IreeDevice
    invoke: Callable[[Any, Any, Any], None]
    entry: Any
    results: int
    appending: Appending | None = None

    def run(self, arguments: Any) -> None:
        """Run on a list of buffer views, operands before results, and wait. Raises RunError (see `launch_error`)."""
        try:
            self.invoke(self.entry, arguments, rt.VmVariantList(self.results))
        except IREE_ERRORS as error:
            raise launch_error(self.name, error) from error


def load(kernel: LaunchKernel, device: IreeDevice, name: str, results: int) -> LoadedKernel:
    """Load `kernel`, of the operation `name` with this number of results, on `device`. Raises RunError."""
    program = device.load(kernel.vmfb)
    invoke, entry = program.entry_point(kernel.function)
    if device.uri.has_workers:
        invoke = without_displacing(invoke)
    return LoadedKernel(name, device, invoke, entry, results, program.appending(kernel.function))


def launch_error(name: str, error: Exception) -> Exception:
    """The package's error for `error`, which IREE raised during a launch of the operation `name`."""
    return run_error(f"launching {name}", error)
