"""Microkernels of bf16 through the compiler: results are verified, on CPUs with and without instructions for bf16."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from compiled_helpers import verify_compiled
from test_compiled_microkernels import GENERAL, NARROWER, PACKED

from dispatch_profiler.configurations import Microkernel
from dispatch_profiler.configurations.cpu.microkernel import has_pairs, rounds_results
from dispatch_profiler.configurations.cpu.plans.microkernel import AVX2_LANES, LANES
from dispatch_profiler.dispatches import Dispatch
from dispatch_profiler.operations import Conv1d, Conv2d, Conv3d, ElementTypes, Epilogue, Operation
from dispatch_profiler.targets import host_cpu, parse_target

NHWC = "nhwc_fhwc_nhwc"
BF16 = ElementTypes("bf16", "bf16", "bf16")
#: Results of other types than the operands.
OTHERS = (ElementTypes("bf16", "bf16", "f32"), ElementTypes("bf16", "bf16", "f16"))
#: CPU, lanes, whether pairs are multiplied and results are rounded by instructions for bf16, and features of CPUs that can run the kernels.
KINDS = {
    "pairs": ("cooperlake", LANES, True, {"avx512_bf16", "avx512_vnni"}),
    "converted": ("skylake-avx512", LANES, False, {"avx512bw", "avx512vl", "avx512dq"}),
    "converted, AVX2": ("x86-64-v3", AVX2_LANES, False, {"avx2", "fma", "f16c", "bmi2"}),
}
#: Depthwise convolutions and vectors of a block. Two vectors at a time are separated into even and odd channels; the last
#: one may be alone, and the last channels missing.
DEPTHWISE = [
    (Conv2d(1, 9, 10, 72, 72, 3, 3, padding=(1, 1), groups=72, layout=NHWC, epilogue=Epilogue.parse("bias+relu")), 2),
    (Conv2d(2, 8, 8, 50, 50, 5, 3, padding=(2, 1), stride=(2, 2), groups=50, layout=NHWC), 4),
    (Conv2d(1, 7, 6, 40, 40, 3, 3, dilation=(2, 1), groups=40, layout=NHWC, epilogue=Epilogue.parse("residual")), 3),
    (Conv2d(1, 5, 5, 24, 24, 5, 5, padding=(2, 2), groups=24, layout=NHWC, mode="input_backward"), 2),
    (Conv1d(1, 12, 33, 33, 3, padding=(1,), groups=33, layout="nwc_fwc_nwc"), 3),
    (Conv3d(1, 4, 5, 6, 48, 48, 3, 3, 3, padding=(1, 1, 1), groups=48, layout="ndhwc_fdhwc_ndhwc"), 3),
]  # fmt: skip
EVERY = [*PACKED, *GENERAL, *NARROWER]


def dispatches(
    types: ElementTypes, lanes: int, *, pairs: bool, cases: list[tuple[Operation, Microkernel]]
) -> Iterator[Dispatch]:
    """The microkernels of f32 with operands of bf16, as far as their tiles are valid."""
    for wide, tiles in cases:
        operation = replace(wide, types=types)
        rows, filters = tiles.distribution
        height, width, block = tiles.registers
        if lanes == AVX2_LANES:
            filters, block, height, width = filters // 2, block // 2, 1, min(width, 2)
        found = replace(
            tiles,
            distribution=(rows, filters),
            registers=(min(height, 2), width, block),
            packed=True,
            margin=0,
            lanes=lanes,
            pairs=pairs and has_pairs(operation),
            rounds=pairs and rounds_results(operation, parse_target("llvm-cpu:cooperlake").limits),
        )
        fitting = (replace(found, unroll=unroll) for unroll in (found.unroll, 8, 4, 2, 3, 1))
        yield from (
            Dispatch(operation, each)
            for each in list(fitting)
            if each.invalid_reason(operation, parse_target("llvm-cpu:cooperlake").limits) is None
        )


def some(every: Iterator[Dispatch]) -> list[Dispatch]:
    """The first microkernel of each operation."""
    return list({each.operation: each for each in reversed(list(every))}.values())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "cases",
    [
        pytest.param(slice(1, None, 12), id="some"),
        pytest.param(slice(0, None), id="all", marks=pytest.mark.slow),
    ],
)
def test_results_are_verified(kind: str, cases: slice) -> None:
    cpu, lanes, pairs, features = KINDS[kind]
    target = parse_target(f"llvm-cpu:{cpu}")
    found = some(dispatches(BF16, lanes, pairs=pairs, cases=EVERY[cases]))
    assert len(found) > 0.5 * len(EVERY[cases])
    assert any(each.configuration.pairs for each in found) == pairs
    assert all(each.configuration.rounds for each in found) == pairs
    for each in found:
        assert each.configuration.invalid_reason(each.operation, target.limits) is None
    verify_compiled(found, target.compile_flags, runs=features <= host_cpu().features)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "cases",
    [
        pytest.param(slice(0, None, 2), id="some"),
        pytest.param(slice(0, None), id="all", marks=pytest.mark.slow),
    ],
)
def test_channels_of_depthwise_convolutions_are_separated_and_put_in_order(kind: str, cases: slice) -> None:
    cpu, lanes, has_instructions, features = KINDS[kind]
    target = parse_target(f"llvm-cpu:{cpu}")
    found = []
    for wide, vectors in DEPTHWISE[cases]:
        operation, block = replace(wide, types=BF16), vectors * lanes
        filters = -(-operation.convolution.filters // block) * block
        tiles = Microkernel((1, filters), (1, 2, block), 1, packed=True, lanes=lanes, rounds=has_instructions)
        assert tiles.invalid_reason(operation, target.limits) is None
        assert max(map(len, tiles.plan(operation).blocks[0].loads)) == 2
        found.append(Dispatch(operation, tiles))
    verify_compiled(found, target.compile_flags, runs=features <= host_cpu().features)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_results_of_other_types(kind: str) -> None:
    cpu, lanes, pairs, features = KINDS[kind]
    found = [
        each for types in OTHERS for each in some(dispatches(types, lanes, pairs=pairs, cases=EVERY[1:12:5]))
    ]
    verify_compiled(
        found, parse_target(f"llvm-cpu:{cpu}").compile_flags, runs=features <= host_cpu().features
    )
