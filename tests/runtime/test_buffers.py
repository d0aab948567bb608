"""What is known of hosts and devices: URIs, caches, errors of drivers, and buffers on the CPU."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from process_state import policies, state_of_this_process
from test_iree_device import build

from dispatch_profiler.errors import TargetError, WorkerCrashed
from dispatch_profiler.operations import Matmul
from dispatch_profiler.operations.element_types import ELEMENT_TYPES
from dispatch_profiler.runtime import Arguments, DeviceUri, NullDevice, RunError, device_uri, open_device
from dispatch_profiler.runtime.caches import last_level_cache_bytes
from dispatch_profiler.runtime.iree import driver_rejection, run_error

F32 = ELEMENT_TYPES["f32"]


@pytest.fixture(params=["local-sync", "null"])
def device(request: pytest.FixtureRequest):
    return open_device(request.param)


@pytest.mark.parametrize("name", ["f64", "f32", "f16", "bf16", "f8E4M3FN", "i8", "i32"])
@pytest.mark.parametrize("shape", [(2, 3), (5,), ()])
def test_a_buffer_holds_what_was_written(device, name: str, shape: tuple[int, ...]):
    type_ = ELEMENT_TYPES[name]
    values = (np.arange(np.prod(shape, dtype=int)) - 2).astype(type_.dtype).reshape(shape)

    buffer, other = device.allocate(shape, type_), device.put(values + values, type_)
    buffer.write(values)

    assert (buffer.shape, buffer.type) == (shape, type_)
    assert buffer.read().tobytes() == values.tobytes() and buffer.read().shape == shape
    buffer.copy_from(other)
    assert buffer.read().tobytes() == (values + values).tobytes()


@pytest.mark.parametrize("wrong", [np.zeros((3, 2), np.float32), np.zeros((2, 3), np.float64)])
def test_another_shape_or_type_is_rejected(device, wrong: np.ndarray):
    with pytest.raises(RunError, match=r"expected f32 \(2, 3\), but got"):
        device.allocate((2, 3), F32).write(wrong)


def test_a_call_writes_its_destination_buffers():
    """In turns over two sets of arguments, and no operation is known."""
    function, vmfb = build(Matmul(2, 2, 2))
    device = open_device("local-sync")
    eye, sets = device.put(np.eye(2, dtype=np.float32), F32), []
    for number in (3.0, 5.0):
        lhs = device.put(np.full((2, 2), number, np.float32), F32)
        sets.append(Arguments((lhs, eye), (device.allocate((2, 2), F32),)))
    call = device.load(vmfb).bind(function, *sets)

    call.invoke()
    assert sets[0].results[0].read().tolist() == [[3.0, 3.0], [3.0, 3.0]]
    assert call.time(2) > 0
    assert sets[1].results[0].read().tolist() == [[5.0, 5.0], [5.0, 5.0]]


# -- the host process ------------------------------------------------------------------------------


@pytest.mark.skipif(not hasattr(os, "sched_getscheduler"), reason="needs Linux")
@pytest.mark.parametrize("uri", ["local-task", "local-sync", "null"])
def test_the_process_that_opens_a_device_stays_as_it_was(uri: str):
    """Scheduling, affinity, priority, signal handlers and environment are those of the host."""
    before, threads = state_of_this_process(), policies()

    device = open_device(uri)
    buffer = device.put(np.eye(2, dtype=np.float32), F32)
    if not isinstance(device, NullDevice):
        function, vmfb = build(Matmul(2, 2, 2))
        call = device.load(vmfb).bind(function, Arguments((buffer, buffer), (device.allocate((2, 2), F32),)))
        call.invoke()
        call.time(3)
    buffer.read()

    assert state_of_this_process() == before
    assert policies() <= threads | {os.SCHED_OTHER}


def test_the_test_sees_a_process_that_changes(monkeypatch: pytest.MonkeyPatch):
    before = state_of_this_process()
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert state_of_this_process() != before


@pytest.fixture
def cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """`cores({0: [(level, size, shared)]})`: a folder that describes these cores, all of them ours."""

    def make(described: dict[int, list[tuple[int, str, str]]]) -> Path:
        for core, caches in described.items():
            for number, (level, size, shared) in enumerate(caches):
                index = tmp_path / f"cpu{core}" / "cache" / f"index{number}"
                index.mkdir(parents=True)
                (index / "level").write_text(f"{level}\n")
                (index / "size").write_text(f"{size}\n")
                (index / "shared_cpu_list").write_text(f"{shared}\n")
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(described), raising=False)
        return tmp_path

    return make


def test_a_cache_that_cores_share_counts_once(cores):
    core = [(1, "32K", "0"), (2, "1024K", "0"), (3, "32M", "0-1")]
    assert last_level_cache_bytes(cores({0: core, 1: core})) == 32 * 2**20


def test_caches_of_several_groups_of_cores_add_up(cores):
    """As on machines with a last-level cache for every eight cores."""
    described = {core: [(2, "1M", str(core)), (3, "16384K", f"{core // 2}")] for core in range(4)}
    assert last_level_cache_bytes(cores(described)) == 2 * 16 * 2**20


@pytest.mark.parametrize("size", ["", "32", "many"])
def test_what_cannot_be_read_is_not_known(cores, size):
    assert last_level_cache_bytes(cores({0: [(3, size, "0")]})) == 0


def test_a_machine_that_describes_nothing_is_not_known(tmp_path: Path):
    assert last_level_cache_bytes(tmp_path) == 0


@pytest.mark.parametrize(
    ("text", "driver", "path", "ordinal"),
    [
        ("local-task", "local-task", "", 0),
        ("cuda", "cuda", "", 0),
        ("cuda://3", "cuda", "3", 3),
        ("cuda://GPU-1f", "cuda", "GPU-1f", None),
        ("null://1", "null", "1", 1),
        (" hip://0 ", "hip", "0", 0),
        ("cuda://²", "cuda", "²", None),
    ],
)
def test_a_uri_has_a_driver_and_a_path(text: str, driver: str, path: str, ordinal: int | None):
    uri = DeviceUri.parse(text)
    assert (uri.driver, uri.path, uri.ordinal) == (driver, path, ordinal)
    assert DeviceUri.parse(str(uri)) == uri


@pytest.mark.parametrize(
    ("text", "local", "null", "gpu", "cuda", "workers"),
    [
        ("local-task", True, False, False, False, True),
        ("local-sync", True, False, False, False, False),
        ("null://1", False, True, False, False, False),
        ("cuda://1", False, False, True, True, False),
        ("hip", False, False, True, False, False),
        ("vulkan", False, False, True, False, False),
    ],
)
def test_what_a_device_is(text: str, local: bool, null: bool, gpu: bool, cuda: bool, workers: bool):
    uri = DeviceUri.parse(text)
    assert (uri.is_local, uri.is_null, uri.is_gpu, uri.is_cuda, uri.has_workers) == (
        local, null, gpu, cuda, workers,
    )  # fmt: skip


def test_both_devices_of_the_cpu_run_the_same_code():
    assert {DeviceUri.parse(text).family for text in ("local-task", "local-sync")} == {"local"}
    assert DeviceUri.parse("cuda://1").family == "cuda"


@pytest.mark.parametrize(
    ("text", "usual", "uri"),
    [
        ("1", "cuda", "cuda://1"),
        ("0", "cuda://3", "cuda://0"),
        (" 2 ", "hip", "hip://2"),
        ("0", "local-task", "local-task"),
        ("1", "null", "null://1"),
        ("hip://1", "cuda", "hip://1"),
        ("local-sync", "local-task", "local-sync"),
    ],
)
def test_a_number_counts_the_devices_of_the_targets_driver(text: str, usual: str, uri: str):
    assert device_uri(text, usual) == uri


def test_a_cpu_is_one_device():
    with pytest.raises(TargetError, match=r"^local-task has no device 1$"):
        device_uri("1", "local-task")


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
