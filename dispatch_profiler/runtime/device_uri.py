"""Device URIs: `local-task`, `cuda`, `cuda://1`, `cuda://GPU-<uuid>`, `null://0`, `cuda://1@node7`."""

from __future__ import annotations

from dataclasses import dataclass

from dispatch_profiler.errors import TargetError

#: Drivers that compute on the CPU, in the process that calls them: `local-sync`, `local-task`.
_LOCAL = "local-"
_NULL = "null"


@dataclass(frozen=True)
class DeviceUri:
    """A parsed device URI.

    `driver` is the part before `://`, `path` the part after it: a number, an identifier that the driver
    knows, or empty for the driver's first device. `host` names the machine, or is empty for this one.
    """

    driver: str
    path: str = ""
    host: str = ""

    @classmethod
    def parse(cls, text: str) -> DeviceUri:
        """`cuda://1` -> DeviceUri("cuda", "1"). Accepts any text; an unknown driver fails to open."""
        uri, _, host = text.strip().partition("@")
        driver, _, path = uri.partition("://")
        return cls(driver, path, host)

    def __str__(self) -> str:
        uri = f"{self.driver}://{self.path}" if self.path else self.driver
        return f"{uri}@{self.host}" if self.host else uri

    @property
    def ordinal(self) -> int | None:
        """Index of the device among the devices of its driver; None if the URI names it in another way."""
        if not self.path:
            return 0
        return int(self.path) if self.path.isascii() and self.path.isdigit() else None

    @property
    def is_null(self) -> bool:
        """Whether it is the null device, which computes nothing."""
        return self.driver == _NULL

    @property
    def is_local(self) -> bool:
        """Whether it computes on this CPU, in the memory of this process."""
        return self.driver.startswith(_LOCAL)

    @property
    def is_gpu(self) -> bool:
        """Whether it is neither a CPU nor the null device."""
        return not (self.is_local or self.is_null)

    @property
    def is_cuda(self) -> bool:
        """Whether it is an NVIDIA GPU."""
        return self.driver == "cuda"

    @property
    def has_workers(self) -> bool:
        """Whether it computes in its own threads, one for each core."""
        return self.driver == "local-task"

    @property
    def is_remote(self) -> bool:
        """Whether it is a device of another machine, which a worker of a cluster measures on."""
        return bool(self.host)

    def numbered(self, number: int) -> DeviceUri:
        """The device with this number of the same driver. A CPU has the number 0 alone: else raises TargetError."""
        if self.is_local:
            if number:
                raise TargetError(
                    f"{self.driver} has no device {number}",
                    hint=f"it is one device: write 0 or {self.driver}",
                )
            return self
        return DeviceUri(self.driver, str(number))

    @property
    def family(self) -> str:
        """The family of devices that share code: `local` for both CPU drivers, otherwise the driver."""
        return "local" if self.is_local else self.driver


def device_uri(text: str, usual: str) -> str:
    """The URI of a device that a user names: a number counts the devices of the driver of `usual`.

    `1`, `cuda` -> `cuda://1`; `0`, `local-task` -> `local-task`; `hip://1` stays as it is. Raises TargetError.
    """
    name = text.strip()
    if not (name.isascii() and name.isdigit()):
        return name
    return str(DeviceUri.parse(usual).numbered(int(name[:9])))
