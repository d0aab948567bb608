"""What is to be built: requests and their keys, functions cut out of a source, and hashes of the code that results."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from compiled_helpers import failure
from hypothesis import given
from hypothesis import strategies as st

from dispatch_profiler.compiler import (
    BuildRequest,
    IreeCompiler,
    NullCompiler,
    build_key,
    build_request,
    launch_flags,
    launch_key,
    launch_request,
    repeat_count,
)
from dispatch_profiler.compiler.backends.null import Rule
from dispatch_profiler.compiler.ir_module import IrModule
from dispatch_profiler.compiler.source.functions import relevant_source, reproducer
from dispatch_profiler.configurations import CpuTiles, Default, Flow, Formed, TritonTiles, Tuned
from dispatch_profiler.dispatches import Dispatch, State
from dispatch_profiler.generator import render_module
from dispatch_profiler.operations import BatchMatmul, Conv2d, Epilogue, LayerNorm, Matmul, Operation
from dispatch_profiler.profiler.measurement.kernels import open_kernels
from dispatch_profiler.targets import parse_target

OPERATION = Matmul(64, 64, 64)
DISPATCHES = tuple(Dispatch(OPERATION, c) for c in (Default(), CpuTiles((32, 32), (8, 16, 1))))
SOURCE = render_module(OPERATION, DISPATCHES)
TARGET, OTHER = parse_target("llvm-cpu:znver4"), parse_target("llvm-cpu:znver3")


def request_for(**changes: object) -> BuildRequest:
    return replace(build_request(SOURCE, DISPATCHES, TARGET), **changes)


def test_a_request_has_the_flags_of_its_target_its_configurations_and_the_caller():
    flow = (Dispatch(OPERATION, Flow("data_tiling")),)

    request = build_request(SOURCE, flow, TARGET, flags=["--iree-opt-level=O3"])

    assert request.flags == (*TARGET.compile_flags, *flow[0].configuration.flags, "--iree-opt-level=O3")
    assert request.repeat == repeat_count(OPERATION)
    assert build_request(SOURCE, DISPATCHES, TARGET, repeat=7).repeat == 7


def test_what_the_target_cannot_have_is_rejected_with_its_reason():
    request = build_request(SOURCE, DISPATCHES, parse_target("vmvx"))

    assert [name for name, _ in request.rejected] == [DISPATCHES[1].name]


def test_equal_requests_have_equal_keys():
    assert build_key(request_for(), TARGET, NullCompiler()) == build_key(
        request_for(), TARGET, NullCompiler()
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"flags": ("--iree-opt-level=O0",)},
        {"repeat": 3},
        {"dispatches": DISPATCHES[:1]},
        {"source": SOURCE.replace("linalg.matmul", "linalg.matmul_")},
        {"rejected": ((DISPATCHES[0].name, "no such tile"),)},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_every_part_of_a_request_changes_its_key(changes: dict[str, object]):
    before = build_key(request_for(), TARGET, NullCompiler())

    assert build_key(request_for(**changes), TARGET, NullCompiler()) != before


def test_the_key_has_what_the_name_of_a_tuned_configuration_leaves_out():
    """All are called `tile_config_tuned`, and a source has only the launch of a Triton kernel."""
    tiles = TritonTiles(tile=(64, 64, 32))
    options = (tiles, replace(tiles, stages=tiles.stages + 1), replace(tiles, group=tiles.group + 1))
    tuned = [Dispatch(OPERATION, Tuned(each)) for each in options]
    sources = {render_module(OPERATION, [dispatch]) for dispatch in tuned}
    target = parse_target("cuda:sm_90")
    requests = [build_request(source, [dispatch], target) for dispatch in tuned for source in sources]
    assert len(sources) == 1
    assert len({build_key(each, target, NullCompiler()) for each in requests}) == len(tuned)


def test_target_and_compiler_change_the_key():
    keys = {
        build_key(request_for(), target, NullCompiler(rules))
        for target in (TARGET, OTHER)
        for rules in ((), (Rule("*", time_ms=1.0),))
    }

    assert len(keys) == 4


def test_an_edit_of_another_function_does_not_change_the_key():
    request = request_for(dispatches=DISPATCHES[:1])
    edited = replace(
        request, source=SOURCE.replace("distribution = [32, 32, 0]", "distribution = [64, 32, 0]")
    )

    assert edited.source != request.source
    assert build_key(edited, TARGET, NullCompiler()) == build_key(request, TARGET, NullCompiler())


def test_the_content_of_a_file_that_a_flag_names_changes_the_key():
    spec = Path("spec.mlir")
    keys = set()
    for text in ("module {}", "module { }"):
        spec.write_text(text)
        request = request_for(flags=(f"--iree-codegen-tuning-spec-path={spec}",))
        keys.add(build_key(request, TARGET, NullCompiler()))

    assert len(keys) == 2


def test_the_revision_of_a_build_is_asked_once(tmp_path: Path):
    """A key is made for every module, and a build answers by starting a process."""
    tool = tmp_path / "iree-compile"
    tool.write_text(f"#!/bin/sh\necho x >> {tmp_path / 'asked'}\necho IREE compiler version 1\n")
    tool.chmod(0o755)

    revisions = {IreeCompiler(tmp_path).revision for _ in range(3)}

    assert revisions == {"IREE compiler version 1"}
    assert (tmp_path / "asked").read_text() == "x\n"


DISPATCH = Dispatch(OPERATION, Default())


def key_of(dispatch: Dispatch, *flags: str) -> str:
    return launch_key(dispatch, TARGET, NullCompiler(), flags)


def test_equal_dispatches_have_equal_keys():
    assert key_of(DISPATCH) == key_of(Dispatch(Matmul(64, 64, 64), Default()))


def test_every_operation_configuration_target_compiler_and_flag_has_a_key_of_its_own():
    operations: list[Operation] = [
        OPERATION,
        Matmul(64, 64, 32),
        replace(OPERATION, epilogue=Epilogue.parse("relu")),
        LayerNorm(8, 16),
        LayerNorm(8, 16, eps=1.0),
        Conv2d(1, 8, 8, 16, 16, 3, 3),
        Conv2d(1, 8, 8, 16, 16, 3, 3, mode="input_backward"),
    ]
    tiles = TritonTiles(tile=(64, 64, 32))
    configurations = [
        *(Default(), Default(2), CpuTiles((32, 32), (8, 16, 1)), Formed("transposed")),
        *(Tuned(Default()), Tuned(tiles), Tuned(replace(tiles, stages=tiles.stages + 1))),
    ]
    keys = [
        *(key_of(Dispatch(operation, Default())) for operation in operations),
        *(key_of(Dispatch(OPERATION, configuration)) for configuration in configurations[1:]),
        launch_key(DISPATCH, OTHER, NullCompiler()),
        launch_key(DISPATCH, TARGET, NullCompiler((Rule("*", time_ms=1.0),))),
        key_of(DISPATCH, "--iree-opt-level=O3"),
    ]

    assert len(set(keys)) == len(keys)


def test_the_content_of_a_tuning_spec_changes_the_key():
    spec, keys = Path("spec.mlir"), set()
    for text in ("module {}", "module { }"):
        spec.write_text(text)
        keys.add(key_of(DISPATCH, f"--iree-codegen-tuning-spec-path={spec}"))

    assert len(keys) == 2


def test_a_build_has_one_vmfb_whose_function_takes_operands_and_results():
    """The function writes to the results that it is given, and the compiler applied the tiles."""
    target = parse_target("llvm-cpu")
    dispatch = Dispatch(Matmul(32, 32, 8), CpuTiles((16, 16), (8, 16, 1)))
    built = IreeCompiler().build(launch_request(dispatch, target))

    assert built.verify == built.profile
    assert (outcome := built.outcomes[dispatch.name]).state is State.COMPILED
    assert "distribution = [16, 16, 0]" in outcome.applied
    device = open_kernels("local-sync")
    assert failure(device, device.load(built.verify), dispatch.name, dispatch) == ""


def test_a_configuration_that_was_not_applied_has_no_vmfb():
    """The proof is that of trees."""
    built = NullCompiler((Rule("*", not_applied=True),)).build(launch_request(DISPATCH, parse_target("null")))

    assert (built.verify, built.outcomes[DISPATCH.name].state) == (b"", State.NOT_APPLIED)


def test_its_flags_are_known_without_its_source():
    dispatch = Dispatch(OPERATION, Flow("data_tiling"))
    request = launch_request(dispatch, TARGET, ["--iree-opt-level=O3"])

    assert request.flags == launch_flags(dispatch, TARGET, ["--iree-opt-level=O3"])


OPERATIONS: list[Operation] = [
    Matmul(16, 32, 8, epilogue=Epilogue.parse("bias+relu")),
    BatchMatmul(2, 16, 32, 8),
    Conv2d(1, 6, 6, 8, 16, 3, 3, padding=(1, 1)),
]
CONFIGURATIONS = [Default(), Flow("data_tiling"), Flow("ukernels")]


@pytest.mark.slow
@given(operation=st.sampled_from(OPERATIONS), wanted=st.sets(st.sampled_from([0, 1, 2])))
def test_what_is_cut_out_is_what_the_compiler_reads(operation: Operation, wanted: set[int]):
    """The compiler's own parser sees those functions, unchanged, and no other."""
    dispatches = [Dispatch(operation, c) for c in CONFIGURATIONS]
    source = render_module(operation, dispatches)
    names = [dispatches[i].name for i in sorted(wanted)]
    whole = functions(source)

    assert functions(relevant_source(source, names)) == {name: whole[name] for name in names}


@cache
def functions(source: str) -> dict[str, str]:
    module = IrModule.parse(source)  # what it hands out lives no longer than it does
    return {name: str(op) for name, op in module.symbols("func.func").items()}


def test_what_stands_beside_functions_stays():
    source = "// about\nfunc.func @a() {\n  return\n}\n\nfunc.func private @b() {\n  return\n}\n// end\n"

    assert relevant_source(source, ["a"]) == "// about\nfunc.func @a() {\n  return\n}\n// end\n"


def test_an_edit_of_another_function_does_not_show():
    dispatches = [Dispatch(OPERATIONS[0], c) for c in CONFIGURATIONS]
    source = render_module(OPERATIONS[0], dispatches)
    start = source.index(dispatches[1].name)
    edited = source[:start] + source[start:].replace("0.0", "1.0")
    assert edited != source

    assert relevant_source(edited, [dispatches[0].name]) == relevant_source(source, [dispatches[0].name])
    assert relevant_source(edited, [dispatches[1].name]) != relevant_source(source, [dispatches[1].name])


def test_a_source_of_another_form_stays_whole():
    source = "module {\n  func.func @a() {\n    return\n  }\n}\n"

    assert relevant_source(source, ["a"]) == source


def test_a_reproducer_shows_the_failure_by_its_own_command(tmp_path: Path):
    """Its second line, run as it stands, fails as the dispatch did."""
    operation = Matmul(128, 128, 64)
    # The initial zeros of this tile are a vector that the compiler refuses.
    too_wide = CpuTiles((64, 128), (8, 16, 1), (64, 128, 32))
    dispatches = (Dispatch(operation, Default()), Dispatch(operation, too_wide))
    request = BuildRequest(
        render_module(operation, dispatches), dispatches, parse_target("llvm-cpu").compile_flags, 2
    )
    name = dispatches[1].name
    text = reproducer(request, name, "large\nvectors")
    (tmp_path / f"{name}.mlir").write_text(text)

    reason, command, *_ = text.splitlines()
    assert reason == "// large vectors"
    tool = Path(sys.executable).parent / "iree-compile"
    done = subprocess.run(
        ["sh", "-c", command.replace("// iree-compile", str(tool))],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert "large vector sizes" in done.stderr
    assert dispatches[0].name not in text


#: They work on the IR of the compiler.

SMALL = Matmul(64, 64, 64)
CONVOLUTION = Conv2d(1, 8, 8, 16, 16, 3, 3, padding=(1, 1), layout="nhwc_fhwc_nhwc")
TILES, OTHERS = CpuTiles((64, 64), (8, 32, 1)), CpuTiles((64, 64), (8, 16, 1))
TOOLS = Path(sys.executable).parent


def renamed(request: BuildRequest, suffix: str) -> BuildRequest:
    """The same functions under longer names, beside the first ones."""
    names = [dispatch.name for dispatch in request.dispatches]
    text = request.source
    for name in sorted(names, key=len, reverse=True):
        text = text.replace(f"@{name}(", f"@{name}{suffix}(")
    copies = tuple(_Renamed(d.operation, d.configuration, suffix) for d in request.dispatches)
    return BuildRequest(request.source + text, (*request.dispatches, *copies), request.flags, request.repeat)


class _Renamed(Dispatch):
    """A dispatch under another name."""

    def __init__(self, operation, configuration, suffix):
        super().__init__(operation, configuration)
        self.__dict__["name"] = f"{operation.name}_{configuration.name}{suffix}"


@pytest.mark.slow
@pytest.mark.works_on_ir
@pytest.mark.parametrize(
    ("operation", "configurations"),
    [(SMALL, [TILES, OTHERS, Default()]), (CONVOLUTION, [Formed("im2col"), Formed("permuted"), Default()])],
    ids=["tiles", "forms of several executables"],
)
def test_the_name_of_a_function_does_not_count(make_request, operation, configurations):
    request = renamed(make_request(operation, configurations), "_copy")
    outcomes = IreeCompiler().build(request).outcomes
    hashes = [outcomes[dispatch.name].kernel for dispatch in request.dispatches]
    first, second = hashes[: len(configurations)], hashes[len(configurations) :]
    assert first == second
    assert len(set(first)) == len(configurations) and all(map(len, first))


@pytest.mark.slow
@pytest.mark.works_on_ir
def test_the_module_does_not_count(make_request):
    """Alone, or with others."""
    alone = IreeCompiler().build(make_request(SMALL, [OTHERS])).outcomes
    beside = IreeCompiler().build(make_request(SMALL, [TILES, OTHERS])).outcomes
    name = Dispatch(SMALL, OTHERS).name
    assert alone[name].kernel == beside[name].kernel


@pytest.mark.works_on_ir
def test_different_configurations_may_be_the_same_kernel(make_request):
    """Cache tiles that hold a whole workgroup tile change nothing."""
    cached = CpuTiles((64, 64), (8, 32, 1), (64, 64, 64))
    outcomes = IreeCompiler().build(make_request(SMALL, [TILES, cached])).outcomes
    assert cached != TILES
    assert len({outcome.kernel for outcome in outcomes.values()}) == 1


@pytest.mark.slow
@pytest.mark.works_on_ir
def test_the_command_line_compiler_finds_the_same(make_request):
    request = make_request(SMALL, [TILES])
    assert IreeCompiler(TOOLS).build(request).outcomes == IreeCompiler().build(request).outcomes


@pytest.mark.works_on_ir
def test_the_null_compiler_shares_code_where_it_is_told_to():
    dispatches = tuple(Dispatch(SMALL, each) for each in (TILES, OTHERS, Default()))
    rules = (Rule("*_default"), Rule("*", kernel="same"))
    request = BuildRequest(render_module(SMALL, dispatches), dispatches, (), 1)
    first, second, third = (each.kernel for each in NullCompiler(rules).build(request).outcomes.values())
    assert first == second != third and third
