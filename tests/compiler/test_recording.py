"""What a recording executes is what a call executes, as often as it is replayed, at the buffers of the recording."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from hal_samples import BRANCHING, COUNTER, FLAGS, PADDED, PRODUCT, at_phase_hal, source_of

from dispatch_profiler.compiler import BuildRequest, IreeCompiler
from dispatch_profiler.compiler.backends.in_process import InProcess
from dispatch_profiler.compiler.passes.recording import RECORD, REPLAY, add_recordings
from dispatch_profiler.compiler.passes.repetition import repeated
from dispatch_profiler.configurations import Default
from dispatch_profiler.dispatches import Dispatch
from dispatch_profiler.operations import Operation
from dispatch_profiler.runtime import Arguments, open_device
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
