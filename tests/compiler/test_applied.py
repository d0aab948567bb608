"""What the compiler configured is what was asked for: read from its own IR and generated code."""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatch_profiler.compiler.backends.in_process import InProcess
from dispatch_profiler.compiler.backends.iree import IreeCompiler
from dispatch_profiler.compiler.passes.applied import fold_groups, verify_applied
from dispatch_profiler.compiler.passes.sharing import fan_out, share
from dispatch_profiler.configurations import CpuTiles, Default, Flow, Formed, fold_levels
from dispatch_profiler.dispatches import Dispatch, State
from dispatch_profiler.generator import render_module
from dispatch_profiler.operations import (
    BatchMatmul,
    BiasBackward,
    Conv2d,
    ElementTypes,
    LayerNorm,
    LayerNormInputBackward,
    LayerNormWeightBackward,
    Loop,
    Matmul,
    Operation,
    Softmax,
)

#: They work on the IR of the compiler.


def configured(request):
    """The module with every configuration set as a build does it, and the outcomes."""
    phases, flags = InProcess(), request.flags
    module = phases.parse(request.source, flags)
    lines, groups = module.lines(), share(module)
    phases.advance(module, flags, stop="executable-sources")
    fan_out(module, groups, lines)
    phases.advance(module, flags, "executable-sources", stop="executable-configurations")
    return module, verify_applied(module, request.dispatches, lines)


def workgroups(request) -> dict[str, list[int]]:
    """Function -> workgroups of each of its dispatches, from the IR after code generation.

    The compiler computes these counts from the tiles that it distributed by: they are what ran.
    """
    module, _ = configured(request)
    start = "executable-configurations"
    text = InProcess().advance(module, request.flags, start, stop="executable-targets").text()
    counts = {}
    for name, body in re.findall(r"hal\.executable private @([\w$]+) \{(.*?)\n  \}", text, flags=re.S):
        constants = dict(re.findall(r"%(\S+) = arith.constant (\d+) : index", body))
        returned = re.search(r"hal\.return ([^:]*) : index", body)
        values = [v.strip().lstrip("%") for v in returned.group(1).split(",")]
        counts[name] = math.prod(int(constants.get(v) or v.removeprefix("c").split("_")[0]) for v in values)
    uses = re.findall(r"util\.func public @([\w$]+)\(.*?\n  \}", text, flags=re.S)
    bodies = dict(
        zip(uses, re.findall(r"util\.func public @[\w$]+\((.*?)\n  \}", text, flags=re.S), strict=True)
    )
    return {
        function: [counts[exe] for exe in dict.fromkeys(re.findall(r"@([\w$]+)::@", body)) if exe in counts]
        for function, body in bodies.items()
    }


def expected_workgroups(operation: Operation, tiles: CpuTiles) -> int:
    """Pieces that the distribution tiles cut the parallel loops into."""
    lowering = tiles.lowering(operation)
    level = dict(lowering.levels)["distribution"]
    return math.prod(
        math.ceil(loop.extent / tile)
        for loop, tile in zip(lowering.loops, level, strict=True)
        if loop.iterator == "parallel"
    )


ONE_IMAGE = Conv2d(1, 30, 30, 32, 64, 3, 3)
POINTWISE = Conv2d(8, 56, 56, 64, 256, 1, 1)
TILES = (
    CpuTiles((1, 7, 14, 64), (1, 1, 7, 16, 1, 1, 8)),
    CpuTiles((1, 4, 4, 16), (1, 1, 4, 8, 1, 1, 1)),
    CpuTiles((1, 14, 28, 32), (1, 1, 14, 32, 1, 1, 1)),
)


@pytest.mark.some(4)
@pytest.mark.works_on_ir
@pytest.mark.parametrize(
    "operation",
    [
        ONE_IMAGE,
        POINTWISE,
        Conv2d(1, 28, 28, 64, 64, 1, 1),
        Conv2d(4, 56, 56, 64, 64, 1, 1, stride=(2, 2)),
        Conv2d(1, 30, 30, 32, 64, 3, 3, layout="nchw"),
        Conv2d(1, 30, 30, 64, 64, 3, 3, groups=64),
        Conv2d(1, 30, 28, 32, 64, 3, 1),
    ],
    ids=lambda op: op.name,
)
def test_convolutions_with_unit_loops_run_their_configured_tiles(operation: Operation, make_request):
    """Three configurations of one module are distributed into three different numbers of workgroups.

    The compiler drops the attribute of such convolutions and gives all of them one executable.
    """
    tiles = [t for t in TILES if t.invalid_reason(operation, _LIMITS) is None]
    assert len(tiles) >= 2
    request = make_request(operation, [Default(), *tiles])

    found = workgroups(request)

    expected = {d.name: expected_workgroups(operation, d.configuration) for d in request.dispatches[1:]}
    assert {name: found[name][-1] for name in expected} == expected


@pytest.mark.works_on_ir
def test_a_padded_image_keeps_its_tiles_behind_the_padding(make_request):
    padded = Conv2d(1, 28, 28, 32, 64, 3, 3, padding=(1, 1))
    request = make_request(padded, [Default(), TILES[0], TILES[1]])

    found = workgroups(request)

    assert [found[d.name][-1] for d in request.dispatches[1:]] == [8, 196]


@pytest.mark.works_on_ir
def test_the_default_keeps_what_the_compiler_chose_beside_imposed_tiles(make_request):
    """Imposing tiles on a neighbour must not change the default."""
    alone = workgroups(make_request(ONE_IMAGE, [Default()]))
    beside = workgroups(make_request(ONE_IMAGE, [Default(), TILES[1]]))

    name = make_request(ONE_IMAGE, [Default()]).dispatches[0].name
    assert beside[name] == alone[name]


@pytest.mark.works_on_ir
@pytest.mark.parametrize(
    ("operation", "tiles"),
    [
        (Matmul(256, 128, 64), CpuTiles((64, 64), (8, 32, 4))),
        (Matmul(256, 128, 64, lhs_layout="n", rhs_layout="n"), CpuTiles((32, 64), (8, 32, 4))),
        (Matmul(1, 256, 64), CpuTiles((1, 64), (1, 32, 8))),
        (Matmul(100, 100, 50), CpuTiles((32, 32), (8, 16, 4), peel=True)),
        (Matmul(64, 64, 256), CpuTiles((32, 32), (8, 16, 4), split_k=4)),
        (BatchMatmul(1, 64, 64, 32), CpuTiles((32, 32), (8, 16, 4))),
        (BatchMatmul(3, 64, 64, 32), CpuTiles((32, 16), (8, 16, 4), (16, 16, 32))),
    ],
    ids=lambda x: x.name,
)
def test_matmuls_run_their_configured_tiles(operation: Operation, tiles: CpuTiles, make_request):
    request = make_request(operation, [tiles])

    found = workgroups(request)[request.dispatches[0].name]

    assert found[0] == expected_workgroups(operation, tiles)


@pytest.mark.works_on_ir
@pytest.mark.parametrize(
    ("operation", "tiles", "count"),
    [
        (LayerNorm(64, 48), CpuTiles((16,), (4, 16)), 4),
        (LayerNorm(64, 48, "f16", affine=False), CpuTiles((8,), (2, 8)), 8),
        # So many rows that sums of all of them exceed what the compiler vectorizes.
        (LayerNorm(4128, 48), CpuTiles((1032,), (4, 16)), 4),
        (Softmax(4128, 48), CpuTiles((1032,), (4, 16)), 4),
        (LayerNormInputBackward(4128, 48), CpuTiles((1032,), (4, 16)), 4),
        (LayerNormInputBackward(64, 48), CpuTiles((32,), (1, 16)), 2),
        (LayerNormWeightBackward(64, 48), CpuTiles((16,), (8, 2)), 3),
        (BiasBackward(64, 48), CpuTiles((24,), (8, 1, 1)), 2),
        (BiasBackward(1, 48, 64), CpuTiles((12,), (4, 1, 8)), 4),
    ],
    ids=lambda x: getattr(x, "name", ""),
)
def test_reductions_run_their_configured_tiles(
    operation: Operation, tiles: CpuTiles, count: int, make_request
):
    """In one dispatch, with as many workgroups as distribution tiles."""
    request = make_request(operation, [tiles])

    assert workgroups(request)[request.dispatches[0].name] == [count]


@pytest.mark.works_on_ir
def test_tiles_around_the_root_are_proven_too(make_request):
    """A layer norm whose last operation has other tiles than the configuration says."""
    request = make_request(LayerNorm(64, 48), [CpuTiles((16,), (4, 16))])
    right = "vector_common_parallel = [4, 0], vector_inner_parallel = [0, 16]"
    assert request.source.count(right) == 1
    source = request.source.replace(right, right.replace("16", "8"))

    built = IreeCompiler().build(type(request)(source, request.dispatches, request.flags, 1))

    (outcome,) = built.outcomes.values()
    assert outcome.state is State.NOT_APPLIED
    assert f"; #iree_cpu.lowering_config<{right}>, but found" in outcome.reason


@pytest.mark.works_on_ir
def test_what_was_applied_is_recorded_in_the_compilers_words(make_request):
    (outcome,) = IreeCompiler().build(make_request(POINTWISE, [TILES[0]])).outcomes.values()
    assert outcome.state is State.COMPILED
    assert outcome.applied == (
        "#iree_cpu.lowering_config<distribution = [98, 64, 0], "
        "vector_common_parallel = [7, 16, 0], vector_reduction = [0, 0, 8]>"
    )


@pytest.mark.works_on_ir
def test_peeling_survives_folding(make_request):
    """A pointwise convolution whose pixels no tile divides still peels."""
    operation = Conv2d(1, 15, 15, 16, 32, 1, 1)
    tiles = CpuTiles((1, 4, 8, 32), (1, 1, 4, 16, 1, 1, 1), peel=True)
    module, _ = configured(make_request(operation, [tiles]))

    assert "enable_loop_peeling" in module.text()


@pytest.mark.slow
@pytest.mark.works_on_ir
def test_a_flow_that_took_effect_is_compiled(make_request):
    product = Matmul(64, 64, 64)
    for flow in ("data_tiling", "ukernels", "inner_tiled"):
        built = IreeCompiler().build(make_request(product, [Flow(flow)]))

        assert [o.state for o in built.outcomes.values()] == [State.COMPILED]


@pytest.mark.works_on_ir
def test_a_flow_that_changes_nothing_is_not_applied(make_request, monkeypatch):
    """Without its flag the evidence is missing, and no vmfb is made under its name."""
    request = make_request(Matmul(64, 64, 64), [Flow("data_tiling")])
    without = tuple(flag for flag in request.flags if "data-tiling" not in flag)

    built = IreeCompiler().build(type(request)(request.source, request.dispatches, without, 1))

    (outcome,) = built.outcomes.values()
    assert (outcome.state, built.verify) == (State.NOT_APPLIED, b"")
    assert "no Mmt4dTilingExpert: they had no effect" in outcome.reason


@pytest.mark.works_on_ir
def test_tiles_on_another_operation_are_not_applied(make_request):
    """A source whose root has other loops than the operation says: nothing to set the tiles on."""
    request = make_request(Matmul(64, 64, 64), [CpuTiles((32, 32), (8, 16, 4))])
    bare = request.source.replace("compilation_info", "ignored")
    other = make_request(Matmul(64, 64, 32), [Default()])
    renamed = other.source.replace(other.dispatches[0].name, request.dispatches[0].name)
    assert bare != request.source

    built = IreeCompiler().build(type(request)(renamed, request.dispatches, request.flags, 1))

    (outcome,) = built.outcomes.values()
    assert outcome.state is State.NOT_APPLIED
    assert outcome.reason.startswith("requested #iree_cpu.lowering_config<distribution = [32, 32, 0]")


@pytest.mark.slow
@pytest.mark.works_on_ir
def test_types_do_not_change_what_is_applied(make_request):
    for types in (ElementTypes("f16", "f16", "f16"), ElementTypes("i8", "i8", "i32")):
        built = IreeCompiler().build(
            make_request(Matmul(64, 64, 64, types), [CpuTiles((32, 32), (8, 16, 4))])
        )

        assert [o.state for o in built.outcomes.values()] == [State.COMPILED]


def _limits():
    from dispatch_profiler.targets import parse_target

    return parse_target("llvm-cpu").limits


_LIMITS = _limits()


# -- forms ---------------------------------------------------------------------------------------------

FHWC = Conv2d(1, 16, 16, 16, 32, 3, 3, padding=(1, 1), layout="nhwc_fhwc_nhwc")
STRIDED = Conv2d(1, 12, 28, 32, 16, 3, 3, stride=(2, 2), padding=(1, 1), mode="input_backward")


@pytest.mark.some(2)
@pytest.mark.works_on_ir
@pytest.mark.parametrize(
    ("operation", "configuration"),
    [
        (FHWC, Formed("im2col", CpuTiles((64, 16), (8, 16, 1)))),
        (FHWC, Formed("im2col_t", CpuTiles((32, 32), (8, 16, 1), (32, 32, 8)))),
        (FHWC, Formed("permuted", CpuTiles((1, 2, 8, 16), (1, 1, 8, 8, 1, 1, 4)))),
        (STRIDED, Formed("phases", CpuTiles((1, 2, 7, 16), (1, 1, 7, 8, 1, 1, 4)))),
    ],
    ids=lambda x: x.name,
)
def test_kernels_of_a_form_run_their_configured_tiles(
    operation: Operation, configuration: Formed, make_request
):
    """Each is distributed into the number of workgroups that its tiles give, beside the compiler's own choice."""
    request = make_request(operation, [Formed(configuration.form), configuration])

    found = workgroups(request)[request.dispatches[1].name]

    kernels = configuration.reduced(operation).kernels
    expected = Counter(expected_workgroups(kernel, configuration.inner) for kernel in dict.fromkeys(kernels))
    assert not expected - Counter(found)


@pytest.mark.slow
@pytest.mark.works_on_ir
def test_what_was_applied_to_every_kernel_is_recorded(make_request):
    configuration = Formed("phases", CpuTiles((1, 2, 7, 16), (1, 1, 7, 8, 1, 1, 4)))
    (outcome,) = IreeCompiler().build(make_request(STRIDED, [configuration])).outcomes.values()

    assert outcome.state is State.COMPILED
    pointwise, several_taps = outcome.applied.split("; ")
    assert "vector_common_parallel = [7, 8, 0]" in pointwise
    assert "vector_common_parallel = [1, 1, 7, 8, 0, 0, 0]" in several_taps


@pytest.mark.works_on_ir
@pytest.mark.parametrize("inner", [Default(), CpuTiles((64, 16), (8, 16, 1))], ids=lambda x: x.name)
def test_another_form_under_the_name_of_a_form_is_not_applied(inner, make_request):
    """The IR must have an operation with the loops of every kernel, also where the compiler chooses the tiles."""
    request = make_request(FHWC, [Formed("im2col", inner)])
    other = render_module(FHWC, [Dispatch(FHWC, Formed("permuted"))])
    name = re.search(r"@(\w+)", other).group(1)
    source = other.replace(f"@{name}", f"@{request.dispatches[0].name}")

    (outcome,) = IreeCompiler().build(replace(request, source=source)).outcomes.values()

    assert outcome.state is State.NOT_APPLIED
    assert outcome.reason == (
        "the form has the kernel matmul_256x32x144_f32t_f32n_f32t, but the compiler's IR has no operation with "
        "its loops"
    )


def loops(text: str) -> tuple[Loop, ...]:
    """`n=8 oh=56 | ic=64`: parallel loops, then reductions."""
    parallel, _, reduction = text.partition("|")
    pairs = [(x, "parallel") for x in parallel.split()] + [(x, "reduction") for x in reduction.split()]
    return tuple(Loop(p.split("=")[0], int(p.split("=")[1]), kind) for p, kind in pairs)


def real(*extents: int, reductions: int) -> list[tuple[int, bool]]:
    return [(extent, i >= len(extents) - reductions) for i, extent in enumerate(extents)]


def test_loops_that_are_all_there_stand_for_themselves():
    assert fold_groups(Matmul(4, 5, 6).loops, real(4, 5, 6, reductions=1)) == ((0,), (1,), (2,))


def test_a_pointwise_convolution_is_folded_to_a_matmul():
    """N, OH and OW become one loop, KH and KW vanish."""
    pointwise = Conv2d(8, 56, 56, 64, 256, 1, 1)

    groups = fold_groups(pointwise.loops, real(25088, 256, 64, reductions=1))

    assert [[pointwise.loops[i].name for i in g] for g in groups] == [
        ["n", "oh", "ow"],
        ["oc"],
        ["kh", "kw", "ic"],
    ]


def test_one_image_loses_its_batch_loop():
    one = Conv2d(1, 30, 30, 32, 64, 3, 3)

    groups = fold_groups(one.loops, real(28, 28, 64, 3, 3, 32, reductions=3))

    assert groups == ((0, 1), (2,), (3,), (4,), (5,), (6,))


def test_loops_that_do_not_multiply_to_the_real_ones_are_no_folding():
    assert fold_groups(loops("n=8 oh=6|k=4"), real(47, 4, reductions=1)) is None


def test_a_loop_that_is_missing_is_no_folding():
    assert fold_groups(loops("n=8 oh=6|k=4"), real(8, 4, reductions=1)) is None


def test_a_reduction_is_never_folded_into_a_parallel_loop():
    assert fold_groups(loops("n=8|k=4"), real(32, reductions=0)) is None


def test_a_real_loop_too_many_is_no_folding():
    assert fold_groups(loops("n=8|k=4"), real(8, 2, 4, reductions=1)) is None


@given(st.lists(st.lists(st.integers(1, 5), min_size=1, max_size=3), min_size=1, max_size=4))
def test_folding_neighbours_is_always_recognised(parts: list[list[int]]):
    """Whatever neighbours are multiplied together, the products of the groups are the real extents."""
    flat = tuple(Loop(f"l{i}", x, "parallel") for i, x in enumerate(x for part in parts for x in part))
    products = [math.prod(part) for part in parts]

    groups = fold_groups(flat, [(p, False) for p in products])

    assert groups is not None
    assert [math.prod(flat[i].extent for i in g) for g in groups] == products


@pytest.mark.parametrize(
    ("tiles", "expected"), [((1, 14, 28, 64, 0, 0, 0), (392, 64, 0)), ((0, 0, 0, 0, 1, 1, 8), (0, 0, 8))]
)
def test_a_folded_loop_is_tiled_by_the_product_of_its_tiles(
    tiles: tuple[int, ...], expected: tuple[int, ...]
):
    groups = ((0, 1, 2), (3,), (4, 5, 6))

    assert fold_levels([("level", tiles)], groups) == (("level", expected),)
