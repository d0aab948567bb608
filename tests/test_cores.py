"""How many threads and processes work at the same time on this machine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dispatch_profiler import cores
from dispatch_profiler.cores import physical_cores, usable_processes, usable_threads


def cpus(folder: Path, *siblings: str) -> Path:
    """A /sys/devices/system/cpu where CPU i has these siblings."""
    for number, text in enumerate(siblings):
        (folder / f"cpu{number}/topology").mkdir(parents=True)
        (folder / f"cpu{number}/topology/thread_siblings_list").write_text(f"{text}\n")
    return folder


@pytest.mark.parametrize(
    ("usable", "cores"),
    [({0, 1, 2, 3}, {"0,2", "1,3"}), ({0, 2}, {"0,2"}), ({3}, {"1,3"}), ({9}, {"9"})],
)
def test_a_core_counts_once_whatever_its_threads(tmp_path, monkeypatch, usable, cores):
    """And only those we may use; a CPU of which nothing is known is a core."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: usable)
    assert physical_cores(cpus(tmp_path, "0,2", "1,3", "0,2", "1,3")) == cores


def group(mount: Path, path: str, **files: str) -> None:
    """A control group with these files; `_` stands for the dot in their names."""
    folder = mount / path
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("cpu_", "cpu.", 1)).write_text(f"{text}\n")


@pytest.mark.parametrize(
    ("memberships", "groups", "quota"),
    [
        ("0::/", {}, None),
        ("0::/", {"": {"cpu_max": "max 100000"}}, None),
        ("0::/", {"": {"cpu_max": "250000 100000"}}, 3),
        ("0::/a/b", {"a": {"cpu_max": "100000 100000"}, "a/b": {"cpu_max": "400000 100000"}}, 1),
        ("0::/host/path", {"": {"cpu_max": "150000 50000"}}, 3),
        (
            "3:memory:/a\n1:cpu:/a",
            {"cpu/a": {"cpu_cfs_quota_us": "200000", "cpu_cfs_period_us": "100000"}},
            2,
        ),
        ("1:cpu,cpuacct:/", {"cpu,cpuacct": {"cpu_cfs_quota_us": "-1", "cpu_cfs_period_us": "100000"}}, None),
        ("1:cpuset:/a", {"cpuset/a": {"cpu_cfs_quota_us": "100000", "cpu_cfs_period_us": "100000"}}, None),
        ("0::/", {"": {"cpu_max": "10000 100000"}}, 1),
    ],
)
def test_a_quota_limits_threads_and_processes(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    memberships: str,
    groups: dict[str, dict[str, str]],
    quota: int | None,
):
    for path, files in groups.items():
        group(tmp_path, path, **files)
    (tmp_path / "memberships").write_text(memberships)
    monkeypatch.setattr(cores, "CONTROL_GROUPS", tmp_path)
    monkeypatch.setattr(cores, "MEMBERSHIPS", tmp_path / "memberships")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {1000, 1001, 1002, 1003})
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    cores.cpu_quota.cache_clear()
    try:
        assert usable_threads() == usable_processes() == (quota or 4)
    finally:
        cores.cpu_quota.cache_clear()


def test_torch_limits_threads_of_kernels_but_no_processes(monkeypatch: pytest.MonkeyPatch):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(1000, 1008)))
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    assert usable_threads() == 3
    assert usable_processes() == 8


def test_a_device_has_as_many_workers_as_torch_has_threads():
    """In a new process: devices stay open until theirs ends."""
    pytest.importorskip("torch")
    program = """
import os, time, torch
from dispatch_profiler.cores import physical_cores
from dispatch_profiler.runtime.device_uri import DeviceUri
from dispatch_profiler.runtime.iree import IreeDevice
torch.set_num_threads(1)
TASK = DeviceUri("local-task")
one, again = IreeDevice(TASK), IreeDevice(TASK, workers=1)
assert one.hal is again.hal
def workers():
    names = [open(f"/proc/self/task/{each}/comm").read() for each in os.listdir("/proc/self/task")]
    return sum(name.startswith("iree-worker") for name in names)
for _ in range(1000):  # a thread names itself once it runs
    if workers():
        break
    time.sleep(0.01)
found = workers()
torch.set_num_threads(len(physical_cores()))
every = IreeDevice(TASK)
assert (every.hal is one.hal) is (len(physical_cores()) == 1)
print(found)
"""
    if not Path("/proc/self/task").exists():
        pytest.skip("reads /proc")
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert found.stdout == "1\n", found.stderr
