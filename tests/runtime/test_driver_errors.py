"""Errors of the driver, as an H200 with driver 580 gave them on 2026-11-21."""

from __future__ import annotations

import pytest

from dispatch_profiler.errors import WorkerCrashed
from dispatch_profiler.runtime import RunError
from dispatch_profiler.runtime.iree_buffers import driver_rejection, run_error

HEAD = "Error creating vm context with modules: c/runtime/src/iree/hal/drivers/cuda/native_executable.c"
SAID = {
    f"{HEAD}:389: FAILED_PRECONDITION; CUDA error 'CUDA_ERROR_UNSUPPORTED_PTX_VERSION' (222): the provided PTX was "
    "compiled with an unsupported toolchain.; mismatched target chip? missing/wrong bitcode directory?; ptxas "
    "application ptx input, line 5; fatal   : Unsupported .version 9.9; current version is '9.0'; while invoking": (
        "the kernel is PTX 9.9, the driver supports up to 9.0: update the driver"
    ),
    f"{HEAD}:389: FAILED_PRECONDITION; CUDA error 'CUDA_ERROR_UNSUPPORTED_PTX_VERSION' (222)": (
        "the kernel's PTX version is newer than the driver supports: update the driver"
    ),
    f"{HEAD}:220: INVALID_ARGUMENT; exports[0] requires 300000B of shared memory and exceeds the device maximum of "
    "232448B per block; while invoking native function hal.executable.create": (
        "the kernel needs 300000 B of shared memory, but this device has 232448"
    ),
    f"{HEAD}:419: NOT_FOUND; CUDA error 'CUDA_ERROR_NOT_FOUND' (500): named symbol not found; while invoking": (
        "the object has no kernel with the name that is launched"
    ),
    f"{HEAD}:389: FAILED_PRECONDITION; CUDA error 'CUDA_ERROR_INVALID_PTX' (218): a PTX JIT compilation failed; "
    "mismatched target chip? missing/wrong bitcode directory?; ptxas application ptx input, line 221; error   : "
    "Instruction 'wgmma.fence' not supported on .target 'sm_120a' ptxas application ptx input, line 228; error": (
        "the kernel is for another GPU (INVALID_PTX): Instruction 'wgmma.fence' not supported on .target "
        "'sm_120a'"
    ),
    f"{HEAD}:389: UNAVAILABLE; something else": "",
}  # fmt: skip


@pytest.mark.parametrize("text", SAID)
def test_a_refusal_of_the_driver_is_told_with_its_values(text):
    """An error that is none of the driver's own is left as it is."""
    assert driver_rejection(text) == SAID[text]


@pytest.mark.parametrize(
    "text",
    [
        "CUDA driver error; CUDA_ERROR_INVALID_ADDRESS_SPACE (717)",
        "Error invoking function: ABORTED; while invoking native function hal.device.queue.dealloca; while calling import",
    ],
)
def test_an_error_after_which_the_device_runs_nothing_more_ends_the_process(text):
    """Without that, the next dispatch is blamed, as an H200 has shown."""
    found = run_error("running the dispatch", RuntimeError(text))
    assert isinstance(found, WorkerCrashed) and found.message.startswith(
        "running the dispatch broke the device's "
    )


def test_other_errors_of_iree_leave_the_process_alone():
    """They concern one call: an argument of another shape, for example."""
    found = run_error("running the dispatch", RuntimeError("INVALID_ARGUMENT; shape mismatch"))
    assert isinstance(found, RunError)
