"""The machine that a record was made on, as far as it decides how fast something runs."""

from __future__ import annotations

from dataclasses import dataclass, fields


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
