"""The compiler's own constraints and our rules, tested against each other."""

from __future__ import annotations

import functools
import itertools
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from gpu_helpers import BF16, F16, build, gpu_request, limits_of, states

from dispatch_profiler.compiler import IreeCompiler
from dispatch_profiler.compiler import constraints as constraints_file
from dispatch_profiler.compiler.constraints import Constraints, compiler_constraints
from dispatch_profiler.compiler.workers.isolate_failures import isolate_failures
from dispatch_profiler.configurations import Default, MmaTiles, Space, draw_valid, rejection_reason
from dispatch_profiler.errors import ToolError, UsageError
from dispatch_profiler.operations import BatchMatmul, Conv2d, Matmul, Operation
from dispatch_profiler.targets import parse_target

pytest.importorskip("z3")

SM_80, GFX942 = "cuda:sm_80", "rocm:gfx942"
PRODUCT = Matmul(512, 768, 1024, F16)
CONV = Conv2d(8, 34, 34, 64, 64, 3, 3, types=F16)
CASES = {
    "matmul": (SM_80, PRODUCT),
    "matmul_nn_bf16": (SM_80, Matmul(512, 768, 1024, BF16, "n", "n")),
    "batch_matmul": (SM_80, BatchMatmul(4, 512, 768, 1024, F16)),
    "conv": (SM_80, CONV),
    "conv_nchw": (SM_80, replace(CONV, layout="nchw")),
    "gfx942": (GFX942, PRODUCT),
    "gfx942_f32": (GFX942, Matmul(512, 768, 1024)),
}

#: One case of each kind; the others are slow tests.
SOME = [pytest.param(case, marks=() if case in ("matmul", "conv") else pytest.mark.slow) for case in CASES]

#: What the compiler's constraints forbid and our rules allow. Each was compiled, and is right to
#: try: these are limits of its search, not of its code generation.
ALLOWED_BY_US = {
    # The compiler states one depth; the others compile (test_gpu_configurations.py).
    "prefetch_num_stages == ",
    # Its heuristics look at up to 10 subgroups, and at tiles up to 512.
    "sg_num <= 10",
    "prod(wg_m) <= 512 (max_vgprs)",
    "prod(wg_n) <= 512 (max_vgprs)",
    "sg_m <= 32",
    "sg_n <= 32",
    "sg_k <= 32",
    # TileAndFuse pads operands whose extent a tile does not divide.
    "dim_# must be divisible by wg_# ",
    "aligned inner k dim dim_# must be divisible by red_# * mma_k ",
    # VectorDistribute leaves threads idle where there is less to copy than threads, or other rows.
    "lhs_tile_elements must be divisible by thread_count ",
    "rhs_tile_elements must be divisible by thread_count ",
    "wg_size_x <= wg_m OR wg_size_x <= wg_n",
    # k is tiled by the instruction's k, not by its m.
    "red_# must be divisible by mma_m ",
}

#: What the compiler's constraints allow and our rules forbid, by the start of the reason.
FORBIDDEN_BY_US = (
    # It compiles, for seconds, into code that spills: no such kernel is fast.
    "the sums of a ",
    # It does not compile: see `test_tiles_whose_copies_do_not_fall_evenly_do_not_compile`.
    r"\d+ threads cannot evenly share the ",
)


@functools.cache
def read(case: str) -> tuple[Constraints, ...]:
    """What the compiler states; asked once, since it takes a process of its own."""
    target, operation = CASES[case]
    return compiler_constraints(parse_target(target), operation)


def general(message: str) -> str:
    """`wg_0 must be divisible by mma_m ({} % {} == 0)` -> `wg_# must be divisible by mma_m `."""
    return re.sub(r"\(\{\}.*\)", "", re.sub(r"_\d", "_#", message))


def narrowed(space: Space, stated: Constraints) -> Space:
    """The part of `space` that `stated` speaks of, and little else: drawing the rest takes time.

    The constraints of VectorDistribute speak of tiles one row of pixels deep.
    """
    space = space.with_choices("pipeline", stated.pipeline).with_choices("split_k", 1)
    if stated.pipeline == "VectorDistribute":
        for field in ("workgroup", "subgroups"):
            *outer, _, _ = (axis.name for axis in space.axes if axis.tile_of == field)
            for name in outer:
                space = space.with_choices(name, 1)
    return space


def ours(stated: Constraints, operation: Operation, target: str, count: int, seed: int) -> Iterator[MmaTiles]:
    """Up to `count` valid points by our rules, of the pipeline that `stated` is about."""
    limits = limits_of(target)
    space = narrowed(MmaTiles.space(operation, limits), stated)
    drawn = draw_valid([space], operation, limits, np.random.default_rng(seed))
    return itertools.islice((tiles for tiles in drawn if stated.fits(tiles)), count)


@pytest.mark.parametrize(("case", "pipelines"), [
    ("matmul", [("TileAndFuse", False), ("VectorDistribute", False)]),
    ("conv", [("TileAndFuse", False), ("TileAndFuse", True), ("VectorDistribute", False)]),
])  # fmt: skip
def test_the_compiler_states_them_for_each_pipeline(case: str, pipelines: list):
    """With the instructions that the target has for the types."""
    stated = read(case)
    assert [(each.pipeline, each.implicit_gemm) for each in stated] == pipelines
    assert {i.name for each in stated for i in each.intrinsics} == {"NV_MMA_SYNC_F32_16x8x16_F16"}
    assert all(len(each.messages) > 30 for each in stated)


@pytest.mark.parametrize("case", SOME)
def test_what_our_rules_call_valid_breaks_only_the_constraints_that_are_listed(case: str):
    target, operation = CASES[case]
    for stated in read(case):
        points = list(ours(stated, operation, target, 40, 0))
        assert len(points) == 40
        broken = {general(m) for tiles in points for m in stated.violated(stated.assignment_of(tiles))}
        assert [m for m in broken if not any(m.startswith(known) for known in ALLOWED_BY_US)] == []


@pytest.mark.parametrize("case", SOME)
def test_what_the_constraints_allow_our_rules_allow_except_what_is_listed(case: str):
    """And each solution is the configuration that it is read as: its knobs are found again."""
    target, operation = CASES[case]
    for stated in read(case):
        solutions = list(itertools.islice(stated.solutions(np.random.default_rng(0)), 12))
        assert len(solutions) >= 10
        for solution in solutions:
            tiles = stated.configuration_of(solution)
            reason = rejection_reason(tiles, operation, limits_of(target))
            assert reason is None or re.match("|".join(FORBIDDEN_BY_US), reason), (tiles.name, reason)
            again = stated.assignment_of(tiles)
            assert {k: again[k] for k in stated.knobs if k != "prefetch_num_stages"} == {
                k: solution[k] for k in stated.knobs if k != "prefetch_num_stages"
            }
            assert stated.violated({**solution}) == []


MATERIALIZE = """
import json, sys
from iree.compiler.dialects import iree_codegen
from dispatch_profiler.compiler import constraints
from dispatch_profiler.operations import operation_from_dict
from dispatch_profiler.targets import parse_target
target, operation, knobs = sys.argv[1], operation_from_dict(json.loads(sys.argv[2])), json.loads(sys.argv[3])
module = constraints._configured_module(parse_target(target), operation)
with module.operation.context:
    for op, values in zip(constraints._constraints_in(module), knobs):
        print(iree_codegen.materialize_compilation_info(op, values))
"""


@pytest.mark.parametrize(
    "case", ["matmul", *(pytest.param(each, marks=pytest.mark.slow) for each in ("conv", "gfx942"))]
)
def test_a_solution_is_the_attribute_that_the_compiler_makes_of_it(case: str):
    """`materialize_compilation_info` on the knobs, beside what our configuration asks for.

    In a process of its own: the compiler's flag is one of the whole process.
    """
    target, operation = CASES[case]
    every = read(case)
    solutions = [next(stated.solutions(np.random.default_rng(1))) for stated in every]
    knobs = [
        {k: solution[k] for k in stated.knobs} for stated, solution in zip(every, solutions, strict=True)
    ]
    data = (json.dumps(operation.to_dict()), json.dumps(knobs))
    root = str(Path(constraints_file.__file__).parents[2])

    done = subprocess.run(
        [sys.executable, "-c", MATERIALIZE, target, *data],
        capture_output=True, text=True, check=True, env={**os.environ, "PYTHONPATH": root},
    )  # fmt: skip

    for stated, solution, theirs in zip(every, solutions, done.stdout.splitlines(), strict=True):
        lowering = stated.configuration_of(solution).lowering(operation)
        for level, tiles in lowering.levels:
            values = f"[{', '.join(map(str, tiles))}]"
            assert f"{level} = {values}" in theirs or f"{level} = [{values}, " in theirs
        assert f"workgroup_size = [{lowering.threads}, 1, 1]" in theirs
        assert f"subgroup_size = {lowering.subgroup_size}" in theirs
        assert f"pipeline<{stated.pipeline}>" in theirs


@pytest.mark.parametrize("target", [GFX942, "rocm:gfx950"])
def test_products_whose_default_adds_slices_have_those_of_the_whole_sum(target: str):
    """IREE 3.13 crashes when it emits constraints for slices."""
    operation = Matmul(512, 768, 1024)
    assert Default().slices(operation) > 1
    assert {each.pipeline for each in compiler_constraints(parse_target(target), operation)}


def test_reading_them_leaves_later_builds_as_they_were():
    """In the same process the compiler would go on stating them, and fail for AMD GPUs."""
    read("gfx942")
    tiles = MmaTiles(workgroup=(64, 64), reduction=(32,), instruction="mfma")
    assert states(build(GFX942, PRODUCT, tiles)) == ["compiled"]


def test_a_broken_tile_is_named_by_the_constraint():
    """The check can fail: each wrong knob breaks its own assertion."""
    stated = read("matmul")[0]
    tiles = MmaTiles(workgroup=(128, 64), reduction=(32,))
    good = stated.assignment_of(tiles)
    assert stated.violated(good) == []
    for knob, value, message in (
        ("wg_0", 100, "wg_0 must be divisible by mma_m ({} % {} == 0)"),
        ("sg_size", 64, "sg_size == preferred_subgroup_size"),
        ("red_2", 1000, "red_2 * mma_k <= 512 (max_vgprs)"),
        ("wg_size_x", 1, "wg_size_x == total_threads"),
    ):
        assert message in stated.violated({**good, knob: value})


def test_the_same_seed_draws_the_same_solutions_and_another_draws_others():
    stated = read("matmul")[0]
    drawn = [list(itertools.islice(stated.solutions(np.random.default_rng(seed)), 5)) for seed in (0, 0, 1)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert len({tuple(sorted(each.items())) for each in drawn[0]}) == 5


def test_a_space_without_a_solution_ends():
    """VectorDistribute needs tiles that divide 500 and are a multiple of 16."""
    stated = compiler_constraints(parse_target(SM_80), Matmul(500, 500, 500, F16))
    assert list(stated[1].solutions(np.random.default_rng(0))) == []


@pytest.mark.slow
def test_constraints_that_the_compiler_forbids_and_we_allow_compile():
    """One that breaks each kind which is listed as ours to allow."""
    wanted = {"sg_num <= 10", "dim_# must be divisible by wg_# ", "wg_size_x <= wg_m OR wg_size_x <= wg_n",
              "lhs_tile_elements must be divisible by thread_count ", "red_# must be divisible by mma_m "}  # fmt: skip
    found: dict[str, tuple[str, Operation, MmaTiles]] = {}
    candidates = (
        (stated, target, operation, tiles)
        for case in ("matmul", "gfx942_f32")
        for target, operation in [CASES[case]]
        for stated in read(case)
        for tiles in ours(stated, operation, target, 150, 3)
    )
    for stated, target, operation, tiles in candidates:
        for message in map(general, stated.violated(stated.assignment_of(tiles))):
            found.setdefault(message, (target, operation, tiles))
        if wanted <= found.keys():
            break
    assert wanted <= found.keys()
    for message in sorted(wanted):
        target, operation, tiles = found[message]
        assert states(build(target, operation, tiles)) == ["compiled"], (message, tiles.name)


def test_tiles_whose_copies_do_not_fall_evenly_do_not_compile():
    """What the compiler's constraints allow here, its code generation refuses."""
    for workgroup, subgroups, reduction in (((128, 192), (2, 4), 96), ((32, 320), (1, 5), 32)):
        tiles = MmaTiles(
            workgroup=workgroup,
            reduction=(reduction,),
            subgroups=subgroups,
            pipeline="VectorDistribute",
            stages=1,
        )
        operation = Matmul(768, 960, 960, F16)
        assert "in loads of" in tiles.invalid_reason(operation, limits_of(SM_80))
        unchecked = replace(gpu_request(SM_80, operation, [tiles]), rejected=())
        (outcome,) = isolate_failures(unchecked, IreeCompiler().build).outcomes.values()
        assert "failed to derive layout" in outcome.reason


@pytest.mark.parametrize(
    ("operation", "reason"),
    [
        (replace(CONV, groups=2), "IREE 3.13 crashes on a grouped convolution"),
        (replace(CONV, groups=64), "IREE 3.13 crashes on a depthwise convolution"),
        (replace(CONV, n=1), "its loops of extent 1 are folded away"),
        (Conv2d(8, 32, 32, 64, 64, 1, 1, types=F16), "its loops of extent 1 are folded away"),
    ],
)
def test_what_the_compiler_cannot_state_is_refused_before_it_crashes(operation: Operation, reason: str):
    with pytest.raises(UsageError, match=reason):
        compiler_constraints(parse_target(SM_80), operation)


def test_there_are_none_without_matrix_instructions():
    assert compiler_constraints(parse_target(SM_80), Matmul(512, 512, 512)) == ()


def test_a_compiler_that_states_and_writes_different_numbers_is_told():
    stated = replace(read("matmul")[0], messages=("one",))
    with pytest.raises(ToolError, match="emitted 1 constraints, but"):
        stated.violated({})


def test_without_the_solver_the_hint_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    import sys

    monkeypatch.setitem(sys.modules, "z3", None)
    with pytest.raises(UsageError, match="SMT solver is missing") as caught:
        next(read("matmul")[0].solutions(np.random.default_rng(0)))
    assert caught.value.hint == "python -m pip install 'z3-solver>=4.12'"
