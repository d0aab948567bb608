"""The processor cores that this process may use, and how many threads can compute at the same time."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path, PurePosixPath

#: Where the control groups are mounted, and the groups of this process.
CONTROL_GROUPS = Path("/sys/fs/cgroup")
MEMBERSHIPS = Path("/proc/self/cgroup")


def usable_cores() -> list[int]:
    """The numbers of the cores in this process's affinity mask, in order; all cores if the system has no such masks."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def usable_processes() -> int:
    """The number of processes that can work at the same time: the usable cores, or less by a quota of the CPU.

    A control group may set such a quota, as `docker run --cpus=2` does.
    """
    return max(1, math.ceil(min(len(usable_cores()), cpu_quota())))


def usable_threads() -> int:
    """The number of threads of a kernel: the usable physical cores, or less by a quota of the CPU or torch's settings.

    torch uses fewer threads after `torch.set_num_threads`, or with `OMP_NUM_THREADS`.
    """
    torch = sys.modules.get("torch")
    threads = getattr(torch, "get_num_threads", None)  # missing while torch is being imported
    limits = [len(physical_cores()), threads() if threads else math.inf, cpu_quota()]
    return max(1, math.ceil(min(limits)))


def by_physical_core(system: Path = Path("/sys/devices/system/cpu")) -> list[list[int]]:
    """The usable cores, grouped by the physical cores whose hardware threads they are, in order."""
    groups: dict[str, list[int]] = {}
    for number in usable_cores():
        groups.setdefault(_threads_of_core(system, number), []).append(number)
    return list(groups.values())


def physical_cores(system: Path = Path("/sys/devices/system/cpu")) -> set[str]:
    """The physical cores that this process may use, each by the numbers of its hardware threads: `0,2`."""
    return {_threads_of_core(system, number) for number in usable_cores()}


@cache
def _threads_of_core(system: Path, number: int) -> str:
    try:
        return (system / f"cpu{number}/topology/thread_siblings_list").read_text().strip()
    except OSError:
        return str(number)


@cache
def cpu_quota() -> float:
    """The CPUs' worth of time that control groups allow this process, as when it started; infinite without a limit."""
    return min(_quotas(CONTROL_GROUPS), default=math.inf)


def _quotas(mount: Path) -> Iterator[float]:
    """The quotas of the control groups of this process and of the groups around them.

    A line of `MEMBERSHIPS` is `ID:CONTROLLERS:PATH`; in version 2, there are no controllers. In a container, the path is
    often that of the host; then the container's own group is at the mount.
    """
    try:
        lines = MEMBERSHIPS.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        for group in (PurePosixPath(path), *PurePosixPath(path).parents):
            quota = _quota_of(mount / controllers / str(group).lstrip("/"))
            if quota is not None:
                yield quota


def _quota_of(group: Path) -> float | None:
    """The quota of one control group, of version 2 or 1; None without a limit."""
    try:
        text = (group / "cpu.max").read_text()
    except OSError:
        try:
            text = f"{(group / 'cpu.cfs_quota_us').read_text()} {(group / 'cpu.cfs_period_us').read_text()}"
        except OSError:
            return None
    quota, period = text.split()
    return None if quota in ("max", "-1") else int(quota) / int(period)


#: Threads are idle if they use less than this part of a core for so many seconds.
_IDLE, _PAUSE = 0.05, 5e-3


def wait_for_idle_threads(longest: float = 2.0) -> None:
    """Return once the threads of this process are idle, at the latest after `longest` seconds.

    Threads of torch and of IREE spin for a while after their work, which slows down what is timed next.
    """
    end = time.perf_counter() + longest
    while time.perf_counter() < end:
        before = time.process_time()
        time.sleep(_PAUSE)
        if time.process_time() - before < _IDLE * _PAUSE:
            return
