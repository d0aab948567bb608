"""Failures caused from outside, such as lack of memory or a signal, are distinguished from those that repeat."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time

import pytest

from dispatch_profiler import outside_causes
from dispatch_profiler.outside_causes import crash_of, is_held_up, outside_cause, run_delay, telling_line

LLVM = "LLVM ERROR: Do not know how to split this operator's operand!"


@pytest.mark.parametrize(
    "text",
    [
        "sh: 1: Cannot fork",
        "terminate called after throwing an instance of 'std::bad_alloc'",
        "what():  Resource temporarily unavailable",
        "LLVM ERROR: out of memory",
        "LLVM ERROR: IO failure on output stream: No space left on device",
        "iree-lld: error: failed to write output 'x.so': File too large",
        "[Errno 24] Too many open files: '/tmp/x'",
        "failed to generate temporary file: No such file or directory",
        "error while loading shared libraries: failed to map segment from shared object",
        "RuntimeError: can't start new thread",
        "killed by SIGKILL (the system may have run out of memory)",
        "killed by SIGTERM",
        "killed by signal 40",
    ],
)
def test_lack_of_resources_and_signals_from_outside_are_outside_causes(text: str):
    assert outside_cause(f"a line\n{text}\nanother")


@pytest.mark.parametrize(
    "text",
    [
        "",
        LLVM,
        "killed by SIGABRT: " + LLVM,
        "killed by SIGSEGV",
        "error: register allocation failed: maximum depth for recoloring reached",
        "LLVM ERROR: unable to allocate function return #1",
        "error: 'func.func' op exceeded stack allocation limit of 32768 bytes for function",
        "iree-lld: error: undefined symbol: __truncsfbf2",
    ],
)
def test_messages_of_the_compiler_about_code_are_not(text: str):
    assert outside_cause(text) == ""


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", ""),
        (" \n\n", ""),
        ("first\nlast words\n\n", "last words"),
        (f"warning: x\n{LLVM}\n\n", LLVM),
        (f"{LLVM}\nPlease report issues\nStack dump:\n0.\tProgram arguments: iree-compile\n #0 0x7f\n", LLVM),
        ("x.cpp:3: Assertion `a' failed.\nAborted\n", "x.cpp:3: Assertion `a' failed."),
        ("terminate called\n  what():  no\n#0 0x7f", "what():  no"),
        ("a.mlir:1:2: error: no such tile\nnote: see current operation", "a.mlir:1:2: error: no such tile"),
    ],
)
def test_the_line_that_says_why_is_found_among_others(text: str, line: str):
    assert telling_line(text) == line


@pytest.mark.parametrize(
    ("number", "is_own"),
    [(signal.SIGABRT, True), (signal.SIGSEGV, True), (signal.SIGILL, True), (signal.SIGBUS, True), (signal.SIGFPE, True),
     (signal.SIGKILL, False), (signal.SIGTERM, False), (signal.SIGINT, False), (signal.SIGXCPU, False), (signal.SIGXFSZ, False)],
)  # fmt: skip
def test_signals_that_a_process_causes_itself_are_deterministic(number: int, is_own: bool):
    found = crash_of(-number, "something\n\n")

    assert found.is_deterministic is is_own
    assert found.message.startswith(f"killed by {signal.Signals(number).name}")
    assert found.message.endswith(": something")
    assert bool(outside_cause(found.message)) is not is_own


def test_an_illegal_instruction_is_explained_unless_the_process_does():
    assert "lacks an instruction" in crash_of(-signal.SIGILL, "").message
    assert crash_of(-signal.SIGILL, LLVM).message == f"killed by SIGILL: {LLVM}"


def test_an_abort_for_lack_of_memory_is_not_deterministic():
    """Either the message names memory, or the memory limit was low."""
    assert not crash_of(-signal.SIGABRT, "what():  std::bad_alloc\n").is_deterministic
    assert not crash_of(-signal.SIGSEGV, "", has_little_memory=True).is_deterministic
    assert crash_of(-signal.SIGABRT, LLVM, has_little_memory=True).is_deterministic
    assert not crash_of(1, LLVM).is_deterministic  # an exit is no crash


def test_a_bus_error_on_a_full_disk_is_not_deterministic(monkeypatch: pytest.MonkeyPatch):
    """Writing to mapped memory raises SIGBUS when the disk is full."""
    assert crash_of(-signal.SIGBUS, "").is_deterministic
    usage = outside_causes.shutil.disk_usage("/")._replace(free=0)
    monkeypatch.setattr(outside_causes.shutil, "disk_usage", lambda folder: usage)
    assert not crash_of(-signal.SIGBUS, "").is_deterministic


def test_a_stopped_process_is_held_up_and_one_that_sleeps_is_not():
    with subprocess.Popen(["sleep", "100"]) as process:
        try:
            assert not is_held_up(process.pid)
            os.kill(process.pid, signal.SIGSTOP)
            until(lambda: is_held_up(process.pid))
            assert is_held_up(os.getpid())  # because its child is
        finally:
            process.kill()


def test_waiting_for_a_core_is_counted_and_a_missing_process_is_not():
    before = run_delay(os.getpid())
    assert run_delay(os.getpid()) >= before >= 0.0
    assert run_delay(2**22 + 1) == 0.0
    assert not is_held_up(2**22 + 1)


def until(condition) -> None:
    end = time.monotonic() + 60
    while not condition() and time.monotonic() < end:
        with contextlib.suppress(OSError):
            time.sleep(0.01)
    assert condition()
