"""Running on IREE: operands of every type go in as they are, and results come out of our own memory."""

from __future__ import annotations

import functools
import platform
import sys
from pathlib import Path

import iree.runtime as rt
import numpy as np
import pytest

from dispatch_profiler.compiler import BuildRequest, IreeCompiler
from dispatch_profiler.configurations import Default
from dispatch_profiler.dispatches import Dispatch
from dispatch_profiler.errors import TargetError, UsageError
from dispatch_profiler.generator import render_module
from dispatch_profiler.operations import ElementTypes, Epilogue, Matmul, Operation
from dispatch_profiler.profiler.measurement.kernels import DeviceKernels, open_kernels
from dispatch_profiler.profiler.verification.inputs import poison
from dispatch_profiler.runtime import DeviceUri, RunError, ToolDevice, find_runtime_tools, open_device
from dispatch_profiler.targets import parse_target

BIN = Path(sys.executable).parent
FLAGS = parse_target("llvm-cpu").compile_flags


@functools.cache
def build(operation: Operation, repeat: int = 1, source: str | None = None) -> tuple[str, bytes]:
    """(function, vmfb) of the compiler's default."""
    dispatch = Dispatch(operation, Default())
    text = source or render_module(operation, [dispatch])
    built = IreeCompiler().build(BuildRequest(text, (dispatch,), FLAGS, repeat))
    return dispatch.name, built.profile


@pytest.fixture(params=["installed", "tools"])
def device(request: pytest.FixtureRequest):
    return open_kernels("local-sync", BIN if request.param == "tools" else None)


@pytest.mark.some(3)
@pytest.mark.parametrize(
    "types",
    [
        ElementTypes("f64", "f64", "f64"),
        ElementTypes("f32", "f32", "f32"),
        ElementTypes("f16", "f16", "f16"),
        ElementTypes("bf16", "bf16", "bf16"),
        ElementTypes("f8", "f8", "f32"),
        ElementTypes("i8", "i8", "i32"),
    ],
    ids=lambda t: f"{t.lhs}-{t.result}",
)
def test_every_type_travels_unchanged(device, types: ElementTypes):
    """With the identity as rhs the result holds the lhs, value by value."""
    operation = Matmul(4, 4, 4, types)
    function, vmfb = build(operation)
    lhs = np.arange(-8, 8).reshape(4, 4).astype(types.input.dtype)
    identity = np.eye(4).astype(types.input.dtype)

    result = device.load(vmfb).bind(function, device.put(operation, [lhs, identity])).run()[0]

    assert result.dtype == types.output.dtype
    assert result.astype(np.float64).tolist() == lhs.astype(np.float64).tolist()


def test_a_bias_is_the_third_operand(device):
    operation = Matmul(2, 3, 1, epilogue=Epilogue.parse("bias+relu"))
    function, vmfb = build(operation)
    arrays = [np.ones((2, 1), np.float32), np.zeros((1, 3), np.float32), np.array([-1, 0, 2], np.float32)]

    result = device.load(vmfb).bind(function, device.put(operation, arrays)).run()[0]

    assert result.tolist() == [[0, 0, 2], [0, 0, 2]]


def test_running_twice_gives_results_of_their_own(device):
    """The first result is a copy: a second run does not change it."""
    operation = Matmul(2, 2, 2)
    function, vmfb = build(operation)
    call = device.load(vmfb).bind(function, device.put(operation, [np.eye(2, dtype=np.float32)] * 2))

    first = call.run()[0]
    second = call.run()[0]

    assert first.tolist() == second.tolist() == [[1, 0], [0, 1]]
    assert not np.shares_memory(first, second)


def test_an_unwritten_result_shows_as_poison(device):
    """A kernel that hands its destination back untouched: what we put there is what we find."""
    operation = Matmul(2, 2, 2)
    name = Dispatch(operation, Default()).name
    t = "tensor<2x2xf32>"
    source = (
        f"func.func @{name}(%lhs: {t}, %rhs: {t}, %result: {t} {{iree.abi.output = 0 : index}}) -> {t} {{\n"
        f"  return %result : {t}\n}}\n"
    )
    function, vmfb = build(operation, source=source)

    result = (
        device.load(vmfb).bind(function, device.put(operation, [np.eye(2, dtype=np.float32)] * 2)).run()[0]
    )

    assert np.isnan(result).all()


def test_time_counts_calls(device):
    """The total seconds of several calls; the test does not check how many."""
    operation = Matmul(2, 2, 2)
    function, vmfb = build(operation, repeat=3)
    call = device.load(vmfb).bind(function, device.put(operation, [np.eye(2, dtype=np.float32)] * 2))

    assert call.time(2) > 0


def test_an_unknown_function_is_told(device):
    operation = Matmul(2, 2, 2)
    _, vmfb = build(operation)
    arrays = [np.eye(2, dtype=np.float32)] * 2

    with pytest.raises(RunError, match="nothing"):
        device.load(vmfb).bind("nothing", device.put(operation, arrays)).run()[0]


def test_operands_of_another_shape_are_told(device):
    function, vmfb = build(Matmul(2, 2, 2))
    arrays = [np.zeros((3, 3), np.float32)] * 2

    with pytest.raises(RunError, match=r"INVALID_ARGUMENT|iree-run-module"):
        device.load(vmfb).bind(function, device.put(Matmul(3, 3, 3), arrays)).run()[0]


def test_something_that_is_no_vmfb_is_told(device):
    operation = Matmul(2, 2, 2)

    with pytest.raises(RunError, match=r"loading the vmfb failed|iree-run-module"):
        device.load(b"no vmfb").bind("f", device.put(operation, [np.eye(2, dtype=np.float32)] * 2)).run()[0]


def test_an_unknown_device_names_the_drivers_that_there_are():
    with pytest.raises(TargetError, match="no device 'nonsense://0'") as caught:
        open_device("nonsense://0")

    assert "local-task" in caught.value.hint


def test_a_device_that_the_machine_lacks_is_told():
    with pytest.raises(TargetError, match="no device 'cuda://99'"):
        open_device("cuda://99")


#: What IREE 3.13 says, shortened at the end -> what of it is said on.
DRIVER_ERRORS = {
    "Error creating driver: c/runtime/src/iree/hal/drivers/cuda/cuda_dynamic_symbols.c:66: UNAVAILABLE; CUDA "
    "driver library 'libcuda.so'/'nvcuda.dll' not available; please ensure installed": (
        "CUDA driver library 'libcuda.so'/'nvcuda.dll' not available"
    ),
    "Error creating driver: c/runtime/src/iree/hal/drivers/hip/dynamic_symbols.c:155: UNAVAILABLE; HIP runtime "
    "library 'amdhip64.dll'/'libamdhip64.so' not available: please ensure installed: \n  Tried: libamdhip64.so": (
        "HIP runtime library 'amdhip64.dll'/'libamdhip64.so' not available"
    ),
    "Error creating driver: c/runtime/src/iree/hal/drivers/vulkan/util/libvulkan.c:641: NOT_FOUND; Vulkan loader "
    "library not found; ensure it is installed: \n  Tried: libvulkan.so.1": "Vulkan loader library not found",
    "Error creating driver: c/runtime/src/iree/hal/driver_registry.c:319: NOT_FOUND; no driver 'metal' registered": (
        "no driver 'metal' registered"
    ),
    "something new": "something new",
}


@pytest.mark.parametrize("said", DRIVER_ERRORS)
def test_why_there_is_no_device_is_one_clause(said: str, monkeypatch: pytest.MonkeyPatch):
    def refuse(uri: str) -> None:
        raise RuntimeError(said)

    monkeypatch.setattr(rt, "get_device", refuse)

    with pytest.raises(TargetError) as caught:
        open_device("gpu://nowhere")
    assert str(caught.value) == f"no device 'gpu://nowhere' on this machine: {DRIVER_ERRORS[said]}"
    assert caught.value.hint.startswith("choose another with --device; available drivers: ")


def test_code_for_another_device_is_told():
    """An aarch64 program on x86-64, or the other way round."""
    operation, cpu = Matmul(4, 4, 4), "znver4" if platform.machine() == "aarch64" else "neoverse-v2"
    dispatches = (Dispatch(operation, Default()),)
    flags = parse_target(f"llvm-cpu:{cpu}").compile_flags
    request = BuildRequest(render_module(operation, dispatches), dispatches, flags, 1)
    vmfb = IreeCompiler().build(request).verify

    with pytest.raises(RunError, match=r"it is llvm-cpu code \(embedded-elf-\w+\) for another device$"):
        open_device("local-task").load(vmfb)


@pytest.mark.parametrize("name", ["f64", "f32", "f16", "bf16", "f8E4M3FN"])
def test_poison_is_not_a_number(name: str):
    from dispatch_profiler.operations import element_type

    values = poison(element_type(name), (2, 3))

    assert values.shape == (2, 3)
    assert np.isnan(values.astype(np.float64)).all()


def test_integer_poison_is_out_of_reach():
    from dispatch_profiler.operations import element_type

    assert set(poison(element_type("i32"), (2,)).tolist()) == {-(2**31) + 1}


# -- someone's own build ---------------------------------------------------------------------------


def test_a_build_without_runtime_tools_is_refused(tmp_path: Path):
    (tmp_path / "iree-run-module").touch()

    with pytest.raises(UsageError, match="does not contain iree-run-module and iree-benchmark-module"):
        find_runtime_tools(tmp_path)


def test_an_answer_that_is_no_report_is_told(tmp_path: Path):
    for name in ("run", "benchmark"):
        tool = tmp_path / f"iree-{name}-module"
        tool.write_text("#!/bin/sh\necho hello\n")
        tool.chmod(0o755)
    operation = Matmul(2, 2, 2)
    device = DeviceKernels(ToolDevice(DeviceUri("local-sync"), tmp_path))
    call = device.load(b"").bind("f", device.put(operation, [np.eye(2, dtype=np.float32)] * 2))

    with pytest.raises(RunError, match="unexpected output of iree-benchmark-module: 'hello"):
        call.time(1)


def test_a_cuda_device_replays_graphs_and_leaves_the_drivers_of_others_alone(monkeypatch: pytest.MonkeyPatch):
    steps: list[str] = []
    monkeypatch.setattr(rt.flags, "parse_flags", steps.append)

    def fails(driver: str) -> None:
        steps.append(f"create {driver}")
        raise RuntimeError("x: UNAVAILABLE; no driver")

    monkeypatch.setattr("dispatch_profiler.runtime.iree.create_hal_driver", fails)
    with pytest.raises(TargetError, match="no device 'cuda://99' on this machine: no driver"):
        open_device("cuda://99")
    assert steps == ["--cuda_use_streams=false", "create cuda", "--cuda_use_streams=true"]
