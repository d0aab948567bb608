"""Loads kernels: on the CPU driver that runs them faster, or on a GPU."""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import iree.runtime as rt

from dispatch_profiler.boo.interface import LaunchKernel, LaunchSpec
from dispatch_profiler.cores import usable_threads
from dispatch_profiler.dispatches.launch_program import LaunchProgram, read_program
from dispatch_profiler.errors import UsageError
from dispatch_profiler.runtime._base import alternating, seconds_of
from dispatch_profiler.runtime.cuda_launch import CudaProgram, OldDriverError
from dispatch_profiler.runtime.device_uri import DeviceUri
from dispatch_profiler.runtime.iree import IREE_ERRORS, Appending, IreeDevice, run_error


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


# -- waiting for the threads of local-task ---------------------------------------------------------

# At the end of a call, a worker thread of IREE 3.13 wakes up the caller before it marks the call as finished, and the
# caller spins until the call is marked. If Linux gives the worker's core to the caller at once, as on virtual machines,
# both wait until the caller's time slice ends, which takes 4 ms with 250 ticks per second. A thread in the batch class
# does not displace the thread that wakes it up. With that, 100 products of 128x768x3072 took 185 ms on two cores instead
# of 380 ms.


def without_displacing(call: Callable[..., None]) -> Callable[..., None]:
    """`call`, with the calling thread in the batch class during the call, if it is in the default class before.

    Other threads and the thread's priority do not change. Systems without scheduling classes get `call` itself; if a
    sandbox forbids the change, the class stays as it is.
    """
    if not hasattr(os, "SCHED_BATCH"):
        return call
    usual, batch, parameters = os.SCHED_OTHER, os.SCHED_BATCH, os.sched_param(0)
    policy, set_policy = os.sched_getscheduler, os.sched_setscheduler

    def call_in_batch_class(*arguments: Any) -> None:
        # A signal handler may raise after any of these lines. The class is therefore changed inside `try`, and restored
        # a second time if Python 3.10 interrupts the first `finally` before its call.
        is_changed = False
        try:
            try:
                try:
                    if policy(0) == usual:
                        is_changed = True
                        set_policy(0, batch, parameters)
                except OSError:  # a sandbox
                    is_changed = False
                call(*arguments)
            finally:
                if is_changed:
                    set_policy(0, usual, parameters)
                    is_changed = False
        finally:
            if is_changed:
                set_policy(0, usual, parameters)

    return call_in_batch_class


# -- GPUs ------------------------------------------------------------------------------------------

# Kernels with a launch program are launched on torch's stream, other kernels through IREE's runtime.


_log = logging.getLogger("dispatch_profiler.boo")


def load_on_gpu(kernel: LaunchKernel, uri: DeviceUri, spec: LaunchSpec) -> LoadedKernel | CudaProgram:
    """Load `kernel` on the CUDA device `uri`. Raises RunError, and TargetError if the device cannot be used."""
    name = spec.operation.name
    try:
        return CudaProgram(_program(kernel, spec), kernel.vmfb, int(uri.path or 0), name)
    except (UsageError, OldDriverError) as error:
        _log.debug("%s: launches wait for their results, because they need IREE's runtime: %s", name, error)
    return load(kernel, IreeDevice(uri, graphs=False), name, len(spec.results))


def _program(kernel: LaunchKernel, spec: LaunchSpec) -> LaunchProgram:
    """The launch program of a kernel. Raises UsageError if the kernel has no program that fits the launch."""
    program = read_program(kernel.program, kernel.vmfb)
    sizes = [
        math.prod(each.shape) * each.type.bytes
        for tensors in (spec.arguments, spec.results)
        for each in sorted(tensors, key=lambda tensor: tensor.position)
    ]
    if len(sizes) != len(program.arguments) or any(
        own < needed for own, needed in zip(sizes, program.arguments, strict=True)
    ):
        raise UsageError(
            f"its launch program takes arguments of {program.arguments} bytes, not of {tuple(sizes)}"
        )
    return program


# -- CPU drivers -----------------------------------------------------------------------------------

# `local-sync` runs a kernel on the calling thread; `local-task` runs it on threads of its own, and takes longer to start
# it. Both run the same vmfb, so the first launch measures them with the caller's arguments. It may run the kernel again
# and again, because a launch writes all of its results and nothing else.


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
    return f"{kernel.key}-{threads or usable_threads()}t{kernel.scale}"


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

    `threads` is the number of workers of `local-task`; None means `usable_threads`. `choices` remembers drivers
    by `choice_key`, for example across processes. Raises RunError.
    """

    def on(uri: DeviceUri) -> LoadedKernel:
        return load(kernel, IreeDevice(uri, workers=threads if uri.has_workers else None), name, results)

    if (threads or usable_threads()) == 1:
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
        sides = [(sync, make_arguments(sync)), (task, arguments)]
        for side in sides:
            _seconds(*side)  # the first one loads code and touches memory
        seconds = alternating([partial(_seconds, *side) for side in sides], _ROUNDS, _BUDGET)
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


def _seconds(kernel: LoadedKernel, arguments: Any) -> float:
    return seconds_of(kernel.run, [(arguments,)])
