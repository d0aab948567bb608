"""Which driver of the CPU runs a kernel.

`local-sync` runs it on the calling thread, `local-task` on threads of its own, which it takes longer to reach. The same
vmfb runs on both, so the first launch measures them, with the caller's arguments. A launch writes nothing but its
results, and always all of them: running it again changes nothing.
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

#: A kernel that takes so many seconds on several threads cannot gain from being on one.
_LONG = 2e-3
#: Launches that find out whether a kernel takes so long, and the seconds after which no further ones begin. The first
#: launch loads code, and other processes can delay any: the choice is remembered, and must not depend on that.
_TRIES = 5
_PATIENCE = 0.1
#: A kernel that takes so many seconds on one thread gains more from several than reaching them takes. It does not while
#: another process uses one of the cores, which a choice that is kept must not depend on.
_WORTH_THREADS = 0.5e-3
#: Launches of each driver, and the seconds after which no further ones begin.
_ROUNDS = 15
_BUDGET = 20e-3

#: A loaded kernel -> a list of buffer views of its device, operands before results.
MakeArguments = Callable[[LoadedKernel], Any]


def choice_key(kernel: LaunchKernel, threads: int | None) -> str:
    """The key under which the driver for a kernel is remembered: it depends on the number of threads."""
    return f"{kernel.key}-{threads or len(usable_cores())}t"


def faster_driver(sync: Sequence[float], task: Sequence[float]) -> DeviceUri:
    """The driver with the shorter minimum of the measured seconds; on a tie, the one without threads.

    A kernel that takes long on one thread is for several, whatever these took.
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
    """`kernel` on the driver that runs it faster, for the operation `name` with this number of results.

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
    """Seconds of each launch of each side, at least one."""
    for side in sides:
        _seconds(*side)  # the first one loads code and touches memory
    return alternating([partial(_seconds, *side) for side in sides], _ROUNDS, _BUDGET)


def _seconds(kernel: LoadedKernel, arguments: Any) -> float:
    return seconds_of(kernel.run, [(arguments,)])
