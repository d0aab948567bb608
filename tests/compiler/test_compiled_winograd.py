"""Winograd microkernels through the compiler on this CPU: results are verified."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
from compiled_helpers import TARGET, failures_of, verify_compiled, verify_tiles

from dispatch_profiler.configurations import PackedInCalls, WinogradMicrokernel, draw_valid
from dispatch_profiler.dispatches import Dispatch
from dispatch_profiler.operations import Conv2d, Conv3d, Epilogue, Operation
from dispatch_profiler.targets import parse_target

FHWC, HWCF, VOLUME = "nhwc_fhwc_nhwc", "nhwc_hwcf_nhwc", "ndhwc_fdhwc_ndhwc"
FULL, EPILOGUE = Epilogue.parse("scale_shift+residual+relu"), Epilogue.parse("bias+relu")
#: Both sizes of tiles; images that tiles do not divide, and that are smaller than a tile; channels and filters that leave part
#: of a vector, of a block or of a share empty; several strips, the last of which has fewer tiles; long sums; padding of one
#: side, of none, and beyond the taps; volumes with strides between planes.
RIGHT = [
        (Conv2d(1, 12, 12, 16, 32, 3, 3, padding=(1, 1), layout=FHWC), WinogradMicrokernel(4, (9, 32), 9, (3, 32))),
        (
            Conv2d(2, 13, 11, 24, 40, 3, 3, padding=(1, 1), layout=FHWC, epilogue=FULL),
            WinogradMicrokernel(4, (5, 48), 4, (3, 16)),
        ),
        (
            Conv2d(2, 9, 7, 10, 20, 3, 3, padding=(1, 1), layout=HWCF, epilogue=EPILOGUE),
            WinogradMicrokernel(2, (23, 32), 7, (5, 32)),
        ),
        (Conv2d(1, 3, 3, 8, 8, 3, 3, layout=FHWC), WinogradMicrokernel(4, (1, 16), 1, (1, 16))),
        (
            Conv2d(1, 8, 15, 32, 96, 3, 3, padding=(0, 2), padding_after=(3, 1), layout=FHWC, epilogue=EPILOGUE),
            WinogradMicrokernel(4, (6, 48), 6, (6, 48)),
        ),
        (Conv2d(1, 10, 10, 800, 16, 3, 3, padding=(1, 1), layout=FHWC), WinogradMicrokernel(2, (12, 16), 6, (6, 16))),
        (
            Conv3d(2, 4, 9, 7, 12, 24, 3, 3, 3, padding=(1, 1, 1), layout=VOLUME, epilogue=FULL),
            WinogradMicrokernel(4, (11, 32), 5, (4, 32)),
        ),
        (
            Conv3d(1, 7, 6, 6, 16, 16, 2, 3, 3, (2, 1, 1), (1, 1, 0), (2, 1, 1), layout=VOLUME),
            WinogradMicrokernel(2, (7, 16), 7, (7, 16)),
        ),
        # Gradients of inputs, whose filters are in reverse order; packed in the call.
        (
            Conv2d(2, 13, 11, 24, 40, 3, 3, padding=(1, 0), layout=FHWC, mode="input_backward"),
            PackedInCalls(WinogradMicrokernel(4, (8, 32), 4, (4, 32))),
        ),
        (
            Conv2d(1, 9, 7, 16, 10, 3, 3, padding=(2, 1), layout=HWCF, mode="input_backward"),
            WinogradMicrokernel(2, (20, 16), 5, (5, 16)),
        ),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "pairs", [[RIGHT[1], RIGHT[-2]], pytest.param(RIGHT, marks=pytest.mark.slow)], ids=["some", "all"]
)
def test_results_are_those_of_the_reference(pairs):
    verify_tiles(pairs)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["host", "x86-64-v3"])
def test_vectors_of_eight_elements(name: str):
    """For CPUs with AVX2; CPUs with AVX-512 run them, too."""
    target = parse_target(f"llvm-cpu:{name}")
    operation = Conv2d(2, 13, 11, 12, 20, 3, 3, padding=(1, 1), layout=FHWC, epilogue=FULL)
    tiles = [WinogradMicrokernel(pixels, (12, 24), 6, (6, 8), lanes=8) for pixels in (2, 4)]
    verify_tiles([(operation, each) for each in tiles], target)


@pytest.mark.slow
@pytest.mark.parametrize(
    "operation",
    [
        Conv2d(1, 14, 14, 64, 96, 3, 3, padding=(1, 1), layout=FHWC, epilogue=EPILOGUE),
        Conv3d(1, 3, 9, 9, 24, 40, 3, 3, 3, padding=(1, 1, 1), layout=VOLUME),
    ],
    ids=["image", "volume"],
)
def test_random_points_of_the_space_and_suggestions_compute_the_result(operation: Operation):
    spaces = list(WinogradMicrokernel.packed_spaces(operation, TARGET.limits))
    points = draw_valid(spaces, operation, TARGET.limits, np.random.default_rng(0))
    likely = WinogradMicrokernel.likely(operation, TARGET.limits, packed_weights=True)
    assert likely
    verify_compiled([Dispatch(operation, found) for found in (*islice(points, 8), *likely[:4])])


#: All addresses stay within the buffers: a fault that writes beyond them may crash the tests.
FAULTS = {
    "another pixel of a tile": ("* 16 + channel + 16)", "* 16 + channel + 0)"),
    "zeros are read inside the image": ("reads_row_1_extent = arith.constant 9", "reads_row_1_extent = arith.constant 8"),
    "a factor of a transform": ("dense<-1.953125>", "dense<-1.25>"),
    "another product": ("(part * 36 + product)", "(part * 36 + 0)"),
    "a term is left out": ("%terms = arith.constant 16", "%terms = arith.constant 12"),
}  # fmt: skip


@pytest.mark.slow
def test_faults_of_a_kernel_are_found():
    operation = Conv2d(1, 9, 9, 16, 16, 3, 3, padding=(1, 1), layout=FHWC)
    dispatch = Dispatch(operation, WinogradMicrokernel(4, (9, 16), 9, (3, 16)))
    changes = {name: lambda text, pair=pair: text.replace(*pair) for name, pair in FAULTS.items()}
    found = {fault: why for (_, fault), why in failures_of({dispatch: changes}).items()}
    assert found.pop("") == ""
    for fault, why in found.items():
        assert "wrong" in why, fault


def test_several_workgroups_that_compute_the_same_tiles_agree():
    """The last workgroup begins early enough to end with the last tile: nine tiles in workgroups of five."""
    operation = replace(RIGHT[0][0], h=9, w=9)
    verify_compiled([Dispatch(operation, WinogradMicrokernel(4, (5, 32), 5, (5, 32)))])
