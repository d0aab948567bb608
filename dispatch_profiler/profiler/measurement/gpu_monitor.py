"""Clocks, power, temperature and throttling of an NVIDIA GPU, through NVML if available.

Needs the package `nvidia-ml-py` (extra `cuda`) and the driver's libnvidia-ml; without either, nothing is
reported. Two readings show what happened between them: NVML accumulates the time for which the GPU was
throttled, by its power limit and by heat.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from dispatch_profiler.runtime.cuda_driver import find_gpu

_UNKNOWN = -1.0


@dataclass(frozen=True)
class GpuState:
    """A GPU at one moment. Values that NVML does not report are 0; unknown `slowed` seconds are -1.

    Clocks are in MHz; `max_sm_mhz` is the highest of the multiprocessors, the others are current. Power and
    its limit are in watts. `slowed_by_power` and `slowed_by_heat` are seconds since the driver was loaded.
    """

    sm_mhz: int = 0
    max_sm_mhz: int = 0
    memory_mhz: int = 0
    watts: float = 0.0
    limit_watts: float = 0.0
    celsius: int = 0
    slowed_by_power: float = _UNKNOWN
    slowed_by_heat: float = _UNKNOWN


class GpuMonitor:
    """Reads the state of one GPU. A reading takes some milliseconds, so none is taken during a sample."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml = nvml
        self._handle = handle
        self._last = GpuState()
        self._read_at = -math.inf

    @property
    def driver(self) -> str:
        """Version of the driver, `580.159.04`; empty if NVML does not report it."""
        return str(self._query(self._nvml.nvmlSystemGetDriverVersion) or "")

    def read(self, fresh: float = 0.0) -> GpuState:
        """The state now, or the last reading if it is less than `fresh` seconds old."""
        if time.monotonic() - self._read_at >= fresh:
            self._last = self._state()
            self._read_at = time.monotonic()
        return self._last

    def _state(self) -> GpuState:
        nvml = self._nvml

        def of(function: Callable[..., Any], *arguments: int) -> Any:
            return self._query(function, self._handle, *arguments) or 0

        return GpuState(
            sm_mhz=of(nvml.nvmlDeviceGetClockInfo, nvml.NVML_CLOCK_SM),
            max_sm_mhz=self._max_sm_mhz,
            memory_mhz=of(nvml.nvmlDeviceGetClockInfo, nvml.NVML_CLOCK_MEM),
            watts=of(nvml.nvmlDeviceGetPowerUsage) / 1e3,
            limit_watts=of(nvml.nvmlDeviceGetEnforcedPowerLimit) / 1e3,
            celsius=of(nvml.nvmlDeviceGetTemperature, nvml.NVML_TEMPERATURE_GPU),
            slowed_by_power=self._slowed(nvml.NVML_PERF_POLICY_POWER),
            slowed_by_heat=self._slowed(nvml.NVML_PERF_POLICY_THERMAL),
        )

    @cached_property
    def _max_sm_mhz(self) -> int:
        # Cached: it takes up to 8 ms, more than all other queries.
        return self._query(self._nvml.nvmlDeviceGetMaxClockInfo, self._handle, self._nvml.NVML_CLOCK_SM) or 0

    def _slowed(self, policy: int) -> float:
        status = self._query(self._nvml.nvmlDeviceGetViolationStatus, self._handle, policy)
        return _UNKNOWN if status is None else status.violationTime / 1e9

    def _query(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """NVML's answer; None if this GPU or driver does not support the query."""
        with contextlib.suppress(self._nvml.NVMLError):
            return function(*arguments)
        return None


def open_monitor(uri: str) -> GpuMonitor | None:
    """The monitor of a device URI; None if it is not an NVIDIA GPU or NVML is unavailable."""
    gpu = find_gpu(uri)
    if gpu is None:
        return None
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
        # By UUID, because NVML also numbers GPUs that CUDA_VISIBLE_DEVICES hides.
        return GpuMonitor(pynvml, pynvml.nvmlDeviceGetHandleByUUID(gpu.uuid))
    except pynvml.NVMLError:
        return None


def throttle_warning(before: GpuState | None, after: GpuState | None) -> str:
    """A warning if the GPU was throttled between two readings; else empty."""
    if before is None or after is None:
        return ""
    reasons = list(_reasons(before, after))
    if not reasons:
        return ""
    clock = f" (SM clock {after.sm_mhz} of {after.max_sm_mhz} MHz)" if after.sm_mhz else ""
    return f"the GPU was throttled by {' and '.join(reasons)} during the measurement{clock}"


def _reasons(before: GpuState, after: GpuState) -> Iterator[str]:
    if before.slowed_by_power >= 0.0 and after.slowed_by_power > before.slowed_by_power:
        yield f"its power limit of {after.limit_watts:.0f} W"
    if before.slowed_by_heat >= 0.0 and after.slowed_by_heat > before.slowed_by_heat:
        yield f"heat ({after.celsius} °C)"
