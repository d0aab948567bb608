"""The two ways to call IREE's compiler do the same; what they refuse, they refuse with a sentence."""

from __future__ import annotations

import re
import stat
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from dispatch_profiler.compiler import BuildError, IreeCompiler
from dispatch_profiler.compiler.in_process import InProcess, _repeated
from dispatch_profiler.compiler.ir_module import IrModule
from dispatch_profiler.compiler.isolate_failures import isolate_failures
from dispatch_profiler.compiler.tools import Tools
from dispatch_profiler.configurations import CpuTiles, Default, Flow
from dispatch_profiler.dispatches import State
from dispatch_profiler.errors import ToolError, UsageError
from dispatch_profiler.files import find_tools
from dispatch_profiler.operations import Conv2d, ElementTypes, Epilogue, Matmul

#: The wheels put the compiler's commands beside the interpreter: as good as a build directory.
BIN = Path(sys.executable).parent
SMALL = Matmul(128, 128, 64)
TILES = CpuTiles((16, 16), (8, 16, 4))
#: The initial zeros of this tile are a vector that the compiler refuses.
TOO_WIDE = CpuTiles((64, 128), (8, 16, 1), (64, 128, 32))


@pytest.fixture(params=["wheel", "tools"])
def compiler(request: pytest.FixtureRequest) -> IreeCompiler:
    return IreeCompiler(BIN if request.param == "tools" else None)


def configured_by_wheel(request) -> IrModule:
    phases = InProcess()
    return phases.advance(
        phases.parse(request.source, request.flags), request.flags, stop="executable-configurations"
    )


def test_both_name_the_same_revision():
    assert InProcess().revision in IreeCompiler(BIN).revision
    assert InProcess().revision == IreeCompiler().revision


def test_the_profile_module_repeats_every_dispatch(make_request):
    """Counted in the compiler's own IR: a padded convolution has two dispatches, five times each."""
    request = make_request(Conv2d(2, 8, 8, 16, 16, 3, 3, padding=(1, 1)), [Default()])
    phases = InProcess()
    translated = phases.advance(phases.parse(request.source, request.flags), request.flags, stop="hal")

    assert translated.dispatch_commands() == 2
    assert _repeated(translated, request.flags, 5).dispatch_commands() == 10
    assert translated.dispatch_commands() == 2


def test_a_pipeline_that_repeats_nothing_is_an_error(make_request, monkeypatch):
    """If the compiler took the request and did nothing, times would be wrong by that factor."""
    monkeypatch.setattr(IrModule, "dispatch_commands", lambda module: 3)
    request = make_request(SMALL, [Default()])
    configured = configured_by_wheel(request)

    with pytest.raises(ToolError, match="should do 4 x 3 dispatches, but does 3"):
        InProcess().finish(configured, request.flags, "executable-configurations", 4)


def test_both_build_two_vmfbs_with_every_function(compiler: IreeCompiler, make_request):
    request = make_request(SMALL, [Default(), TILES])

    built = compiler.build(request)

    for vmfb in (built.verify, built.profile):
        assert all(d.name.encode() in vmfb for d in request.dispatches)
    assert {o.state for o in built.outcomes.values()} == {State.COMPILED}
    assert built.verify != built.profile


def test_the_verify_vmfb_serves_as_profile_vmfb_without_repeats(make_request):
    built = IreeCompiler().build(make_request(SMALL, [Default()], repeat=1))

    assert built.verify == built.profile


def test_a_refused_module_names_its_culprit_in_one_sentence(make_request):
    request = make_request(SMALL, [Default(), TOO_WIDE, TILES])

    with pytest.raises(BuildError, match="One or more operations with large vector sizes") as caught:
        IreeCompiler().build(request)

    assert caught.value.culprits == (request.dispatches[1].name,)
    assert "\n" not in caught.value.message
    assert len(caught.value.diagnostics) > len(caught.value.message)


def test_the_commands_name_the_culprit_too(make_request):
    request = make_request(SMALL, [TOO_WIDE])

    with pytest.raises(BuildError, match="large vector sizes"):
        IreeCompiler(BIN).build(request)


def test_an_epilogue_that_iree_cannot_compile_says_so(make_request):
    """IREE 3.13 has no erf for f64 on CPUs."""
    gelu = Matmul(8, 8, 8, ElementTypes("f64", "f64", "f64"), epilogue=Epilogue.parse("gelu"))

    with pytest.raises(BuildError, match=r"math\.erf"):
        IreeCompiler().build(make_request(gelu, [Default()]))


def test_unknown_flags_are_a_usage_error(compiler: IreeCompiler):
    with pytest.raises(UsageError, match=r"iree-compile rejected its flags: .*no-such-flag"):
        compiler.check_flags(["--no-such-flag"])


def test_known_flags_pass(compiler: IreeCompiler):
    compiler.check_flags(["--iree-opt-level=O2"])


def test_a_function_that_the_source_lacks_is_told(make_request):
    request = make_request(SMALL, [Default()])

    with pytest.raises(ToolError, match="the source has no function"):
        IreeCompiler().build(
            type(request)(request.source.replace("default", "other"), request.dispatches, request.flags, 1)
        )


DAMAGED_SOURCES = {
    "empty": lambda text: "",
    "cut": lambda text: text[: len(text) // 2],
    "not mlir": lambda text: "not mlir",
    "NUL": lambda text: "a\0b",
    "deep": lambda text: "(" * 100_000,
    "another operation": lambda text: text.replace("linalg.", "linalg.no_"),
}


@pytest.mark.parametrize("damage", DAMAGED_SOURCES.values(), ids=DAMAGED_SOURCES)
def test_a_damaged_source_is_a_verdict_that_trying_again_does_not_change(make_request, damage):
    request = make_request(SMALL, [Default()])

    built = isolate_failures(replace(request, source=damage(request.source)), IreeCompiler().build)

    (outcome,) = built.outcomes.values()
    assert outcome.state is State.NOT_COMPILED and not outcome.is_transient
    assert re.fullmatch(
        r"(cannot read the source|the source has no function ).*: run generator.py again", outcome.reason
    )


def test_a_configuration_that_is_left_out_leaves_no_trace(make_request):
    request = make_request(SMALL, [Default(), TILES])
    module = configured_by_wheel(request)

    module.drop_dispatches([request.dispatches[1].name])

    assert request.dispatches[1].name not in module.text()
    assert request.dispatches[0].name in module.text()


def test_ukernels_are_seen_by_the_commands_too(make_request):
    built = IreeCompiler(BIN).build(make_request(Matmul(64, 64, 64), [Flow("ukernels")], repeat=1))

    assert [o.state for o in built.outcomes.values()] == [State.COMPILED]


# -- build directories -----------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["", "tools", "bin", "install/bin"])
def test_the_compiler_of_a_build_is_found_where_builds_keep_it(tmp_path: Path, place: str):
    tool = tmp_path / place / "iree-compile"
    tool.parent.mkdir(parents=True, exist_ok=True)
    tool.touch()

    assert find_tools(tmp_path, ["iree-compile"]) == [tool]


def test_a_build_directory_without_the_tools_is_refused(tmp_path: Path):
    with pytest.raises(UsageError, match="does not contain iree-compile") as caught:
        find_tools(tmp_path, ["iree-compile"])

    assert "installed wheel" in caught.value.hint


def test_a_tool_that_cannot_be_run_is_told(tmp_path: Path):
    tool = tmp_path / "iree-compile"
    tool.write_text("not a program")

    with pytest.raises(ToolError, match="cannot run"):
        Tools(tool).check_flags([])


def test_a_tool_that_says_nothing_is_told(tmp_path: Path):
    tool = tmp_path / "iree-compile"
    tool.write_text("#!/bin/sh\nexit 3\n")
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)

    with pytest.raises(BuildError, match="exited with status 3"):
        Tools(tool).advance(IrModule.parse("module {}"), (), stop="hal")
