"""The error tree, and failures caused from outside, which are distinguished from those that repeat."""

from __future__ import annotations

import contextlib
import os
import pickle
import re
import signal
import subprocess
import time

import pytest

from dispatch_profiler import errors, outside_causes
from dispatch_profiler.errors import (
    CompilerError,
    DispatchProfilerError,
    MissingDependency,
    ToolError,
    UsageError,
    did_you_mean,
)
from dispatch_profiler.outside_causes import crash_of, is_held_up, outside_cause, run_delay, telling_line


def classes_below(root: type) -> list[type]:
    """`root` and what descends from it in errors.py, parents first."""
    own = [kind for kind in root.__subclasses__() if kind.__module__ == errors.__name__]
    return [root, *(below for kind in own for below in classes_below(kind))]


EVERY_ERROR = classes_below(DispatchProfilerError)


def drawn_tree(text: str) -> dict[str, str | None]:
    """Name -> name of its parent, as the indentation of `text` draws it."""
    parents: dict[str, str | None] = {}
    above: list[tuple[int, str]] = []
    for indent, name in re.findall(r"^( {4,})([A-Z]\w+)", text, flags=re.MULTILINE):
        above = [(depth, outer) for depth, outer in above if depth < len(indent)]
        parents[name] = above[-1][1] if above else None
        above.append((len(indent), name))
    return parents


def real_tree() -> dict[str, str | None]:
    return {
        kind.__name__: None if kind is DispatchProfilerError else kind.__bases__[0].__name__
        for kind in EVERY_ERROR
    }


def test_the_drawn_tree_is_the_real_one():
    """The docstring of errors.py names every class under its parent, and no other."""
    assert drawn_tree(errors.__doc__) == real_tree()


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param(("        RangeError", "      RangeError"), id="nesting"),
        pytest.param(("ToolError ", "ToolsError "), id="name"),
        pytest.param(("      MissingDependency", "        - none"), id="missing"),
    ],
)
def test_a_wrong_drawing_is_seen(wrong: tuple[str, str]):
    """The comparison above fails on a wrong name, a wrong parent and a missing class."""
    assert drawn_tree(errors.__doc__.replace(*wrong)) != real_tree()


def test_the_drawn_exit_statuses_are_the_real_ones():
    """Every `exit status N` in the drawing is that of its class."""
    drawn = re.findall(r"^ +(\w+) .*exit status (\d)$", errors.__doc__, flags=re.MULTILINE)
    assert {name: int(status) for name, status in drawn} == {
        "UsageError": UsageError.exit_status,
        "ToolError": ToolError.exit_status,
        "MissingDependency": MissingDependency.exit_status,
    }


@pytest.mark.parametrize("kind", EVERY_ERROR, ids=lambda kind: kind.__name__)
def test_an_exit_status_is_inherited(kind: type[DispatchProfilerError]):
    """A request that cannot be met gives 2, a tool that broke gives 1."""
    assert kind.exit_status == (2 if issubclass(kind, (UsageError, MissingDependency)) else 1)


@pytest.mark.parametrize("kind", EVERY_ERROR, ids=lambda kind: kind.__name__)
def test_every_error_survives_pickling(kind: type[DispatchProfilerError]):
    """Type, message, hint and whatever else was put on it come back."""
    error = kind("the rule", hint="the next step")
    error.dispatch = "matmul_4x4x4"
    back = pickle.loads(pickle.dumps(error))
    assert type(back) is kind
    assert (str(back), back.message, back.hint, back.args) == (
        "the rule",
        "the rule",
        "the next step",
        ("the rule",),
    )
    assert back.dispatch == "matmul_4x4x4"


def test_a_compiler_error_keeps_its_diagnostics():
    """A field of a subclass survives pickling too."""
    back = pickle.loads(pickle.dumps(CompilerError("first line", diagnostics="all of it", hint="h")))
    assert (back.message, back.diagnostics, back.hint) == ("first line", "all of it", "h")


def test_a_subclass_elsewhere_survives_pickling():
    """The compiler's BuildError, with culprits of its own, crosses a process border whole."""
    from dispatch_profiler.compiler import BuildError

    back = pickle.loads(pickle.dumps(BuildError("m", diagnostics="d", culprits=("a", "b"))))
    assert (back.message, back.diagnostics, back.culprits) == ("m", "d", ("a", "b"))


def test_a_hint_is_empty_unless_given():
    """Code that prints a hint need not ask whether there is one."""
    assert DispatchProfilerError("m").hint == ""


def test_did_you_mean_names_the_nearest_and_all():
    """A near miss is answered with the nearest name, and every name that there is."""
    hint = did_you_mean("matmull", ["matmul", "conv2d"])
    assert hint == "did you mean 'matmul'? Available: matmul, conv2d"


def test_did_you_mean_does_not_guess_from_afar():
    """What resembles nothing is answered with the list alone."""
    assert did_you_mean("zzz", ["matmul", "conv2d"]) == "available: matmul, conv2d"


def test_did_you_mean_says_that_there_is_nothing():
    """A file without functions has no model, for instance."""
    assert did_you_mean("model", []) == "available: none"


def test_did_you_mean_shows_in_its_docstring_what_it_answers():
    """The example of the docstring is the answer."""
    shown = " ".join(did_you_mean.__doc__.split())
    assert did_you_mean("Matmull", ["matmul", "conv2d"]) in shown


@pytest.mark.parametrize(("got", "meant"), [("MATMUL", "matmul"), ("bf16T", "BF16t"), ("NHWC", "nhwc")])
def test_did_you_mean_disregards_case(got: str, meant: str):
    """The name is given as it is known."""
    assert did_you_mean(got, ["matmul", "BF16t", "nhwc"]).startswith(f"did you mean {meant!r}?")


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
            until(lambda: not is_held_up(process.pid))
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
    """Wait until `condition()` holds, once: a program that is still read from the disk is held up now and then."""
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        with contextlib.suppress(OSError):
            time.sleep(0.01)
