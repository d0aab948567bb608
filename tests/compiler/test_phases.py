"""The two ways to call IREE's compiler do the same; the front end runs once for all configurations of a module."""

from __future__ import annotations

import re
import stat
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial, partialmethod
from pathlib import Path

import pytest

from dispatch_profiler.compiler import BuildError, BuildRequest, IreeCompiler
from dispatch_profiler.compiler.backends import in_process
from dispatch_profiler.compiler.backends.in_process import InProcess
from dispatch_profiler.compiler.backends.iree import outlined
from dispatch_profiler.compiler.backends.tools import Tools
from dispatch_profiler.compiler.ir_module import IrModule
from dispatch_profiler.compiler.passes import packing
from dispatch_profiler.compiler.passes.applied import verify_applied
from dispatch_profiler.compiler.passes.packing import repeated
from dispatch_profiler.compiler.passes.sharing import fan_out, share
from dispatch_profiler.compiler.workers.pool import isolate_failures
from dispatch_profiler.configurations import CpuTiles, Default, Flow, Formed
from dispatch_profiler.dispatches import State
from dispatch_profiler.errors import ToolError, UsageError
from dispatch_profiler.files.regular import find_tools
from dispatch_profiler.operations import (
    BatchMatmul,
    Conv2d,
    ElementTypes,
    Epilogue,
    LayerNorm,
    Matmul,
    Operation,
)

#: They work on the IR of the compiler.
pytestmark = pytest.mark.works_on_ir

#: The wheels put the compiler's commands beside the interpreter: as good as a build directory.
BIN = Path(sys.executable).parent
SMALL = Matmul(128, 128, 64)
FHWC = Conv2d(1, 8, 8, 16, 16, 3, 3, padding=(1, 1), layout="nhwc_fhwc_nhwc")
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


def commands_of(module: IrModule) -> list[str]:
    """What the command buffers of a module at phase `hal` do, in order, without barriers."""
    found = re.findall(r"hal\.command_buffer\.(dispatch|fill_buffer|copy_buffer)<", module.text())
    return [name.removesuffix("_buffer") for name in found]


def at_phase_hal(request: BuildRequest) -> IrModule:
    phases, flags = InProcess(), request.flags
    module = outlined(phases, phases.parse(request.source, flags), flags)
    return phases.advance(module, flags, "executable-sources", stop="hal")


SEVERAL_COMMANDS = {
    "padded": (Conv2d(2, 8, 8, 16, 16, 3, 3, padding=(1, 1)), Default(), ["fill", "dispatch", "dispatch"]),
    "im2col": (FHWC, Formed("im2col"), ["fill", "dispatch", "dispatch", "dispatch"]),
    "layer norm": (LayerNorm(8, 64), Default(), ["dispatch"] * 3 + ["copy"] * 2),
}


@pytest.mark.parametrize(
    ("operation", "configuration", "once"), SEVERAL_COMMANDS.values(), ids=SEVERAL_COMMANDS
)
def test_the_profile_module_repeats_whole_executions(make_request, operation, configuration, once):
    """Every fill and copy too, and in the order of separate executions: seen in the compiler's own IR."""
    module = at_phase_hal(make_request(operation, [configuration]))

    assert commands_of(module) == once
    assert commands_of(repeated(module, 5)) == 5 * once
    assert commands_of(module) == once


def test_a_single_dispatch_is_repeated_as_the_compiler_does_it(make_request):
    """`--iree-hal-benchmark-dispatch-repeat-count` is this pass: right where there is only one dispatch."""
    request = make_request(SMALL, [Default(), TILES])
    module = at_phase_hal(request)
    expected = module.clone()
    with in_process.session_of(request.flags).invocation() as invocation:
        invocation.import_module(expected.operation)
        assert invocation.execute_text_pass_pipeline("util.func(iree-hal-repeat-dispatches{count=5})")

    assert repeated(module, 5).text() == expected.text()


@pytest.mark.slow
def test_an_execution_waits_for_its_kernels_once(make_request):
    """A barrier that is left in the program makes the host wait there, and repeats could not cross it."""
    request = make_request(FHWC, [Formed("im2col")])
    phases, flags = InProcess(), request.flags
    unchanged = phases.advance(phases.parse(request.source, flags), flags, stop="hal")

    assert unchanged.text().count("hal.fence.await") == 2
    assert at_phase_hal(request).text().count("hal.fence.await") == 1


def test_commands_that_are_not_repeated_are_an_error(make_request, monkeypatch):
    """Times would be wrong by that factor."""
    monkeypatch.setattr(packing, "CREATE", "no operation")

    with pytest.raises(ToolError, match="should execute 4 x 1 commands, but executes 1"):
        IreeCompiler().build(make_request(SMALL, [Default()], repeat=4))


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_build_whose_passes_are_not_verified_is_the_same(make_request):
    """Bit for bit: the verifier changes nothing."""
    request = make_request(FHWC, [Formed("permuted")])

    verified = IreeCompiler().build(request)

    assert IreeCompiler().build(replace(request, verifies_passes=False)) == verified


def test_a_failure_has_the_message_of_the_verifier(make_request, monkeypatch):
    """A build that fails without the verifier is repeated with it."""
    request = replace(make_request(SMALL, [Default(), TOO_WIDE]), verifies_passes=False)
    verified: list[bool] = []

    def recorded(run: Callable[..., object], self: InProcess, *arguments: object, **phases: object) -> object:
        verified.append(self.verifies)
        return run(self, *arguments, **phases)

    for run in (InProcess.advance, InProcess.vmfb):
        monkeypatch.setattr(InProcess, run.__name__, partialmethod(partial(recorded, run)))
    with pytest.raises(BuildError, match="One or more operations with large vector sizes") as caught:
        IreeCompiler().build(request)

    assert caught.value.culprits == (request.dispatches[1].name,)
    assert verified == [True, True, False, True, True, True]


SOURCES, CONFIGURED, TARGETS = "executable-sources", "executable-configurations", "executable-targets"
SHARED_TILES = [
    CpuTiles((16, 16), (8, 16, 4)),
    CpuTiles((32, 32), (8, 16, 1)),
    CpuTiles((64, 16), (4, 16, 1)),
]
CONV_TILES = [
    CpuTiles((1, 7, 14, 64), (1, 1, 7, 16, 1, 1, 8)),
    CpuTiles((1, 4, 4, 16), (1, 1, 4, 8, 1, 1, 1)),
]


def generated_code(request: BuildRequest, *, shared: bool) -> dict[str, list[str]]:
    """Function -> the code of each of its executables, after tiling, vectorization and lowering."""
    phases, flags = InProcess(), request.flags
    module = phases.parse(request.source, flags)
    module.keep_functions([d.name for d in request.dispatches])
    lines, groups = module.lines(), share(module) if shared else []
    phases.advance(module, flags, stop=SOURCES)
    fan_out(module, groups, lines)
    phases.advance(module, flags, SOURCES, stop=CONFIGURED)
    verify_applied(module, request.dispatches, lines)
    phases.advance(module, flags, CONFIGURED, stop=TARGETS)
    return {
        d.name: [anonymous(op) for op in module.executables_of(d.name).values()] for d in request.dispatches
    }


def anonymous(op) -> str:
    """Text of an executable without the name of the function that it was first made for."""
    return re.sub(r"[\w$]+_dispatch_(\d+)[\w$]*", r"dispatch_\1", str(op))


@pytest.mark.some(2)
@pytest.mark.parametrize(
    ("operation", "tiles"),
    [
        (Matmul(128, 64, 64), SHARED_TILES),
        pytest.param(
            Matmul(100, 60, 50),
            [CpuTiles(t.distribution, t.vector, peel=True) for t in SHARED_TILES],
            marks=pytest.mark.slow,
        ),
        pytest.param(
            Matmul(128, 64, 64, epilogue=Epilogue.parse("bias+relu")), SHARED_TILES, marks=pytest.mark.slow
        ),
        (Matmul(64, 64, 256), [CpuTiles((32, 32), (8, 16, k), split_k=4) for k in (1, 4)] + SHARED_TILES[:2]),
        pytest.param(
            Matmul(64, 64, 64, ElementTypes("f16", "f16", "f16"), lhs_layout="n"),
            SHARED_TILES,
            marks=pytest.mark.slow,
        ),
        pytest.param(BatchMatmul(3, 64, 64, 32), SHARED_TILES, marks=pytest.mark.slow),
        (Conv2d(2, 14, 14, 16, 64, 3, 3), CONV_TILES),
        pytest.param(Conv2d(1, 28, 28, 32, 64, 3, 3, padding=(1, 1)), CONV_TILES, marks=pytest.mark.slow),
        pytest.param(Conv2d(1, 28, 28, 64, 64, 1, 1), CONV_TILES, marks=pytest.mark.slow),
    ],
    ids=lambda x: x.name if isinstance(x, Operation) else "",
)
def test_each_gets_the_code_that_it_would_get_alone(
    operation: Operation, tiles: list[CpuTiles], make_request
):
    request = make_request(operation, [Default(), *tiles])

    together = generated_code(request, shared=True)

    for dispatch in request.dispatches:
        alone = generated_code(BuildRequest(request.source, (dispatch,), request.flags, 1), shared=False)
        assert together[dispatch.name] == alone[dispatch.name], dispatch.name
    assert len({tuple(code) for code in together.values()}) == len(request.dispatches)  # none is another's


def test_one_function_of_each_body_goes_through_the_front_end(make_request):
    request = make_request(
        Matmul(64, 64, 64), [Default(), *SHARED_TILES, CpuTiles((32, 32), (8, 16, 4), split_k=4)]
    )
    module = IrModule.parse(request.source)

    (group,) = share(module)

    names = [d.name for d in request.dispatches]
    assert list(group.infos) == names[1:4]
    assert list(module.symbols("func.func")) == [names[0], names[1], names[4]]


def test_a_function_that_was_edited_by_hand_is_not_taken_for_its_neighbour(make_request):
    request = make_request(Matmul(64, 64, 64), [*SHARED_TILES])
    first = request.source.index("arith.constant 0.0")
    edited = (
        request.source[:first] + "arith.constant 1.0" + request.source[first + len("arith.constant 0.0") :]
    )

    (group,) = share(IrModule.parse(edited))

    assert list(group.infos) == [d.name for d in request.dispatches[1:]]


def test_a_culprit_that_shared_the_front_end_is_named(make_request):
    """Its copy keeps the lines of its own source, by which diagnostics name it."""
    request = make_request(Matmul(128, 128, 64), [Default(), *SHARED_TILES, TOO_WIDE])

    with pytest.raises(BuildError) as caught:
        IreeCompiler().build(request)

    assert caught.value.culprits == (request.dispatches[-1].name,)


def test_names_in_traces_and_reflection_are_the_dispatchs_own(make_request):
    request = make_request(Matmul(64, 64, 64), SHARED_TILES)
    phases = InProcess()
    module = phases.parse(request.source, request.flags)
    lines, groups = module.lines(), share(module)
    phases.advance(module, request.flags, stop=SOURCES)
    fan_out(module, groups, lines)

    for dispatch in request.dispatches:
        assert f"sync func @{dispatch.name}(" in str(module.symbols("util.func")[dispatch.name])
        (executable,) = module.executables_of(dispatch.name)
        assert executable == f"{dispatch.name}_dispatch_0"
