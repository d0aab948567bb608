"""Kernels that templates write, as entries of a library."""

from __future__ import annotations

import pytest

from dispatch_profiler.configurations import (
    AmxMicrokernel,
    Configuration,
    DepthwiseGradient,
    DotMicrokernel,
    ImagesMicrokernel,
    Microkernel,
    Tuned,
    WinogradMicrokernel,
)
from dispatch_profiler.dispatches import Dispatch
from dispatch_profiler.generator import render_module
from dispatch_profiler.operations import Conv2d, ElementTypes, Matmul, Operation

PRODUCT = Matmul(32, 64, 48, rhs_layout="n")
IMAGE = {"n": 1, "h": 8, "w": 8, "c": 32, "k": 32, "r": 3, "s": 3, "padding": (1, 1)}
WRITTEN: list[tuple[Operation, Configuration]] = [
    (PRODUCT, Microkernel((8, 32), (4, 1, 16))),
    (PRODUCT, DotMicrokernel((8, 16), (4, 4))),
    (
        Matmul(32, 64, 64, ElementTypes("bf16", "bf16", "f32"), rhs_layout="n"),
        AmxMicrokernel((32, 32), (16, 16)),
    ),
    (Conv2d(**IMAGE, layout="nhwc_fhwc_nhwc"), ImagesMicrokernel((4, 16), (1, 4, 16))),
    (Conv2d(**IMAGE, layout="nhwc_fhwc_nhwc"), WinogradMicrokernel(4, (4, 16), 4, (4, 16))),
    (
        Conv2d(**IMAGE, groups=32, layout="nhwc_fhwc_nhwc", mode="weight_backward"),
        DepthwiseGradient((8, 32), (1, 3, 16)),
    ),
]


def test_the_list_has_every_kind():
    """They have one base."""
    (base,) = Microkernel.__bases__
    assert {type(each) for _, each in WRITTEN} == set(base.__subclasses__())


@pytest.mark.parametrize(("operation", "kernel"), WRITTEN, ids=lambda each: each.kind)
def test_an_entry_of_a_library_is_the_same_kernel(operation: Operation, kernel: Configuration):
    """Under the name of entries: `compile --library` and the benchmark of winners compile it."""
    own = render_module(operation, [Dispatch(operation, kernel)])
    tuned = Tuned(kernel)
    entry = render_module(operation, [Dispatch(operation, tuned)])
    assert entry == own.replace(kernel.name, tuned.name)
