"""Chooses the CPU driver that runs a kernel faster.

`local-sync` runs a kernel on the calling thread; `local-task` runs it on threads of its own, and takes longer to start
it. Both run the same vmfb, so the first launch measures them with the caller's arguments. It may run the kernel again
and again, because a launch writes all of its results and nothing else.
"""

from __future__ import annotations

import time
from collections.abc import Callable, MutableMapping, Sequence
from functools import partial
from typing import Any

from dispatch_profiler.boo.interface import LaunchKernel
from dispatch_profiler.boo.launching.loaded import LoadedKernel, load
from dispatch_profiler.cores import usable_cores
from dispatch_profiler.runtime.device_uri import DeviceUri
from dispatch_profiler.runtime.iree import IreeDevice
from dispatch_profiler.runtime.timing import alternating, seconds_of

SYNC = DeviceUri("local-sync")
TASK = DeviceUri("local-task")

#: A kernel that takes this many seconds on several threads cannot be faster on one thread.
_LONG = 2e-3
#: Number of launches that find out whether a kernel takes that long, and the seconds after which no more are started.
#: One launch is not enough, because the choice is remembered: the first launch loads code, and other processes may
#: delay any launch.
_TRIES = 5
_PATIENCE = 0.1
#: A kernel that takes this many seconds on one thread gains more from several threads than it takes to start them. That
#: does not hold while another process uses one of the cores, but a remembered choice must not depend on this.
_WORTH_THREADS = 0.5e-3
#: Number of measured launches on each driver, and the seconds after which no more are started.
_ROUNDS = 15
_BUDGET = 20e-3

#: A loaded kernel -> a list of buffer views on its device, operands before results.
MakeArguments = Callable[[LoadedKernel], Any]


def choice_key(kernel: LaunchKernel, threads: int | None) -> str:
    """The key under which a kernel's driver is remembered. The faster driver depends on the number of threads."""
    return f"{kernel.key}-{threads or len(usable_cores())}t"


def faster_driver(sync: Sequence[float], task: Sequence[float]) -> DeviceUri:
    """The driver with the shorter minimum of the measured seconds, or `local-sync` on a tie.

    A kernel that takes long on one thread gets `local-task`, whatever was measured on several threads.
    """
    return TASK if min(sync) >= _WORTH_THREADS or min(task) < min(sync) else SYNC


def load_on_host(
    kernel: LaunchKernel,
    name: str,
    results: int,
    threads: int | None,
    choices: MutableMapping[str, str],
    make_arguments: MakeArguments,
) -> LoadedKernel:
    """`kernel`, of the operation `name` with this number of results, on the driver that runs it faster.

    `threads` is the number of workers of `local-task`; None means one per physical core. `choices` remembers drivers
    by `choice_key`, for example across processes. Raises RunError.
    """

    def on(uri: DeviceUri) -> LoadedKernel:
        return load(kernel, IreeDevice(uri, workers=threads if uri.has_workers else None), name, results)

    if threads == 1 or len(usable_cores()) == 1:
        return on(SYNC)
    key = choice_key(kernel, threads)
    remembered = choices.get(key)
    for uri in (SYNC, TASK):
        if str(uri) == remembered:
            return on(uri)
    task = on(TASK)
    arguments = make_arguments(task)
    chosen = task
    if not _is_long(task, arguments):
        sync = on(SYNC)
        seconds = _in_turns([(sync, make_arguments(sync)), (task, arguments)])
        chosen = task if faster_driver(*seconds) == TASK else sync
    choices[key] = str(chosen.device.uri)
    return chosen


def _is_long(kernel: LoadedKernel, arguments: Any) -> bool:
    end = time.perf_counter() + _PATIENCE
    for _ in range(_TRIES):
        if _seconds(kernel, arguments) < _LONG:
            return False
        if time.perf_counter() > end:
            break
    return True


def _in_turns(sides: Sequence[tuple[LoadedKernel, Any]]) -> list[list[float]]:
    """The seconds of each launch of each side, at least one launch per side."""
    for side in sides:
        _seconds(*side)  # the first one loads code and touches memory
    return alternating([partial(_seconds, *side) for side in sides], _ROUNDS, _BUDGET)


def _seconds(kernel: LoadedKernel, arguments: Any) -> float:
    return seconds_of(kernel.run, [(arguments,)])
