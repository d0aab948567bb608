"""The machine that a record was made on: the properties that affect the speed of kernels."""

from __future__ import annotations

from dataclasses import dataclass, fields

from dispatch_profiler.console.plurals import counted


@dataclass(frozen=True)
class Machine:
    """Unknown fields are empty or 0, as in files of earlier versions.

    `cores` counts the cores that the process may use, and `threads` the threads of a kernel (`usable_threads`);
    `cpu_level` is the level of the CPU's instructions, such as x86-64-v4. `memory_bytes` is the system's memory;
    `system` is the operating system with its kernel. `gpu` and `driver` describe the device if it is an NVIDIA GPU.
    """

    cpu: str = ""
    cores: int = 0
    memory_bytes: int = 0
    system: str = ""
    gpu: str = ""
    driver: str = ""
    threads: int = 0
    cpu_level: str = ""

    @property
    def name(self) -> str:
        """`AMD EPYC 7B13, 2 cores`, preceded by the GPU if any; identifies the machine. Empty if unknown."""
        cpu = f"{self.cpu}, {counted(self.cores, 'core')}" if self.cpu else ""
        return ", ".join(filter(None, (self.gpu, cpu)))

    @property
    def text(self) -> str:
        """All known fields, for display."""
        memory = f"{self.memory_bytes / 2**30:.1f} GiB" if self.memory_bytes else ""
        driver = f"driver {self.driver}" if self.driver else ""
        return ", ".join(filter(None, (self.name, memory, self.system, driver)))

    def differences(self, other: Machine) -> list[str]:
        """`cores 2 vs. 16`, for each field that is known on both machines and differs."""
        pairs = [(part.name, getattr(self, part.name), getattr(other, part.name)) for part in fields(self)]
        return [
            f"{name.removesuffix('_bytes').replace('_', ' ')} {_shown(name, one)} vs. {_shown(name, two)}"
            for name, one, two in pairs
            if one and two and _shown(name, one) != _shown(name, two)
        ]


def _shown(name: str, value: str | int) -> str:
    # Kernels reserve a varying amount of memory, so sizes are compared after rounding.
    return f"{int(value) / 2**30:.0f} GiB" if name == "memory_bytes" else str(value)
