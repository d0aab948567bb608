"""Group norms of images in channels_last memory, and activations behind them, compute what torch computes in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from aot_graphs import inference_graph
from program_helpers import check_close, launched
from torch.nn import functional

from dispatch_profiler.boo.backends import backend
from dispatch_profiler.boo.fusion.match.glue import find_glue
from dispatch_profiler.boo.fusion.match.matching import find_regions
from dispatch_profiler.boo.fusion.nodes import NotFusible
from dispatch_profiler.boo.fusion.programs.group_norm import group_norm_plan
from dispatch_profiler.boo.fusion.programs.programs import OperatorProgram
from dispatch_profiler.boo.fusion.schema import DEFAULT_SUPPORTED_BOO_FUSIONS

pytestmark = pytest.mark.usefixtures("kernels_of_this_run")
KERNEL = "hal.executable.source"


def norm(groups: int, *, weight: bool = True, bias: bool = True) -> Callable[[Any], Any]:
    def function(x: Any) -> Any:
        channels = x.shape[1]
        terms = [torch.linspace(0.5, 2, channels) if weight else None]
        return functional.group_norm(x, groups, *terms, torch.linspace(-1, 1, channels) if bias else None)

    return function


def programs_of(
    function: Callable[[Any], Any], channels: int, pixels: tuple[int, ...], *, is_read: bool = True
) -> list[Any]:
    """The programs between two convolutions, or behind one."""
    convolve = functional.conv2d if len(pixels) == 2 else functional.conv3d
    weight = torch.randn(channels, 3, *[1] * len(pixels))

    def compute(x: Any, weight: Any) -> Any:
        y = function(convolve(x, weight))
        return convolve(y, torch.ones(2, channels, *[1] * len(pixels))) if is_read else y

    graph = inference_graph(compute, torch.randn(2, 3, *pixels), weight).graph
    regions, _ = find_regions(graph, DEFAULT_SUPPORTED_BOO_FUSIONS)
    return [each.spec.operation for each in find_glue(graph, regions)]


def check(program: OperatorProgram, change: Callable[[np.ndarray], None] = lambda _: None) -> None:
    """The kernels compute what torch computes, also of images that are far from zero."""
    rng = np.random.default_rng(3)
    for distribution in program.distributions:
        operands = [program.draw(each, distribution, rng) for each in program.operands]
        change(operands[0])
        (found,), (reference,) = launched(program, operands), program.reference(operands)
        check_close(found, reference)


@pytest.mark.some(4)
@pytest.mark.parametrize(
    ("function", "channels", "pixels"),
    [
        (norm(2), 8, (5, 7)),
        (norm(7), 21, (5, 7)),
        (norm(1, weight=False), 70, (3, 3)),
        (norm(32, bias=False), 160, (24, 30)),
        (norm(4, weight=False, bias=False), 64, (2, 3, 4)),
        (lambda x: functional.silu(norm(3)(x)), 48, (9, 9)),
        (lambda x: norm(4)(x).relu(), 20, (4, 4)),
    ],
)
def test_group_norms(function: Callable[[Any], Any], channels: int, pixels: tuple[int, ...]) -> None:
    (program,) = programs_of(function, channels, pixels)
    assert KERNEL in program.mlir("f")
    check(program)


def test_pixels_are_divided_into_parts_that_need_not_be_equal() -> None:
    (program,) = programs_of(norm(2), 16, (67, 67))
    plan = group_norm_plan(program)
    assert (plan.parts, plan.part, plan.pixels) == (4, 1123, 4489)
    check(program)


def test_what_is_no_number_stays_in_its_group() -> None:
    (program,) = programs_of(norm(4), 16, (5, 7))

    def change(image: np.ndarray) -> None:
        image[0, 2, 3, 5] = np.nan
        image[1, 4, 0, 9] = np.inf

    check(program, change)


def test_other_steps_are_programs_of_their_own() -> None:
    titles = [each.title for each in programs_of(lambda x: norm(2)(x * 2).relu().exp(), 8, (5, 7))]
    assert titles == ["mul", "native_group_norm_relu", "exp"]


def test_views_are_copied_before_and_behind() -> None:
    programs = programs_of(lambda x: norm(2)(x.flatten(2)).reshape(2, 8, 5, 7), 8, (5, 7))
    assert sum("group_norm" in each.title for each in programs) == 1
    for program in programs:
        check(program)


def test_iree_compiles_those_whose_channels_come_first() -> None:
    (program,) = programs_of(norm(2), 8, (5, 7), is_read=False)
    assert KERNEL not in program.mlir("f")
    with pytest.raises(NotFusible, match="channels_last"):
        group_norm_plan(program)
    check(program)


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 1e-4), pytest.param(torch.bfloat16, 0.1, marks=pytest.mark.slow)]
)
def test_a_network_with_group_norms(dtype: torch.dtype, tolerance: float) -> None:
    """In bf16, torch rounds what its norm returns, and its activation."""
    model = torch.nn.Sequential(
        *(torch.nn.Conv2d(3, 24, 3, padding=1), torch.nn.GroupNorm(4, 24), torch.nn.SiLU()),
        *(torch.nn.Conv2d(24, 8, 3, padding=1), torch.nn.GroupNorm(8, 8)),
    )
    model = model.eval().to(dtype)
    compiled: Any = torch.compile(model, backend=backend(autotune=False, strict=True), dynamic=False)
    x = torch.randn(2, 3, 9, 11, dtype=dtype)
    with torch.inference_mode():
        torch.testing.assert_close(compiled(x), model(x), rtol=tolerance, atol=tolerance)
