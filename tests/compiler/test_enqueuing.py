"""What is enqueued runs after what it waits for, and computes what a call computes."""

from __future__ import annotations

from functools import cache
from typing import Any

import iree.runtime as rt
import numpy as np
import pytest
from hal_samples import BRANCHING, COUNTER, FLAGS, PADDED, PRODUCT, at_phase_hal, source_of

from dispatch_profiler.compiler import BuildRequest, IreeCompiler
from dispatch_profiler.compiler.enqueuing import ENQUEUE, add_enqueuing
from dispatch_profiler.compiler.in_process import InProcess
from dispatch_profiler.configurations import Default
from dispatch_profiler.dispatches import Dispatch
from dispatch_profiler.operations import Operation
from dispatch_profiler.runtime import Arguments
from dispatch_profiler.runtime.device_uri import DeviceUri
from dispatch_profiler.runtime.iree import IreeDevice


@cache
def enqueued(source: str) -> bytes:
    module = at_phase_hal(source)
    add_enqueuing(module)
    return InProcess().vmfb(module, FLAGS, "hal")


def enqueue(device: IreeDevice, source: str, name: str, buffers: list[Any], fences: list[Any]) -> None:
    program = device.load(enqueued(source))
    invoke, _ = program.entry_point(name)
    passed = rt.VmVariantList(len(buffers) + 2)
    for each in (*(buffer.view for buffer in buffers), *fences):
        passed.push_ref(each)
    invoke(program.enqueue_point(name), passed, rt.VmVariantList(0))


@pytest.mark.parametrize("driver", ["local-sync", "local-task"])
@pytest.mark.parametrize("operation", [PRODUCT, PADDED], ids=lambda each: each.kind)
def test_enqueued_work_computes_what_a_call_computes(operation: Operation, driver: str):
    device, source, name = (
        IreeDevice(DeviceUri(driver)),
        source_of(operation),
        Dispatch(operation, Default()).name,
    )
    type_, rng = operation.element_type, np.random.default_rng(5)
    operands = [device.put(rng.random(each.shape, np.float32), type_) for each in operation.operands]
    results = [device.put(np.full(operation.results[0].shape, np.nan, np.float32), type_) for _ in range(2)]
    device.load(enqueued(source)).bind(name, Arguments(tuple(operands), (results[0],))).invoke()

    done = device.hal.create_semaphore(0)
    fences = [rt.HalFence.create_at(done, value) for value in (0, 1)]
    enqueue(device, source, name, [*operands, results[1]], fences)
    done.wait(1)

    assert np.array_equal(results[0].read(), results[1].read())
    assert np.abs(results[0].read()).max() > 0.5


def test_enqueued_work_waits_for_its_fence_and_runs_in_order():
    device = IreeDevice(DeviceUri("local-task"))
    counter = device.put(np.zeros(4, np.float32), PRODUCT.element_type)
    timeline = device.hal.create_semaphore(0)
    for value in (1, 2, 3):
        fences = [rt.HalFence.create_at(timeline, each) for each in (value, value + 1)]
        enqueue(device, COUNTER, "count", [counter], fences)

    assert timeline.query() == 0
    assert counter.read().tolist() == [0.0] * 4
    timeline.signal(1)
    timeline.wait(4)
    assert counter.read().tolist() == [3.0] * 4


def test_a_function_that_reads_what_it_computed_cannot_be_enqueued():
    module = at_phase_hal(BRANCHING)
    before = list(module.symbols("util.func"))
    add_enqueuing(module)
    assert list(module.symbols("util.func")) == before


def test_vmfbs_that_execute_a_dispatch_once_can_be_enqueued():
    dispatch = Dispatch(PRODUCT, Default())
    for repeat in (1, 2):
        request = BuildRequest(source_of(PRODUCT), (dispatch,), FLAGS, repeat)
        vmfb = IreeCompiler().build(request).profile
        assert (f"{dispatch.name}{ENQUEUE}".encode() in vmfb) == (repeat == 1)
