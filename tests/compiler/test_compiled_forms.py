"""Forms of convolutions and products through the compiler on this CPU: applied, and their results verified."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import pytest
from compiled_helpers import TARGET, verify_compiled
from pairwise import covering

from dispatch_profiler.configurations import FORMS, Configuration, CpuTiles, Default, Flow, Formed
from dispatch_profiler.dispatches import Dispatch
from dispatch_profiler.errors import OperationError
from dispatch_profiler.operations import (
    BatchMatmul,
    Conv1d,
    Conv2d,
    Conv3d,
    Convolution,
    ElementTypes,
    Epilogue,
    Matmul,
)
from dispatch_profiler.targets import parse_target

FHWC = "nhwc_fhwc_nhwc"
KINDS = {
    1: (Conv1d, {"w": 11, "s": 3}, ("nwc_fwc_nwc", "ncw", "cwn_wfc_ncw")),
    2: (Conv2d, {"h": 6, "w": 9, "r": 2, "s": 3}, (FHWC, "nchw", "hcwn_cwfh_wnch")),
    3: (
        Conv3d,
        {"d": 4, "h": 6, "w": 5, "t": 2, "r": 1, "s": 3},
        ("ndhwc_fdhwc_ndhwc", "ncdhw", "dnhcw_cdfwh_hncdw"),
    ),
}
OF_PRODUCTS = ("transposed", "transposed_panels", "panels")
MODES = ("forward", "input_backward", "weight_backward")
STRIDES = ((1, 1, 1), (2, 1, 2))
#: c, k, groups: dense, grouped, depthwise
CHANNELS = ((3, 5, 1), (4, 6, 2), (4, 4, 4))
TYPES = {
    "f32": ElementTypes(),
    "f16": ElementTypes("f16", "f16", "f16"),
    "i8": ElementTypes("i8", "i8", "i32"),
    "bf16": ElementTypes("bf16", "bf16", "f32"),
    "f64": ElementTypes("f64", "f64", "f64"),
}
#: (before, after); with the last, gradients are cropped.
PADDINGS = ((1, None), (0, None), (0, 2), (3, 1))
#: One with each row, in turn: n, layout, padding, types, epilogue, dilation.
OTHERS = list(itertools.product((1, 2), range(3), PADDINGS, TYPES, ("bias+relu", "none", "residual"), (1, 2)))
Row = tuple[str, int, str, tuple[int, ...], tuple[int, int, int], int]


def operation_of(row: Row) -> Convolution | None:
    """None if there is no such convolution with this form."""
    form, rank, mode, stride, (c, k, groups), number = row
    if form == "blocked":
        c, k = 32 * c, 32 * k  # several blocks
    n, layout, (before, after), types, epilogue, dilation = OTHERS[number]
    kind, extents, layouts = KINDS[rank]
    try:
        operation = kind(
            **extents, n=n, c=c, k=k, groups=groups, stride=stride[-rank:], dilation=(dilation,) * rank,
            padding=(before,) * rank, padding_after=None if after is None else (after,) * rank,
            layout=layouts[layout], types=TYPES[types], mode=mode,
            epilogue=Epilogue.parse("none" if mode == "weight_backward" else epilogue),
        )  # fmt: skip
    except OperationError:
        return None
    return None if Formed(form).invalid_reason(operation, TARGET.limits) else operation


#: Forms of convolutions with any filter; `test_compiled_convolutions` has the others.
ANY_FILTER = tuple(form for form in FORMS if form not in OF_PRODUCTS and not form.startswith("winograd"))
EVERY: list[Row] = [
    (*row, 97 * number % len(OTHERS))
    for number, row in enumerate(itertools.product(ANY_FILTER, KINDS, MODES, STRIDES, CHANNELS))
]
EXISTING = [row for row in EVERY if operation_of(row)]
#: One of so many rows of each form has each of `OTHERS`; fewer operations have the form `shuffled`.
STEPS = dict.fromkeys(ANY_FILTER, 211) | {"shuffled": 41}
FULL = [
    (*row[:-1], number)
    for row in EXISTING
    for number in range(row[-1] % STEPS[row[0]], len(OTHERS), STEPS[row[0]])
]


@pytest.mark.slow
@pytest.mark.parametrize(
    "together", [pytest.param(1, id="each"), pytest.param(2, id="pairs", marks=pytest.mark.slow)]
)
def test_a_form_of_every_rank_mode_stride_and_grouping_is_right(together: int):
    """Each of them, or every pair of them, with types, layouts, paddings, dilations and epilogues in turn."""
    mixed = sorted(EXISTING, key=lambda row: row[-1])
    chosen = covering([row[:-1] for row in mixed], together)
    rows = [row for row in EXISTING if row[:-1] in chosen]
    assert {row[0] for row in rows} == set(ANY_FILTER)
    verify_compiled([Dispatch(operation_of(row), Formed(row[0])) for row in rows])


@pytest.mark.slow
@pytest.mark.timeout(900)  # some compile hundreds of kernels
@pytest.mark.parametrize("form", ANY_FILTER)
def test_a_form_of_every_operation_is_right(form: str):
    rows = [row for row in FULL if row[0] == form and operation_of(row)]
    dispatches = list(dict.fromkeys(Dispatch(operation_of(row), Formed(form)) for row in rows))
    assert len(dispatches) > (5 if form == "taps" else 25)  # of weight_backward with stride 1 only
    for begin in range(0, len(dispatches), 30):
        verify_compiled(dispatches[begin : begin + 30])


#: One output pixel along an axis of an image that is larger than the window.
EDGES = tuple(Conv2d(2, 5, 7, 4, 8, 3, 3, (9, 2), (1, 0), layout=FHWC, mode=mode) for mode in MODES)
#: The same in other ranks; one pixel; one channel; one of everything.
MORE_EDGES = (
    *(Conv1d(2, 14, 4, 8, 3, (9,), layout="ncw", mode=mode) for mode in MODES),
    *(Conv3d(1, 6, 14, 4, 4, 8, 3, 3, 1, (9, 9, 1), layout="ncdhw", mode=mode) for mode in MODES),
    *(Conv2d(1, 1, 1, 5, 4, 1, 1, layout="nchw", mode=mode) for mode in MODES),
    *(Conv2d(1, 4, 4, 1, 1, 3, 3, layout=FHWC, padding=(1, 1), mode=mode) for mode in MODES),
    *(Conv2d(1, 1, 1, 1, 1, 1, 1, layout="nchw", mode=mode) for mode in MODES),
)


def with_every_form(operations: Iterable[Convolution]) -> list[Dispatch]:
    pairs = itertools.product(operations, map(Formed, FORMS))
    return [Dispatch(*each) for each in pairs if each[1].invalid_reason(each[0], TARGET.limits) is None]


@pytest.mark.slow
def test_forms_of_degenerate_convolutions_are_right():
    """Loops of extent 1, which the compiler removes; each form in the last mode that has it."""
    last = {each.configuration: each for each in with_every_form(EDGES)}
    verify_compiled([*last.values()])


@pytest.mark.slow
@pytest.mark.parametrize("operations", [EDGES, MORE_EDGES], ids=["one", "more"])
def test_forms_of_degenerate_convolutions_are_right_in_every_mode(operations):
    verify_compiled(with_every_form(operations))


@pytest.mark.slow
def test_transposed_products_of_every_type_are_right():
    """Also with tiles and flows, which configure the kernel; every epilogue follows in the operation's layout."""
    inner = (Default(), CpuTiles((8, 4), (4, 4, 2)), Default(split_k=2))
    rows = itertools.zip_longest(TYPES.values(), ("none", "bias+relu", "residual"), inner)
    dispatches = []
    for number, (types, epilogue, configuration) in enumerate(rows):
        options = {
            "types": types,
            "lhs_layout": "tn"[number % 2],
            "rhs_layout": "n",
            "epilogue": Epilogue.parse(epilogue or "none"),
        }
        chosen = Formed("transposed", configuration or Default())
        dispatches.append(Dispatch(Matmul(4, 8, 16, **options), chosen))
        dispatches.append(Dispatch(BatchMatmul(3, 5, 7, 6, **options), Formed("transposed")))
    verify_compiled(dispatches)
    verify_compiled([Dispatch(Matmul(4, 8, 16, rhs_layout="n"), Formed("transposed", Flow("data_tiling")))])


#: Other forms of products, each with a kind that has it, and its tiles: one level, two, and the compiler's.
OTHER_FORMS = (
    ("permuted", Matmul),
    ("permuted", BatchMatmul),
    ("panels", Matmul),
    ("transposed_panels", Matmul),
)
TILES_OF_PRODUCTS = (CpuTiles((8, 32), (4, 16, 2)), CpuTiles((16, 32), (8, 32, 1), (8, 32, 8)), Default())


def dispatch_of(form: str, kind: type[Matmul | BatchMatmul], number: int) -> Dispatch:
    """A product with `form`: types, tiles, epilogue and layout of lhs in turn."""
    operation = kind(
        *((64, 96, 16) if kind is Matmul else (3, 16, 32, 8)),
        types=list(TYPES.values())[number % len(TYPES)],
        lhs_layout="tn"[number % 2],
        rhs_layout="n",
        epilogue=Epilogue.parse(("bias+relu", "none", "residual")[number % 3]),
    )
    return Dispatch(operation, Formed(form, TILES_OF_PRODUCTS[number % 3]))


@pytest.mark.slow
def test_every_form_of_a_product_is_right():
    verify_compiled([dispatch_of(*each, number) for number, each in enumerate(OTHER_FORMS)])


@pytest.mark.slow
@pytest.mark.parametrize(("form", "kind"), OTHER_FORMS)
def test_other_forms_of_products_of_every_type_are_right(form, kind):
    verify_compiled([dispatch_of(form, kind, number) for number in range(15)])


PRODUCT = CpuTiles((16, 32), (8, 16, 1), (16, 32, 8))
PLANE = CpuTiles((1, 2, 4, 16), (1, 1, 4, 8, 1, 1, 4))
TILED: list[tuple[Convolution, tuple[Configuration, ...]]] = [
    (
        Conv2d(1, 8, 8, 16, 32, 3, 3, padding=(1, 1), layout=FHWC, epilogue=Epilogue.parse("bias")),
        (Formed("im2col", PRODUCT), Formed("im2col_t", PRODUCT), Formed("permuted", PLANE)),
    ),
    (
        Conv2d(2, 8, 8, 16, 32, 1, 1, layout="nchw"),
        (Formed("im2col", PRODUCT), Formed("im2col_t", PRODUCT), Formed("permuted", PLANE)),
    ),
    (
        Conv2d(1, 16, 16, 16, 32, 3, 3, stride=(2, 2), padding=(1, 1), mode="input_backward"),
        (Formed("phases", CpuTiles((1, 2, 4, 16), (1, 1, 4, 8, 1, 1, 8))),),
    ),
    (
        # Among its kernels are convolutions of 2x2 taps, and products with as many terms.
        Conv3d(1, 4, 16, 16, 32, 16, 3, 3, 3, (2, 2, 2), (1, 1, 1), mode="input_backward"),
        (Formed("phases", CpuTiles((1, 2, 4, 16), (1, 1, 4, 8, 1, 1, 8))),),
    ),
    (
        Conv2d(2, 8, 8, 8, 128, 3, 3, padding=(1, 1), layout=FHWC, epilogue=Epilogue.parse("bias")),
        (Formed("blocked", PLANE),),
    ),
    (
        Conv2d(1, 8, 8, 16, 32, 3, 3, padding=(1, 1), mode="weight_backward"),
        (
            *(Formed("im2col", PRODUCT), Formed("im2col_t", PRODUCT), Formed("im2col_t", Default(4))),
            Formed("taps", CpuTiles((16, 16), (8, 16, 1))),
        ),
    ),
    (
        Conv2d(1, 8, 8, 64, 64, 3, 3, padding=(1, 1), groups=4, types=TYPES["f16"]),
        (
            Formed("im2col", CpuTiles((16, 16), (8, 16, 1))),
            Formed("im2col_t", CpuTiles((16, 16), (8, 16, 1))),
        ),
    ),
    (
        Conv2d(1, 8, 8, 64, 64, 3, 3, padding=(1, 1), groups=4, epilogue=Epilogue.parse("bias")),
        (Formed("per_group", CpuTiles((1, 2, 8, 16), (1, 1, 4, 8, 1, 1, 4))), Formed("per_group")),
    ),
    (Conv3d(1, 4, 8, 8, 16, 32, 3, 3, 3, padding=(1, 1, 1)), (Formed("permuted", PLANE),)),
]


#: The first of every mode.
TILED_BY_DEFAULT = (0, 2, 5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("operation", "configurations"),
    [
        pytest.param(*row, id=row[0].name, marks=() if number in TILED_BY_DEFAULT else pytest.mark.slow)
        for number, row in enumerate(TILED)
    ],
)
def test_a_form_with_tiles_is_right(operation, configurations):
    """Beside the direct form, in one module."""
    for configuration in configurations:
        assert configuration.invalid_reason(operation, TARGET.limits) is None
    verify_compiled([Dispatch(operation, each) for each in (Default(), *configurations)])


@pytest.mark.slow
def test_forms_with_data_tiling_are_right():
    operation, flow = Conv2d(1, 8, 8, 16, 32, 3, 3, padding=(1, 1), layout=FHWC), Flow("data_tiling")
    verify_compiled([Dispatch(operation, Formed(form, flow)) for form in ("im2col", "im2col_t")])


@pytest.mark.slow
def test_products_with_inner_tiles_are_right():
    """Of every type, also without a whole tile, and in the kernel of a form."""
    flow = Flow("inner_tiled")
    operations = [Matmul(33, 17, 45, types, rhs_layout="n") for types in TYPES.values()]
    operations += [Matmul(1, 70, 60), Matmul(64, 1, 40, epilogue=Epilogue.parse("residual+gelu"))]
    form = Dispatch(Conv2d(1, 8, 8, 16, 24, 3, 3, padding=(1, 1), layout=FHWC), Formed("im2col", flow))
    for operation in operations:
        assert flow.invalid_reason(operation, TARGET.limits) is None
    verify_compiled([*(Dispatch(operation, flow) for operation in operations), form])


@pytest.mark.slow
def test_tiled_convolutions_are_right():
    """In several layouts, with channels that fill no tile; the compiler runs as a command."""
    flow, target = Flow("tiled_convolutions"), parse_target("llvm-cpu:x86-64-v4")
    layouts = ("nhwc_hwcf_nhwc", "nhwc_fhwc_nhwc", "nchw_fchw_nhwc")
    fields = {"stride": (2, 1), "padding": (1, 0), "epilogue": Epilogue.parse("bias+relu")}
    operations = [Conv2d(2, 9, 7, 19, 21, 3, 2, layout=layout, **fields) for layout in layouts]
    operations.append(Conv2d(1, 12, 15, 32, 48, 3, 3, padding=(1, 1)))
    for operation in operations:
        assert flow.invalid_reason(operation, target.limits) is None
    runs = TARGET.limits.vector_bytes == 64
    verify_compiled([Dispatch(operation, flow) for operation in operations], target.compile_flags, runs=runs)


@pytest.mark.slow
def test_padding_of_depthwise_convolutions_is_fused():
    """Directly, and in the kernel of a form; asymmetric padding and a stride too."""
    fields = {"groups": 16, "padding": (1, 1), "epilogue": Epilogue.parse("bias")}
    flow = Flow("fused_padding")
    verify_compiled(
        [
            Dispatch(Conv2d(1, 9, 8, 16, 16, 3, 3, (1, 2), padding_after=(0, 1), **fields), flow),
            Dispatch(Conv2d(2, 9, 8, 16, 16, 3, 3, types=TYPES["f16"], **fields), flow),
            Dispatch(Conv2d(2, 9, 9, 16, 16, 3, 3, layout="nchw", **fields), Formed("permuted", flow)),
        ]
    )
