"""Buffers, calls and tensors of other libraries on the CPU; and a host process that stays as it was."""

from __future__ import annotations

import os

import numpy as np
import pytest
from process_state import policies, state_of_this_process
from test_iree_device import build

from dispatch_profiler.operations import Matmul
from dispatch_profiler.operations.element_types import ELEMENT_TYPES
from dispatch_profiler.runtime import Arguments, NullDevice, RunError, open_device
from dispatch_profiler.runtime.dlpack import ExportedTensor, import_tensor

F32 = ELEMENT_TYPES["f32"]


def aligned(*shape: int, offset: int = 0, dtype: str = "float32") -> np.ndarray:
    """An array so many bytes behind a multiple of 64."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    raw = np.zeros(size + 128, np.uint8)
    begin = -raw.ctypes.data % 64 + offset
    return raw[begin : begin + size].view(dtype).reshape(shape)


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


# -- tensors of other libraries --------------------------------------------------------------------


def test_an_imported_tensor_is_not_copied():
    """A call reads and writes the memory of numpy's arrays; what is exported is the same memory."""
    function, vmfb = build(Matmul(4, 4, 4))
    device = open_device("local-sync")
    lhs, rhs, result = aligned(4, 4), aligned(4, 4), aligned(4, 4)
    lhs[...], rhs[...] = np.arange(16).reshape(4, 4), 2 * np.eye(4)
    buffers = [import_tensor(device, each) for each in (lhs, rhs, result)]

    device.load(vmfb).bind(function, Arguments(tuple(buffers[:2]), tuple(buffers[2:]))).invoke()

    assert (result == 2 * lhs).all()
    exported = np.from_dlpack(ExportedTensor(device, buffers[2]))
    assert exported.ctypes.data == result.ctypes.data and exported.shape == (4, 4)


def test_a_torch_tensor_is_imported_and_exported():
    torch = pytest.importorskip("torch")
    device, tensor = open_device("local-sync"), torch.arange(6.0).reshape(2, 3)

    buffer = import_tensor(device, tensor)
    tensor += 1

    assert buffer.read().tolist() == [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]
    assert torch.from_dlpack(ExportedTensor(device, buffer)).data_ptr() == tensor.data_ptr()
    with pytest.raises(RunError, match="requires grad"):
        import_tensor(device, tensor.requires_grad_())


def read_only() -> np.ndarray:
    array = aligned(2, 2)
    array.flags.writeable = False
    return array


@pytest.mark.parametrize(
    ("tensor", "said"),
    [
        (aligned(4, offset=4), "not aligned to 64 bytes"),
        (aligned(4, 4).T, "not dense and row major"),
        (aligned(4, 4)[:, ::2], "not dense and row major"),
        (read_only(), "read-only"),
        (aligned(4, dtype="bool"), "not a supported element type"),
        (aligned(4, dtype="float32").astype(ELEMENT_TYPES["bf16"].dtype), "no such element type"),
        ([1.0, 2.0], "a list has no __dlpack__"),
    ],
)
def test_what_cannot_be_shared_is_rejected_with_the_next_step(tensor: object, said: str):
    with pytest.raises(RunError, match=said):
        import_tensor(open_device("local-sync"), tensor)


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
