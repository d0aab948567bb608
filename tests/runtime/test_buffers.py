"""Buffers and calls on the CPU; and a host process that stays as it was."""

from __future__ import annotations

import os

import numpy as np
import pytest
from process_state import policies, state_of_this_process
from test_iree_device import build

from dispatch_profiler.operations import Matmul
from dispatch_profiler.operations.element_types import ELEMENT_TYPES
from dispatch_profiler.runtime import Arguments, NullDevice, RunError, open_device

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
