"""A thread that waits for threads of IREE is in the batch class, and in its own one afterwards."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest

from dispatch_profiler.boo.environment import launch_settings
from dispatch_profiler.boo.kernels import OperationKernels
from dispatch_profiler.boo.launching import loading
from dispatch_profiler.boo.launching.loading import without_displacing
from dispatch_profiler.operations import ElementTypes, Matmul
from dispatch_profiler.runtime.device_uri import DeviceUri
from dispatch_profiler.runtime.iree import IreeDevice

pytestmark = pytest.mark.skipif(not hasattr(os, "SCHED_BATCH"), reason="needs Linux")


@pytest.fixture(autouse=True)
def _usual_class() -> Iterator[None]:
    """That of a program; tests of measurements put the thread of all tests into another one."""
    before = os.sched_getscheduler(0)
    os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    yield
    os.sched_setscheduler(0, before, os.sched_param(0))


@pytest.fixture
def seen() -> list[int]:
    """The class of the thread in each call."""
    return []


@pytest.fixture
def call(seen: list[int]) -> Callable[..., None]:
    def note(*arguments: object) -> None:
        seen.append(os.sched_getscheduler(0))
        if arguments:
            raise ValueError(*arguments)

    return without_displacing(note)


def test_the_thread_is_as_before_afterwards(call: Callable[..., None], seen: list[int]) -> None:
    nice, others = os.getpriority(os.PRIO_PROCESS, 0), threading.Thread(target=call)
    call()
    others.start()
    others.join()
    assert seen == [os.SCHED_BATCH] * 2
    assert os.sched_getscheduler(0) == os.SCHED_OTHER
    assert os.getpriority(os.PRIO_PROCESS, 0) == nice


def test_an_error_is_raised(call: Callable[..., None], seen: list[int]) -> None:
    with pytest.raises(ValueError, match="planted"):
        call("planted")
    assert seen == [os.SCHED_BATCH]
    assert os.sched_getscheduler(0) == os.SCHED_OTHER


def test_another_class_is_left_alone(call: Callable[..., None], seen: list[int]) -> None:
    os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    call()
    assert seen == [os.SCHED_BATCH] == [os.sched_getscheduler(0)]


def test_where_it_is_not_allowed_the_call_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbid(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    made: list[str] = []
    with monkeypatch.context() as patch:
        patch.setattr(os, "sched_setscheduler", forbid)
        without_displacing(made.append)("made")
    assert made == ["made"]


def test_an_error_of_the_system_in_a_call_is_not_a_second_call(seen: list[int]) -> None:
    def fail() -> None:
        seen.append(0)
        raise OSError("planted")

    with pytest.raises(OSError, match="planted"):
        without_displacing(fail)()
    assert seen == [0]


class _Interrupted(Exception):
    """What a signal handler raises."""


def _raise_at(step: int, function: Callable[..., None]) -> bool:
    """Call `function`; raise at its `step`-th instruction, as a signal handler can. False if it has fewer."""
    wrapped, left = function.__code__, [step]

    def trace(frame: FrameType, event: str, _: object) -> object:
        if frame.f_code is not wrapped:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if event == "opcode":
            left[0] -= 1
            if left[0] == 0:
                raise _Interrupted
        return trace

    before = sys.gettrace()
    sys.settrace(trace)  # type: ignore[arg-type]
    try:
        function()
    except _Interrupted:
        return True
    finally:
        sys.settrace(before)
    return False


def test_a_signal_handler_may_raise_anywhere() -> None:
    function = without_displacing(lambda: None)
    steps = 0
    while _raise_at(steps + 1, function):
        steps += 1
        assert os.sched_getscheduler(0) == os.SCHED_OTHER, f"instruction {steps}"
    assert steps > 20


def test_a_signal_handler_raises_while_the_class_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    change, changes = os.sched_setscheduler, []

    def interrupted(*arguments: Any) -> None:
        change(*arguments)
        changes.append(arguments[1])
        if len(changes) == 1:
            raise _Interrupted

    with monkeypatch.context() as patch:
        patch.setattr(os, "sched_setscheduler", interrupted)
        function = without_displacing(lambda: None)
    with pytest.raises(_Interrupted):
        function()
    assert changes == [os.SCHED_BATCH, os.SCHED_OTHER]
    assert os.sched_getscheduler(0) == os.SCHED_OTHER


@pytest.mark.parametrize(("driver", "waits"), [("local-task", True), ("local-sync", False)])
def test_launches_with_threads_wait_like_this(
    driver: str, waits: bool, monkeypatch: pytest.MonkeyPatch, shared_cache: None
) -> None:
    wrapped: list[object] = []
    monkeypatch.setattr(loading, "without_displacing", lambda call: (wrapped.append(call), call)[1])
    operation = Matmul(16, 16, 16, ElementTypes("f32", "f32", "f32"))
    kernel = OperationKernels(operation, operation.name, launch_settings()).kernel(DeviceUri(driver))
    loading.load(kernel, IreeDevice(DeviceUri(driver)), operation.name, 1)
    assert bool(wrapped) == waits


def test_systems_without_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(loading.os, "SCHED_BATCH")
    assert without_displacing(print) is print
