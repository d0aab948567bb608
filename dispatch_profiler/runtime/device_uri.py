"""Device URIs: `local-task`, `cuda`, `cuda://1`, `cuda://GPU-<uuid>`, `null://0`."""

from __future__ import annotations

from dataclasses import dataclass

#: Drivers that compute on the CPU, in the process that calls them: `local-sync`, `local-task`.
_LOCAL = "local-"
_NULL = "null"


@dataclass(frozen=True)
class DeviceUri:
    """A parsed device URI.

    `driver` is what stands before `://`; `path` is what stands behind it: a number, an identifier of the
    driver, or nothing, which means the driver's first device.
    """

    driver: str
    path: str = ""

    @classmethod
    def parse(cls, text: str) -> DeviceUri:
        """`cuda://1` -> DeviceUri("cuda", "1"). Any text has a driver; one that does not exist fails to open."""
        driver, _, path = text.strip().partition("://")
        return cls(driver, path)

    def __str__(self) -> str:
        return f"{self.driver}://{self.path}" if self.path else self.driver

    @property
    def ordinal(self) -> int | None:
        """The number of the device among those of its driver; None if the URI names it in another way."""
        if not self.path:
            return 0
        return int(self.path) if self.path.isascii() and self.path.isdigit() else None

    @property
    def is_null(self) -> bool:
        """Is it the null device, which computes nothing?"""
        return self.driver == _NULL

    @property
    def is_local(self) -> bool:
        """Does it compute on this CPU, in the memory of this process?"""
        return self.driver.startswith(_LOCAL)

    @property
    def is_gpu(self) -> bool:
        """Is it neither the CPU nor the null device?"""
        return not (self.is_local or self.is_null)

    @property
    def is_cuda(self) -> bool:
        """Is it an NVIDIA GPU?"""
        return self.driver == "cuda"

    @property
    def has_workers(self) -> bool:
        """Does it compute in threads of its own, one for each core?"""
        return self.driver == "local-task"

    @property
    def family(self) -> str:
        """What code for it is compiled for: `local` of both CPU drivers, otherwise the driver."""
        return "local" if self.is_local else self.driver
