"""Microkernels through the compiler on this CPU: results are verified, and the kernel belongs to its function."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import islice

import numpy as np
import pytest
from compiled_helpers import TARGET, failures_of, verify_compiled
from pairwise import pairwise

from dispatch_profiler.compiler import BuildError, BuildOutcome, IreeCompiler, NullCompiler
from dispatch_profiler.compiler.ir_module import IrModule
from dispatch_profiler.compiler.request import build_key
from dispatch_profiler.compiler.source.functions import relevant_source
from dispatch_profiler.configurations import Default, Microkernel, PackedInCalls, Tuned, draw_valid
from dispatch_profiler.configurations.cpu.plans.microkernel import LANES
from dispatch_profiler.dispatches import Dispatch, State
from dispatch_profiler.generator import render_module
from dispatch_profiler.operations import Conv1d, Conv2d, Conv3d, Epilogue, Matmul, Operation
from dispatch_profiler.targets import parse_target

FHWC, HWCF = "nhwc_fhwc_nhwc", "nhwc_hwcf_nhwc"
EPILOGUE = Epilogue.parse("bias+relu")
RESIDUAL = Epilogue.parse("residual")


# -- results -----------------------------------------------------------------------------------------


#: Layouts, remainders, several workgroups along each axis, prefetching, margins, windows, borders and epilogues: a product
#: and two convolutions by default, the others in slow tests.
RIGHT = [
        (Matmul(38, 96, 48, rhs_layout="n", epilogue=EPILOGUE), Microkernel((19, 96), (14, 1, 32), 8)),
        (Matmul(20, 128, 34), Microkernel((10, 64), (6, 1, 64), 2, 16)),
        (
            Conv2d(2, 9, 9, 16, 192, 2, 3, (2, 1), (0, 1), padding_after=(1, 0), layout=FHWC, epilogue=RESIDUAL),
            Microkernel((5, 96), (2, 4, 48), 4, 16),
        ),
        (Conv2d(1, 7, 14, 32, 64, 3, 3, padding=(1, 1), layout=FHWC), Microkernel((7, 32), (2, 7, 32), 2)),
        (
            Conv2d(2, 8, 9, 6, 128, 3, 2, (1, 2), (2, 1), (2, 3), layout=HWCF, epilogue=EPILOGUE),
            Microkernel((8, 128), (3, 2, 64), 2),
        ),
        (Conv2d(3, 4, 6, 16, 32, 1, 1, layout=FHWC), Microkernel((2, 16), (1, 3, 16), 4, 16)),
        # Borders: tiles of several rows, one row at a time, taps that no pixel reads, pixels without taps.
        (Conv2d(1, 13, 13, 16, 32, 3, 3, (2, 2), (1, 1), layout=FHWC), Microkernel((7, 32), (2, 7, 32), 2)),
        (Conv2d(1, 9, 9, 16, 64, 5, 5, (1, 1), (4, 4), (2, 2), layout=FHWC), Microkernel((3, 64), (1, 9, 16))),
        (Conv2d(1, 5, 5, 16, 32, 3, 3, (3, 2), (3, 3), layout=HWCF), Microkernel((3, 32), (2, 5, 16))),
        (Conv2d(1, 2, 2, 16, 16, 1, 1, (1, 1), (2, 2), layout=FHWC), Microkernel((6, 16), (1, 2, 16))),
    ]  # fmt: skip
#: The same with packed filters, in the four layouts of weights.
PACKED = [
        (Matmul(38, 96, 24, rhs_layout="n", epilogue=EPILOGUE), Microkernel((19, 96), (14, 1, 32), 8)),
        (Matmul(20, 128, 34, epilogue=RESIDUAL), Microkernel((10, 64), (6, 1, 64), 2, 16)),
        (
            Conv2d(2, 9, 9, 6, 192, 2, 3, (2, 1), (0, 1), padding_after=(1, 0), layout=FHWC, epilogue=RESIDUAL),
            Microkernel((5, 96), (2, 4, 48), 2, 16),
        ),
        (Conv2d(1, 7, 14, 32, 64, 3, 3, padding=(1, 1), layout=FHWC), Microkernel((7, 32), (2, 7, 32), 2)),
        (
            Conv2d(2, 8, 9, 6, 128, 3, 2, (1, 2), (2, 1), (2, 3), layout=HWCF, epilogue=EPILOGUE),
            Microkernel((8, 128), (3, 2, 64), 2),
        ),
        (Conv2d(1, 13, 13, 16, 64, 3, 3, (2, 2), (1, 1), layout=FHWC), Microkernel((7, 32), (2, 7, 32), 2)),
    ]  # fmt: skip


FULL = Epilogue.parse("scale_shift+residual+relu")
VOLUME = "ndhwc_fdhwc_ndhwc"
#: Depthwise convolutions, groups, filters that leave part of a vector empty, odd channels, last workgroups with fewer rows,
#: last tiles with fewer columns, lines and volumes.
GENERAL = [
        (
            Conv2d(1, 14, 14, 40, 40, 3, 3, padding=(1, 1), groups=40, layout=FHWC, epilogue=FULL),
            Microkernel((14, 48), (1, 7, 48), 1),
        ),
        (Conv2d(1, 9, 9, 24, 40, 3, 3, (2, 2), (1, 1), groups=2, layout=FHWC, epilogue=EPILOGUE), Microkernel((5, 64), (2, 5, 32), 4)),
        (
            Conv3d(2, 5, 6, 7, 6, 24, 3, 3, 3, padding=(1, 1, 1), layout=VOLUME, epilogue=FULL),
            Microkernel((2, 32), (1, 7, 32), 2),
        ),
        (Matmul(37, 51, 33, rhs_layout="n", epilogue=FULL), Microkernel((10, 64), (4, 1, 64), 3)),
        (
            Conv2d(2, 9, 11, 72, 72, 5, 5, (2, 2), (2, 2), groups=72, layout=FHWC, epilogue=EPILOGUE),
            Microkernel((2, 80), (1, 4, 16), 1),
        ),
        (Conv2d(1, 10, 13, 24, 24, 3, 3, (1, 2), (1, 0), groups=24, layout=HWCF), Microkernel((4, 32), (1, 5, 16), 1)),
        (Conv2d(1, 9, 9, 32, 32, 3, 3, groups=32, layout=FHWC), Microkernel((4, 32), (2, 3, 32), 1)),
        (Conv2d(2, 7, 7, 7, 7, 3, 3, padding=(1, 1), groups=7, layout=FHWC), Microkernel((3, 16), (1, 3, 16), 1)),
        (Conv2d(1, 9, 9, 48, 48, 3, 3, padding=(1, 1), groups=3, layout=FHWC, epilogue=FULL), Microkernel((3, 16), (1, 9, 16), 4)),
        (Conv2d(2, 6, 6, 20, 60, 1, 1, groups=5, layout=HWCF), Microkernel((6, 80), (2, 3, 16), 4)),
        (Conv2d(1, 9, 9, 5, 21, 3, 3, padding=(1, 1), layout="nhwc_fchw_nhwc", epilogue=FULL), Microkernel((9, 32), (2, 4, 32), 1)),
        (Conv2d(1, 16, 16, 3, 20, 3, 3, (2, 2), (1, 1), layout=FHWC), Microkernel((3, 32), (1, 5, 32), 3)),
        (Matmul(1, 21, 7, rhs_layout="n", epilogue=EPILOGUE), Microkernel((1, 32), (1, 1, 32), 1)),
        (Matmul(5, 200, 30), Microkernel((2, 208), (2, 1, 16), 2)),
        (Conv2d(1, 11, 11, 8, 32, 3, 3, layout=FHWC), Microkernel((4, 32), (2, 4, 32), 8)),
        (Conv2d(1, 11, 11, 8, 32, 3, 3, padding=(1, 1), layout=FHWC), Microkernel((4, 32), (1, 4, 32), 8)),
        (
            Conv1d(2, 30, 6, 24, 3, padding=(1,), layout="nwc_fwc_nwc", epilogue=FULL),
            Microkernel((1, 32), (1, 8, 32), 2),
        ),
        (Conv3d(1, 5, 6, 7, 6, 24, 3, 2, 3, (2, 1, 2), (1, 0, 1), layout=VOLUME), Microkernel((5, 32), (2, 4, 32), 2)),
        (Conv3d(1, 4, 6, 7, 24, 24, 3, 3, 3, padding=(1, 1, 1), groups=24, layout=VOLUME), Microkernel((3, 32), (1, 7, 32), 1)),
    ]  # fmt: skip


#: Last blocks that are narrower than others, in whole vectors: borders, groups, shares of the filters, prefetching.
NARROWER = [
        (Matmul(21, 112, 33, epilogue=FULL), Microkernel((10, 144), (8, 1, 48), 3)),
        (
            Conv2d(1, 9, 9, 8, 88, 3, 3, (2, 2), (1, 1), layout=FHWC, epilogue=FULL),
            Microkernel((2, 64), (1, 4, 64), 8, 16),
        ),
        (Conv2d(2, 7, 7, 16, 216, 3, 3, padding=(1, 1), groups=2, layout=FHWC, epilogue=EPILOGUE), Microkernel((7, 288), (2, 4, 48), 4)),
        (Matmul(9, 80, 40, rhs_layout="n", epilogue=EPILOGUE), Microkernel((9, 96), (4, 1, 48), 8)),
        (Conv2d(1, 6, 8, 12, 144, 1, 1, (2, 1), layout=HWCF), Microkernel((3, 192), (2, 3, 64), 4)),
        (Conv2d(1, 6, 6, 8, 32, 3, 3, groups=2, layout="nhwc_fchw_nhwc"), Microkernel((4, 64), (2, 2, 32), 4)),
        (Conv3d(1, 4, 5, 6, 6, 40, 3, 3, 3, padding=(1, 1, 1), layout=VOLUME, epilogue=FULL), Microkernel((2, 64), (1, 6, 32), 2)),
        (Conv1d(1, 30, 6, 17, 3, padding=(1,), layout="nwc_fwc_nwc"), Microkernel((1, 32), (1, 8, 16), 2)),
        # Half a vector, in the last of equally wide blocks too, alone, with lanes without filters, and with sums in slices.
        (Matmul(9, 88, 24, epilogue=FULL), Microkernel((5, 96), (4, 1, 48), 8)),
        (Conv2d(1, 6, 6, 8, 24, 3, 3, padding=(1, 1), layout=FHWC, epilogue=FULL), Microkernel((3, 32), (1, 6, 32), 8)),
        (Conv2d(2, 5, 6, 12, 16, 3, 3, groups=2, layout=HWCF, epilogue=EPILOGUE), Microkernel((2, 32), (1, 4, 16), 2)),
        (Conv2d(1, 6, 6, 8, 42, 3, 3, groups=2, layout=FHWC, epilogue=FULL), Microkernel((4, 32), (2, 2, 32), 4)),
        (Matmul(5, 40, 3072, rhs_layout="n"), Microkernel((5, 48), (2, 1, 48), 8)),
    ]  # fmt: skip


#: Gradients of inputs, whose filters are in reverse order: borders, windows, depthwise, dilation, one tap, other layouts,
#: volumes, and steps.
GRADIENTS = [
        (
            Conv2d(2, 9, 8, 24, 40, 3, 2, padding=(1, 0), layout=FHWC, mode="input_backward", epilogue=RESIDUAL),
            Microkernel((9, 32), (2, 4, 32), 8),
        ),
        (
            Conv2d(1, 9, 9, 40, 40, 5, 3, padding=(2, 1), groups=40, layout=FHWC, mode="input_backward"),
            Microkernel((9, 48), (1, 4, 48), 1),
        ),
        (
            Conv2d(1, 9, 11, 16, 20, 3, 3, padding=(2, 1), dilation=(2, 1), layout=HWCF, mode="input_backward"),
            Microkernel((3, 16), (1, 5, 16), 4),
        ),
        (Conv2d(2, 7, 7, 64, 24, 1, 1, layout=FHWC, mode="input_backward"), Microkernel((7, 64), (2, 3, 32), 8)),
        (Conv1d(1, 30, 6, 17, 3, padding=(1,), layout="nwc_fwc_nwc", mode="input_backward"), Microkernel((1, 16), (1, 8, 16), 1)),
        (
            Conv3d(1, 4, 6, 7, 12, 8, 3, 3, 2, padding=(1, 1, 0), layout=VOLUME, mode="input_backward"),
            Microkernel((6, 16), (2, 4, 16), 8),
        ),
    ]  # fmt: skip


#: Filters that each call copies: no multiple of 16 filters or terms, a vector without some filters in one block and in the
#: last of several, the four orders of filters, gradients of inputs with and without several taps.
STORED = [
        (Matmul(21, 90, 50, rhs_layout="n", epilogue=FULL), Microkernel((11, 96), (4, 1, 32), 2)),
        (
            Conv2d(1, 9, 8, 24, 40, 3, 2, padding=(1, 0), layout=FHWC, mode="input_backward", epilogue=RESIDUAL),
            Microkernel((9, 32), (2, 4, 16), 8),
        ),
        (Conv2d(1, 9, 9, 5, 42, 3, 3, (2, 2), (1, 1), layout=FHWC, epilogue=FULL), Microkernel((5, 48), (1, 5, 48), 1)),
        (Matmul(9, 70, 15, epilogue=EPILOGUE), Microkernel((9, 80), (4, 1, 16), 3)),
        (Conv2d(1, 8, 7, 6, 40, 3, 3, padding=(1, 1), layout="nhwc_fchw_nhwc", epilogue=FULL), Microkernel((4, 64), (1, 7, 32), 2)),
        *(
            (operation, replace(tiles, packed=False))
            for operation, tiles in (*NARROWER, *GRADIENTS)
            if tiles.invalid_reason(operation, TARGET.limits) is None
        ),
    ]  # fmt: skip


#: Filters that are multiplied where they are stored: no multiple of 16 filters, half a vector, alone and in the last of several
#: blocks, remaining rows, several workgroups along rows and filters, one and several slices, one tap with stride, the gradient
#: of an input, volumes.
IN_PLACE = [
        (Matmul(4, 88, 48, epilogue=FULL), Microkernel((4, 96), (4, 1, 48), 8)),
        (Matmul(15, 216, 50, epilogue=EPILOGUE), Microkernel((5, 112), (2, 1, 16), 2)),
        (Conv2d(2, 5, 7, 20, 42, 1, 1, (2, 2), layout=HWCF, epilogue=FULL), Microkernel((3, 48), (2, 3, 16), 4)),
        (Matmul(1, 21, 7, epilogue=EPILOGUE), Microkernel((1, 32), (1, 1, 32), 1)),
        (Matmul(3, 70, 27), Microkernel((3, 96), (3, 1, 48), 3)),
        (Matmul(28, 128, 40, epilogue=RESIDUAL), Microkernel((14, 64), (4, 1, 64), 8)),
        (Matmul(2, 24, 4100), Microkernel((2, 32), (1, 1, 32), 4)),
        (Conv2d(1, 7, 7, 64, 24, 1, 1, layout=FHWC, mode="input_backward", epilogue=RESIDUAL), Microkernel((1, 64), (1, 3, 32), 8)),
        (Conv3d(1, 4, 5, 6, 24, 40, 1, 1, 1, layout="ndhwc_dhwcf_ndhwc", epilogue=FULL), Microkernel((1, 48), (1, 6, 16), 4)),
        (Conv2d(1, 4, 6, 20, 30, 1, 1, padding=(1, 1), layout=HWCF), Microkernel((2, 32), (1, 4, 32), 4)),
    ]  # fmt: skip


#: Products whose lhs is stored transposed, as in the gradient of a weight: rhs in both layouts, remaining rows, also of the
#: last workgroup, no multiple of 16 filters, sums in slices, filters in place, one row and one term.
TRANSPOSED = [
        (Matmul(38, 90, 50, lhs_layout="n", epilogue=FULL), Microkernel((19, 96), (14, 1, 32), 2)),
        (Matmul(21, 70, 33, lhs_layout="n", rhs_layout="n", epilogue=EPILOGUE), Microkernel((11, 80), (4, 1, 16), 3)),
        (Matmul(26, 64, 1024, lhs_layout="n"), Microkernel((26, 64), (5, 1, 64), 8)),
        (Matmul(12, 88, 40, lhs_layout="n", epilogue=RESIDUAL), Microkernel((6, 96), (4, 1, 48), 4)),
        (Matmul(1, 24, 1, lhs_layout="n"), Microkernel((1, 32), (1, 1, 32), 1)),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("pairs", "packed"),
    [
        pytest.param(pairs[part], packed, marks=marks, id=f"{name} {which}")
        for which, pairs, packed in (
            ("plain", RIGHT, False),
            ("packed", PACKED, True),
            ("general", GENERAL, True),
            ("narrower", NARROWER, True),
            ("gradients", GRADIENTS, True),
            ("stored", STORED, False),
            ("in place", IN_PLACE, False),
            ("transposed lhs", TRANSPOSED, False),
        )
        for name, part, marks in (("some", slice(0, 9, 4), ()), ("all", slice(None), pytest.mark.slow))
    ],
)
def test_results_are_those_of_the_reference(pairs, packed: bool):
    dispatches = [Dispatch(operation, replace(tiles, packed=packed)) for operation, tiles in pairs]
    assert all(
        each.configuration.invalid_reason(each.operation, TARGET.limits) is None for each in dispatches
    )
    verify_compiled(dispatches)


def test_few_rows_read_filters_in_place():
    assert all(tiles.plan(operation).reads_in_place for operation, tiles in IN_PLACE)


@pytest.mark.parametrize(
    "pairs",
    [
        pytest.param([PACKED[0], GRADIENTS[3]], id="some"),
        pytest.param(
            [PACKED[0], PACKED[3], GRADIENTS[0], GRADIENTS[3], TRANSPOSED[0]],
            id="all",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_weights_are_packed_in_every_call(pairs):
    """Also if there is nothing to move, as in a gradient with one tap and one block of filters."""
    whole = (GRADIENTS[3][0], Microkernel((7, 64), (2, 3, 64), 8))
    verify_compiled(
        [
            Dispatch(operation, PackedInCalls(replace(tiles, packed=True)))
            for operation, tiles in [*pairs, whole]
        ]
    )


def test_one_plane_with_padding_is_a_volume():
    """Taps of the middle plane read it alone; padding only after it has results, too."""
    around = Conv3d(1, 1, 6, 7, 4, 24, 3, 3, 3, padding=(1, 1, 1), layout=VOLUME)
    after = Conv3d(1, 1, 6, 7, 4, 24, 1, 3, 3, padding_after=(2, 0, 0), layout=VOLUME)
    tiles = (Microkernel((2, 32), (1, 7, 32), 2), Microkernel((2, 32), (2, 5, 32), 2))
    pairs = zip((around, after), tiles, strict=True)
    verify_compiled([Dispatch(operation, replace(each, packed=True)) for operation, each in pairs])


#: Vectors of 8 elements: a dense convolution, a depthwise one and a product, with part of a vector empty; last
#: blocks that are narrower.
NARROW = [
    (
        Conv2d(1, 13, 13, 16, 60, 3, 3, (2, 2), (1, 1), layout=FHWC, epilogue=FULL),
        Microkernel((7, 64), (1, 4, 16), 2),
    ),
    (
        Conv2d(2, 9, 11, 44, 44, 5, 5, (2, 2), (2, 2), groups=44, layout=FHWC, epilogue=EPILOGUE),
        Microkernel((2, 48), (1, 6, 8), 1),
    ),
    (Matmul(37, 51, 33, rhs_layout="n", epilogue=FULL), Microkernel((10, 64), (4, 1, 16), 3)),
    (Matmul(37, 51, 33, lhs_layout="n", epilogue=FULL), Microkernel((10, 64), (4, 1, 16), 3)),
    (
        Conv2d(1, 7, 7, 8, 40, 3, 3, padding=(1, 1), layout=FHWC, epilogue=EPILOGUE),
        Microkernel((7, 48), (1, 4, 24), 8),
    ),
]


@pytest.mark.parametrize(
    ("name", "pairs"),
    [
        pytest.param("x86-64-v3", NARROW[1:3], id="x86-64-v3 some"),
        *(
            pytest.param(each, NARROW, id=f"{each} all", marks=pytest.mark.slow)
            for each in ("host", "x86-64-v3")
        ),
    ],
)
def test_vectors_of_eight_elements(name: str, pairs):
    """For CPUs with AVX2; CPUs with AVX-512 run them, too. Filters of all but the depthwise convolution need not be packed."""
    target = parse_target(f"llvm-cpu:{name}")
    dispatches = [Dispatch(operation, replace(tiles, packed=True, lanes=8)) for operation, tiles in pairs]
    stored = [
        replace(each, configuration=replace(each.configuration, packed=False))
        for each in dispatches
        if each.operation.kind == "matmul" or each.operation.groups == 1
    ]
    dispatches = [*dispatches, *stored]
    assert all(
        each.configuration.invalid_reason(each.operation, target.limits) is None for each in dispatches
    )
    verify_compiled(dispatches, target.compile_flags)


def test_vectors_compute_the_functions_of_epilogues():
    """Other instructions than those of scalars, in vectors of both lengths, of which filters leave a part empty."""
    operations = [
        Matmul(5, 51, 16, rhs_layout="n", epilogue=Epilogue.parse(each))
        for each in ("silu", "bias+sigmoid", "gelu_tanh", "gelu")
    ]
    tiles = (Microkernel((5, 64), (2, 1, 32)), Microkernel((5, 64), (2, 1, 16), lanes=8))
    verify_compiled(
        [Dispatch(operation, replace(each, packed=True)) for operation in operations for each in tiles]
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "steps",
    [
        "residual+scale_shift+clamp(-1.5,2)+bias+leaky_relu(1.5)+residual",
        # One macro writes the steps of every kernel: test_compiled_epilogues.py has all of them.
        *(pytest.param(each, marks=pytest.mark.slow)
          for each in ("scale_shift+relu", "gelu_tanh", "bias+residual+relu6", "gelu", "sigmoid", "tanh", "silu",
                       "hardswish+hardsigmoid")),
    ],
)  # fmt: skip
def test_the_kernel_computes_every_step_of_an_epilogue(steps: str):
    epilogue = Epilogue.parse(steps)
    verify_compiled(
        [
            Dispatch(Matmul(5, 64, 16, rhs_layout="n", epilogue=epilogue), Microkernel((5, 64), (2, 1, 32))),
            Dispatch(
                Conv2d(2, 4, 6, 16, 64, 3, 3, padding=(1, 1), layout=FHWC, epilogue=epilogue),
                Microkernel((4, 64), (2, 3, 32), packed=True),
            ),
        ]
    )


#: register tile, blocks of a workgroup, workgroups along filters and rows, remaining rows, unroll, margin, channels,
#: epilogue, packed, rhs layout; then of convolutions: taps, stride, dilation, padding, images.
Row = tuple[object, ...]
AXES: tuple[tuple[object, ...], ...] = (
    ((1, 1, 16), (14, 1, 32), (2, 7, 32), (6, 1, 64), (3, 2, 64), (2, 4, 48)),
    (1, 2, 3), (1, 2), (1, 2), (0, 1), (2, 4, 8), (0, 16), (2, 16, 40), ("none", "bias+relu", "residual"),
    (False, True), ("tt", "tn", "nt", FHWC, HWCF),
    ((1, 1), (3, 3), (2, 1)), ((1, 1), (2, 1), (2, 2)), ((1, 1), (2, 1)), ((0, 0), (1, 1), (0, 2)), (1, 2),
)  # fmt: skip


def dispatch_of(row: Row) -> Dispatch | None:
    """None if the tiles or channels do not suit the operation."""
    tile, blocks, parts, parts_of_rows, rest, unroll, margin, channels, epilogue, packed, layout, *window = (
        row
    )
    rows, filters = 2 * tile[0] + rest * (tile[0] - 1), tile[2] * blocks
    configuration = Microkernel((rows, filters), tile, unroll, margin, packed)
    taps, stride, dilation, (before, after), images = window
    more = {"epilogue": Epilogue.parse(epilogue)}
    if len(str(layout)) == 2:
        if window != [axis[0] for axis in AXES[11:]]:
            return None
        operation: Operation = Matmul(
            rows * parts_of_rows,
            filters * parts,
            channels,
            lhs_layout=layout[0],
            rhs_layout=layout[1],
            **more,
        )
    else:
        read = [(n - 1) * s + (t - 1) * d + 1 for n, s, t, d in zip((rows * parts_of_rows, 2 * tile[1]), stride, taps, dilation, strict=True)]  # fmt: skip
        height, width = (each - before - after for each in read)
        if min(height, width) < 1:
            return None
        operation = Conv2d(
            images, height, width, channels, filters * parts, *taps, stride, (before, before), dilation,
            padding_after=(after, after), layout=layout, **more,
        )  # fmt: skip
    valid = configuration.invalid_reason(operation, TARGET.limits) is None
    return Dispatch(operation, configuration) if valid else None


#: register tile, last filters of a group, blocks of a group, groups, shares of the filters, lanes, then as in `AXES`: rows of
#: a workgroup, remaining rows, unroll, channels, epilogue, layout, taps, stride, padding.
NARROWER_AXES: tuple[tuple[object, ...], ...] = (
    ((1, 4, 32), (2, 3, 48), (1, 4, 64), (2, 2, 64), (1, 7, 48)), (1, 9, 16, 17, 30, 33, 47), (1, 2, 3), (1, 2), (1, 2, 3),
    (16, 8), (2, 3), (0, 1), (1, 2, 4), (4, 12), ("none", "bias+relu", "residual"),
    (FHWC, HWCF), ((1, 1), (3, 3)), ((1, 1), (2, 1)), (0, 1),
)  # fmt: skip


def narrower_of(row: Row) -> Dispatch | None:
    """A convolution whose last block of filters has fewer vectors than others; None if there is none."""
    tile, last, blocks, groups, shares, lanes, *others = row
    rows, rest, unroll, channels, epilogue, layout, taps, stride, padding = others
    tile = (*tile[:2], tile[2] * lanes // LANES)
    filters = (blocks - 1) * tile[2] + last
    configuration = Microkernel(
        (rows, blocks * groups * tile[2] // shares), tile, unroll, packed=True, lanes=lanes
    )
    operation = Conv2d(
        1, 7 + rest, 9, channels * groups, filters * groups, *taps, stride, (padding, padding), groups=groups,
        layout=layout, epilogue=Epilogue.parse(epilogue),
    )  # fmt: skip
    if last > tile[2] - lanes or configuration.invalid_reason(operation, TARGET.limits) is not None:
        return None
    return Dispatch(operation, configuration)


@cache
def chosen_narrower() -> tuple[Dispatch, ...]:
    """Every pair of parameters that occurs together."""
    rng = random.Random(0)
    drawn = (tuple(rng.choice(axis) for axis in NARROWER_AXES) for _ in range(20_000))
    rows = pairwise([row for row in drawn if narrower_of(row)])
    for index, axis in enumerate(NARROWER_AXES):
        assert {row[index] for row in rows} == set(axis)
    return tuple(dict.fromkeys(filter(None, map(narrower_of, rows))))


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_pairs_of_parameters_of_narrower_blocks_compute_the_result(part: int):
    verify_compiled(chosen_narrower()[part::4])


def random_rows(count: int) -> Iterator[Row]:
    rng = random.Random(0)
    for _ in range(count):
        yield tuple(rng.choice(axis) for axis in AXES)


@cache
def chosen() -> tuple[Dispatch, ...]:
    """Every pair of parameters that occurs together, and thirty other rows."""
    every = [row for row in random_rows(20_000) if dispatch_of(row)]
    rows = [*pairwise(every), *every[:30]]
    for index, axis in enumerate(AXES):
        assert {row[index] for row in rows} == set(axis)
    return tuple(dict.fromkeys(filter(None, map(dispatch_of, rows))))


@pytest.mark.slow
@pytest.mark.parametrize("part", range(6))
def test_pairs_of_parameters_compute_the_result(part: int):
    assert len(chosen()) > 50
    verify_compiled(chosen()[part::6])


@pytest.mark.slow
@pytest.mark.parametrize(
    "operation",
    [
        Conv2d(1, 7, 7, 256, 256, 3, 3, padding=(1, 1), layout=FHWC, epilogue=EPILOGUE),
        Conv2d(1, 28, 28, 128, 256, 1, 1, stride=(2, 2), layout=HWCF),
        Matmul(64, 768, 512, rhs_layout="n"),
    ],
    ids=["3x3", "1x1", "matmul"],
)
def test_random_points_of_the_space_compute_the_result(operation: Operation):
    space = Microkernel.space(operation, TARGET.limits)
    assert space is not None
    for each in (space, *Microkernel.packed_spaces(operation, TARGET.limits)):
        points = draw_valid([each], operation, TARGET.limits, np.random.default_rng(0))
        verify_compiled([Dispatch(operation, found) for found in islice(points, 8)])


def test_the_microkernel_of_a_library_is_compiled():
    """As `tile_config_tuned`, which launches it too."""
    dispatch = Dispatch(PRODUCT, Tuned(TILES))
    assert render_module(PRODUCT, [dispatch]) == render_module(PRODUCT, [FIRST]).replace(TILES.name, dispatch.configuration.name)  # fmt: skip
    verify_compiled([dispatch])


PRODUCT = Matmul(20, 64, 32, rhs_layout="n")
TILES = Microkernel((10, 64), (4, 1, 16), unroll=2)
#: All addresses stay within the buffers: a fault that writes beyond them may crash the tests.
FAULTS = {
    "a shuffle takes another element": ("[0, 1, 2, 3, 4, 5, 6, 7, 16,", "[0, 1, 2, 3, 4, 5, 6, 6, 16,"),
    "filters of another term": ("(from + 16)", "(from + 0)"),
    "another channel of a pixel": ("_pixel + channel + 33)", "_pixel + channel + 32)"),
    "a result is stored in another row": ("* 64 + filter + 64)", "* 64 + filter + 48)"),
    "the second block is multiplied by filters of the first": ("part * 64 + block_start)", "part * 64)"),
    "a term is left out": ("%terms = arith.constant 32", "%terms = arith.constant 16"),
}


#: The same, of a product whose lhs is stored transposed.
FAULTS_OF_TRANSPOSED = {
    "another row of a term": ("_pixel + channel * 20 + 21)", "_pixel + channel * 20 + 20)"),
    "rows of another term": ("_pixel + channel * 20 + 20)", "_pixel + channel * 20 + 0)"),
    "a term of another length": ("_pixel + channel * 20 + 1)", "_pixel + channel * 19 + 1)"),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("operation", "faults"),
    [(PRODUCT, FAULTS), (replace(PRODUCT, lhs_layout="n"), FAULTS_OF_TRANSPOSED)],
    ids=["plain", "transposed lhs"],
)
def test_faults_of_a_kernel_are_found(operation: Operation, faults: dict[str, tuple[str, str]]):
    dispatch = Dispatch(operation, TILES)
    changes = {name: lambda text, pair=pair: text.replace(*pair) for name, pair in faults.items()}
    found = {fault: why for (_, fault), why in failures_of({dispatch: changes}).items()}
    assert found.pop("") == ""
    for fault, why in found.items():
        assert "wrong" in why, fault


# -- a kernel and its function -----------------------------------------------------------------------

FIRST, SECOND = Dispatch(PRODUCT, TILES), Dispatch(PRODUCT, replace(TILES, unroll=4))
THREE = (FIRST, SECOND, Dispatch(PRODUCT, Default()))


def kernel_of(dispatch: Dispatch) -> str:
    return f"{dispatch.name}{dispatch.configuration.kernel_suffix}"


def test_a_kernel_is_cut_out_with_its_function(make_request):
    source = render_module(PRODUCT, THREE)
    assert relevant_source(source, [FIRST.name]).strip() == render_module(PRODUCT, [FIRST]).strip()
    assert kernel_of(SECOND) in source
    alone = relevant_source(source, [THREE[2].name])
    assert "hal.executable" not in alone and THREE[2].name in alone


def test_an_edit_of_a_kernel_changes_the_key_of_its_build_alone(make_request):
    compiler, request = NullCompiler(()), make_request(PRODUCT, [each.configuration for each in THREE])
    start = request.source.index(f"@{kernel_of(SECOND)} ")
    edited = request.source[:start] + request.source[start:].replace("from + 16)", "from + 32)", 1)
    assert edited != request.source

    def key(source: str, dispatch: Dispatch) -> str:
        return build_key(replace(request, source=source, dispatches=(dispatch,)), TARGET, compiler)

    changed = [key(edited, each) != key(request.source, each) for each in THREE]
    assert changed == [False, True, False]


def test_kernels_that_no_function_dispatches_are_erased():
    module = IrModule.parse(render_module(PRODUCT, THREE))
    module.keep_functions([SECOND.name, THREE[2].name])
    assert set(module.symbols("hal.executable.source")) == {kernel_of(SECOND)}
    module.keep_functions([THREE[2].name])
    assert not module.symbols("hal.executable.source")


def test_a_diagnostic_inside_a_kernel_names_its_dispatch(make_request):
    """The kernel comes before its function, so its lines are after those of the dispatch before."""
    request = make_request(PRODUCT, [THREE[0].configuration, THREE[1].configuration])
    start = request.source.index(f"@{kernel_of(SECOND)} ")
    broken = request.source[start:].replace("%part = ", "gpu.barrier\n    %part = ", 1)
    with pytest.raises(BuildError, match=r"gpu\.barrier") as caught:
        IreeCompiler().build(replace(request, source=request.source[:start] + broken))
    assert caught.value.culprits == (SECOND.name,)


@pytest.fixture(scope="module")
def alone(make_request) -> BuildOutcome:
    """The outcome of `FIRST` in a module of its own."""
    return IreeCompiler().build(make_request(PRODUCT, [TILES])).outcomes[FIRST.name]


def test_a_function_that_launches_its_kernel_says_so(alone: BuildOutcome):
    assert (alone.state, alone.applied) == (State.COMPILED, f"the kernel @{kernel_of(FIRST)} of the source")


def test_a_function_that_does_not_launch_its_kernel_is_not_applied(make_request):
    request = make_request(PRODUCT, [TILES])
    default = render_module(PRODUCT, [THREE[2]]).replace(THREE[2].name, FIRST.name)
    outcome = IreeCompiler().build(replace(request, source=default)).outcomes[FIRST.name]
    assert outcome.state is State.NOT_APPLIED
    assert outcome.reason == "the compiler's IR has no launch of the kernel in the source"


@pytest.mark.slow
def test_the_same_kernel_is_recognized_and_another_is_not(make_request, alone: BuildOutcome):
    """Alone and beside others."""
    together = IreeCompiler().build(make_request(PRODUCT, [each.configuration for each in THREE])).outcomes
    assert together[FIRST.name].kernel == alone.kernel
    assert len({outcome.kernel for outcome in together.values()}) == 3
