"""GPU configurations are what the compiler configured and what is in the code that it made."""

from __future__ import annotations

import itertools
import math
import re
from dataclasses import replace

import numpy as np
import pytest
from gpu_helpers import (
    BF16,
    F8,
    F16,
    F16_WIDE,
    F64,
    I8,
    build,
    generated_code,
    gpu_request,
    limits_of,
    numbers,
    ptx_of,
    states,
)

from dispatch_profiler.compiler import BuildRequest
from dispatch_profiler.compiler.backends.iree import IreeCompiler
from dispatch_profiler.compiler.workers.pool import build_with, isolate_failures
from dispatch_profiler.configurations import (
    Default,
    MmaTiles,
    SimtTiles,
    Space,
    draw_valid,
    shipped_configurations,
)
from dispatch_profiler.dispatches import State
from dispatch_profiler.isolation import Worker, WorkerLimits
from dispatch_profiler.operations import BatchMatmul, Conv2d, Epilogue, Matmul, Operation

MMA = MmaTiles(workgroup=(128, 64), reduction=(32,), stages=1)
VECTOR = replace(MMA, pipeline="VectorDistribute")
SIMT = SimtTiles(workgroup=(64, 32), reduction=(16,), thread=(4, 4), stages=1)
MFMA = replace(MMA, instruction="mfma", subgroup_size=64)
SPIRV = SimtTiles(workgroup=(32, 64), reduction=(4,), thread=(4, 8), stages=1, pipeline="BaseVectorize")
IMPLICIT = MmaTiles(workgroup=(1, 4, 16, 64), reduction=(32,), subgroups=(1, 2, 1, 2), stages=1)
DIRECT = replace(IMPLICIT, reduction=(1, 1, 32))
DIRECT_VECTOR = MmaTiles(
    workgroup=(1, 1, 16, 64),
    reduction=(1, 1, 32),
    subgroups=(1, 1, 1, 2),
    stages=1,
    pipeline="VectorDistribute",
)
CONV_SIMT = SimtTiles(workgroup=(1, 4, 16, 32), reduction=(16,), thread=(1, 1, 4, 4), stages=1)
PRODUCT = Matmul(256, 128, 128, F16)
CONV = Conv2d(2, 18, 18, 32, 64, 3, 3, types=F16)

CASES: dict[str, tuple[str, Operation, list]] = {
    "mma": ("cuda:sm_80", PRODUCT, [MMA, VECTOR, SIMT, replace(VECTOR, order="transpose")]),
    "mma_nn": ("cuda:sm_80", Matmul(256, 128, 128, F16_WIDE, "n", "n"), [MMA, VECTOR, SIMT]),
    "mma_tn_bf16_epilogue": (
        "cuda:sm_89",
        Matmul(256, 128, 128, BF16, "t", "n", Epilogue.parse("bias+relu")),
        [MMA, VECTOR],
    ),
    "f8": ("cuda:sm_89", Matmul(256, 128, 128, F8), [MMA, VECTOR]),
    "simt_f32": ("cuda:sm_80", Matmul(256, 128, 128), [SIMT, replace(SIMT, promote=False)]),
    "batch": ("cuda:sm_80", BatchMatmul(3, 256, 128, 128, F16), [MMA, VECTOR, SIMT]),
    "batch_of_one": ("cuda:sm_80", BatchMatmul(1, 256, 128, 128, F16), [MMA, VECTOR]),
    "split": ("cuda:sm_80", Matmul(256, 128, 512, F16), [replace(x, split_k=4) for x in (MMA, VECTOR, SIMT)]),
    "nothing_divides": ("cuda:sm_80", Matmul(100, 60, 50, F16), [MmaTiles(workgroup=(64, 32), reduction=(32,))]),
    "one_row": ("cuda:sm_80", Matmul(1, 256, 128, F16), [MmaTiles(workgroup=(16, 64), reduction=(32,), subgroups=(1, 2))]),
    "conv": ("cuda:sm_80", CONV, [IMPLICIT, DIRECT, DIRECT_VECTOR, CONV_SIMT]),
    "conv_nchw": ("cuda:sm_80", replace(CONV, layout="nchw"), [IMPLICIT, DIRECT, DIRECT_VECTOR, CONV_SIMT]),
    "conv_one_image": ("cuda:sm_80", replace(CONV, n=1), [IMPLICIT, DIRECT, DIRECT_VECTOR, CONV_SIMT]),
    "conv_pointwise": ("cuda:sm_80", Conv2d(2, 16, 16, 32, 64, 1, 1, types=F16), [IMPLICIT, DIRECT, CONV_SIMT]),
    "conv_padded": ("cuda:sm_80", Conv2d(1, 16, 16, 32, 64, 3, 3, padding=(1, 1), types=F16), [IMPLICIT, DIRECT]),
    "conv_strided": ("cuda:sm_80", Conv2d(2, 33, 33, 32, 64, 3, 3, (2, 2), types=F16), [IMPLICIT, CONV_SIMT]),
    "conv_grouped": ("cuda:sm_80", Conv2d(2, 18, 18, 64, 128, 3, 3, groups=2, types=F16), [IMPLICIT, DIRECT]),
    "conv_depthwise": (
        "cuda:sm_80",
        Conv2d(2, 18, 18, 32, 32, 3, 3, groups=32),
        [replace(CONV_SIMT, reduction=(1, 1, 1), promote=False)],
    ),
    "sums_in_f16": ("cuda:sm_80", PRODUCT, [replace(x, accumulator="f16") for x in (MMA, VECTOR)]),
    "sums_in_f16_batch": ("cuda:sm_80", BatchMatmul(3, 256, 128, 128, F16), [replace(MMA, accumulator="f16")]),
    "sums_in_f16_conv": ("cuda:sm_80", replace(CONV, n=1), [replace(IMPLICIT, accumulator="f16")]),
    "gfx942": ("rocm:gfx942", PRODUCT, [MFMA, replace(MFMA, pipeline="VectorDistribute", stages=2)]),
    "gfx942_shape": ("rocm:gfx942", PRODUCT, [replace(MFMA, shape=(32, 32, 8), subgroups=(2, 1))]),
    "gfx942_f32": ("rocm:gfx942", Matmul(256, 128, 128), [MFMA, replace(SIMT, subgroup_size=64)]),
    "gfx942_f64": ("rocm:gfx942", Matmul(256, 128, 128, F64), [replace(MFMA, workgroup=(64, 64))]),
    "gfx942_i8": ("rocm:gfx942", Matmul(256, 128, 128, I8), [MFMA]),
    "gfx942_conv": ("rocm:gfx942", CONV, [replace(IMPLICIT, instruction="mfma", subgroup_size=64)]),
    "gfx1100": ("rocm:gfx1100", PRODUCT, [replace(MMA, instruction="wmmar3")]),
    "gfx1201": ("rocm:gfx1201", PRODUCT, [replace(VECTOR, instruction="wmmar4")]),
    "vulkan": ("vulkan-spirv", Matmul(256, 128, 128), [SPIRV]),
    "vulkan_batch": ("vulkan-spirv:rdna3", BatchMatmul(3, 256, 128, 128), [SPIRV]),
    "vulkan_split": ("vulkan-spirv:ampere", Matmul(256, 128, 512), [replace(SPIRV, split_k=4)]),
    "metal": ("metal-spirv", Matmul(256, 128, 128), [SPIRV]),
}  # fmt: skip


#: Where the compiler's own choice is compiled in the same module; elsewhere only in the slow tests.
BESIDE_THE_DEFAULT = ("mma", "conv", "gfx942", "vulkan")
#: Cases with the same kinds of configurations as another: all of them are slow tests.
SECOND = (
    "mma_nn", "mma_tn_bf16_epilogue", "one_row", "batch_of_one", "conv_nchw", "conv_one_image", "conv_padded",
    "conv_pointwise", "conv_strided", "sums_in_f16", "sums_in_f16_batch", "sums_in_f16_conv", "gfx942_shape", "gfx942_f64", "gfx942_conv",
    "gfx1201", "vulkan_batch", "batch", "f8", "gfx942_f32",
)  # fmt: skip


@pytest.mark.some(3)
@pytest.mark.parametrize(
    ("case", "own"),
    [
        pytest.param(
            case, own, marks=() if bool(own) == (case in BESIDE_THE_DEFAULT) and case not in SECOND else pytest.mark.slow, id=case + bool(own) * "_and_default"
        )
        for case in CASES
        for own in ([], [Default()])
    ],
)  # fmt: skip
def test_every_kind_of_configuration_is_applied_and_compiles(case: str, own: list[Default]):
    """Alone and beside the compiler's own choice; `applied` holds the compiler's own attribute."""
    target, operation, configurations = CASES[case]

    built = build(target, operation, *own, *configurations)

    assert states(built) == ["compiled"] * len([*own, *configurations])
    assert built.verify
    for outcome in list(built.outcomes.values())[len(own) :]:
        assert "lowering_config<" in outcome.applied
        assert "translation_info<pipeline = " in outcome.applied


# -- from the code that was generated ------------------------------------------------------------------


def launch(text: str) -> tuple[int, ...]:
    """Threads of a workgroup of the last dispatch, from its export."""
    text = text.rpartition("hal.executable private")[2]
    return tuple(numbers(r"workgroup_size = \[(\d+) : index, (\d+) : index, (\d+) : index\]", text))


def workgroups(text: str) -> int:
    """How many workgroups the last dispatch has, computed from the tiles that code was generated for."""
    text = text.rpartition("hal.executable private")[2]
    constants = dict(re.findall(r"%(\S+) = arith.constant (\d+) : index", text))
    returned = re.search(r"hal\.return (%[^:]*) : index", text)
    assert returned is not None
    names = [value.strip().lstrip("%") for value in returned.group(1).split(",")]
    return math.prod(int(constants[name]) for name in names)


def padded_bytes(rows: int, row: int, size: int) -> int:
    """Rows in shared memory with 8 bytes behind each."""
    return rows * (row * size + 8)


@pytest.mark.slow
def test_launch_tiles_and_shared_memory_are_those_of_the_configuration():
    """Threads, number of workgroups and bytes, all different, in the generated code."""
    wide = MmaTiles(workgroup=(64, 128), reduction=(64,), subgroups=(2, 4), stages=1)
    unpadded = replace(VECTOR, shared_padding=False)
    code = list(generated_code("cuda:sm_80", PRODUCT, MMA, wide, VECTOR, unpadded, SIMT).values())

    assert [launch(text)[0] for text in code] == [128, 256, 128, 128, 128]
    assert [workgroups(text) for text in code] == [4, 4, 4, 4, 16]
    shared = [numbers(r"workgroup_local_memory = (\d+)", text)[0] for text in code]
    padded = padded_bytes(128, 32, 2) + padded_bytes(32, 64, 2)
    assert shared == [
        padded,
        padded_bytes(64, 64, 2) + padded_bytes(64, 128, 2),
        padded,
        (128 + 64) * 32 * 2,
        padded_bytes(64, 16, 2) + padded_bytes(16, 32, 2),
    ]


@pytest.mark.parametrize("pipeline", ["TileAndFuse", "VectorDistribute"])
def test_the_instruction_and_its_number_are_in_the_ptx(pipeline: str):
    """A subgroup does its part of the tile: instructions along m, n and k of one step."""
    tiles = replace(MMA, pipeline=pipeline, subgroups=(2, 2))

    (ptx,) = ptx_of(build("cuda:sm_80", Matmul(128, 64, 1024, F16_WIDE), tiles))

    instructions = re.findall(r"mma\.sync\.aligned\.(\w+)\.row\.col\.([\w.]+)", ptx)
    assert set(instructions) == {("m16n8k16", "f32.f16.f16.f32")}
    assert len(instructions) == (128 // 2 // 16) * (64 // 2 // 8) * (32 // 16)


def test_sums_are_held_in_the_type_that_is_asked_for():
    """The instruction adds in f16, beside a neighbour that adds in f32."""
    operation = Matmul(128, 64, 1024, F16)

    ptx = "".join(ptx_of(build("cuda:sm_80", operation, VECTOR, replace(VECTOR, accumulator="f16"))))

    types = re.findall(r"mma\.sync\.aligned\.m16n8k16\.row\.col\.([\w.]+)", ptx)
    assert set(types) == {"f32.f16.f16.f32", "f16.f16.f16.f16"}


def test_simt_multiplies_in_threads():
    """No matrix instruction; each thread has the multiply-adds of its tile for one step."""
    (ptx,) = ptx_of(build("cuda:sm_80", Matmul(128, 64, 1024), SIMT))

    assert "mma.sync" not in ptx
    assert len(re.findall(r"fma\.rn\.f32", ptx)) == 4 * 4 * 16


CONVOLUTIONS = [CONV, replace(CONV, n=1), replace(CONV, layout="nchw"), Conv2d(2, 16, 16, 32, 64, 1, 1, types=F16),
                Conv2d(1, 16, 16, 32, 64, 3, 3, padding=(1, 1), types=F16)]  # fmt: skip


@pytest.mark.parametrize(
    "operation",
    [
        pytest.param(each, marks=() if number == 3 else pytest.mark.slow)
        for number, each in enumerate(CONVOLUTIONS)
    ],
    ids=lambda op: op.name,
)
def test_convolutions_run_their_tiles_also_where_loops_are_folded(operation: Operation):
    """The front end drops what is asked of a convolution of one image and of a pointwise one."""
    small = replace(IMPLICIT, workgroup=(1, 2, 16, 32), subgroups=(1, 2, 1, 1))

    code = list(generated_code("cuda:sm_80", operation, Default(), IMPLICIT, small, DIRECT).values())

    expected = [
        operation.n * math.prod(operation.output_size) * 64 // math.prod(t.workgroup)
        for t in (IMPLICIT, small, DIRECT)
    ]
    assert [workgroups(text) for text in code[1:]] == expected
    assert [launch(text)[0] for text in code[1:]] == [128, 64, 128]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "operation", "tiles"),
    [
        ("cuda:sm_80", PRODUCT, [MMA, SIMT]),
        pytest.param("cuda:sm_80", PRODUCT, [MMA, VECTOR, SIMT], marks=pytest.mark.slow),
        pytest.param("cuda:sm_80", replace(CONV, n=1), [IMPLICIT, DIRECT], marks=pytest.mark.slow),
        pytest.param("rocm:gfx942", PRODUCT, [MFMA, replace(MFMA, stages=2)], marks=pytest.mark.slow),
        pytest.param(
            "vulkan-spirv",
            Matmul(256, 128, 128),
            [SPIRV, replace(SPIRV, thread=(4, 4))],
            marks=pytest.mark.slow,
        ),
    ],
)
def test_each_gets_the_code_that_it_would_get_alone(target: str, operation: Operation, tiles: list):
    """The front end runs once for all; no dispatch gets another's code, and the default keeps its own."""
    together = generated_code(target, operation, Default(), *tiles)

    for configuration in (Default(), *tiles):
        alone = generated_code(target, operation, configuration)
        assert [together[name] for name in alone] == list(alone.values()), configuration.name
    assert len(set(together.values())) == 1 + len(tiles)


# -- what does nothing, and what cannot be had ---------------------------------------------------------


def distinct(target: str, operation: Operation, *configurations) -> list[int]:
    """For each configuration, the position of the first with the same code."""
    code = [next(iter(generated_code(target, operation, c).values())) for c in configurations]
    # The attribute that was asked for is told in the export; the code is what matters.
    return [code.index(text) for text in code]


@pytest.mark.slow
@pytest.mark.parametrize(
    "tiles",
    [MMA, *(pytest.param(each, marks=pytest.mark.slow) for each in (VECTOR, SIMT))],
    ids=lambda tiles: tiles.pipeline,
)
def test_stages_change_no_code_for_nvidia(tiles):
    """Why `stages` of the CUDA targets is (1,): IREE 3.13 pipelines nothing there.

    If this fails one day, there is something to tune.
    """
    variants = [replace(tiles, stages=n) for n in (1, 2, 3, 5)]
    assert distinct("cuda:sm_80", PRODUCT, *variants) == [0, 0, 0, 0]
    assert limits_of("cuda:sm_80").gpu.stages == (1,)


@pytest.mark.parametrize(
    "pipeline", ["TileAndFuse", pytest.param("VectorDistribute", marks=pytest.mark.slow)]
)
def test_stages_up_to_three_change_the_code_for_amd(pipeline: str):
    variants = [replace(MFMA, pipeline=pipeline, stages=n) for n in (1, 2, 3, 4)]
    assert distinct("rocm:gfx942", Matmul(256, 128, 512, F16), *variants) == [0, 1, 2, 2]
    assert limits_of("rocm:gfx942").gpu.stages == (1, 2, 3)


def test_workgroups_are_reordered_by_vector_distribute_only():
    """Why `transpose` is invalid with TileAndFuse."""
    assert distinct("cuda:sm_80", PRODUCT, VECTOR, replace(VECTOR, order="transpose")) == [0, 1]
    kept = replace(MMA, order="transpose")
    assert "does not reorder" in kept.invalid_reason(PRODUCT, limits_of("cuda:sm_80"))
    asked = [c.lowering(PRODUCT).translation_info for c in (MMA, kept)]
    assert asked[0] != asked[1]


def test_the_original_f32_tiles_are_not_compiled_with_the_reason():
    """All nine; the compiler's default and a neighbour are compiled."""
    f32 = [e.configuration for e in shipped_configurations("original") if e.types == ("f32",)]

    built = build("cuda:sm_80", Matmul(256, 256, 256), Default(), SIMT, *f32)

    reason = "not compiled IREE 3.13 has no mmasync for f32 inputs with sums in f32 on sm_80; available: none"
    assert states(built).count(reason) == 9
    assert [state for state in states(built) if state != reason] == ["compiled", "compiled"]


def test_threads_have_f8_only_where_the_compiler_can_convert_it():
    """Matrix instructions take it as it is. If NVIDIA's state is compiled one day, drop the rule."""
    operation = Matmul(128, 64, 64, F8)
    wide = replace(SIMT, subgroup_size=64)
    assert states(build("rocm:gfx950", operation, wide)) == ["compiled"]
    for target, tiles in (("cuda:sm_89", SIMT), ("rocm:gfx942", wide)):
        assert "no conversion from f8E4M3FN" in states(build(target, operation, tiles))[0]
        unchecked = replace(gpu_request(target, operation, [tiles]), rejected=())
        (outcome,) = isolate_failures(unchecked, IreeCompiler().build).outcomes.values()
        assert outcome.state is State.NOT_COMPILED


def test_a_name_that_cannot_be_had_never_runs_as_something_else():
    """Also without the check before the build: the compiler is asked for the instruction and refuses."""
    request = gpu_request("cuda:sm_80", Matmul(256, 256, 256), [MMA])

    built = isolate_failures(
        BuildRequest(request.source, request.dispatches, request.flags, 2), IreeCompiler().build
    )

    (outcome,) = built.outcomes.values()
    assert outcome.state is State.NOT_COMPILED
    assert built.verify == b""


@pytest.mark.slow
def test_tiles_for_another_target_of_the_family_are_refused_there():
    """A tree for sm_80, compiled for sm_89, which has less shared memory."""
    tiles = MmaTiles(workgroup=(256, 128), reduction=(160,), subgroups=(4, 2), stages=1)
    operation = Matmul(256, 128, 320, F16)
    assert states(build("cuda:sm_80", operation, tiles)) == ["compiled"]
    (state,) = states(build("cuda:sm_89", operation, tiles))
    assert state.startswith("not compiled the tiles need 122880 B of shared memory, but sm_89 has 101376")


@pytest.mark.slow
def test_one_that_does_not_compile_costs_no_neighbour():
    """Its copies do not fall evenly; the compiler names its line, and the others are built without it."""
    uneven = MmaTiles(
        workgroup=(128, 192), reduction=(96,), subgroups=(2, 4), pipeline="VectorDistribute", stages=1
    )
    request = gpu_request("cuda:sm_80", Matmul(768, 960, 960, F16), [Default(), MMA, uneven, VECTOR])
    calls = []

    def counted(part: BuildRequest):
        calls.append(len(part.dispatches))
        return IreeCompiler().build(part)

    built = isolate_failures(replace(request, rejected=()), counted)

    assert [o.state.value for o in built.outcomes.values()].count("compiled") == 3
    assert "failed to derive layout" in built.outcomes[request.dispatches[2].name].reason
    assert calls == [4, 1, 3]  # all, the one that the compiler names, the others


def test_what_the_compiler_replaced_is_not_applied():
    """Another launch, another pipeline option or other tiles than asked for: no code under the name."""
    request = gpu_request("cuda:sm_80", PRODUCT, [MMA])
    for before, after in (
        ("prefetch_num_stages = 1", "prefetch_num_stages = 2"),
        ("subgroup = [4, 4, 0]", "subgroup = [8, 2, 0]"),
        ("{compilation_info = ", "{ignored = "),
    ):
        changed = request.source.replace(before, after)
        assert changed != request.source

        built = IreeCompiler().build(BuildRequest(changed, request.dispatches, request.flags, 1))

        (outcome,) = built.outcomes.values()
        if "ignored" in after:
            # What was dropped is asked for again on the operation that is there.
            assert outcome.state is State.COMPILED
        else:
            assert (outcome.state, built.verify) == (State.NOT_APPLIED, b"")
            assert outcome.reason.startswith("requested #iree_gpu.lowering_config<{mma_kind")


# -- random points -------------------------------------------------------------------------------------

SWEEP = {
    "matmul": Matmul(512, 768, 1024, F16),
    "matmul_nn": Matmul(512, 768, 1024, F16_WIDE, "n", "n"),
    "odd": Matmul(1000, 500, 300, F16),
    "f32": Matmul(512, 512, 512),
    "batch": BatchMatmul(4, 256, 512, 512, F16, "n", "t"),
    "conv": Conv2d(4, 34, 34, 64, 64, 3, 3, types=F16),
    "conv_nchw": Conv2d(4, 34, 34, 64, 64, 3, 3, types=F16, layout="nchw"),
    "conv_one": Conv2d(1, 34, 34, 64, 128, 3, 3, types=F16),
    "conv_few_channels": Conv2d(4, 34, 34, 3, 64, 3, 3, types=F16),
    "conv_grouped": Conv2d(4, 34, 34, 64, 128, 3, 3, groups=2, types=F16),
    "f8": Matmul(512, 512, 512, F8),
    "i8": Matmul(512, 512, 512, I8),
    "conv_depthwise": Conv2d(4, 34, 34, 64, 64, 3, 3, groups=64),
}


def tile_spaces(target: str, operation: Operation) -> list[Space]:
    """Those of IREE's own code."""
    found = (kind.space(operation, limits_of(target)) for kind in (MmaTiles, SimtTiles))
    return [space for space in found if space is not None]


def compile_random(target: str, operation: Operation, count: int, seed: int) -> list[str]:
    """States of `count` valid points drawn at random, each built alone in a process of its own."""
    limits = limits_of(target)
    drawn = draw_valid(tile_spaces(target, operation), operation, limits, np.random.default_rng(seed))
    worker, found = Worker(WorkerLimits(100, None)), []
    try:
        for configuration in itertools.islice(drawn, count):
            request = gpu_request(target, operation, [configuration])
            built = isolate_failures(request, lambda part: worker.call(build_with, IreeCompiler(), part))
            found += [f"{configuration.name}: {state}" for state in states(built)]
    finally:
        worker.kill()
    return found


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", SWEEP)
@pytest.mark.parametrize(
    "target", ["cuda:sm_80", "cuda:sm_89", "rocm:gfx942", "rocm:gfx1100", "vulkan-spirv:rdna3"]
)
def test_what_the_rules_call_valid_compiles(target: str, name: str):
    """Twenty points at random of every space."""
    found = compile_random(target, SWEEP[name], 20, 0)
    assert found or not tile_spaces(target, SWEEP[name]) or name == "f8"
    assert [state for state in found if not state.endswith(": compiled")] == []


@pytest.mark.parametrize(
    ("target", "name"),
    [
        pytest.param(target, name, marks=() if (target, name) == ("cuda:sm_80", "conv") else pytest.mark.slow)
        for target in ("cuda:sm_80", "rocm:gfx942")
        for name in ("matmul", "conv")
    ],
)
def test_a_random_point_compiles(target: str, name: str):
    (found,) = compile_random(target, SWEEP[name], 1, 1)
    assert found.endswith(": compiled")
