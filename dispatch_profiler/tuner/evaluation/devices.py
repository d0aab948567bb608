"""Which devices share a search."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from dispatch_profiler.cores import by_physical_core, cpu_quota, usable_cores
from dispatch_profiler.errors import TargetError, UsageError
from dispatch_profiler.isolation import spawner_thread
from dispatch_profiler.profiler.evaluation.hardware import this_machine
from dispatch_profiler.profiler.measurement.cpu_idle import processors_of
from dispatch_profiler.runtime import DeviceUri, all_devices
from dispatch_profiler.runtime.cuda_driver import find_gpu


@dataclass(frozen=True)
class SharedDevices:
    """Devices that share a search, and devices of their driver that are left out because they differ."""

    devices: tuple[str, ...]
    left_out: tuple[str, ...] = ()


def usual_devices(device: str) -> SharedDevices:
    """The devices that search for a tuning file with `device`, unless an option names others.

    A driver, `hip`, stands for all of its devices that are like the first one. `hip://1` is that device
    alone. A device that does not exist also stands for itself: the search reports why.
    """
    if DeviceUri.parse(device).path:
        return SharedDevices((device,))
    try:
        devices = all_devices(device)
    except TargetError:
        return SharedDevices((device,))
    return alike(devices)


def alike(devices: Sequence[str]) -> SharedDevices:
    """The devices with the hardware of the first one."""
    if len(devices) == 1:
        return SharedDevices(tuple(devices))
    kinds = {device: this_machine(device).gpu for device in devices}
    first = kinds[devices[0]]
    return SharedDevices(
        tuple(each for each in devices if kinds[each] == first),
        tuple(each for each in devices if kinds[each] != first),
    )


# -- confinement -----------------------------------------------------------------------------------

# Kernels are measured on a part of the cores, and the compiler works on the others meanwhile.
#
# Everything that asks for the cores of this process, such as the number of threads of a kernel, then sees that part, as
# under taskset.


@contextlib.contextmanager
def confined(threads: int | None) -> Iterator[tuple[int, ...]]:
    """Within the context, this process may use `threads` physical cores. Yields the others; none without `threads`.

    Also none where a quota limits all cores together: the compiler would take what is measured its time. Raises
    UsageError if there are fewer physical cores.
    """
    if threads is None:
        yield ()
        return
    cores = by_physical_core()
    if threads > len(cores) or not hasattr(os, "sched_setaffinity"):
        raise UsageError(
            f"--threads: this process may use {len(cores)} physical cores, not {threads}",
            hint="name fewer, or leave the option out to use all",
        )
    own, others = ([each for core in part for each in core] for part in (cores[:threads], cores[threads:]))
    before = os.sched_getaffinity(0)
    is_limited = cpu_quota() < len(before)
    try:
        with _all_threads_on(own, before):
            this_machine.cache_clear()  # it counts cores and threads
            yield () if is_limited else tuple(others)
    finally:
        this_machine.cache_clear()


@contextlib.contextmanager
def working_on(cores: Sequence[int]) -> Iterator[None]:
    """Within the context, the threads of this process use `cores`; processes that it starts use its own cores as before."""
    with _all_threads_on(cores, os.sched_getaffinity(0), but=(spawner_thread(),)):
        yield


@contextlib.contextmanager
def _all_threads_on(cores: Sequence[int], before: Iterable[int], but: Sequence[int] = ()) -> Iterator[None]:
    try:
        _move(cores, but)
        yield
    finally:
        _move(before, but)


def _move(cores: Iterable[int], but: Sequence[int]) -> None:
    for thread in map(int, os.listdir("/proc/self/task")):
        if thread not in but:
            with contextlib.suppress(ProcessLookupError):  # it has ended
                os.sched_setaffinity(thread, cores)


# -- core shares -----------------------------------------------------------------------------------

# Which cores the compiler uses while GPUs measure, or a part of the CPU's cores.


def cores_beside(devices: Sequence[str]) -> tuple[int, ...]:
    """The cores that the processes of these devices leave alone."""
    taken = {core for device in devices for core in _cores_of(device)}
    return tuple(core for core in usable_cores() if core not in taken)


def compiles_beside(devices: Sequence[str]) -> bool:
    """Whether the compiler may run while these devices measure: GPUs that leave it half of the cores."""
    are_gpus = all(DeviceUri.parse(device).is_gpu for device in devices)
    return are_gpus and 2 * len(cores_beside(devices)) >= len(usable_cores())


def _cores_of(device: str) -> tuple[int, ...]:
    """The cores that `prevent_cpu_idle` keeps for a GPU; another driver's threads need as many."""
    uri = DeviceUri.parse(device)
    if uri.is_remote or not uri.is_gpu:
        return ()
    gpu = find_gpu(device)
    return processors_of(gpu.ordinal if gpu else uri.ordinal or 0)
