"""The backends that the driver measures: our kernel, and torch in several ways."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from importlib import import_module
from typing import TYPE_CHECKING, Any

from dispatch_profiler.boo.driver.devices import CPU, uri_of
from dispatch_profiler.boo.driver.runs.timing import Work
from dispatch_profiler.boo.driver.torch_functions import load_torch, torch_errors, torch_function
from dispatch_profiler.errors import UsageError, did_you_mean
from dispatch_profiler.runtime.device_uri import DeviceUri

if TYPE_CHECKING:
    from dispatch_profiler.boo.launching import Launchable
    from dispatch_profiler.boo.op_exports._base import OpSignature


class DriverBackend(str, Enum):
    """A way to compute a signature, by its name in the documents of BOO."""

    #: The launchable of `get_launchable`.
    BOO = "iree_boo"
    #: Eager PyTorch.
    TORCH = "torch"
    #: `torch.compile` with its default backend.
    INDUCTOR = "inductor"
    #: `torch.compile` with the backend of this package: our kernels where they apply, inductor for the rest.
    BOO_INDUCTOR = "iree_boo_inductor"
    #: The same as `iree_boo`; kept for BOO's command lines.
    LEGACY = "iree_boo_legacy"

    @property
    def is_torch(self) -> bool:
        """Whether torch computes, with threads that keep spinning for a while afterwards."""
        return self in (DriverBackend.TORCH, DriverBackend.INDUCTOR, DriverBackend.BOO_INDUCTOR)


#: Values of --reference-backend.
REFERENCES = tuple(backend for backend in DriverBackend if backend is not DriverBackend.BOO)


def parse_references(texts: Sequence[str]) -> tuple[DriverBackend, ...]:
    """The backends in values of --reference-backend, which may be lists separated by commas. Raises UsageError."""
    names = [name.strip() for text in texts for name in text.split(",")]
    known = [backend.value for backend in REFERENCES]
    for name in names:
        if name not in known:
            raise UsageError(
                f"--reference-backend: unknown backend {name[:40]!r}", hint=did_you_mean(name, known)
            )
    return tuple(dict.fromkeys(map(DriverBackend, names)))


@dataclass(frozen=True)
class SignatureLaunch:
    """A signature with its launchable and arguments on `device`, `cpu` or `cuda:N`."""

    signature: OpSignature
    launchable: Launchable
    arguments: tuple[Any, ...]
    device: str

    @property
    def kernel_device(self) -> DeviceUri:
        """The device of the kernel: on a CPU, of the driver that was faster during the first launch."""
        return DeviceUri(self.launchable.driver) if self.device == CPU else uri_of(self.device)

    def work(self, backend: DriverBackend) -> Work:
        """The work to time for `backend`. Raises MissingDependency, NotSupported, and ToolError if torch fails."""
        if backend in (DriverBackend.BOO, DriverBackend.LEGACY):
            launchable, arguments = self.launchable, self.arguments
            return self._waiting(lambda: launchable(*arguments))
        with torch_errors():
            return self._torch_work(backend)

    def _torch_work(self, backend: DriverBackend) -> Work:
        torch = load_torch()
        device = torch.device(self.device)
        own = torch_function(self.signature.operation, device)
        handles = own.enter([_on(torch, device, each) for each in self._operands()])
        function = own.function if backend is DriverBackend.TORCH else _compiled(torch, own.function, backend)
        function(*handles)
        return self._waiting(lambda: function(*handles))

    def _waiting(self, launch: Callable[[], Any]) -> Work:
        """`launch`, with a wait for the device on a GPU."""
        if self.device == CPU:
            return Work(launch)
        torch = load_torch()
        device = torch.device(self.device)
        return Work(launch, lambda: torch.cuda.synchronize(device), waits=True)

    def _operands(self) -> list[Any]:
        """The arguments in the order and shapes of the operation's operands."""
        specs = self.signature.launch.arguments
        paired = sorted(zip(specs, self.arguments, strict=True), key=lambda pair: pair[0].position)
        return [argument.reshape(spec.kernel_shape) for spec, argument in paired]


def _compiled(torch: Any, function: Any, backend: DriverBackend) -> Any:
    if backend is DriverBackend.INDUCTOR:
        return torch.compile(function, dynamic=False)
    # Passed as a function: iree-turbine may have registered the name. Imported here: `boo.backends` is a higher layer.
    backends = import_module("dispatch_profiler.boo.backends")
    return torch.compile(function, dynamic=False, backend=backends.iree_boo_inductor)


def _on(torch: Any, device: Any, argument: Any) -> Any:
    return argument if isinstance(argument, torch.Tensor) else torch.from_numpy(argument).to(device)
