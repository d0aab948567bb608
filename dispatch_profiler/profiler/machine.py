"""The machine that a record was made on, as far as it decides how fast something runs."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass, fields
from functools import cache

from dispatch_profiler.runtime import open_monitor
from dispatch_profiler.runtime.caches import usable_cores
from dispatch_profiler.runtime.cuda_driver import find_gpu
from dispatch_profiler.targets import host_cpu


@dataclass(frozen=True)
class Machine:
    """What is not known is empty or 0, as in files of earlier versions.

    `cores` are those that the process may use, `memory_bytes` what the system has, `system` is the
    operating system with its kernel. `gpu` and its `driver` are of the device, if that is an NVIDIA GPU.
    """

    cpu: str = ""
    cores: int = 0
    memory_bytes: int = 0
    system: str = ""
    gpu: str = ""
    driver: str = ""

    @property
    def name(self) -> str:
        """`AMD EPYC 7B13, 2 cores`, a GPU before it: what tells machines apart; empty if unknown."""
        cpu = f"{self.cpu}, {self.cores} core{'' if self.cores == 1 else 's'}" if self.cpu else ""
        return ", ".join(filter(None, (self.gpu, cpu)))

    @property
    def text(self) -> str:
        """All of it, for people."""
        memory = f"{self.memory_bytes / 2**30:.1f} GiB" if self.memory_bytes else ""
        driver = f"driver {self.driver}" if self.driver else ""
        return ", ".join(filter(None, (self.name, memory, self.system, driver)))

    def differences(self, other: Machine) -> list[str]:
        """`cores 2 against 16`, for each part that both know and that is not the same."""
        pairs = [(part.name, getattr(self, part.name), getattr(other, part.name)) for part in fields(self)]
        return [
            f"{name.removesuffix('_bytes')} {_told(name, one)} against {_told(name, two)}"
            for name, one, two in pairs
            if one and two and _told(name, one) != _told(name, two)
        ]


def _told(name: str, value: str | int) -> str:
    # A kernel reserves some memory for itself: what rounds to the same is the same.
    return f"{int(value) / 2**30:.0f} GiB" if name == "memory_bytes" else str(value)


@cache
def this_machine(device: str = "") -> Machine:
    """The one that this process runs on, with the GPU of the URI `device` if it is one of NVIDIA's."""
    gpu = find_gpu(device)
    monitor = open_monitor(device) if gpu else None
    return Machine(
        gpu=gpu.name if gpu else "",
        driver=(monitor.driver if monitor else f"CUDA {gpu.cuda}") if gpu else "",
        cpu=host_cpu().model,
        cores=len(usable_cores()),
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
    )
