"""The process that `tracy` traces: `python -m dispatch_profiler.boo.driver.traced DEVICE LAUNCHES COMMAND`."""

from __future__ import annotations

import os
import sys

#: What selects the traced runtime and its connection, which read them when they are loaded.
VARIABLES = ("IREE_PY_RUNTIME", "TRACY_PORT", "TRACY_NO_EXIT")


def launch_repeatedly(device: str, launches: int, command: str) -> None:
    """Launch a command `launches` times on `device`, on the same arguments."""
    import iree.runtime

    assert iree.runtime
    for name in VARIABLES:
        # Processes that compile are not traced: without a capture, they would never end.
        os.environ.pop(name, None)
    from dispatch_profiler.boo.driver.devices import has_torch
    from dispatch_profiler.boo.driver.launch import get_launchable
    from dispatch_profiler.boo.driver.registry import BooOpRegistry

    signature = BooOpRegistry.parse_command(command)
    launchable = get_launchable(signature)
    arguments = signature.get_sample_args(device=device if has_torch() else None, seed=0)
    for _ in range(launches):
        launchable(*arguments)


if __name__ == "__main__":
    launch_repeatedly(sys.argv[1], int(sys.argv[2]), sys.argv[3])
