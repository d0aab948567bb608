"""A launch needs one vmfb with one function; its key needs neither a source nor the compiler."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from compiled_helpers import failure

from dispatch_profiler.compiler import (
    IreeCompiler,
    NullCompiler,
    launch_flags,
    launch_key,
    launch_request,
)
from dispatch_profiler.compiler.backends.null import Rule
from dispatch_profiler.configurations import CpuTiles, Default, Flow, Formed, TritonTiles, Tuned
from dispatch_profiler.dispatches import Dispatch, State
from dispatch_profiler.operations import Conv2d, Epilogue, LayerNorm, Matmul, Operation
from dispatch_profiler.profiler.measurement.kernels import open_kernels
from dispatch_profiler.targets import parse_target

OPERATION = Matmul(64, 64, 64)
DISPATCH = Dispatch(OPERATION, Default())
TARGET, OTHER = parse_target("llvm-cpu:znver4"), parse_target("llvm-cpu:znver3")


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
