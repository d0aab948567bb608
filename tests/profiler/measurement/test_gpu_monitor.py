"""Throttling is told from two readings; what NVML does not answer is left out."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from dispatch_profiler.profiler.measurement.gpu_monitor import (
    GpuMonitor,
    GpuState,
    open_monitor,
    throttle_warning,
)
from dispatch_profiler.runtime.cuda_driver import find_gpu

COOL = GpuState(1980, 1980, 3201, 300.0, 700.0, 45, slowed_by_power=6.0, slowed_by_heat=0.0)
CAPPED = GpuState(1605, 1980, 3201, 699.0, 700.0, 60, slowed_by_power=6.2, slowed_by_heat=0.0)
HOT = GpuState(1200, 1980, 3201, 500.0, 700.0, 88, slowed_by_power=6.2, slowed_by_heat=0.5)
SILENT = GpuState(1980, 1980)


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (COOL, COOL, ""),
        (
            COOL,
            CAPPED,
            "throttled by its power limit of 700 W during the measurement (SM clock 1605 of 1980",
        ),
        (CAPPED, HOT, "throttled by heat (88 °C) during"),
        (COOL, HOT, "its power limit of 700 W and heat (88 °C)"),
        (SILENT, CAPPED, ""),
        (None, HOT, ""),
    ],
)
def test_a_gpu_that_was_slowed_down_is_told(before, after, said: str):
    warning = throttle_warning(before, after)

    assert said in warning
    assert bool(warning) == bool(said)


class Nvml:
    """NVML of a GPU that tells its clocks and its power, and nothing else."""

    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0
    NVML_PERF_POLICY_POWER, NVML_PERF_POLICY_THERMAL = 0, 1

    class NVMLError(Exception):
        pass

    def nvmlDeviceGetClockInfo(self, handle: str, which: int) -> int:
        return {1: 1980, 2: 3201}[which]

    def nvmlDeviceGetPowerUsage(self, handle: str) -> int:
        return 162324

    def nvmlDeviceGetViolationStatus(self, handle: str, policy: int) -> SimpleNamespace:
        return SimpleNamespace(violationTime=(6203802048, 0)[policy])

    def __getattr__(self, name: str) -> object:
        def refuse(*_: object) -> None:
            raise self.NVMLError(name)

        return refuse


def test_what_is_not_told_is_left_out():
    """Milliwatts become watts, nanoseconds seconds."""
    monitor = GpuMonitor(Nvml(), "handle")

    assert monitor.read() == GpuState(
        sm_mhz=1980, memory_mhz=3201, watts=162.324, slowed_by_power=6.203802048, slowed_by_heat=0.0
    )
    assert monitor.driver == ""


def test_a_fresh_reading_is_that_of_now(monkeypatch):
    """It takes milliseconds to ask; an old one is asked for again, and so is one that must be of now."""
    asked: list[str] = []
    monkeypatch.setattr(
        Nvml, "nvmlDeviceGetPowerUsage", lambda _, handle: asked.append(handle) or 1000 * len(asked)
    )
    monitor = GpuMonitor(Nvml(), "handle")

    assert [monitor.read(60.0).watts, monitor.read(60.0).watts] == [1.0, 1.0]
    assert [monitor.read().watts, monitor.read(60.0).watts] == [2.0, 2.0]


@pytest.mark.parametrize("uri", ["local-task", "null", "hip://0", "cuda://4096", "cuda://GPU-none", ""])
def test_no_gpu_of_nvidia_is_no_error(uri: str):
    assert find_gpu(uri) is None
    assert open_monitor(uri) is None
