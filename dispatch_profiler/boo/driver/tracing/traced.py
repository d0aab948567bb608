"""The process that `tracy` traces: `python -m dispatch_profiler.boo.driver.tracing.traced DEVICE LAUNCHES COMMAND`."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dispatch_profiler.boo.interface import KernelProvider, LaunchKernel, Signature
    from dispatch_profiler.boo.launching import Launchable
    from dispatch_profiler.runtime.device_uri import DeviceUri

#: Variables that select the traced runtime and its connection. The runtime reads them while it is loaded.
VARIABLES = ("IREE_PY_RUNTIME", "TRACY_PORT", "TRACY_NO_EXIT")


def launch_repeatedly(device: str, launches: int, command: str) -> None:
    """Launch a command `launches` times on `device`, with the same arguments."""
    import iree.runtime

    assert iree.runtime
    for name in VARIABLES:
        # Compiler processes must not be traced: they would wait for a capture forever.
        os.environ.pop(name, None)
    from dispatch_profiler.boo.driver.launch import get_launchable
    from dispatch_profiler.boo.driver.registry import BooOpRegistry
    from dispatch_profiler.boo.driver.torch_functions import CPU, has_torch

    signature = BooOpRegistry.parse_command(command)
    launchable = get_launchable(signature) if device == CPU else _through_iree(signature)
    arguments = signature.get_sample_args(device=device if has_torch() else None, seed=0)
    for _ in range(launches):
        launchable(*arguments)


def _through_iree(signature: Signature) -> Launchable:
    """A launchable whose kernels have no launch program, since Tracy traces only launches of IREE's runtime."""
    from dispatch_profiler.boo.environment import launch_settings
    from dispatch_profiler.boo.kernels import OperationKernels
    from dispatch_profiler.boo.launching import Launchable

    kernels = OperationKernels(signature.operation, signature.func_name, launch_settings())
    return Launchable(signature.launch, _WithoutPrograms(kernels))


@dataclass(frozen=True)
class _WithoutPrograms:
    """See `KernelProvider`."""

    kernels: KernelProvider

    def kernel(self, device: DeviceUri) -> LaunchKernel:
        """The kernel of `kernels`, without its launch program."""
        return replace(self.kernels.kernel(device), program="")


if __name__ == "__main__":
    launch_repeatedly(sys.argv[1], int(sys.argv[2]), sys.argv[3])
