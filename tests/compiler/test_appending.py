"""What is appended to a command buffer runs in order, and computes what calls compute, as often as it is executed."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from hal_samples import BRANCHING, COUNTER, FLAGS, PADDED, PRODUCT, at_phase_hal, source_of

from dispatch_profiler.compiler import BuildRequest, IreeCompiler
from dispatch_profiler.compiler.backends.in_process import InProcess
from dispatch_profiler.compiler.ir_module import IrModule
from dispatch_profiler.compiler.passes.appending import APPENDING, add_appending
from dispatch_profiler.compiler.passes.recording import add_recordings
from dispatch_profiler.configurations import Configuration, Default, Microkernel
from dispatch_profiler.dispatches import Dispatch
from dispatch_profiler.generator import render_module
from dispatch_profiler.operations import Conv2d, Epilogue, Operation
from dispatch_profiler.runtime import Arguments
from dispatch_profiler.runtime.device_uri import DeviceUri
from dispatch_profiler.runtime.iree import IreeDevice
from dispatch_profiler.runtime.iree_commands import Appending

#: They work on the IR of the compiler.
pytestmark = pytest.mark.works_on_ir

DRIVERS = pytest.mark.parametrize("driver", ["local-sync", "local-task"])
#: A kernel and its epilogue, with memory between them: some buffers are passed, others are slots of a table.
RESIDUAL = Conv2d(1, 4, 8, 16, 32, 1, 1, layout="nhwc_fhwc_nhwc", epilogue=Epilogue.parse("residual"))
IN_TWO = Microkernel((4, 32), (4, 2, 16), 4, 0)


def dispatch_of(operation: Operation) -> Dispatch:
    configuration: Configuration = IN_TWO if operation is RESIDUAL else Default()
    return Dispatch(operation, configuration)


@cache
def appendable(source: str) -> bytes:
    module = at_phase_hal(source)
    add_appending(module)
    return InProcess().vmfb(module, FLAGS, "hal")


def appending(device: IreeDevice, source: str, function: str) -> Appending:
    found = device.load(appendable(source)).appending(function)
    assert found is not None
    return found


def scratch(device: IreeDevice, size: int) -> Any:
    return device.allocate((max(1, size // 4),), PRODUCT.element_type).view


@DRIVERS
@pytest.mark.parametrize("operation", [PRODUCT, PADDED, RESIDUAL], ids=["product", "padded", "in_two"])
def test_appended_calls_compute_what_a_call_computes(operation: Operation, driver: str):
    device, dispatch = IreeDevice(DeviceUri(driver)), dispatch_of(operation)
    source = render_module(operation, [dispatch])
    type_, rng = operation.element_type, np.random.default_rng(5)
    operands = [device.put(rng.random(each.shape, np.float32), type_) for each in operation.operands]
    results = [device.put(np.full(operation.results[0].shape, np.nan, np.float32), type_) for _ in range(3)]
    device.load(appendable(source)).bind(dispatch.name, Arguments(tuple(operands), (results[0],))).invoke()

    calls = appending(device, source, dispatch.name)
    memory = scratch(device, calls.scratch)
    commands = calls.begin()
    for result in results[1:]:
        calls.append([each.view for each in (*operands, result)], memory, commands)
    execute = calls.finish(commands)
    assert (calls.scratch > 0) == (operation is not PRODUCT)
    for _ in range(2):
        execute()
        assert all(np.array_equal(each.read(), results[0].read()) for each in results[1:])
    assert np.abs(results[0].read()).max() > 0.5


@DRIVERS
def test_a_recording_executes_nothing_until_it_is_replayed_any_number_of_times(driver: str):
    device = IreeDevice(DeviceUri(driver))
    counter = device.put(np.zeros(4, np.float32), PRODUCT.element_type)
    calls = appending(device, COUNTER, "count")
    commands = calls.begin()
    for _ in range(50):
        calls.append([counter.view], scratch(device, 0), commands)
    execute = calls.finish(commands)

    assert counter.read().tolist() == [0.0] * 4
    for number in range(1, 101):
        execute()
        assert counter.read().tolist() == [50.0 * number] * 4


def test_calls_of_several_programs_are_one_recording():
    device = IreeDevice(DeviceUri("local-task"))
    counter = device.put(np.zeros(4, np.float32), PRODUCT.element_type)
    first, second = appending(device, COUNTER, "count"), appending(device, COUNTER, "count")
    commands = first.begin()
    for each in (first, second, first):
        each.append([counter.view], scratch(device, 0), commands)
    first.finish(commands)()
    assert counter.read().tolist() == [3.0] * 4


def test_arguments_of_another_shape_are_rejected_when_they_are_appended():
    device = IreeDevice(DeviceUri("local-sync"))
    short = device.put(np.zeros(3, np.float32), PRODUCT.element_type)
    calls = appending(device, COUNTER, "count")
    with pytest.raises(Exception, match="shape"):
        calls.append([short.view], scratch(device, 0), calls.begin())


def test_a_function_that_reads_what_it_computed_cannot_be_appended():
    module = at_phase_hal(BRANCHING)
    before = list(module.symbols("util.func"))
    add_appending(module)
    assert list(module.symbols("util.func")) == before
    assert IreeDevice(DeviceUri("local-sync")).load(appendable(BRANCHING)).appending("branch") is None


def test_vmfbs_that_execute_a_dispatch_once_can_be_appended():
    dispatch = Dispatch(PRODUCT, Default())
    for repeat in (1, 2):
        request = BuildRequest(source_of(PRODUCT), (dispatch,), FLAGS, repeat)
        vmfb = IreeCompiler().build(request).profile
        for each in APPENDING:
            assert (f"{dispatch.name}{each}".encode() in vmfb) == (repeat == 1)


@pytest.mark.parametrize("add", [add_appending, add_recordings])
def test_the_functions_of_a_module_are_printed_once_however_many_there_are(monkeypatch, add):
    """Printing all of them for each one took minutes for modules of 60 dispatches."""
    listings = []
    symbols = IrModule.symbols
    monkeypatch.setattr(
        IrModule, "symbols", lambda module, kind: listings.append(kind) or symbols(module, kind)
    )

    def count(extents: range) -> int:
        dispatches = [Dispatch(replace(PRODUCT, m=m), Default()) for m in extents]
        module = at_phase_hal("\n".join(render_module(each.operation, [each]) for each in dispatches))
        before, entries = len(listings), len(symbols(module, "util.func"))
        add(module)
        assert len(symbols(module, "util.func")) > entries
        return len(listings) - before

    assert count(range(1, 9)) == count(range(1, 2))
