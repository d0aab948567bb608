"""The kernel behind a launchable: compiled as for launches, timed alone, and with the error bound of its form."""

from __future__ import annotations

import numpy as np
import pytest
from launch_helpers import PlainSignature

from dispatch_profiler.boo.driver import launch
from dispatch_profiler.boo.driver.launch import error_bound, kernel_time
from dispatch_profiler.boo.driver.registry import Timing
from dispatch_profiler.boo.driver.runs.execution import DriverOptions, execute
from dispatch_profiler.boo.interface import LaunchKernel
from dispatch_profiler.boo.kernels import variants
from dispatch_profiler.configurations import Default, Formed
from dispatch_profiler.dispatches import Dispatch
from dispatch_profiler.operations import Conv2d, Matmul
from dispatch_profiler.runtime.device_uri import DeviceUri

CPU = DeviceUri("local-sync")
WINOGRAD = Formed("winograd_2", Default())


def test_a_kernel_is_launched_timed_and_checked(monkeypatch):
    """With nothing replaced, on arguments that are arrays."""
    pytest.importorskip("torch")
    signature, shown = PlainSignature(Matmul(16, 24, 8), "gemm"), []
    options = DriverOptions(verifies_numerics=True)

    outcome = execute("gemm", signature, Timing(True, 6), options, shown.append)

    assert shown[0] == ">>> tensor([...], device='cpu', size=(16, 24), dtype=torch.float32)"
    assert (outcome.numerics, outcome.error) == ("neither", "")
    assert outcome.kernel is not None and outcome.kernel.launches == 6
    assert kernel_time(signature, [np.ones((16, 8), np.float32), np.ones((8, 24), np.float32)], CPU)(2) > 0.0


@pytest.mark.parametrize("configuration", [WINOGRAD, Default()])
def test_the_error_bound_is_that_of_the_form_that_was_compiled(configuration, monkeypatch):
    """Of the variants that may be compiled, the kernel's function names the one that was."""
    operation = Conv2d(1, 8, 8, 4, 4, 3, 3)
    compiled = Dispatch(operation, configuration)
    monkeypatch.setattr(variants, "fastest_form", lambda *_, **__: WINOGRAD)
    kernel = LaunchKernel(b"", compiled.name, "")
    monkeypatch.setattr(launch, "compiled_kernel", lambda *_: kernel)

    found = error_bound(PlainSignature(operation, "conv"), CPU)

    assert found == compiled.error_bound
    assert (found is None) == (configuration == Default())
