"""What a recording executes is what calls execute, in order, as often as it is replayed."""

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
from dispatch_profiler.compiler.passes.packing import repeated
from dispatch_profiler.compiler.passes.recording import (
    APPENDING,
    RECORD,
    REPLAY,
    add_appending,
    add_recordings,
)
from dispatch_profiler.configurations import Configuration, Default, Microkernel
from dispatch_profiler.dispatches import Dispatch
from dispatch_profiler.generator import render_module
from dispatch_profiler.operations import Conv2d, Epilogue, Operation
from dispatch_profiler.runtime import Arguments, open_device
from dispatch_profiler.runtime.device_uri import DeviceUri
from dispatch_profiler.runtime.iree import Appending, IreeDevice
from dispatch_profiler.targets import parse_target

#: They work on the IR of the compiler.
pytestmark = pytest.mark.works_on_ir


@cache
def recorded(source: str, count: int = 1) -> bytes:
    """A vmfb for the CPU with recordings of `count` executions."""
    module = at_phase_hal(source)
    module = repeated(module, count) if count > 1 else module
    add_recordings(module)
    return InProcess().vmfb(module, FLAGS, "hal")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("operation", "count"),
    [
        (PRODUCT, 1),
        (PADDED, 3),
        pytest.param(PRODUCT, 3, marks=pytest.mark.slow),
        pytest.param(PADDED, 1, marks=pytest.mark.slow),
    ],
    ids=lambda each: getattr(each, "kind", str(each)),
)
def test_a_replay_computes_what_a_call_computes(operation: Operation, count: int):
    device, source = open_device("local-sync"), source_of(operation)
    f32, name = operation.element_type, Dispatch(operation, Default()).name
    results = []
    for vmfb in (recorded(source, count), InProcess().vmfb(at_phase_hal(source), FLAGS, "hal")):
        rng = np.random.default_rng(5)
        operands = [device.put(rng.random(each.shape, np.float32), f32) for each in operation.operands]
        result = device.put(np.full(operation.results[0].shape, np.nan, np.float32), f32)
        device.load(vmfb).bind(name, Arguments(tuple(operands), (result,))).invoke()
        results.append(result.read())
    assert np.array_equal(*results) and np.abs(results[0]).max() > 0.5


def test_every_replay_executes_all_repetitions_once():
    device = open_device("local-sync")
    counter = device.put(np.zeros(4, np.float32), PRODUCT.element_type)
    call = device.load(recorded(COUNTER, 3)).bind("count", Arguments((), (counter,)))
    assert counter.read().tolist() == [0.0] * 4  # recording executes nothing
    call.invoke()
    call.time(2)
    assert counter.read().tolist() == [9.0] * 4


def test_a_recording_per_set_of_arguments_is_replayed_in_turn():
    device = open_device("local-sync")
    first, second = (device.put(np.zeros(4, np.float32), PRODUCT.element_type) for _ in range(2))
    call = device.load(recorded(COUNTER)).bind("count", Arguments((), (first,)), Arguments((), (second,)))
    call.time(3)
    assert (first.read()[0], second.read()[0]) == (2.0, 1.0)


def test_arguments_of_another_shape_are_rejected_when_they_are_recorded():
    device = open_device("local-sync")
    short = device.put(np.zeros(3, np.float32), PRODUCT.element_type)
    with pytest.raises(Exception, match=r"recording the dispatch failed: .*shape"):
        device.load(recorded(COUNTER)).bind("count", Arguments((), (short,)))


def test_a_function_that_does_more_than_execute_one_command_buffer_has_no_recording():
    module = at_phase_hal(BRANCHING)
    before = list(module.symbols("util.func"))
    add_recordings(module)
    assert list(module.symbols("util.func")) == before


@pytest.mark.parametrize("target", ["cuda:sm_80", "llvm-cpu"])
def test_only_vmfbs_for_cuda_have_recordings(target: str):
    dispatch, flags = Dispatch(PRODUCT, Default()), parse_target(target).compile_flags
    built = IreeCompiler().build(BuildRequest(source_of(PRODUCT), (dispatch,), flags, 2))
    for vmfb in (built.verify, built.profile):
        for suffix in (RECORD, REPLAY):
            assert (f"{dispatch.name}{suffix}".encode() in vmfb) == (target != "llvm-cpu")


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


#: A function whose commands depend on a shape, so that IREE records them in each call.
DYNAMIC = """
func.func @twice(%x: tensor<?x4xf32>, %out: tensor<?x4xf32> {iree.abi.output = 0 : index}) -> tensor<?x4xf32> {
  %doubled = arith.addf %x, %x : tensor<?x4xf32>
  return %doubled : tensor<?x4xf32>
}
"""


@DRIVERS
def test_calls_with_dynamic_shapes_are_appended(driver: str):
    device, f32 = IreeDevice(DeviceUri(driver)), PRODUCT.element_type
    calls = appending(device, DYNAMIC, "twice")
    commands, kept = calls.begin(), []
    for rows in (3, 17):
        x = device.put(np.arange(4 * rows, dtype=np.float32).reshape(rows, 4), f32)
        first, second = (device.put(np.zeros((rows, 4), np.float32), f32) for _ in range(2))
        calls.append([x.view, first.view], scratch(device, 0), commands)
        calls.append([first.view, second.view], scratch(device, 0), commands)
        kept.append((x, first, second))
    execute = calls.finish(commands)
    for _ in range(2):
        execute()
        for x, _, second in kept:
            assert np.array_equal(second.read(), 4 * x.read())


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


@pytest.mark.slow
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
