"""A request says what is to be built; its key changes with all that decides the result, and with nothing else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dispatch_profiler.compiler import (
    BuildRequest,
    IreeCompiler,
    NullCompiler,
    build_key,
    build_request,
    repeat_count,
)
from dispatch_profiler.compiler.backends.null import Rule
from dispatch_profiler.configurations import CpuTiles, Default, Flow, TritonTiles, Tuned
from dispatch_profiler.dispatches import Dispatch
from dispatch_profiler.generator import render_module
from dispatch_profiler.operations import Matmul
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
